"""The alerts about online inference on what a real server and a real proxy export: no name of our
own on both sides.
"""

import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.drill.serving.fleet import HOST, Fleet, admin, holdfast_server
from holdfast.drill.serving.load import Load
from holdfast.vocabulary import serving
from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.alerts import OF_SERVERS, alerts
from tests.monitoring.alerting import logfilter, promtool
from tests.monitoring.alerting.promtool import History
from workloads.library.tests.inference.server.serving import (
    INFER,
    PREDICTORS,
    Client,
    served,
    texts,
)
from workloads.library.tests.processes import until
from workloads.library.tests.training.hooks import before_import

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN)$")
Scrape = dict[tuple[str, str], float]
ALERTS = {alert.name: alert for alert in alerts(EXAMPLE)}


def scrape(port: int, path: str) -> Scrape:
    found = (SERIES.match(line) for line in admin(port, path)[1].splitlines())
    return {(match[1], match[2] or ""): float(match[3]) for match in found if match}


def history(before: Scrape, after: Scrape, *, fires: bool) -> History:
    """Twenty minutes as `before`, then each minute what came between the two scrapes, labelled as
    the collector does.
    """
    target = f'cluster="{EXAMPLE["cluster"]}",namespace="serving",pod="server-base-1",{serving.TIER_LABEL}="{serving.TIER_BASE}"'
    series: list[tuple[str, str]] = []
    for (name, labels), value in after.items():
        if not name.startswith(("holdfast_server_", "envoy_http_downstream_rq_xx")):
            continue
        first = before.get((name, labels), 0.0)
        if value >= first:
            legs = f"{first:g}x19 {first:g}+{value - first:g}x20"
        else:
            legs = f"{first:g}x19 {value:g}x20"
        series.append((f"{name}{{{labels.rstrip(',')}{',' if labels else ''}{target}}}", legs))
    return History(
        series=tuple(series),
        at_min=38,
        fires=((),) if fires else (),
    )


def _load(port: int, seconds: float, rate: float) -> Load:
    clients = Load(HOST, port, INFER, texts("a request"))
    with clients.asking(rate):
        time.sleep(seconds)
    return clients


@pytest.mark.process
def test_the_alerts_fire_on_what_server_and_proxy_really_export(
    tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(promtool.program(), "no promtool")
    # One request waits, another is computed: what comes in a burst is refused, and without a server
    # all fails.
    command = holdfast_server(f"{PREDICTORS}:gpu_like", "--batch", "1", "--queue", "1")
    fleet = Fleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=command,
    )
    with fleet.running(1):
        [only] = fleet.ready()
        of_server = partial(scrape, only.port, "/metrics")
        of_proxy = partial(scrape, fleet.metrics_port, serving.PROXY_METRICS_PATH)
        server_before = of_server()
        proxy_before = of_proxy()
        for _ in range(6):  # one after the other: none is refused, however slow the machine
            assert Client(fleet.port).infer("a request").status == 200
        server_calm = of_server()
        proxy_calm = of_proxy()
        loaded = _load(fleet.port, 1.5, 300)
        server_loaded = of_server()
        only.pod.kill()
        until(lambda: not only.ready, "the only server to leave the proxy")
        lost = _load(fleet.port, 0.5, 60)
        proxy_lost = of_proxy()
    assert loaded.codes["429"], loaded.codes
    assert lost.codes["503"], lost.codes
    cases = (
        ("Sheds", server_calm, server_loaded, True),
        ("Sheds", server_before, server_calm, False),
        ("ErrorsBurnBudget", proxy_calm, proxy_lost, True),
        ("ErrorsBurnBudget", proxy_before, proxy_calm, False),
        ("BaseBelowPromise", server_before, server_calm, True),  # one, of the two that are promised
        ("QueueSlow", server_calm, server_loaded, False),
    )
    outcomes = promtool.run(
        [
            (ALERTS[f"HoldfastServing{name}"], history(then, now, fires=fires))
            for name, then, now, fires in cases
        ]
    )
    assert [f"{outcome.alert}: {outcome.output}" for outcome in outcomes if not outcome.held] == []


@pytest.mark.process
def test_a_real_drain_over_its_budget_is_a_line_that_the_log_alert_takes(tmp_path: Path) -> None:
    # The server gives up whatever it waits for by itself: only something that holds its event loop
    # is left.
    hanging = (
        "import time\nfrom holdfast.inference.server.drain import Drain\nDrain.notice = lambda *_:"
        " time.sleep(600)\n"
    )
    stuck = before_import(tmp_path / "site", "holdfast.inference.server.process", hanging)
    with served(tmp_path, "--window", "9", env=stuck) as server:
        server.signal(signal.SIGTERM)
        assert server.ended() == 143
        lines = server.lines()
    resource = {
        "type": "k8s_container",
        "labels": {"cluster_name": EXAMPLE["cluster"]},
    }
    entries = [{"resource": resource, "jsonPayload": line} for line in lines]
    query = ALERTS["HoldfastServingDrainOverBudget"].query
    assert [e["jsonPayload"]["message"] for e in entries if logfilter.matches(query, e)] == [
        serving.OVER_BUDGET
    ]


def test_every_series_of_the_alerts_is_one_that_a_server_or_the_proxy_has() -> None:
    asked = [alert.query for alert in alerts(EXAMPLE) if alert.name in OF_SERVERS]
    named = {name for query in asked for name in re.findall(r"(\w+)\{", query)}
    assert {name.removesuffix("_bucket") for name in named} <= {
        *serving.SERVER_METRICS,
        serving.PROXY_ANSWERS,
    }
