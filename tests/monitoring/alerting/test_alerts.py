"""Every alert under the real Prometheus engine: fires in time, stays silent on good days, and no
part of its query is idle.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.support.errors import InputError, Unjudged
from monitoring.alerting import runbook
from monitoring.alerting.alert import EXAMPLE, Alert, AlertSource, Severity, fill
from monitoring.alerting.alerts import alerts, list_team_alerts
from tests.monitoring.alerting import logfilter, play, promtool
from tests.monitoring.alerting.firings import Recorder, firings
from tests.monitoring.alerting.rule_cases import CASES
from tests.tools import build

ALERTS = alerts(EXAMPLE)
PROMQL = [alert for alert in ALERTS if alert.source is AlertSource.PROMQL]


@pytest.fixture
def engine(require: Callable[[object, str], None]) -> None:
    try:
        promtool.program()
    except Unjudged as error:
        require(False, str(error))


OLD = (
    "Unit Testing:  a.json\n  SUCCESS\n\nUnit Testing:  b.json\n  FAILED:\n    alertname: A, time:"
    " 3m, \n        exp:[], \n\n\n"
)
NEW = "  SUCCESS\n\n  FAILED:\n    alertname: A, time: 3m, \n        exp:[], \n\n\n"


def test_promtool_2_and_3_verdicts_are_read_and_other_output_is_not() -> None:
    """Other output must never read as `every alert is broken`."""
    for output in (OLD, NEW):
        (passed, _), (broken, detail) = promtool.verdicts(output, 2)
        assert passed
        assert not broken
        assert "exp:[]" in detail
    for output in (NEW.replace("  SUCCESS\n", ""), NEW + "  SUCCESS\n", "", "promtool: error"):
        with pytest.raises(Unjudged, match="for 2 files"):
            promtool.verdicts(output, 2)


@pytest.mark.process
@pytest.mark.usefixtures("engine")
def test_every_alert_fires_in_time_and_is_silent_otherwise() -> None:
    cases = []
    for alert in PROMQL:
        cases += [(alert, history) for history in CASES[alert.name]]
    outcomes = promtool.run(cases)
    assert len(outcomes) > 50
    assert [f"{o.alert}: {o.output}" for o in outcomes if not o.held] == []


def list_namespaces(history: promtool.History) -> set[str]:
    """Return the namespaces that the series of a history name."""
    text = " ".join(series for series, _ in history.series)
    return set(re.findall(r'namespace(?:_name)?="([^"]+)"', text))


@pytest.mark.process
@pytest.mark.usefixtures("engine")
def test_team_hears_about_its_own_jobs_only() -> None:
    """Plays each alert about jobs for the team of its history's namespaces and for another."""
    cases = []
    strangers = {alert.name: alert for alert in list_team_alerts(EXAMPLE, ("elsewhere",))}
    for name, stranger in strangers.items():
        for history in CASES[name]:
            namespaces = list_namespaces(history)
            if not history.fires or not namespaces:
                continue
            team_alerts = list_team_alerts(EXAMPLE, sorted(namespaces))
            for alert in team_alerts:
                if alert.name == name:
                    cases.append((alert, history))
            cases.append((stranger, replace(history, fires=())))
    names = {alert.name for alert, _ in cases}
    assert names == set(strangers)
    outcomes = promtool.run(cases)
    assert [f"{o.alert}: {o.output}" for o in outcomes if not o.held] == []


@pytest.mark.parametrize("alert", PROMQL, ids=lambda a: a.name)
def test_every_alert_has_a_bad_and_a_good_history(alert: Alert) -> None:
    histories = CASES[alert.name]
    assert any(history.fires for history in histories)
    assert any(not history.fires for history in histories)
    assert any(history.quiet_until_min >= 0 for history in histories), "when does it begin to fire?"


