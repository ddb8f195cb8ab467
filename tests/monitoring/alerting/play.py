"""`python -m tests.monitoring.alerting.play ALERT`: plays an alert's bad and good histories, shows
what fired.

Exits 0 if the alert fires on its bad histories and on no good one, 1 if not.
"""

from typing import Annotated

import typer

from holdfast.support.errors import InputError, Unjudged, run_cli
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from monitoring.alerting.alert import EXAMPLE, Alert, AlertSource
from monitoring.alerting.alerts import alerts
from tests.monitoring.alerting.promtool import Outcome, run
from tests.monitoring.alerting.rule_cases import CASES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def find(name: str) -> Alert:
    """Find an alert by its name, or by the runbook's slug."""
    by_name = alerts(EXAMPLE)
    for alert in by_name:
        if name in (alert.name, alert.slug):
            return alert
    allowed = ", ".join(alert.name for alert in by_name)
    raise InputError(
        "no such alert",
        got=name,
        allowed=allowed,
        fix="take one of these names, or its slug",
    )


def play(alert: Alert) -> list[Outcome]:
    if alert.source is not AlertSource.PROMQL:
        raise Unjudged(
            f"{alert.name} is judged on {alert.source.value}, which Prometheus cannot play"
        )
    return run([(alert, history) for history in CASES[alert.name]])


@app.command()
def main(alert: Annotated[str, typer.Argument(help="Name or slug.")]) -> None:
    """Play an alert's bad and good histories in Prometheus's engine and show what fired."""
    item = find(alert)
    outcomes = play(item)
    print(f"{item.name} [{item.severity.value}] {item.query}")
    for outcome in outcomes:
        print(_line(outcome))
    if all(outcome.held for outcome in outcomes):
        raise typer.Exit(EXIT_DONE)
    typer.echo(
        "Next: correct the alert, or its histories in tests/monitoring/alerting/rule_cases*.py",
        err=True,
    )
    raise typer.Exit(EXIT_FINDINGS)


def _line(outcome: Outcome) -> str:
    history = outcome.history
    labels = []
    for fired in history.fires:
        labels.append(", ".join(f"{key}={value}" for key, value in fired))
    if labels:
        result = f"fires by minute {history.at_min}: {'; '.join(labels)}"
    else:
        result = f"silent at minute {history.at_min}"
    return f"  {'held  ' if outcome.held else 'BROKEN'} {result}" + (
        "" if outcome.held else f"\n{outcome.output}"
    )


if __name__ == "__main__":
    run_cli(app)
