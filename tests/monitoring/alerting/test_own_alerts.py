"""Alerts of a module that the environment names: no file of the platform is edited for them."""

import sys
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from monitoring.alerting import runbook
from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.alerts import alerts

MODULE = """
from monitoring.alerting.alert import Alert, Severity


def alerts():
    query = 'acme_queue_depth{cluster="$cluster"} > 100'
    yield Alert(name="AcmeQueueDeep", severity=Severity.TICKET, why="users wait", query=query, runbook=RUNBOOK)


RUNBOOK = "**Meaning.** Users wait."
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that is installed beside the platform."""
    (tmp_path / "acme_alerts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("acme_alerts", None)
    return "acme_alerts"


def test_they_come_after_those_of_the_platform_and_carry_their_own_runbook(outside: str) -> None:
    every = alerts(EXAMPLE, [outside])
    assert every[:-1] == alerts(EXAMPLE)
    text = runbook.documentation(every[-1], "https://git.example.org/runbook.md")
    assert "Users wait" in text.content and text.url == "", "the platform's runbook has no section for it"
    assert EXAMPLE["cluster"] in every[-1].query


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("AcmeQueueDeep", "HoldfastMonitoringSilent"), "each name once"),
        ((", runbook=RUNBOOK", ""), "AcmeQueueDeep"),
        (("def alerts", "def others"), "no attribute"),
        (("$cluster", "$clusters"), "clusters"),
        (("from monitoring", "import acme_absent\nfrom monitoring"), "acme_absent"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused(
    outside: str, tmp_path: Path, change: tuple[str, str], named: str
) -> None:
    (tmp_path / "acme_alerts.py").write_text(MODULE.replace(*change))
    with pytest.raises(InputError) as error:
        alerts(EXAMPLE, [outside])
    assert named in str(error.value)
