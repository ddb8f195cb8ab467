"""The cache of a job's data, and the folder of its results."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.jobs.plan import offers, placement
from holdfast.jobs.submit import external_checks
from holdfast.support.errors import InputError
from tests.platforms import load
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import PRICES, get_pod_spec, render

DATA = {"data": "gs://bucket/images", "capacity": "spot"}


def get_variable(bodies: list[dict[str, Any]], name: str) -> str | None:
    (container,) = get_pod_spec(bodies)["containers"]
    for variable in container["env"]:
        if variable["name"] == name:
            return variable["value"]
    return None


def get_template(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    return bodies[-1]["spec"]["template"]


def test_cached_data_stays_on_the_disk() -> None:
    bodies = render(own(**DATA, cache="20Gi"))
    volumes = {}
    for volume in get_pod_spec(bodies)["volumes"]:
        volumes[volume["name"]] = volume
    attributes = volumes["data"]["csi"]["volumeAttributes"]
    assert attributes["fileCacheCapacity"] == "20480Mi"
    assert attributes["fileCacheForRangeRead"] == "true"
    options = attributes["mountOptions"].split(",")
    assert "file-cache:enable-parallel-downloads:true" in options
    assert "only-dir=images" in options
    # The volume is larger than what the cache may fill, or writes to it would fail.
    assert volumes["gke-gcsfuse-cache"]["emptyDir"] == {"sizeLimit": "22528Mi"}
    annotations = get_template(bodies)["metadata"]["annotations"]
    assert annotations["gke-gcsfuse/ephemeral-storage-request"] == "23552Mi"
    assert annotations["gke-gcsfuse/memory-limit"] == "1Gi"
    (container,) = get_pod_spec(bodies)["containers"]
    mounts = set()
    for mount in container["volumeMounts"]:
        mounts.add(mount["name"])
    assert "data" in mounts
    assert "gke-gcsfuse-cache" not in mounts


def test_a_cache_in_memory_lowers_what_the_pod_may_use() -> None:
    plain = render(own(**DATA))
    bodies = render(own(**DATA, cache="4Gi memory"))
    volumes = {}
    for volume in get_pod_spec(bodies)["volumes"]:
        volumes[volume["name"]] = volume
    assert volumes["gke-gcsfuse-cache"]["emptyDir"]["medium"] == "Memory"
    memory = []
    for rendered in (plain, bodies):
        (container,) = get_pod_spec(rendered)["containers"]
        memory.append(container["resources"]["requests"]["memory"])
    assert memory == ["24Gi", f"{20 * 1024}Mi"]
    annotations = get_template(bodies)["metadata"]["annotations"]
    assert annotations["gke-gcsfuse/memory-request"] == f"{4096 + 409 + 256}Mi"
    with pytest.raises(InputError, match="more memory than the pod can spare") as error:
        render(own(**DATA, cache="13Gi memory"))
    assert "12288Mi memory" in error.value.allowed


def test_a_cache_that_no_disk_holds_is_refused() -> None:
    job = own(**DATA, cache="400Gi")
    with pytest.raises(InputError, match="cache 400Gi"):
        placement.place(job, load("example"), PRICES)
    assert "cache 400Gi" in offers.describe_unknown_disk(job, load("example"))
    assert not offers.describe_unknown_disk(replace(job, cache="400Gi memory"), load("example"))


@pytest.mark.parametrize("fields", [{"cache": "1Gi"}, {"data": "gs://b1x", "cache": "big"}])
def test_a_cache_without_data_or_unit_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InputError, match="cache"):
        own(**fields)


def test_each_run_has_its_own_folder_for_results() -> None:
    root = load("example").checkpoints_of("my-run")
    assert get_variable(render(own()), "HOLDFAST_OUTPUT") == f"{root}/my-run/output"
    own_bucket = own(output="gs://results/team/", capacity="spot")
    assert get_variable(render(own_bucket), "HOLDFAST_OUTPUT") == "gs://results/team/my-run"
    points = own(
        output="gs://results",
        sweep={"A": [1, 2]},
        capacity="spot",
    )
    variable = get_variable(render(points), "HOLDFAST_OUTPUT")
    assert variable == "gs://results/my-run-$(HOLDFAST_POINT)"
    batch = own(
        predictor="a:b",
        data="gs://bucket/x",
        command=(),
        capacity="spot",
    )
    assert get_variable(render(batch), "HOLDFAST_OUTPUT") is None


@pytest.mark.parametrize("purpose", ["data", "checkpoints"])
def test_results_may_not_go_to_the_platforms_buckets(purpose: str) -> None:
    platform = load("example")
    job = own(output=f"gs://{platform.buckets[purpose]}/x")
    with pytest.raises(InputError, match="may not write") as error:
        external_checks.check(job, platform)
    assert "/my-run/output" in error.value.fix
