"""Explains pods without a node: refused by the API server, gated, or without a fitting node.

Nothing here asks the cluster.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.clients.api import Object
from holdfast.jobs.diagnose import cluster_snapshot, queues
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition
from holdfast.jobs.diagnose.reasons import Cause, Reason, brief, describe
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_FLEX_START

_UNSCHEDULED = ("Unschedulable", "SchedulerError", "SchedulingGated")
_VOLUME = re.compile(
    r"persistent ?volume|storageclass|volume node affinity|max volume count", re.IGNORECASE
)
_VERDICT = re.compile(r"^0/(\d+) nodes are available: ([^.]*)")
_TAINT_IN_BRACES = re.compile(r"\{[^}]*\}")
_LABEL_VERDICT = "didn't match Pod's node affinity"
_EXCLUDED_NODES = re.compile(rf"(\d+) node\(s\) (?:{_LABEL_VERDICT}|had untolerated taint)")
_SCALING = ("FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp")


class _ScaleUp(NamedTuple):
    """A message of the autoscaler, and what it means."""

    pattern: str
    reason: Reason
    action: str


# The first that matches counts.
_SCALE_UPS = (
    _ScaleUp(
        r"quota.?exceeded|exceeded.*quota",
        Reason.QUOTA,
        "ask Google for more: `gcloud compute regions describe REGION` shows limits and use",
    ),
    _ScaleUp(
        r"out.?of.?resources|stock.?out|resource_pool_exhausted|enough resources|in backoff",
        Reason.STOCK_OUT,
        "wait, allow more zones or machine types, or take flex-start: `holdfast place`",
    ),
    _ScaleUp(
        r"max (node group size|cluster limit|limit) reached|no\.scale\.up\.nap.*limit",
        Reason.POOL_LIMIT,
        "wait for another job to end, or ask the platform team to raise the pool's maximum",
    ),
    _ScaleUp(r"triggered scale-up: ", Reason.SCALE_UP, "wait: a GPU node takes minutes to come up"),
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The job's pods without a node; the first one represents all."""

    job: JobSnapshot
    cluster: ClusterSnapshot
    pods: list[Object]
    fit: cluster_snapshot.Fit

    @property
    def pod(self) -> Object:
        return self.pods[0]

    @property
    def scheduler(self) -> str:
        scheduled = condition(self.pod, "PodScheduled")
        return brief(str(scheduled.get("message", "")))

    def make_cause(
        self,
        reason: Reason,
        blocker: str,
        action: str,
        evidence: str = "",
    ) -> Cause:
        prefix = f"{len(self.pods)} of {self.job.size} pods have no node: "
        return Cause(reason, prefix + blocker, action, evidence or describe(self.pod))