@pytest.mark.process
@pytest.mark.usefixtures("engine")
def test_changing_any_threshold_label_or_metric_breaks_a_case() -> None:
    """A query part that no case notices could be edited away unseen."""
    mutants: list[Alert] = []
    for alert in PROMQL:
        mutants += mutate(alert)
    assert len(mutants) > 100
    # A mutant that a case has noticed is not played again.
    for turn in range(max(map(len, CASES.values()))):
        cases = []
        unnoticed = []
        for mutant in mutants:
            if turn < len(CASES[mutant.name]):
                cases.append((mutant, CASES[mutant.name][turn]))
            else:
                unnoticed.append(mutant)
        for (mutant, _), outcome in zip(cases, promtool.run(cases), strict=True):
            if outcome.held:
                unnoticed.append(mutant)
        mutants = unnoticed
    lines = []
    for mutant in mutants:
        lines.append(f"{mutant.name} {mutant.query} {mutant.hold_s}")
    assert not mutants, "\n".join(lines)


def mutate(alert: Alert) -> Iterator[Alert]:
    """The query with one number halved or doubled, one label value or metric name changed; the hold
    dropped.
    """
    for match in re.finditer(
        r"(?<![\w:.\"-])\d+(?:\.\d+)?(?![\w.:\"])|(?<=\[)\d+(?=[smh]\])|(?<=offset )\d+",
        alert.query,
    ):
        value = float(match[0])
        for changed in (value / 2, value * 2 + (value == 0)):
            if match[0] == "120" or changed == value:
                continue  # the floor of two minutes has a case of its own below
            text = f"{changed:g}" if "." in match[0] or changed % 1 == 0 else f"{changed:.0f}"
            if alert.query[match.end() : match.end() + 1] in ("s", "m", "h") and changed < 1:
                text = "1"
                if match[0] == "1":
                    continue
            yield replace(
                alert, query=alert.query[: match.start()] + text + alert.query[match.end() :]
            )
    for match in re.finditer(r'="([^"]+)"', alert.query):
        yield replace(
            alert, query=alert.query[: match.start(1)] + "renamed" + alert.query[match.end(1) :]
        )
    for match in re.finditer(
        r"\w+:\w+|\b(?:holdfast_server|holdfast_router|envoy_http)_\w+(?={)", alert.query
    ):
        yield replace(
            alert, query=alert.query[: match.start()] + "renamed" + alert.query[match.end() :]
        )
    if alert.hold_s > 60:
        yield replace(alert, hold_s=0)


def test_no_alert_is_named_twice_and_every_one_gives_its_reason() -> None:
    assert len({alert.slug for alert in ALERTS}) == len(ALERTS) >= 17
    for alert in ALERTS:
        assert alert.why
        assert alert.name.startswith("Holdfast")
    severities = {alert.severity for alert in ALERTS}
    assert severities >= {Severity.PAGE, Severity.TICKET}
    for alert in ALERTS:
        assert alert.hold_s % 30 == 0


def test_a_limit_that_is_moved_reaches_its_query() -> None:
    moved = {
        **EXAMPLE,
        "spot_pending_s": 777,
        "goodput_min": 0.55,
        "heartbeat_s": 300,
    }
    text = " ".join(alert.query for alert in alerts(moved))
    for value in ("> 777", "< 0.55", "> 300"):
        assert value in text


# What the autoscaler's log calls a failure that waiting does not cure, and what it calls a wait.
FAILURES = (
    {"resultInfo": {"results": [{"errorMsg": {"messageId": "scale.up.error.quota.exceeded"}}]}},
    {"resultInfo": {"results": [{"errorMsg": {"messageId": "scale.up.error.out.of.resources"}}]}},
    {
        "noDecisionStatus": {
            "noScaleUp": {
                "unhandledPodGroups": [
                    {
                        "napFailureReasons": [
                            {"messageId": "no.scale.up.nap.pod.gpu.no.limit.defined"}
                        ]
                    }
                ]
            }
        }
    },
)
WAITS = (
    {"resultInfo": {"results": [{"eventId": "fine"}]}},
    {"noDecisionStatus": {"noScaleUp": {"reason": {"messageId": "no.scale.up.in.backoff"}}}},
)


def test_the_log_filter_takes_the_failures_that_waiting_does_not_cure() -> None:
    def is_scale_failure(payload: object, cluster: str = "c") -> bool:
        log = "projects/p/logs/container.googleapis.com%2Fcluster-autoscaler-visibility"
        resource = {
            "type": "k8s_cluster",
            "labels": {"cluster_name": "c"},
        }
        entry = {
            "resource": resource,
            "logName": log,
            "jsonPayload": payload,
        }
        return logfilter.matches(fill("$scale_failures", {"cluster": cluster}), entry)

    assert all(map(is_scale_failure, FAILURES))
    assert not any(map(is_scale_failure, WAITS))
    assert not is_scale_failure(FAILURES[0], "other")


