"""Pods that the API server refuses to make: quota, service account, priority, admission. Pure.

There is no pod to look at: the only trace is the event on the Job, or on the JobSet that cannot make its Jobs.
"""

import re
from dataclasses import dataclass

from holdfast.jobs import events
from holdfast.jobs.cause import Cause, Reason, brief
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.job_snapshot import JobSnapshot

REASONS = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed", "PVCCreationFailed")
_WEBHOOKS = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text`, `action` and `evidence` may name the groups of `pattern`, and {namespace}."""

    pattern: str
    text: str
    action: str
    evidence: str
    reason: Reason = Reason.REFUSED


REFUSALS = (
    Refusal(
        r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited: (?P<lent>.+)",
        "ResourceQuota {name}: asks for {asked}; {used} in use, {lent} allowed",
        "wait until others are done, or raise the quota of the namespace",
        "kubectl describe resourcequota -n {namespace} {name}",
        Reason.QUOTA,
    ),
    Refusal(
        r"failed quota: (?P<name>[^:]+): (?P<what>must specify .+)",
        "ResourceQuota {name}: {what}",
        "state these requests and limits in the manifest",
        "kubectl describe resourcequota -n {namespace} {name}",
    ),
    Refusal(
        r'serviceaccount "(?P<name>[^"]+)" not found',
        "service account {name} does not exist",
        "apply the platform's manifests (`make apply ENV=NAME`), or correct serviceAccountName",
        "kubectl get serviceaccounts -n {namespace}",
    ),
    Refusal(
        r"no PriorityClass with name (?P<name>\S+) was found",
        "PriorityClass {name} does not exist",
        "apply the platform's manifests (`make apply ENV=NAME`), or correct priorityClassName",
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
    event = events.newest(cluster.events, {job.uid, *_children(job, cluster)}, *REASONS)
    made = max((pod["metadata"]["creationTimestamp"] for pod in job.pods), default="")
    if lacking <= 0 or event is None or events.time_of(event) < made:
        return None
    many = f"{lacking} of {job.size} pods are refused: "
    text = events.message(event)
    for known in REFUSALS:
        if match := re.search(known.pattern, text, re.DOTALL):
            values = match.groupdict() | {"namespace": job.namespace}
            return Cause(
                reason=known.reason,
                blocker=many + brief(known.text.format(**values)),
                action=known.action.format(**values),
                evidence=known.evidence.format(**values),
            )
    return Cause(
        reason=Reason.REFUSED,
        blocker=many + brief(text),
        action="change the manifest as the API server says",
        evidence=f"kubectl get events -n {job.namespace} --field-selector reason={event['reason']}",
    )


def _children(job: JobSnapshot, cluster: ClusterSnapshot) -> set[str]:
    """Uids of a JobSet's Jobs, known by their names."""
    if job.kind != "JobSet":
        return set()
    groups = job.body["spec"]["replicatedJobs"]
    names = {f"{job.name}-{g['name']}-{n}" for g in groups for n in range(int(g.get("replicas", 1)))}
    objects = (e.get("involvedObject", {}) for e in cluster.events)
    return {each["uid"] for each in objects if each.get("kind") == "Job" and each.get("name") in names}