def explain_unscheduled(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Return the cause of pods that no scheduler has placed, or None if there are none."""
    pods: list[Object] = []
    for pod in job.phase("Pending"):
        if condition(pod, "PodScheduled").get("reason") in _UNSCHEDULED:
            pods.append(pod)
    if not pods:
        return None
    fit = cluster_snapshot.fit(pods[0]["spec"], cluster.nodes, cluster.pods)
    waiting = _Waiting(job, cluster, pods, fit)
    return (
        _explain_gate(waiting)
        or _explain_volume(waiting)
        or queues.explain_flex_start(job, cluster)
        or _explain_taint(waiting)
        or _explain_autoscaler(waiting)
        or _explain_flex_node(waiting)
        or _explain_selector(waiting)
        or _explain_capacity(waiting)
    )


def _explain_gate(waiting: _Waiting) -> Cause | None:
    gates = waiting.pod["spec"].get("schedulingGates")
    if not gates:
        return None
    names = ", ".join(gate["name"] for gate in gates)
    action = "wait: the controller that set the gate removes it, Kueue when it admits the job"
    return waiting.make_cause(Reason.GATE, f"held by the gate {names}", action)


def _explain_volume(waiting: _Waiting) -> Cause | None:
    if not _VOLUME.search(waiting.scheduler):
        return None
    namespace = waiting.job.namespace
    names: list[str] = []
    for volume in waiting.pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            names.append(volume["persistentVolumeClaim"]["claimName"])
    claims = {claim["metadata"]["name"]: claim for claim in waiting.cluster.claims}
    for name in names:
        if name not in claims:
            blocker = f"claim {name} does not exist in {namespace}"
            action = "create the claim, or correct claimName in the manifest"
            evidence = f"kubectl get pvc -n {namespace}"
            return waiting.make_cause(Reason.VOLUME, blocker, action, evidence)
    for name in names:
        if claims[name].get("status", {}).get("phase") != "Bound":
            blocker = f"claim {name} is {_describe_claim(claims[name], waiting.cluster)}"
            action = "correct its storage class or size, or make the volume that it asks for"
            evidence = f"kubectl describe pvc -n {namespace} {name}"
            return waiting.make_cause(Reason.VOLUME, blocker, action, evidence)
    action = "a disk serves one zone and few nodes: use its zone, or a bucket, which serves all"
    return waiting.make_cause(Reason.VOLUME, waiting.scheduler, action)


def _describe_claim(claim: Object, cluster: ClusterSnapshot) -> str:
    spec = claim["spec"]
    phase = claim.get("status", {}).get("phase", "Pending")
    size = spec.get("resources", {}).get("requests", {}).get("storage", "?")
    storage = spec.get("storageClassName") or "no storage class"
    event = cluster_snapshot.newest_event(cluster.events, {claim["metadata"]["uid"]})
    message = f": {cluster_snapshot.get_message(event)}" if event else ""
    return brief(f"{phase}, {size} of {storage}{message}")


def _explain_taint(waiting: _Waiting) -> Cause | None:
    if waiting.fit.blocking_taint is None:
        return None
    taint, nodes = waiting.fit.blocking_taint
    action = (
        "tolerate the taint, or select another pool: `holdfast new-job` writes both as the pool"
        " needs"
    )
    return waiting.make_cause(Reason.TAINT, f"{nodes} nodes have the taint {taint}", action)


def _explain_autoscaler(waiting: _Waiting) -> Cause | None:
    """Explain the autoscaler's newest event about the pods.

    An event that only says that no pool fits is left to the next checks.
    """
    uids = {pod["metadata"]["uid"] for pod in waiting.pods}
    event = cluster_snapshot.newest_event(waiting.cluster.events, uids, *_SCALING)
    if event is None:
        return None
    message = brief(cluster_snapshot.get_message(event))
    scale_up = _match_scale_up(message)
    if scale_up and not (scale_up.reason is Reason.SCALE_UP and _is_flex_start(waiting.pod)):
        blocker = f"{event['reason']}: {message}"
        return waiting.make_cause(scale_up.reason, blocker, scale_up.action)
    if event["reason"] == "FailedScaleUp":
        action = "fix what it names; `gcloud logging read` has the autoscaler's visibility events"
        return waiting.make_cause(Reason.CAPACITY, f"FailedScaleUp: {message}", action)
    return None


def _match_scale_up(message: str) -> _ScaleUp | None:
    for scale_up in _SCALE_UPS:
        if re.search(scale_up.pattern, message, re.IGNORECASE):
            return scale_up
    return None


def _explain_flex_node(waiting: _Waiting) -> Cause | None:
    if not _is_flex_start(waiting.pod) or waiting.fit.selected:
        return None
    blocker = f"no flex-start node yet, each wants {waiting.fit.pod_gpus} {GPU_RESOURCE}"
    return waiting.make_cause(Reason.FLEX_QUEUE, blocker, queues.PATIENCE)


def _explain_selector(waiting: _Waiting) -> Cause | None:
    """Explain labels that no node has, or an affinity, which only the scheduler has judged."""
    action = (
        "compare the selector with `kubectl get nodes --show-labels`; a pool at 0 nodes scales up"
        " within minutes"
    )
    if not waiting.fit.selected:
        blocker = f"no node matches {waiting.fit.selector}"
        return waiting.make_cause(Reason.SELECTOR, blocker, action)
    if _fits_nowhere(waiting.scheduler):
        return waiting.make_cause(Reason.SELECTOR, waiting.scheduler, action)
    return None


def _fits_nowhere(message: str) -> bool:
    """Return whether labels and taints alone exclude every node.

    A real cluster has tainted nodes of its own.
    """
    # The key of a taint may hold dots: {cloud.google.com/gke-spot: true}.
    verdict = _VERDICT.match(_TAINT_IN_BRACES.sub("", message))
    if verdict is None or _LABEL_VERDICT not in verdict[2]:
        return False
    counts = _EXCLUDED_NODES.findall(verdict[2])
    excluded = sum(int(count) for count in counts)
    return excluded == int(verdict[1])


def _explain_capacity(waiting: _Waiting) -> Cause:
    """Explain by the GPUs, if they are short; otherwise by the scheduler's own count."""
    fit = waiting.fit
    action = "wait for a node or for another job to end, or ask for fewer at once"
    if fit.pod_gpus <= fit.most_free:
        return waiting.make_cause(Reason.CAPACITY, waiting.scheduler, action)
    blocker = (
        f"each wants {fit.pod_gpus} {GPU_RESOURCE}, the fitting nodes have {fit.free} of"
        f" {fit.total} free"
    )
    if fit.free:
        blocker += f", at most {fit.most_free} on one"
    return waiting.make_cause(Reason.CAPACITY, blocker, action)


def _is_flex_start(pod: Object) -> bool:
    return LABEL_FLEX_START in pod["spec"].get("nodeSelector", {})


REASONS = (
    "FailedCreate",
    "JobCreationFailed",
    "HeadlessServiceCreationFailed",
    "PVCCreationFailed",
)
_WEBHOOKS = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"


class Refusal(NamedTuple):
    """A message of the API server, and what it means.

    `text`, `action` and `evidence` may name the groups of `pattern`, and {namespace}.
    """

    pattern: str
    text: str
    action: str
    evidence: str
    reason: Reason = Reason.REFUSED


_QUOTA_EVIDENCE = "kubectl describe resourcequota -n {namespace} {name}"
_MISSING = "ask the platform team to apply the platform again, or correct "
REFUSALS = (
    Refusal(
        r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited:"
        r" (?P<lent>.+)",
        "ResourceQuota {name}: asks for {asked}; {used} in use, {lent} allowed",
        "wait until others are done, or raise the quota of the namespace",
        _QUOTA_EVIDENCE,
        Reason.QUOTA,
    ),
    Refusal(
        r"failed quota: (?P<name>[^:]+): (?P<what>must specify .+)",
        "ResourceQuota {name}: {what}",
        "state these requests and limits in the manifest",
        _QUOTA_EVIDENCE,
    ),
    Refusal(
        r'serviceaccount "(?P<name>[^"]+)" not found',
        "service account {name} does not exist",
        f"{_MISSING}serviceAccountName",
        "kubectl get serviceaccounts -n {namespace}",
    ),
    Refusal(
        r"no PriorityClass with name (?P<name>\S+) was found",
        "PriorityClass {name} does not exist",
        f"{_MISSING}priorityClassName",
        "kubectl get priorityclasses",
    ),
    Refusal(
        r'RuntimeClass "(?P<name>[^"]+)" not found',
        "RuntimeClass {name} does not exist",
        "correct runtimeClassName, or turn GKE Sandbox on for the pool",
        "kubectl get runtimeclasses",
    ),
    Refusal(
        r'violates PodSecurity "(?P<level>[^"]+)": (?P<what>.+)',
        "Pod Security {level}: {what}",
        "set what it asks for in the pod's securityContext",
        "kubectl get namespace {namespace} --show-labels",
    ),
    Refusal(
        r"ValidatingAdmissionPolicy '(?P<name>[^']+)' .*denied request: (?P<what>.+)",
        "policy {name}: {what}",
        "change the manifest as the policy says",
        "kubectl describe validatingadmissionpolicy {name}",
    ),
    Refusal(
        r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<what>.+)',
        "webhook {name}: {what}",
        "change the manifest as the webhook says",
        _WEBHOOKS,
    ),
    Refusal(
        r'failed calling webhook "(?P<name>[^"]+)": (?P<what>.+)',
        "webhook {name} does not answer: {what}",
        "bring its service back; until then no pod that it watches can be made",
        _WEBHOOKS,
    ),
)


