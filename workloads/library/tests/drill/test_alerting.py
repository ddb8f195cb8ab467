"""Whether an alert would have fired is Prometheus's own answer; without it nobody claims one."""

import shutil

import pytest

from holdfast.drill.alerting import fires, rule_test_of, verdict_of
from holdfast.drill.catalogue import BURST
from holdfast.drill.target import Loss
from tests import support
from tests.tools.build import TOOLS

RULE = {"alert": "A", "expr": 'x{cluster_name="c"} > 1', "for": "30s"}


def test_each_lost_machine_is_one_sample_of_its_pool() -> None:
    losses = [Loss(100.0, "spot"), Loss(101.0, "spot"), Loss(131.0, "spot"), Loss(116.0, "other")]
    (case,) = rule_test_of(RULE, losses)["tests"]
    assert [series["values"] for series in case["input_series"]] == ["_ 1 _", "2 _ 1"]
    assert all('cluster_name="c"' in series["series"] for series in case["input_series"])
    assert case["alert_rule_test"] == [{"eval_time": "135s", "alertname": "A", "exp_alerts": []}]


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("Unit Testing: t\n  SUCCESS\n", 0.0),
        ('  FAILED:\n alertname: A\n exp:[]\n got:[0: Labels:{alertname="A"}]', 1.0),
        ("  FAILED:\n bad input series", None),
        ("", None),
    ],
)
def test_the_output_of_promtool_is_a_verdict_only_when_it_judged(output: str, verdict: float | None) -> None:
    assert verdict_of(output, "A") == verdict


@pytest.mark.parametrize(
    ("losses", "path"), [([], None), ([Loss(1.0, "spot")], "/nowhere")], ids=["nothing lost", "no promtool"]
)
def test_without_losses_or_promtool_nothing_is_measured(
    losses: list[Loss], path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path:
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("HOLDFAST_PROMTOOL", raising=False)
    assert fires(BURST, losses) is None


@pytest.mark.process
@pytest.mark.parametrize(("count", "fired"), [(1, 0.0), (8, 1.0)])
def test_a_storm_fires_the_burst_alert_and_a_lone_loss_does_not(
    count: int, fired: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = TOOLS["promtool"].binary
    support.require(shutil.which("promtool") or built.exists(), "`make tools` has not built promtool")
    if not shutil.which("promtool"):
        monkeypatch.setenv("HOLDFAST_PROMTOOL", str(built))
    assert fires(BURST, [Loss(1_000.0 + n, "spot-l4") for n in range(count)]) == fired
