"""Pods that have a node and do not come up: image, settings, volumes, or just not yet. Pure; asked by causes."""

import re
from collections.abc import Iterator

from workloads.jobs import events
from workloads.jobs.api import Object
from workloads.jobs.cause import Cause, Word, brief, describe
from workloads.jobs.cluster_snapshot import Surroundings
from workloads.jobs.job_snapshot import View, containers

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_MISSING = re.compile(r'(?P<kind>configmap|secret) "(?P<name>[^"]+)" not found')
_BUCKET = "gcsfuse"


def stuck(view: View, around: Surroundings) -> Cause | None:
    """What no patience mends."""
    return _image(view) or _config(view) or _mount(view, around)


def starting(view: View, around: Surroundings) -> Cause | None:
    """Nothing wrong yet: what the kubelet did last, or that no scheduler has looked."""
    found = view.phase("Pending")
    if not found:
        return None
    last = events.newest(around.events, {pod["metadata"]["uid"] for pod in found})
    since = found[0]["metadata"]["creationTimestamp"]
    scheduler = found[0]["spec"].get("schedulerName", "default-scheduler")
    quiet = "the kubelet has not spoken yet" if _placed(view) else f"{scheduler} has not looked at them yet"
    return Cause(
        word=Word.STARTING,
        blocker=f"{len(found)} of {view.size} pods start since {since}; "
        + (f"{last['reason']}: {brief(events.message(last))}" if last else quiet),
        action="wait: a large image takes minutes on a fresh node; `streaming` images start sooner",
        evidence=describe(found[0]),
    )


def _placed(view: View) -> list[Object]:
    return [pod for pod in view.phase("Pending") if pod["spec"].get("nodeName")]


def _waiting(view: View, reasons: tuple[str, ...]) -> Iterator[tuple[Object, Object]]:
    """(pod, container status) of each container that waits for one of the reasons."""
    for pod in view.active:
        for status in containers(pod):
            if status.get("state", {}).get("waiting", {}).get("reason") in reasons:
                yield pod, status


def _image(view: View) -> Cause | None:
    found = list(_waiting(view, _IMAGE))
    if not found:
        return None
    pod, status = found[0]
    waits = status["state"]["waiting"]
    why = f"{waits['reason']}: {status['image']} on {pod['spec'].get('nodeName', '?')}: {waits.get('message', '')}"
    return Cause(
        word=Word.IMAGE,
        blocker=f"{len(found)} of {view.size} pods: {brief(why).removesuffix(':')}",
        action="push the image, or correct its name or the node's right to read it",
        evidence=describe(pod),
    )


def _config(view: View) -> Cause | None:
    found = list(_waiting(view, _CONFIG))
    if not found:
        return None
    pod, status = found[0]
    waits = status["state"]["waiting"]
    return _unset(view, len(found), pod, f"{waits['reason']} of {status['name']}: {waits.get('message', '')}")


def _unset(view: View, many: int, pod: Object, why: str) -> Cause:
    missing = _MISSING.search(why)
    evidence = f"kubectl get {missing['kind']} -n {view.namespace} {missing['name']}" if missing else describe(pod)
    return Cause(
        word=Word.CONFIG,
        blocker=f"{many} of {view.size} pods: {brief(why)}",
        action="create what is missing, or correct it in the manifest",
        evidence=evidence,
    )


def _mount(view: View, around: Surroundings) -> Cause | None:
    """A mount that failed and later went well leaves a pod that runs: those are not looked at."""
    pods = {pod["metadata"]["uid"]: pod for pod in _placed(view)}
    failed = events.about(around.events, pods, *_MOUNT)
    if not failed:
        return None
    many = len({event["involvedObject"]["uid"] for event in failed})
    pod, why = pods[failed[-1]["involvedObject"]["uid"]], events.message(failed[-1])
    if _MISSING.search(why):
        return _unset(view, many, pod, why)
    action = "correct the volume in the manifest, or mend what the driver names"
    if _BUCKET in why:
        action = "check the bucket's name, the Cloud Storage FUSE add-on, and the service account's right to read it"
    return Cause(
        word=Word.VOLUME,
        blocker=f"{many} of {view.size} pods: {failed[-1]['reason']}: {brief(why)}",
        action=action,
        evidence=describe(pod),
    )
