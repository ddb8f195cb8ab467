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
from monitoring.alerting.alert import (
    Alert,
    AlertSource,
    Severity,
    Values,
    fill,
    select_namespaces,
)


def alerts(values: Values, modules: Sequence[str] = ()) -> tuple[Alert, ...]:
    """Return the platform's alerts, then those of `modules`, with `values` in their queries.

    Raises InputError if a module adds no usable alert, or a name that exists.
    """
    templates = list(OF_THE_PLATFORM)
    for module in modules:
        templates += _load_module(module)
    names: set[str] = set()
    duplicates: set[str] = set()
    for template in templates:
        if template.name in names:
            duplicates.add(template.name)
        names.add(template.name)
    if duplicates:
        raise InputError(
            "alerts.modules: names",
            got=", ".join(sorted(duplicates)),
            allowed="each name once",
            fix="rename yours",
        )
    filled = []
    for template in templates:
        query = fill(template.query, values)
        job_query = fill(template.job_query, values)
        filled.append(replace(template, query=query, job_query=job_query))
    return tuple(filled)


def list_team_alerts(
    values: Values,
    namespaces: Sequence[str],
    modules: Sequence[str] = (),
) -> tuple[Alert, ...]:
    """Return the alerts about jobs, over the series of a team's namespaces."""
    about_jobs = []
    for alert in alerts({**values, **select_namespaces(namespaces)}, modules):
        if alert.job_query:
            about_jobs.append(replace(alert, query=alert.job_query))
    return tuple(about_jobs)


def _load_module(module: str) -> list[Alert]:
    allowed = "a module with `def alerts() -> Iterable[Alert]`, each with query and runbook"
    try:
        items = list(import_module(module).alerts())
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(
            "alerts.modules",
            got=f"{module}: {error}",
            allowed=allowed,
            fix="correct the name, or install what it needs",
        ) from error
    defects = [] if items else ["no alert"]
    for item in items:
        if not (isinstance(item, Alert) and item.query and item.runbook):
            defects.append(str(getattr(item, "name", item)))
    if defects:
        raise InputError(
            "alerts.modules",
            got=f"{module}: {defects[0]}",
            allowed=allowed,
            fix="give each alert a query and a runbook",
        )
    return items


def _query_rise(
    series: str,
    by: str,
    window: str,
    more_than: int = 0,
) -> str:
    """Return a query that is true if a counter rose within the window. A series that is new in the
    window counts with its whole value: increase() alone would miss the first event.
    """
    rise = f"sum by ({by}) (increase({series}[{window}]))"
    new = f"sum by ({by}) ({series} unless max_over_time({series}[{window}] offset {window}))"
    return f"{rise} > {more_than} or {new} > {more_than}"


def _parse(
    severity: str,
    query: str = "",
    source: str = AlertSource.PROMQL,
    rises: dict[str, Any] | None = None,
    of_jobs: bool = False,
    **text: Any,
) -> Alert:
    parts = [query] if query else []
    if rises:
        parts.append(_query_rise(**rises))
    return Alert(
        severity=Severity(severity),
        query=" or ".join(parts),
        # The counter is about jobs; a query before it is about the platform.
        job_query=parts[-1] if of_jobs else "",
        source=AlertSource(source),
        **text,
    )


_FILE = Path(__file__).with_name("alerts.toml")
_TABLES = tomllib.loads(_FILE.read_text())["alert"]
OF_THE_PLATFORM = tuple(_parse(**table) for table in _TABLES)
OF_SERVERS = frozenset(
    alert.name for alert in OF_THE_PLATFORM if alert.name.startswith("HoldfastServing")
)
"""Names of alerts that read series of servers and their proxies."""