def explain_refusal(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Return the newest refusal of a pod, if no pod was created after it."""
    missing = job.target_size - len(job.active)
    uids = {job.uid, *_list_child_uids(job, cluster)}
    event = cluster_snapshot.newest_event(cluster.events, uids, *REASONS)
    creation_times = [pod["metadata"]["creationTimestamp"] for pod in job.pods]
    newest_pod = max(creation_times, default="")
    if missing <= 0 or event is None or cluster_snapshot.get_time(event) < newest_pod:
        return None
    prefix = f"{missing} of {job.size} pods are refused: "
    message = cluster_snapshot.get_message(event)
    for refusal in REFUSALS:
        match = re.search(refusal.pattern, message, re.DOTALL)
        if match:
            values = match.groupdict() | {"namespace": job.namespace}
            return Cause(
                refusal.reason,
                prefix + brief(refusal.text.format(**values)),
                refusal.action.format(**values),
                refusal.evidence.format(**values),
            )
    action = "change the manifest as the API server says"
    evidence = f"kubectl get events -n {job.namespace} --field-selector reason={event['reason']}"
    return Cause(Reason.REFUSED, prefix + brief(message), action, evidence)


def _list_child_uids(job: JobSnapshot, cluster: ClusterSnapshot) -> set[str]:
    """Return the uids of a JobSet's Jobs, which events name."""
    if job.kind != "JobSet":
        return set()
    names: set[str] = set()
    for group in job.body["spec"]["replicatedJobs"]:
        for number in range(int(group.get("replicas", 1))):
            names.add(f"{job.name}-{group['name']}-{number}")
    uids: set[str] = set()
    for event in cluster.events:
        involved = event.get("involvedObject", {})
        if involved.get("kind") == "Job" and involved.get("name") in names:
            uids.add(involved["uid"])
    return uids
