"""Pods that have a node and do not come up: image, settings, volumes, or just not yet. Pure."""

import re
from collections.abc import Iterator

from holdfast.clients.api import Object
from holdfast.jobs import events
from holdfast.jobs.cause import Cause, Reason, brief, describe
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.job_snapshot import JobSnapshot, containers

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_MISSING = re.compile(r'(?P<kind>configmap|secret) "(?P<name>[^"]+)" not found')
_BUCKET = "gcsfuse"


def stuck(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """What no patience mends."""
    return _image(job) or _config(job) or _mount(job, cluster)


def starting(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Nothing wrong yet: what the kubelet did last, or that no scheduler has looked."""
    found = job.phase("Pending")
    if not found:
        return None
    last = events.newest(cluster.events, {pod["metadata"]["uid"] for pod in found})
    since = found[0]["metadata"]["creationTimestamp"]
    scheduler = found[0]["spec"].get("schedulerName", "default-scheduler")
    quiet = "the kubelet has not spoken yet" if _placed(job) else f"{scheduler} has not looked at them yet"
    return Cause(
        reason=Reason.STARTING,
        blocker=f"{len(found)} of {job.size} pods start since {since}; "
        + (f"{last['reason']}: {brief(events.message(last))}" if last else quiet),
        action="wait: a large image takes minutes on a fresh node; `streaming` images start sooner",
        evidence=describe(found[0]),
    )


def _placed(job: JobSnapshot) -> list[Object]:
    return [pod for pod in job.phase("Pending") if pod["spec"].get("nodeName")]


def _waiting(job: JobSnapshot, reasons: tuple[str, ...]) -> Iterator[tuple[Object, Object]]:
    """(pod, container status) of each container that waits for one of the reasons."""
    for pod in job.active:
        for status in containers(pod):
            if status.get("state", {}).get("waiting", {}).get("reason") in reasons:
                yield pod, status


def _image(job: JobSnapshot) -> Cause | None:
    found = list(_waiting(job, _IMAGE))
    if not found:
        return None
    pod, status = found[0]
    waits = status["state"]["waiting"]
    why = f"{waits['reason']}: {status['image']} on {pod['spec'].get('nodeName', '?')}: {waits.get('message', '')}"
    return Cause(
        reason=Reason.IMAGE,
        blocker=f"{len(found)} of {job.size} pods: {brief(why).removesuffix(':')}",
        action="push the image, or correct its name or the node's right to read it",
        evidence=describe(pod),
    )


def _config(job: JobSnapshot) -> Cause | None:
    found = list(_waiting(job, _CONFIG))
    if not found:
        return None
    pod, status = found[0]
    waits = status["state"]["waiting"]
    return _unset(job, len(found), pod, f"{waits['reason']} of {status['name']}: {waits.get('message', '')}")


def _unset(job: JobSnapshot, many: int, pod: Object, why: str) -> Cause:
    missing = _MISSING.search(why)
    evidence = f"kubectl get {missing['kind']} -n {job.namespace} {missing['name']}" if missing else describe(pod)
    return Cause(
        reason=Reason.CONFIG,
        blocker=f"{many} of {job.size} pods: {brief(why)}",
        action="create what is missing, or correct it in the manifest",
        evidence=evidence,
    )


def _mount(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """A mount that failed and later went well leaves a pod that runs: those are not looked at."""
    pods = {pod["metadata"]["uid"]: pod for pod in _placed(job)}
    failed = events.about(cluster.events, pods, *_MOUNT)
    if not failed:
        return None
    many = len({event["involvedObject"]["uid"] for event in failed})
    pod, why = pods[failed[-1]["involvedObject"]["uid"]], events.message(failed[-1])
    if _MISSING.search(why):
        return _unset(job, many, pod, why)
    action = "correct the volume in the manifest, or mend what the driver names"
    if _BUCKET in why:
        action = "check the bucket's name, the Cloud Storage FUSE add-on, and the service account's right to read it"
    return Cause(
        reason=Reason.VOLUME,
        blocker=f"{many} of {job.size} pods: {failed[-1]['reason']}: {brief(why)}",
        action=action,
        evidence=describe(pod),
    )
