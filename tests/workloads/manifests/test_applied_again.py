"""What a second apply of the platform half would do: nothing to jobs, and nothing to what Kueue owns of them."""

import re

import pytest

from holdfast.manifests.render_context import RenderContext
from tests.platforms import load, names
from tests.workloads.manifests.rendered import Body
from workloads.manifests.rendering import platform

WORK = ("Job", "JobSet", "Deployment", "CronJob", "StatefulSet")


def applied(env: str, *kinds: str) -> list[Body]:
    return [body for body in platform(RenderContext(load(env))) if body["kind"] in kinds]


@pytest.mark.parametrize("env", names())
def test_no_work_that_is_over_begins_anew(env: str) -> None:
    """A job that is cleared away when it is over would be made again, at the price of its machines."""
    assert {body["metadata"]["name"] for body in applied(env, *WORK)} >= {"exporter", "verify-checkpoints"}
    once = applied(env, "Job", "JobSet")
    assert bool(once) == (load(env).database is not None)
    for body in once:
        assert body["kind"] == "Job" and re.fullmatch("migrate-[0-9a-f]+", body["metadata"]["name"])
        assert "ttlSecondsAfterFinished" not in body["spec"]


@pytest.mark.parametrize("env", names())
def test_no_field_that_kueue_writes_is_applied(env: str) -> None:
    """Two owners of `spec.suspend` are a conflict, and the one who insists starts what waits, or stops what runs."""
    for body in applied(env, *WORK):
        assert "suspend" not in body["spec"], body["metadata"]["name"]
        assert "kueue.x-k8s.io/queue-name" not in body["metadata"].get("labels", {}), body["metadata"]["name"]
