"""HF11x: Jobs and JobSets that meet evictions."""

from collections.abc import Iterator
from typing import Any

from holdfast.contract.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES
from holdfast.lint.finding import Basis, Hit, Severity, constant
from holdfast.lint.objects import Job, Object, as_int, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_POLICY = DOC_JOB + "#pod-failure-policy"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/tasks/failure_policies/"
_IGNORE = '{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FATAL = "{action: FailJob, onExitCodes: {operator: In, values: [2, 70]}}"


def _about_disruption(rule_: dict[str, Any]) -> bool:
    listed = [as_map(c) for c in as_list(rule_.get("onPodConditions"))]
    return any(c.get("type") == "DisruptionTarget" and c.get("status") in (None, "True", True) for c in listed)


def _interruptible(job: Job, context: Context) -> bool:
    return job.pod is not None and context.place(job.pod).interruptible


@rule(
    "HF110", "no-pod-failure-policy", Severity.ERROR, on=Job,
    what="A Job on capacity that can be taken away has no podFailurePolicy for disruptions.",
    why="Each eviction then counts against backoffLimit; a few of them fail a healthy Job.",
    source=DOC_POLICY, fix="add podFailurePolicy with Ignore on DisruptionTarget as the first rule", base="job",
    bad="spec: {podFailurePolicy: null}", good=f"spec: {{podFailurePolicy: {{rules: [{_IGNORE}, {_FATAL}]}}}}",
)  # fmt: skip
def no_pod_failure_policy(job: Job, context: Context) -> Iterator[Hit]:
    # In a JobSet the rule fails the child, and HF116 judges it.
    spared = [r for r in job.rules if _about_disruption(r) and (job.in_jobset or r.get("action") == "Ignore")]
    if _interruptible(job, context) and not spared:
        pool = context.place(job.pod).on_spot if job.pod else None
        basis = context.platform.basis(pool, f"pool {pool.name} is Spot") if pool else None
        at = (*job.path, "podFailurePolicy") if job.spec.get("podFailurePolicy") else job.path
        yield Hit(at, "evictions count as failures of the Job", basis)


@rule(
    "HF111", "failure-policy-order", Severity.ERROR, on=Job,
    what="Another rule stands before Ignore on DisruptionTarget.",
    why="The first rule that matches decides: an evicted pod also has an exit code, so an earlier rule takes it.",
    source=DOC_POLICY, fix="put the rule on DisruptionTarget first", base="job",
    bad=f"spec: {{podFailurePolicy: {{rules: [{_FATAL}, {_IGNORE}]}}}}",
    good=f"spec: {{podFailurePolicy: {{rules: [{_IGNORE}, {_FATAL}]}}}}",
)  # fmt: skip
def failure_policy_order(job: Job, context: Context) -> Iterator[Hit]:
    places = [i for i, r in enumerate(job.rules) if _about_disruption(r)]
    if places and places[0] > 0:
        yield Hit(
            (*job.path, "podFailurePolicy", "rules", places[0]),
            f"is rule {places[0] + 1}; an earlier rule may match first",
        )


@rule(
    "HF112", "policy-needs-never", Severity.ERROR, on=Job,
    what="podFailurePolicy together with a restartPolicy other than Never.",
    why="The API server refuses it: with OnFailure the kubelet restarts the container and no pod ever fails.",
    source=DOC_POLICY, fix="set restartPolicy: Never", base="job-pod",
    bad="restartPolicy: OnFailure", good="restartPolicy: Never",
)  # fmt: skip
def policy_needs_never(job: Job, context: Context) -> Iterator[Hit]:
    if job.pod and job.spec.get("podFailurePolicy") and job.pod.spec.get("restartPolicy") != "Never":
        yield Hit((*job.pod.at, "restartPolicy"), "podFailurePolicy needs restartPolicy Never")


@rule(
    "HF113", "restart-in-place-on-spot", Severity.WARNING, on=Job,
    what="restartPolicy OnFailure on capacity that can be taken away.",
    why="The kubelet restarts on the same node, which is going away, and hides the exit code from the Job.",
    source=DOC_JOB, fix="set restartPolicy: Never, and a podFailurePolicy", base="job",
    bad="spec: {podFailurePolicy: null, template: {spec: {restartPolicy: OnFailure}}}",
    good="spec: {template: {spec: {restartPolicy: Never}}}",
)  # fmt: skip
def restart_in_place(job: Job, context: Context) -> Iterator[Hit]:
    if not job.pod or job.spec.get("podFailurePolicy") or not _interruptible(job, context):
        return
    if job.pod.spec.get("restartPolicy") == "OnFailure":
        yield Hit((*job.pod.at, "restartPolicy"), "restarts in place on a node that is going away")


