"""Where a job's data lies, where it may lie, and what it costs to bring it to a region before the job begins there.

Holdfast ships no price of transfer: it depends on the pair of regions and on the contract, so the user states it.
"""

# Why it is so: infra/decisions/0057.

from dataclasses import dataclass, replace

from holdfast.contract.errors import InputError
from holdfast.contract.values import between
from holdfast.place.belief import Option

MAX_GIB = 10.0**7
MAX_USD_PER_GIB = 10.0
MAX_MIB_PER_S = 10.0**6
MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    usd: float
    hours: float


NO_MOVE = Move(usd=0.0, hours=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Nothing stated: no data to move, and no region excluded."""

    within: tuple[str, ...] = ()
    """Regions, or beginnings of their names up to a dash (`europe`), in which data may lie; empty: anywhere."""
    region: str = ""
    """Of the bucket with checkpoint and data set."""
    gib: float = 0.0
    usd_per_gib: float | None = None
    mib_per_s: float | None = None

    def __post_init__(self) -> None:
        stated = (bool(self.region), bool(self.gib), self.usd_per_gib is not None, self.mib_per_s is not None)
        # A transfer without a price or a rate would count as free or instant, and win.
        if any(stated) and not all(stated):
            raise InputError(
                "data in another region", got="only some of its four options",
                allowed="--data-in, --data-gib, --transfer-usd and --transfer-rate together",
                fix="as in --data-in us-central1 --data-gib 500 --transfer-usd 0.05 --transfer-rate 400",
            )  # fmt: skip
        between("--data-gib", self.gib, 0, MAX_GIB, fix="GiB of checkpoint and data set, as in --data-gib 500")
        between("--transfer-usd", self.usd_per_gib or 0.0, 0, MAX_USD_PER_GIB, fix="USD a GiB, as on your price list")
        if self.mib_per_s is not None:
            between("--transfer-rate", self.mib_per_s, 1e-3, MAX_MIB_PER_S, fix="MiB a second, as you measured it")

    def allows(self, region: str) -> bool:
        return not self.within or any(region == each or region.startswith(f"{each}-") for each in self.within)

    def allowed(self, regions: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the regions in which the data may lie; InputError where none is left."""
        found = tuple(region for region in regions if self.allows(region))
        if not found:
            raise InputError(
                "data residency", got=f"--within {','.join(self.within)}: none of {', '.join(regions)}",
                allowed="regions, or beginnings of their names as europe", fix="widen --within, or take another --region",
            )  # fmt: skip
        return found

    def move(self, region: str) -> Move:
        """Of all the data, once, before the job can begin there."""
        if not self.region or region == self.region:
            return NO_MOVE
        assert self.usd_per_gib is not None
        assert self.mib_per_s is not None
        return Move(usd=self.gib * self.usd_per_gib, hours=self.gib * MIB_PER_GIB / self.mib_per_s / 3_600)


def after(move: Move, options: list[Option]) -> list[Option]:
    """The same options with the move before them."""
    if move == NO_MOVE:
        return options
    return [
        replace(
            o, usd=o.usd + move.usd, finish_h=o.finish_h + move.hours,
            usd_weeks=None if o.usd_weeks is None else o.usd_weeks + move.usd,
        )
        for o in options
    ]  # fmt: skip


def parse_within(text: str) -> tuple[str, ...]:
    """`europe,us-central1`; empty text is anywhere."""
    found = tuple(each.strip().lower().rstrip("-") for each in text.split(","))
    if text and not all(found):
        raise InputError(
            "--within", got=text, allowed="names with commas between", fix="as in --within europe,us-east4"
        )
    return found if text else ()
