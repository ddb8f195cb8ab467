"""`workloads doctor` on the Job that migrates the results database."""

from typing import Any, cast

import pytest

from holdfast.clients.api import Api
from holdfast.support.checks import Check, Status, examine
from tests import platforms
from workloads.operators import doctor_probes

EXAMPLE = platforms.load("example")


class Cluster:
    """Answers with the Job of the migration."""

    def __init__(self, *conditions: str) -> None:
        self.conditions = [{"type": kind, "status": "True"} for kind in conditions]

    def path_of(self, body: Any) -> str:
        return body["metadata"]["name"]

    def find(self, path: str) -> Any:
        assert path.startswith("migrate-")
        return {"status": {"conditions": self.conditions}}


def judge(*conditions: str) -> Check:
    probes = dict(doctor_probes.probes(cast("Api", Cluster(*conditions)), print))
    (check,) = examine(EXAMPLE, [("migration", probes["database migrated"])])
    return check


# Kubernetes 1.31 and newer write the second of each pair once all pods have ended.
@pytest.mark.parametrize(
    ("conditions", "verdict", "word"),
    [
        (("SuccessCriteriaMet", "Complete"), Status.OK, "Complete"),
        (("FailureTarget", "Failed"), Status.BROKEN, "Failed"),
        (("SuccessCriteriaMet",), Status.BROKEN, "has not ended"),
        ((), Status.BROKEN, "has not ended"),
    ],
)
def test_a_migration_has_ended_by_its_last_condition(
    conditions: tuple[str, ...], verdict: Status, word: str
) -> None:
    check = judge(*conditions)
    assert check.verdict is verdict
    assert word in check.found
