"""HF11x: Jobs and JobSets that meet evictions."""

from collections.abc import Iterator
from typing import Any

from holdfast.contract.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES
from holdfast.lint.finding import Hit, Severity, constant
from holdfast.lint.objects import Job, Object, as_int, as_list, as_map, dig
from holdfast.lint.registry import Context, rule

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_POLICY = DOC_JOB + "#pod-failure-policy"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/tasks/failure_policies/"
_IGNORE = '{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FAIL = '{action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FATAL = "{action: FailJob, onExitCodes: {operator: In, values: [2, 70]}}"
_RESUMABLE = {EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}
_FREE = ("RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts")
_NODES = ("--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--num_machines")


def _policy(*rules: str) -> str:
    return f"spec: {{podFailurePolicy: {{rules: [{', '.join(rules)}]}}}}"


def _about_disruption(rule_: dict[str, Any]) -> bool:
    listed = [as_map(c) for c in as_list(rule_.get("onPodConditions"))]
    return any(c.get("type") == "DisruptionTarget" and c.get("status") in (None, "True", True) for c in listed)


def _interruptible(job: Job, context: Context) -> bool:
    return job.pod is not None and context.place(job.pod).interruptible


@rule("HF110", "no-pod-failure-policy", Severity.ERROR, on=Job,
    what="A Job on Spot or flex-start has no podFailurePolicy for disruptions.",
    why="Each eviction then counts against backoffLimit, and a few of them fail a healthy Job.",
    source=DOC_POLICY, fix="add podFailurePolicy with Ignore on DisruptionTarget as the first rule", base="job",
    bad="spec: {podFailurePolicy: null}")  # fmt: skip
def no_pod_failure_policy(job: Job, context: Context) -> Iterator[Hit]:
    # In a JobSet the rule fails the child, and HF116 judges it.
    spared = [r for r in job.rules if _about_disruption(r) and (job.in_jobset or r.get("action") == "Ignore")]
    if _interruptible(job, context) and not spared:
        pool = context.place(job.pod).on_spot if job.pod else None
        basis = context.platform.basis(pool, f"pool {pool.name} is Spot") if pool else None
        at = (*job.path, "podFailurePolicy") if job.spec.get("podFailurePolicy") else job.path
        yield Hit(at, "evictions count as failures of the Job", basis)


@rule("HF111", "failure-policy-order", Severity.ERROR, on=Job,
    what="Another rule comes before Ignore on DisruptionTarget.",
    why="The first rule that matches decides. An evicted pod also has an exit code, so an earlier rule may match it.",
    source=DOC_POLICY, fix="put the rule on DisruptionTarget first", base="job", bad=_policy(_FATAL, _IGNORE))  # fmt: skip
def failure_policy_order(job: Job, context: Context) -> Iterator[Hit]:
    places = [i for i, r in enumerate(job.rules) if _about_disruption(r)]
    if places and places[0] > 0:
        at = (*job.path, "podFailurePolicy", "rules", places[0])
        yield Hit(at, f"is rule {places[0] + 1}; an earlier rule may match first")


@rule("HF112", "policy-needs-never", Severity.ERROR, on=Job,
    what="A podFailurePolicy with a restartPolicy other than Never.",
    why="The API server refuses it: with OnFailure the kubelet restarts the container, and no pod fails.",
    source=DOC_POLICY, fix="set restartPolicy: Never", base="job-pod", bad="restartPolicy: OnFailure")  # fmt: skip
def policy_needs_never(job: Job, context: Context) -> Iterator[Hit]:
    if job.pod and job.spec.get("podFailurePolicy") and job.pod.spec.get("restartPolicy") != "Never":
        yield Hit((*job.pod.at, "restartPolicy"), "podFailurePolicy needs restartPolicy Never")


@rule("HF113", "restart-in-place-on-spot", Severity.WARNING, on=Job,
    what="restartPolicy OnFailure on Spot or flex-start.",
    why="The kubelet restarts the container on the node that shuts down, and the Job does not see the exit code.",
    source=DOC_JOB, fix="set restartPolicy: Never, and a podFailurePolicy", base="job",
    bad="spec: {podFailurePolicy: null, template: {spec: {restartPolicy: OnFailure}}}")  # fmt: skip
def restart_in_place(job: Job, context: Context) -> Iterator[Hit]:
    if not job.pod or job.spec.get("podFailurePolicy") or not _interruptible(job, context):
        return
    if job.pod.spec.get("restartPolicy") == "OnFailure":
        yield Hit((*job.pod.at, "restartPolicy"), "restarts in place on a node that shuts down")


@rule("HF114", "backoff-of-ignored-disruptions", Severity.WARNING, on=Job,
    what="A plain Job on Spot with one back-off for all its pods.",
    why="The controller waits 10, 20, 40 s up to 10 min after failures that it was to ignore, and counts each of several"
        " pods lost together. By index, or in a JobSet, a new pod comes within seconds.",
    source="tests/cluster: 20 pods, 2 nodes preempted: not recovered in 45 s against 10 s",
    fix="use a JobSet, or completionMode Indexed with backoffLimitPerIndex", base="job",
    bad="spec: {backoffLimitPerIndex: null, backoffLimit: 3}")  # fmt: skip
def backoff_of_ignored_disruptions(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.pod is None or context.place(job.pod).on_spot is None:
        return
    if "backoffLimitPerIndex" not in job.spec:
        at = (*job.path, "backoffLimit") if "backoffLimit" in job.spec else job.path
        yield Hit(at, "each round of evictions doubles the time to the next start")


@rule("HF115", "eviction-treated-as-bug", Severity.ERROR, on=Job,
    what="A FailJob rule matches exit codes of an orderly stop or a kill.",
    why="143, 137 and 75 mean that the work can be resumed. Such a rule ends the Job at the first eviction.",
    source="workloads/library/holdfast/contract/exit_codes.py", base="job",
    fix=f"list the codes of bugs only: {list(FATAL_EXIT_CODES)}",
    bad=_policy(_IGNORE, "{action: FailJob, onExitCodes: {operator: NotIn, values: [0]}}"))  # fmt: skip
def eviction_treated_as_bug(job: Job, context: Context) -> Iterator[Hit]:
    basis = constant("holdfast.contract.exit_codes", "FATAL_EXIT_CODES", f"codes of bugs: {list(FATAL_EXIT_CODES)}")
    for index, failing in enumerate(job.rules):
        codes = as_map(failing.get("onExitCodes"))
        if failing.get("action") != "FailJob" or not codes:
            continue
        listed = {code for code in as_list(codes.get("values")) if isinstance(code, int)}
        taken = _RESUMABLE & listed if codes.get("operator") == "In" else _RESUMABLE - listed
        if taken:
            at = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "values")
            yield Hit(at, f"fails the Job on {sorted(taken)}", basis)


@rule("HF116", "jobset-counts-disruptions", Severity.ERROR, on=Object,
    what="Restarts after evictions use up maxRestarts of a JobSet on Spot.",
    why="After that many evictions the JobSet fails, although nothing was wrong with it.",
    source=DOC_JOBSET, base="jobset", bad="spec: {failurePolicy: {maxRestarts: 3, rules: null}}",
    fix="child Jobs: FailJob on DisruptionTarget; JobSet: RestartJobSetAndIgnoreMaxRestarts on PodFailurePolicy")  # fmt: skip
def jobset_counts_disruptions(obj: Object, context: Context) -> Iterator[Hit]:
    judged = [job for job in obj.jobs if _interruptible(job, context)] if obj.kind == "JobSet" else []
    rules = as_list(dig(obj.spec, "failurePolicy", "rules"))
    if judged and not any(dig(r, "action") in _FREE for r in rules):
        yield Hit(("spec", "failurePolicy"), "evictions use up maxRestarts")
    for job in judged:
        if any(_about_disruption(r) and r.get("action") == "Ignore" for r in job.rules):
            message = "with Ignore the gang waits for one pod; with FailJob the JobSet restarts it"
            yield Hit((*job.path, "podFailurePolicy"), message)


@rule("HF117", "jobset-exit-codes-look-like-evictions", Severity.WARNING, on=Object,
    what="A child of a JobSet fails by policy on disruptions and on exit codes.",
    why="The JobSet sees reason PodFailurePolicy for both, so a bug restarts for ever and is not counted.",
    source=DOC_JOBSET, fix="leave exit codes to backoffLimit: 0 of the child; those restarts count", base="jobset-job",
    bad=f"podFailurePolicy: {{rules: [{_FAIL}, {_FATAL}]}}")  # fmt: skip
def jobset_exit_codes(obj: Object, context: Context) -> Iterator[Hit]:
    for job in obj.jobs if obj.kind == "JobSet" else []:
        failing = [i for i, r in enumerate(job.rules) if r.get("action") == "FailJob" and r.get("onExitCodes")]
        if failing and any(_about_disruption(r) for r in job.rules):
            at = (*job.path, "podFailurePolicy", "rules", failing[0])
            yield Hit(at, "the JobSet takes this failure for an eviction")


@rule("HF121", "indices-share-a-run", Severity.ERROR, on=Job,
    what="Several pods of an Indexed Job write one run.",
    why="They do not form a gang, so each takes the other's checkpoints for its own, and every restart loses steps.",
    source="infra/decisions/0068", fix="put $(JOB_COMPLETION_INDEX) into --run, or make a gang of them", base="job-pod",
    bad="containers: [{name: main, image: train, command: [python, -m, holdfast, train, run, --run, sweep]}]")  # fmt: skip
def indices_share_a_run(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.parallelism < 2 or job.pod is None:
        return
    for container in job.pod.containers:
        words = container.words
        apart = "--rendezvous" in words or any("JOB_COMPLETION_INDEX" in word for word in words)
        if container.runs("holdfast", "train", "run") and not apart:
            yield Hit((*container.path, "command"), f"{job.parallelism} pods write the same run")


@rule("HF122", "nodes-are-not-the-pods", Severity.ERROR, on=Job,
    what="The launcher waits for more or fewer nodes than the Job has pods.",
    why="A gang of four with two pods waits for the others until the deadline, and pays for its nodes.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html", fix="make --nodes and parallelism equal",
    base="job-pod", bad="containers: [{name: main, image: train, command: [torchrun, --nnodes=4, train.py]}]")  # fmt: skip
def nodes_are_not_the_pods(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.pod.containers if job.pod else []:
        for name in _NODES:
            nodes = container.option(name)
            if nodes.isascii() and nodes.isdecimal() and len(nodes) < 9 and int(nodes) != job.parallelism:
                yield Hit(container.command_at, f"{name} {nodes}, but the Job has {job.parallelism} pods")


@rule("HF118", "job-without-deadline", Severity.WARNING, on=Job,
    what="A Job has no activeDeadlineSeconds.",
    why="A Job that hangs holds its GPUs until a person reads the bill.",
    source=DOC_JOB, fix="set activeDeadlineSeconds", base="job", bad="spec: {activeDeadlineSeconds: null}")  # fmt: skip
def job_without_deadline(job: Job, context: Context) -> Iterator[Hit]:
    stated, of_pod = job.spec.get("activeDeadlineSeconds"), job.pod and job.pod.spec.get("activeDeadlineSeconds")
    if stated is None and of_pod is None:
        yield Hit(job.path, "may run for ever")
    elif as_int(stated) == 0:
        yield Hit((*job.path, "activeDeadlineSeconds"), "ends the Job at once")


@rule("HF119", "job-without-ttl", Severity.WARNING, on=Object,
    what="A Job or JobSet has no ttlSecondsAfterFinished.",
    why="Finished Jobs and their pods stay in the API server for ever.",
    source=DOC_JOB, fix="set ttlSecondsAfterFinished", base="job", bad="spec: {ttlSecondsAfterFinished: null}")  # fmt: skip
def job_without_ttl(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind in ("Job", "JobSet") and obj.spec.get("ttlSecondsAfterFinished") is None:
        yield Hit(("spec",), "is kept for ever after it ends")
