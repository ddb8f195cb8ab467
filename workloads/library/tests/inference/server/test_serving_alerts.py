"""Tests of the serving alerts with the series that a real server and a real proxy export."""

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
from monitoring.alerting.alert import EXAMPLE, Alert
from monitoring.alerting.alerts import OF_SERVERS, alerts
from tests.monitoring.alerting import logfilter, promtool
from tests.monitoring.alerting.promtool import History
from workloads.library.tests.inference.server.serving import (
    INFER,
    PREDICTORS,
    Client,
    serve,
    texts,
)
from workloads.library.tests.processes import until
from workloads.library.tests.training.hooks import before_import

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN)$")
Scrape = dict[tuple[str, str], float]
ALERTS = {alert.name: alert for alert in alerts(EXAMPLE)}


def scrape(port: int, path: str) -> Scrape:
    """Returns values by name and labels."""
    _, text = admin(port, path)
    values: Scrape = {}
    for line in text.splitlines():
        match = SERIES.match(line)
        if match:
            values[match[1], match[2] or ""] = float(match[3])
    return values


def history(before: Scrape, after: Scrape, *, fires: bool) -> History:
    """Makes a history: twenty minutes as `before`, then the difference of the scrapes each minute.

    Its labels are those of the collector.
    """
    target = (
        f'cluster="{EXAMPLE["cluster"]}",namespace="serving",pod="server-base-1",'
        f'{serving.TIER_LABEL}="{serving.TIER_BASE}"'
    )
    series: list[tuple[str, str]] = []
    for (name, labels), value in after.items():
        if not name.startswith(("holdfast_server_", "envoy_http_downstream_rq_xx")):
            continue
        first = before.get((name, labels), 0.0)
        if value >= first:
            samples = f"{first:g}x19 {first:g}+{value - first:g}x20"
        else:
            samples = f"{first:g}x19 {value:g}x20"
        own_labels = f"{labels.rstrip(',')}," if labels else ""
        series.append((f"{name}{{{own_labels}{target}}}", samples))
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
def test_the_alerts_fire_on_series_from_a_real_server_and_proxy(
    tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(promtool.program(), "no promtool")
    # One request waits and another is computed: more are refused, and without a server all fail.
    command = holdfast_server(f"{PREDICTORS}:gpu_like", "--batch", "1", "--queue", "1")
    fleet = Fleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=command,
    )
    with fleet.running(1):
        (server,) = fleet.replicas
        scrape_server = partial(scrape, server.port, "/metrics")
        scrape_proxy = partial(scrape, fleet.metrics_port, serving.PROXY_METRICS_PATH)
        server_before = scrape_server()
        proxy_before = scrape_proxy()
        for _ in range(6):  # one by one, so that none is refused on a slow machine
            assert Client(fleet.port).infer("a request").status == 200
        server_calm = scrape_server()
        proxy_calm = scrape_proxy()
        loaded = _load(fleet.port, 1.5, 300)
        server_loaded = scrape_server()
        server.pod.kill()
        until(lambda: not server.ready, "the only server to leave the proxy")
        failing = _load(fleet.port, 0.5, 60)
        proxy_lost = scrape_proxy()
    assert loaded.codes["429"], loaded.codes
    assert failing.codes["503"], failing.codes
    cases = (
        ("Sheds", server_calm, server_loaded, True),
        ("Sheds", server_before, server_calm, False),
        ("ErrorsBurnBudget", proxy_calm, proxy_lost, True),
        ("ErrorsBurnBudget", proxy_before, proxy_calm, False),
        ("BaseBelowPromise", server_before, server_calm, True),  # one of two servers runs
        ("QueueSlow", server_calm, server_loaded, False),
    )
    histories: list[tuple[Alert, History]] = []
    for name, before, after, fires in cases:
        alert = ALERTS[f"HoldfastServing{name}"]
        histories.append((alert, history(before, after, fires=fires)))
    for outcome in promtool.run(histories):
        assert outcome.held, f"{outcome.alert}: {outcome.output}"


@pytest.mark.process
def test_the_log_alert_matches_a_drain_over_its_budget(tmp_path: Path) -> None:
    # All waits of the server have timeouts: only a blocked event loop exceeds the budget.
    blocking = (
        "import time\n"
        "from holdfast.inference.server.drain import Drain\n"
        "Drain.notice = lambda *_: time.sleep(600)\n"
    )
    env = before_import(tmp_path / "site", "holdfast.inference.server.process", blocking)
    with serve(tmp_path, "--window", "9", env=env) as server:
        server.signal(signal.SIGTERM)
        assert server.wait() == 143
        lines = server.lines()
    resource = {
        "type": "k8s_container",
        "labels": {"cluster_name": EXAMPLE["cluster"]},
    }
    query = ALERTS["HoldfastServingDrainOverBudget"].query
    messages: list[str] = []
    for line in lines:
        if logfilter.matches(query, {"resource": resource, "jsonPayload": line}):
            messages.append(line["message"])
    assert messages == [serving.OVER_BUDGET]


def test_server_proxy_and_router_export_every_series_in_the_alerts() -> None:
    exported = {*serving.SERVER_METRICS, *serving.ROUTER_METRICS, serving.PROXY_ANSWERS}
    for alert in alerts(EXAMPLE):
        if alert.name not in OF_SERVERS:
            continue
        for name in re.findall(r"(\w+)\{", alert.query):
            assert name.removesuffix("_bucket") in exported, alert.name
