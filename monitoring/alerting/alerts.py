"""The alerts of alerts.toml and of a fork's own modules, with an environment's values in their
queries.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError
from monitoring.alerting.alert import Alert, AlertSource, Severity, Values, filled


def alerts(values: Values, modules: Sequence[str] = ()) -> tuple[Alert, ...]:
    """Those of the platform, then those of `modules`, with `values` in their queries.

    Raises InputError for a module that adds none that can be used.
    """
    added = tuple(alert for module in modules for alert in _of_module(module))
    every = [
        replace(alert, query=filled(alert.query, values)) for alert in (*OF_THE_PLATFORM, *added)
    ]
    names = [alert.name for alert in every]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            "alerts.modules: names",
            got=", ".join(twice),
            allowed="each name once",
            fix="rename yours",
        )
    return tuple(every)


def _of_module(module: str) -> tuple[Alert, ...]:
    allowed = "a module with `def alerts() -> Iterable[Alert]`, each with query and runbook"
    try:
        found = tuple(import_module(module).alerts())
    except (ImportError, AttributeError, TypeError) as error:
        got = f"{module}: {error}"
        fix = "correct the name, or install what it needs"
        raise InputError(
            "alerts.modules",
            got=got,
            allowed=allowed,
            fix=fix,
        ) from error
    wrong = []
    for each in found:
        if not (isinstance(each, Alert) and each.query and each.runbook):
            wrong.append(each)
    if wrong or not found:
        got = f"{module}: {getattr(wrong[0], 'name', wrong[0]) if wrong else 'no alert'}"
        raise InputError(
            "alerts.modules",
            got=got,
            allowed=allowed,
            fix="give each alert a query and a runbook",
        )
    return found


def _rose(series: str, by: str, window: str, more_than: int = 0) -> str:
    """A counter rose within the window. A series that is new in the window counts with all it has:
    increase() alone would sleep through the first event ever."""
    began = f"sum by ({by}) ({series} unless max_over_time({series}[{window}] offset {window}))"
    return f"sum by ({by}) (increase({series}[{window}])) > {more_than} or {began} > {more_than}"


def _read(
    severity: str,
    query: str = "",
    source: str = AlertSource.PROMQL,
    rises: dict[str, Any] | None = None,
    **text: Any,
) -> Alert:
    parts = [query] if query else []
    parts += [_rose(**rises)] if rises else []
    return Alert(
        severity=Severity(severity),
        query=" or ".join(parts),
        source=AlertSource(source),
        **text,
    )


_LISTED = tomllib.loads(Path(__file__).with_name("alerts.toml").read_text())["alert"]
OF_THE_PLATFORM = tuple(_read(**each) for each in _LISTED)
OF_SERVERS = frozenset(
    alert.name for alert in OF_THE_PLATFORM if alert.name.startswith("HoldfastServing")
)
"""Names of those that read what servers and their proxies write."""
