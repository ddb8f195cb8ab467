"""Tests of requests that end the model, sent to a fleet behind a real Envoy."""

import contextlib
from pathlib import Path

import pytest

from holdfast.drill.serving.fleet import HOST, Fleet, admin, holdfast_server
from holdfast.drill.serving.load import Load
from workloads.library.tests.drill.field_fleet import FieldFleet
from workloads.library.tests.inference.server.serving import INFER, PREDICTORS, Client, texts
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
RATE = 50.0
DEATHS = "holdfast_server_predictor_deaths_total"
TIMES = 100


@pytest.fixture
def window_s() -> int:
    """Returns the window, which divides a request's time into tries of 5 s.

    A server loads its model again and examines suspects within one try, on a busy machine too.
    """
    return 22


@pytest.fixture
def fleet(tmp_path: Path, window_s: int) -> FieldFleet:
    command = holdfast_server(f"{PREDICTORS}:gpu_like", "--window", str(window_s))
    return FieldFleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=command,
        window_s=window_s,
    )


def count_deaths(fleet: Fleet) -> int:
    deaths = 0
    for replica in fleet.replicas:
        client = Client(replica.port)
        deaths += int(client.metric(DEATHS))
    return deaths


def make_load(fleet: Fleet) -> Load:
    return Load(HOST, fleet.port, INFER, texts("a good request"))


# A hang lasts for a share of the window. So does the wait of a good request, in which even a busy
# machine has to load a model again.
@pytest.mark.parametrize(("fault", "window_s"), [("kill", 60), ("hang", 40)])
def test_the_same_body_costs_two_reloads_in_the_fleet(fleet: FieldFleet, fault: str) -> None:
    with fleet.running(3):
        load = make_load(fleet)
        client = Client(fleet.port)
        with load.asking(RATE):
            statuses = [client.infer(fault).status for _ in range(TIMES)]
            until(lambda: client.infer(fault).status == 422, "the verdict on all servers")
        assert count_deaths(fleet) <= 2
        assert set(statuses) <= {422, 503, 504}
        for replica in fleet.replicas:
            direct = Client(replica.port)
            # A server that only suspects it says 503, until it knows the verdict.
            until(lambda direct=direct: direct.infer(fault).status == 422, "the verdict here")
        assert count_deaths(fleet) <= 2
        assert client.infer("after").status == 200
    assert load.codes == {"200": load.requests}


def test_requests_wait_while_all_models_are_loaded_again(fleet: FieldFleet) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(fleet.running(2))
        load = make_load(fleet)
        stack.enter_context(load.asking(RATE))
        fleet.until(lambda: fleet.stat("upstream_rq_2xx") > RATE, "a second of answers")
        for replica in fleet.ready():
            fleet.kill_model(replica)
        fleet.until(lambda: count_deaths(fleet) == 2, "both deaths to be noticed")
        fleet.until(lambda: all(replica.probe() for replica in fleet.replicas), "both models")
    assert load.codes == {"200": load.requests}


def test_clients_cannot_reject_requests(fleet: FieldFleet) -> None:
    with fleet.running(1):
        (replica,) = fleet.replicas
        path = "/v2/health/rejections"
        assert Client(replica.port).request("GET", path).status == 200
        for spelling in (path, "/v2/health/%72ejections", "/v2/health/rejections?x"):
            status, _ = admin(fleet.port, spelling)
            assert status == 404
