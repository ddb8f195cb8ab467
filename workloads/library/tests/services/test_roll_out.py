"""Tests that a new version of a service is rolled out under load without a failed request.

The servers and the proxy are real; the limits of the roll-out are those of the rendered Deployment.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.drill.serving.fleet import HOST, Command, holdfast_server
from holdfast.drill.serving.load import Load
from workloads.library.tests.drill.field_fleet import FieldFleet
from workloads.library.tests.inference.server.serving import INFER, PREDICTORS, Client, texts
from workloads.library.tests.services.example_services import find, read, render

pytestmark = pytest.mark.process
RATE = 50.0


def make_version(folder: Path, step: int) -> Command:
    """Returns the command of a server whose model is the commit of a step."""
    file = folder / f"step-{step}"
    file.write_text(str(step))
    return holdfast_server(f"{PREDICTORS}:stepped", "--model", str(file))


def ask_version(client: Client) -> str:
    answer = client.infer("which version")
    assert answer.status == 200
    return answer.headers["x-model-commit"].removeprefix("run/step-").removesuffix("/played")


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_new_version_fails_no_request(tmp_path: Path, replicas: int) -> None:
    service = replace(
        read("scores"),
        promised_per_s=0.0,
        peak_per_s=0.0,
        base=replicas,
    )
    spec = find(render(service), "Deployment", "scores-base")["spec"]
    limits = spec["strategy"]["rollingUpdate"]
    fleet = FieldFleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=make_version(tmp_path, 1),
        window_s=float(spec["template"]["spec"]["terminationGracePeriodSeconds"]),
    )
    with fleet.running(replicas):
        client = Client(fleet.port)
        load = Load(HOST, fleet.port, INFER, texts("a request"))
        versions = Counter({ask_version(client): 1})
        with load.asking(RATE):
            fleet.until(lambda: fleet.stat("upstream_rq_2xx") > RATE, "a second of answers")
            fleet.deploy(
                make_version(tmp_path, 2),
                surge=limits["maxSurge"],
                unavailable=limits["maxUnavailable"],
            )
            fleet.until(lambda: len(fleet.exits) == replicas, "the old version to be gone")
            versions.update(ask_version(client) for _ in range(10))
        assert versions == {"1": 1, "2": 10}
        assert load.codes == {"200": load.requests}
        assert fleet.exits == [143] * replicas
        assert fleet.stat("upstream_rq_retry") == 0
