"""Pods without a node: refused by the API server, gated, or with no node that takes them. Pure."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.clients.api import Object
from holdfast.jobs.diagnose import cluster_snapshot, queues
from holdfast.jobs.diagnose.cause import Cause, Reason, brief, describe
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_FLEX_START

_UNPLACED = ("Unschedulable", "SchedulerError", "SchedulingGated")
_VOLUME = re.compile(
    r"persistent ?volume|storageclass|volume node affinity|max volume count", re.IGNORECASE
)
_VERDICT = re.compile(r"^0/(\d+) nodes are available: ([^.]*)")
_BY_LABELS = "didn't match Pod's node affinity"
_BY_PLACE = re.compile(rf"(\d+) node\(s\) (?:{_BY_LABELS}|had untolerated taint)")
_SCALING = ("FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp")
# What the autoscaler says, and what it means; the first that matches counts.
_SCALE_UP = (
    (
        r"quota.?exceeded|exceeded.*quota",
        Reason.QUOTA,
        "ask Google for more: `gcloud compute regions describe REGION` shows limits and use",
    ),
    (
        r"out.?of.?resources|stock.?out|resource_pool_exhausted|enough resources|in backoff",
        Reason.STOCK_OUT,
        "wait, allow more zones or machine types, or take flex-start: `holdfast place`",
    ),
    (
        r"max (node group size|cluster limit|limit) reached|no\.scale\.up\.nap.*limit",
        Reason.POOL_LIMIT,
        "wait for another job to end, or raise the pool's maximum in infra/environments",
    ),
    (r"triggered scale-up: ", Reason.SCALE_UP, "wait: a GPU node takes minutes to come up"),
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The job's pods without a node; the first speaks for all."""

    job: JobSnapshot
    cluster: ClusterSnapshot
    pods: list[Object]
    fit: cluster_snapshot.Fit

    @property
    def pod(self) -> Object:
        return self.pods[0]

    @property
    def scheduler(self) -> str:
        return brief(str(condition(self.pod, "PodScheduled").get("message", "")))

    def cause(
        self,
        reason: Reason,
        why: str,
        action: str,
        evidence: str = "",
    ) -> Cause:
        many = f"{len(self.pods)} of {self.job.size} pods have no node: "
        return Cause(reason, many + why, action, evidence or describe(self.pod))


