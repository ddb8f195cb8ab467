"""Pods that the API server refuses to make: quota, service account, priority, admission. Pure; asked by causes.

There is no pod to look at: the only trace is the event on the Job, or on the JobSet that cannot make its Jobs.
"""

import re
from dataclasses import dataclass

from workloads.jobs import events
from workloads.jobs.cause import Cause, Word, brief
from workloads.jobs.cluster_snapshot import Surroundings
from workloads.jobs.job_snapshot import View

REASONS = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed", "PVCCreationFailed")
_WEBHOOKS = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`said`, `action` and `evidence` may name the groups of `pattern`, and {namespace}."""

    pattern: str
    said: str
    action: str
    evidence: str
    word: Word = Word.REFUSED


REFUSALS = (
    Refusal(
        r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited: (?P<lent>.+)",
        "ResourceQuota {name}: asks for {asked}; {used} in use, {lent} allowed",
        "wait until others are done, or raise the quota of the namespace",
        "kubectl describe resourcequota -n {namespace} {name}",
        Word.QUOTA,
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
        "apply the platform's manifests (`make apply-manifests`), or correct serviceAccountName",
        "kubectl get serviceaccounts -n {namespace}",
    ),
    Refusal(
        r"no PriorityClass with name (?P<name>\S+) was found",
        "PriorityClass {name} does not exist",
        "apply the platform's manifests (`make apply-manifests`), or correct priorityClassName",
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


def refused(view: View, around: Surroundings) -> Cause | None:
    """The newest refusal, if no pod was made after it."""
    lacking = view.wanted - len(view.active)
    event = events.newest(around.events, {view.uid, *_children(view, around)}, *REASONS)
    made = max((pod["metadata"]["creationTimestamp"] for pod in view.pods), default="")
    if lacking <= 0 or event is None or events.time_of(event) < made:
        return None
    many = f"{lacking} of {view.size} pods are refused: "
    text = events.message(event)
    for known in REFUSALS:
        if match := re.search(known.pattern, text, re.DOTALL):
            words = match.groupdict() | {"namespace": view.namespace}
            return Cause(
                word=known.word,
                blocker=many + brief(known.said.format(**words)),
                action=known.action.format(**words),
                evidence=known.evidence.format(**words),
            )
    return Cause(
        word=Word.REFUSED,
        blocker=many + brief(text),
        action="change the manifest as the API server says",
        evidence=f"kubectl get events -n {view.namespace} --field-selector reason={event['reason']}",
    )


def _children(view: View, around: Surroundings) -> set[str]:
    """Uids of a JobSet's Jobs, known by their names."""
    if view.kind != "JobSet":
        return set()
    groups = view.body["spec"]["replicatedJobs"]
    names = {f"{view.name}-{g['name']}-{n}" for g in groups for n in range(int(g.get("replicas", 1)))}
    told_of = (e.get("involvedObject", {}) for e in around.events)
    return {each["uid"] for each in told_of if each.get("kind") == "Job" and each.get("name") in names}
