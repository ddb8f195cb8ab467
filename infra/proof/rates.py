"""What bills beside GPU machines: a dated table, each row with its source. GPU machines are in `holdfast.place`.

A price without a date, or with one of long ago, still bounds the cost: it is counted higher, and named.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged

SCHEMA = "holdfast.proof-prices/1"
TABLE = Path(__file__).with_name("prices.json")
STALE_DAYS = 365
MARGIN = 1.25
"""Counted on a price that is undated or older than STALE_DAYS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    part: str
    unit: str
    usd: float
    """Per unit, in the region of the table."""
    flat: bool
    """The same in every region."""
    as_of: str
    """YYYY-MM-DD; empty where the source has no date."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    region: str
    elsewhere: float
    """No region is dearer than the table's by more than this factor."""
    rows: Mapping[str, Rate]
    today: datetime.date

    def usd(self, part: str, region: str) -> float:
        """An upper bound where the region is not the table's. Unjudged where the part has no price."""
        rate = self.rows.get(part)
        if rate is None:
            raise Unjudged(f"no price of {part} in {TABLE.name}: the cost has no bound")
        return self.bound(rate.usd, rate.as_of) * (1.0 if rate.flat or region == self.region else self.elsewhere)

    def bound(self, usd: float, as_of: str) -> float:
        """A price of that date, counted higher where it may have risen since."""
        return usd * MARGIN if self._doubtful(as_of) else usd

    def _doubtful(self, as_of: str) -> bool:
        return not as_of or (self.today - datetime.date.fromisoformat(as_of)).days > STALE_DAYS

    @property
    def doubtful(self) -> list[str]:
        """Parts that are counted higher."""
        return [part for part, rate in self.rows.items() if self._doubtful(rate.as_of)]

    @property
    def dates(self) -> str:
        known = sorted(rate.as_of for rate in self.rows.values() if rate.as_of)
        return f"{known[0]} to {known[-1]}" if known else "no date"


def load(path: Path = TABLE, today: datetime.date | None = None) -> Rates:
    """The table; InputError names what is wrong with it."""
    today = today or datetime.datetime.now(datetime.UTC).date()
    try:
        body = json.loads(path.read_text())
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']}")
        rows = [Rate(**row) for row in body["rows"]]
        if faulty := [rate.part for rate in rows if not (rate.usd > 0 and rate.source)]:
            raise ValueError(f"no price above 0, or no source: {', '.join(faulty)}")
        if future := [rate.part for rate in rows if rate.as_of and datetime.date.fromisoformat(rate.as_of) > today]:
            raise ValueError(f"dated after today: {', '.join(future)}")
        factor = float(body["elsewhere"]["factor"])
        return Rates(region=body["region"], elsewhere=factor, rows={rate.part: rate for rate in rows}, today=today)
    except (OSError, ValueError, KeyError, TypeError) as error:
        got, allowed = f"{type(error).__name__}: {error}", f"an object of schema {SCHEMA}"
        raise InputError(f"price table {path.name}", got=got, allowed=allowed, fix="restore it from git") from error