@rule(
    "HF114", "backoff-of-ignored-disruptions", Severity.WARNING, on=Job,
    what="A plain Job on Spot with one back-off for all its pods.",
    why="The controller backs off 10, 20, 40 s up to 10 min on failures it was told to ignore, and pods lost together"
        " count together. By index, or as a JobSet, recreation takes seconds.",
    source="tests/cluster: 20 pods, 2 nodes preempted: not recovered in 45 s against 10 s",
    fix="use a JobSet, or completionMode Indexed with backoffLimitPerIndex", base="job",
    bad="spec: {backoffLimitPerIndex: null, backoffLimit: 3}", good="spec: {backoffLimitPerIndex: 3}",
)  # fmt: skip
def backoff_of_ignored_disruptions(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.pod is None or context.place(job.pod).on_spot is None:
        return
    if "backoffLimitPerIndex" not in job.spec:
        at = (*job.path, "backoffLimit") if "backoffLimit" in job.spec else job.path
        yield Hit(at, "each round of evictions doubles the time to the next start")


@rule(
    "HF115", "eviction-treated-as-bug", Severity.ERROR, on=Job,
    what="A FailJob rule takes exit codes that an orderly stop or a kill gives.",
    why="143, 137 and 75 say: resume me. Failing the Job on them ends it at the first eviction.",
    source="workloads/library/holdfast/contract/exit_codes.py", fix=f"list the codes of bugs only: {list(FATAL_EXIT_CODES)}", base="job",
    bad=f"spec: {{podFailurePolicy: {{rules: [{_IGNORE},"
        " {action: FailJob, onExitCodes: {operator: NotIn, values: [0]}}]}}",
    good=f"spec: {{podFailurePolicy: {{rules: [{_IGNORE}, {_FATAL}]}}}}",
)  # fmt: skip
def eviction_treated_as_bug(job: Job, context: Context) -> Iterator[Hit]:
    for index, failing in enumerate(job.rules):
        codes = as_map(failing.get("onExitCodes"))
        if failing.get("action") != "FailJob" or not codes:
            continue
        listed = {code for code in as_list(codes.get("values")) if isinstance(code, int)}
        resumable = {EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}
        taken = resumable & listed if codes.get("operator") == "In" else resumable - listed
        if taken:
            at = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "values")
            yield Hit(at, f"fails the Job on {sorted(taken)}", _codes_basis())


def _codes_basis() -> Basis:
    return constant("holdfast.contract.exit_codes", "FATAL_EXIT_CODES", f"codes of bugs: {list(FATAL_EXIT_CODES)}")