def test_unplayable_alerts_give_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play.find("spot-preemption-burst") == play.find("HoldfastSpotPreemptionBurst")
    with pytest.raises(InputError, match="HoldfastDeadLetters"):
        play.find("HoldfastDeadLetter")
    with pytest.raises(Unjudged, match="log entries"):
        play.play(play.find("autoscaler-cannot-scale"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build, "CACHE", tmp_path)
    with pytest.raises(Unjudged, match="make tools"):
        promtool.program()


# Alerts of a module that the environment names: no file of the platform is edited for them.

MODULE = """
from monitoring.alerting.alert import Alert, Severity


def alerts():
    query = 'acme_queue_depth{cluster="$cluster"} > 100'
    yield Alert(
        name="AcmeQueueDeep",
        severity=Severity.TICKET,
        why="users wait",
        query=query,
        runbook=RUNBOOK,
    )


RUNBOOK = "**Meaning.** Users wait."
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that is installed next to the platform."""
    (tmp_path / "acme_alerts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("acme_alerts", None)
    return "acme_alerts"


def test_added_alerts_come_last_and_have_their_own_runbook(outside: str) -> None:
    every = alerts(EXAMPLE, [outside])
    assert every[:-1] == alerts(EXAMPLE)
    text = runbook.documentation(
        every[-1], "https://git.example.org/runbook.md", {"ENV": "example"}, "gcloud"
    )
    assert "Users wait" in text.content, "the platform's runbook has no section for it"
    assert text.url == "", "the platform's runbook has no section for it"
    assert EXAMPLE["cluster"] in every[-1].query


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("AcmeQueueDeep", "HoldfastMonitoringSilent"), "each name once"),
        (("        runbook=RUNBOOK,\n", ""), "AcmeQueueDeep"),
        (("def alerts", "def others"), "no attribute"),
        (("$cluster", "$clusters"), "clusters"),
        (("from monitoring", "import acme_absent\nfrom monitoring"), "acme_absent"),
    ],
)
def test_an_unusable_module_is_refused(
    outside: str,
    tmp_path: Path,
    change: tuple[str, str],
    named: str,
) -> None:
    (tmp_path / "acme_alerts.py").write_text(MODULE.replace(*change))
    with pytest.raises(InputError) as error:
        alerts(EXAMPLE, [outside])
    assert named in str(error.value)


OURS = "custom_googleapis_com:holdfast_"
BLIND = range(200, 240)


def history() -> Recorder:
    """Ten hours: an exporter that is away for 40 minutes, a job that waits all along, two damaged
    checkpoints.
    """
    recorder = Recorder(began_s=1_700_000_000.0)
    cluster = {"cluster": EXAMPLE["cluster"], "cluster_name": EXAMPLE["cluster"]}
    for minute in range(1, 600):
        recorder.minute = minute
        if minute in BLIND:
            continue
        recorder.add(f"{OURS}exporter_heartbeat_seconds", cluster, 60.0 * minute)
        recorder.add(
            f"{OURS}queue_wait_seconds",
            cluster
            | {
                "queue": "spot",
                "accelerator": "l4",
                "reason": "quota",
                "flavor": "spot",
            },
            60.0 * minute,
        )
        damaged = sum(minute >= loss_minute for loss_minute in (100, 421))
        recorder.add(f"{OURS}restores_skipped_total", cluster | {"job": "a"}, damaged)
    return recorder


@pytest.mark.process
def test_time_slices_fire_like_the_whole_recording() -> None:
    whole = firings(alerts(EXAMPLE), history(), slice_min=1_000)
    assert [firing.alert for firing in whole] == [
        "HoldfastRestoreSkippedCheckpoint",
        "HoldfastMonitoringSilent",
        "HoldfastQueueWaitTooLong",
        "HoldfastRestoreSkippedCheckpoint",
    ]
    assert firings(alerts(EXAMPLE), history(), slice_min=97) == whole