def unplaced(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    found = []
    for p in job.phase("Pending"):
        if condition(p, "PodScheduled").get("reason") in _UNPLACED:
            found.append(p)
    if not found:
        return None
    waiting = _Waiting(
        job, cluster, found, cluster_snapshot.fit(found[0]["spec"], cluster.nodes, cluster.others)
    )
    kept = _gated(waiting) or _volume(waiting) or queues.queued(job, cluster)
    checks = (_taint, _autoscaler, _flex, _selector, _full)
    return kept or next(cause for check in checks if (cause := check(waiting)))


def _gated(waiting: _Waiting) -> Cause | None:
    gates = ", ".join(gate["name"] for gate in waiting.pod["spec"].get("schedulingGates") or ())
    action = "wait: the controller that set the gate removes it, Kueue when it admits the job"
    if gates:
        return waiting.cause(Reason.GATE, f"held by the gate {gates}", action)
    return None


def _volume(waiting: _Waiting) -> Cause | None:
    if not _VOLUME.search(waiting.scheduler):
        return None
    namespace = waiting.job.namespace
    volumes = waiting.pod["spec"].get("volumes") or ()
    names = []
    for v in volumes:
        if "persistentVolumeClaim" in v:
            names.append(v["persistentVolumeClaim"]["claimName"])
    known = {claim["metadata"]["name"]: claim for claim in waiting.cluster.claims}
    for name in names:
        if name not in known:
            why = f"claim {name} does not exist in {namespace}"
            action = "create the claim, or correct claimName in the manifest"
            return waiting.cause(Reason.VOLUME, why, action, f"kubectl get pvc -n {namespace}")
    for name in names:
        if known[name].get("status", {}).get("phase") != "Bound":
            why = f"claim {name} is {_unbound(known[name], waiting.cluster)}"
            action = "correct its storage class or size, or make the volume that it asks for"
            return waiting.cause(
                Reason.VOLUME, why, action, f"kubectl describe pvc -n {namespace} {name}"
            )
    action = "a disk serves one zone and few nodes: use its zone, or a bucket, which serves all"
    return waiting.cause(Reason.VOLUME, waiting.scheduler, action)


def _unbound(claim: Object, cluster: ClusterSnapshot) -> str:
    asked = claim["spec"].get("resources", {}).get("requests", {}).get("storage", "?")
    storage = claim["spec"].get("storageClassName") or "no storage class"
    event = cluster_snapshot.newest_event(cluster.events, {claim["metadata"]["uid"]})
    why = f": {cluster_snapshot.message_of(event)}" if event else ""
    return brief(f"{claim.get('status', {}).get('phase', 'Pending')}, {asked} of {storage}{why}")


def _taint(waiting: _Waiting) -> Cause | None:
    found = waiting.fit.untolerated
    if found is None:
        return None
    action = "use the manifest of this pool: `python -m workloads render`"
    return waiting.cause(Reason.TAINT, f"{found[1]} nodes bear {found[0]}", action)


def _autoscaler(waiting: _Waiting) -> Cause | None:
    """Its newest word on any of the pods. What only says that no pool fits is left to the next
    checks.
    """
    uids = {pod["metadata"]["uid"] for pod in waiting.pods}
    event = cluster_snapshot.newest_event(waiting.cluster.events, uids, *_SCALING)
    if event is None:
        return None
    text = brief(cluster_snapshot.message_of(event))
    pattern = next((known for known in _SCALE_UP if re.search(known[0], text, re.IGNORECASE)), None)
    if pattern and not (pattern[1] is Reason.SCALE_UP and _flexible(waiting.pod)):
        return waiting.cause(pattern[1], f"{event['reason']}: {text}", pattern[2])
    if event["reason"] == "FailedScaleUp":
        action = "fix what it names; `gcloud logging read` has the autoscaler's visibility events"
        return waiting.cause(Reason.CAPACITY, f"FailedScaleUp: {text}", action)
    return None


def _flex(waiting: _Waiting) -> Cause | None:
    if not _flexible(waiting.pod) or waiting.fit.selected:
        return None
    why = f"no flex-start node yet, each wants {waiting.fit.wanted} {GPU_RESOURCE}"
    return waiting.cause(Reason.FLEX_QUEUE, why, queues.PATIENCE)


def _selector(waiting: _Waiting) -> Cause | None:
    """By the labels, or by an affinity, which only the scheduler has judged."""
    action = (
        "compare the selector with `python -m infra outputs`; a pool at 0 nodes scales up within"
        " minutes"
    )
    if not waiting.fit.selected:
        return waiting.cause(Reason.SELECTOR, f"no node matches {waiting.fit.selector}", action)
    if _fits_nowhere(waiting.scheduler):
        return waiting.cause(Reason.SELECTOR, waiting.scheduler, action)
    return None


def _fits_nowhere(verdict: str) -> bool:
    """Labels and taints alone rule out every node. A real cluster has tainted nodes of its own."""
    judged = _VERDICT.match(verdict)
    if judged is None or _BY_LABELS not in judged[2]:
        return False
    return sum(map(int, _BY_PLACE.findall(judged[2]))) == int(judged[1])


def _full(waiting: _Waiting) -> Cause:
    """GPUs, if they are short; otherwise the scheduler's own count of what is."""
    fit = waiting.fit
    action = "wait for a node or for another job to end, or ask for fewer at once"
    if fit.wanted > fit.most_free:
        why = (
            f"each wants {fit.wanted} {GPU_RESOURCE}, the fitting nodes have {fit.free} of"
            f" {fit.total} free"
        )
        return waiting.cause(
            Reason.CAPACITY, why + (f", at most {fit.most_free} on one" if fit.free else ""), action
        )
    return waiting.cause(Reason.CAPACITY, waiting.scheduler, action)


def _flexible(pod: Object) -> bool:
    return LABEL_FLEX_START in pod["spec"].get("nodeSelector", {})


REASONS = (
    "FailedCreate",
    "JobCreationFailed",
    "HeadlessServiceCreationFailed",
    "PVCCreationFailed",
)
_WEBHOOKS = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"


class Refusal(NamedTuple):
    """`text`, `action` and `evidence` may name the groups of `pattern`, and {namespace}."""

    pattern: str
    text: str
    action: str
    evidence: str
    reason: Reason = Reason.REFUSED


_OF_QUOTA = "kubectl describe resourcequota -n {namespace} {name}"
_MISSING = "apply the platform's manifests (`make apply ENV=NAME`), or correct "
REFUSALS = (
    Refusal(
        r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited:"
        r" (?P<lent>.+)",
        "ResourceQuota {name}: asks for {asked}; {used} in use, {lent} allowed",
        "wait until others are done, or raise the quota of the namespace",
        _OF_QUOTA,
        Reason.QUOTA,
    ),
    Refusal(
        r"failed quota: (?P<name>[^:]+): (?P<what>must specify .+)",
        "ResourceQuota {name}: {what}",
        "state these requests and limits in the manifest",
        _OF_QUOTA,
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


def refused(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """The newest refusal, if no pod was made after it."""
    lacking = job.wanted - len(job.active)
    event = cluster_snapshot.newest_event(
        cluster.events, {job.uid, *_children(job, cluster)}, *REASONS
    )
    made = max((pod["metadata"]["creationTimestamp"] for pod in job.pods), default="")
    if lacking <= 0 or event is None or cluster_snapshot.time_of(event) < made:
        return None
    many = f"{lacking} of {job.size} pods are refused: "
    text = cluster_snapshot.message_of(event)
    for known in REFUSALS:
        match = re.search(known.pattern, text, re.DOTALL)
        if match:
            values = match.groupdict() | {"namespace": job.namespace}
            blocker, action, evidence = (
                each.format(**values) for each in (known.text, known.action, known.evidence)
            )
            return Cause(known.reason, many + brief(blocker), action, evidence)
    evidence = f"kubectl get events -n {job.namespace} --field-selector reason={event['reason']}"
    return Cause(
        Reason.REFUSED, many + brief(text), "change the manifest as the API server says", evidence
    )


def _children(job: JobSnapshot, cluster: ClusterSnapshot) -> set[str]:
    """Uids of a JobSet's Jobs, known by their names."""
    if job.kind != "JobSet":
        return set()
    groups = job.body["spec"]["replicatedJobs"]
    names = set()
    for g in groups:
        for n in range(int(g.get("replicas", 1))):
            names.add(f"{job.name}-{g['name']}-{n}")
    objects = (e.get("involvedObject", {}) for e in cluster.events)
    return {
        each["uid"] for each in objects if each.get("kind") == "Job" and each.get("name") in names
    }