@rule(
    "HF116", "jobset-counts-disruptions", Severity.ERROR, on=Object,
    what="A JobSet on Spot whose restarts by eviction use up maxRestarts.",
    why="After that many evictions the JobSet has failed, although nothing was wrong with it.",
    source=DOC_JOBSET,
    fix="child Jobs: FailJob on DisruptionTarget; JobSet: RestartJobSetAndIgnoreMaxRestarts on PodFailurePolicy",
    base="jobset",
    bad="spec: {failurePolicy: {maxRestarts: 3, rules: null}}",
    good="spec: {failurePolicy: {maxRestarts: 3}}",
)  # fmt: skip
def jobset_counts_disruptions(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind != "JobSet" or not any(_interruptible(job, context) for job in obj.jobs):
        return
    free = ("RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts")
    rules = as_list(dig(obj.spec, "failurePolicy", "rules"))
    if not any(dig(r, "action") in free for r in rules):
        yield Hit(("spec", "failurePolicy"), "evictions use up maxRestarts")
    for job in obj.jobs:
        if _interruptible(job, context) and any(
            _about_disruption(r) and r.get("action") == "Ignore" for r in job.rules
        ):
            yield Hit(
                (*job.path, "podFailurePolicy"),
                "Ignore keeps the gang waiting for one pod; FailJob lets the JobSet restart it",
            )


@rule(
    "HF117", "jobset-exit-codes-look-like-evictions", Severity.WARNING, on=Object,
    what="A child of a JobSet fails by policy both on disruptions and on exit codes.",
    why="Both reach the JobSet as reason PodFailurePolicy, so a bug restarts for ever, free of charge.",
    source=DOC_JOBSET, fix="leave exit codes to backoffLimit: 0 of the child; those restarts count", base="jobset-job",
    bad="podFailurePolicy: {rules: [{action: FailJob, onPodConditions: [{type: DisruptionTarget, status: \"True\"}]},"
        " {action: FailJob, onExitCodes: {operator: In, values: [70]}}]}",
    good="podFailurePolicy: {rules: [{action: FailJob, onPodConditions: [{type: DisruptionTarget, status: \"True\"}]}]}",
)  # fmt: skip
def jobset_exit_codes(obj: Object, context: Context) -> Iterator[Hit]:
    for job in obj.jobs if obj.kind == "JobSet" else []:
        failing = [i for i, r in enumerate(job.rules) if r.get("action") == "FailJob" and r.get("onExitCodes")]
        if failing and any(_about_disruption(r) for r in job.rules):
            yield Hit(
                (*job.path, "podFailurePolicy", "rules", failing[0]), "the JobSet takes this failure for an eviction"
            )


@rule(
    "HF121", "indices-share-a-run", Severity.ERROR, on=Job,
    what="Several pods of a Job by index write one run.",
    why="They do not meet, so each takes the other's checkpoints for its own, and steps are lost at every restart.",
    source="infra/decisions/0068", fix="put $(JOB_COMPLETION_INDEX) into --run, or make a gang of them", base="job-pod",
    bad="containers: [{name: main, image: train, command: [python, -m, holdfast, train, run, --run, sweep]}]",
    good="restartPolicy: Never",
)  # fmt: skip
def indices_share_a_run(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.parallelism < 2 or job.pod is None:
        return
    for container in job.pod.containers:
        words = container.words
        trains = any(
            triple == ("holdfast", "train", "run") for triple in zip(words, words[1:], words[2:], strict=False)
        )
        if trains and not any("JOB_COMPLETION_INDEX" in word for word in words) and "--rendezvous" not in words:
            yield Hit((*container.path, "command"), f"{job.parallelism} pods write the same run")


@rule(
    "HF122", "nodes-are-not-the-pods", Severity.ERROR, on=Job,
    what="The launcher waits for another number of nodes than the Job has pods.",
    why="A gang of four with two pods waits for its peers until the deadline, at full price.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html", fix="make --nodes and parallelism equal",
    base="job-pod",
    bad="containers: [{name: main, image: train, command: [torchrun, --nnodes=4, train.py]}]",
    good="restartPolicy: Never",
)  # fmt: skip
def nodes_are_not_the_pods(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.pod.containers if job.pod else []:
        words = container.words
        for n, word in enumerate(words):
            name, equals, value = word.partition("=")
            nodes = value if equals else (words[n + 1] if n + 1 < len(words) else "")
            known = name in ("--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--num_machines")
            if known and nodes.isascii() and nodes.isdecimal() and len(nodes) < 9 and int(nodes) != job.parallelism:
                at = (*container.path, "command" if "command" in container.body else "args")
                yield Hit(at, f"{name} {nodes}, but the Job has {job.parallelism} pods")


@rule(
    "HF118", "job-without-deadline", Severity.WARNING, on=Job,
    what="A Job without activeDeadlineSeconds.",
    why="A hung Job holds its GPUs until somebody looks at the bill.",
    source=DOC_JOB, fix="set activeDeadlineSeconds", base="job",
    bad="spec: {activeDeadlineSeconds: null}", good="spec: {activeDeadlineSeconds: 3600}",
)  # fmt: skip
def job_without_deadline(job: Job, context: Context) -> Iterator[Hit]:
    if (
        job.spec.get("activeDeadlineSeconds") is None
        and dig(job.pod.spec if job.pod else {}, "activeDeadlineSeconds") is None
    ):
        yield Hit(job.path, "may run for ever")
    elif as_int(job.spec.get("activeDeadlineSeconds")) == 0:
        yield Hit((*job.path, "activeDeadlineSeconds"), "ends the Job at once")


@rule(
    "HF119", "job-without-ttl", Severity.WARNING, on=Object,
    what="A Job or JobSet without ttlSecondsAfterFinished.",
    why="Finished Jobs and their pods stay in the API server for ever.",
    source=DOC_JOB, fix="set ttlSecondsAfterFinished", base="job",
    bad="spec: {ttlSecondsAfterFinished: null}", good="spec: {ttlSecondsAfterFinished: 3600}",
)  # fmt: skip
def job_without_ttl(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind in ("Job", "JobSet") and obj.spec.get("ttlSecondsAfterFinished") is None:
        yield Hit(("spec",), "is kept for ever after it ends")


@rule(
    "HF120", "failure-policy-unknown-word", Severity.ERROR, on=Job,
    what="A podFailurePolicy rule with an action or operator that does not exist.",
    why="The API server refuses the Job.",
    source=DOC_POLICY, fix="actions: Ignore, FailJob, FailIndex, Count; operators: In, NotIn", base="job",
    bad='spec: {podFailurePolicy: {rules: [{action: Skip, onPodConditions: [{type: DisruptionTarget, status: "True"}]}]}}',
    good=f"spec: {{podFailurePolicy: {{rules: [{_IGNORE}]}}}}",
)  # fmt: skip
def failure_policy_unknown_word(job: Job, context: Context) -> Iterator[Hit]:
    for index, listed in enumerate(job.rules):
        at = (*job.path, "podFailurePolicy", "rules", index)
        if as_text(listed.get("action")) not in ("Ignore", "FailJob", "FailIndex", "Count"):
            yield Hit((*at, "action"), f"{listed.get('action')} is no action")
        operator = dig(listed, "onExitCodes", "operator")
        if operator not in (None, "In", "NotIn"):
            yield Hit((*at, "onExitCodes", "operator"), f"{operator} is no operator")
