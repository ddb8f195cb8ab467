"""HF110 to HF117, HF123, HF124: how Jobs and JobSets judge the failures of their pods."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_POLICY = DOC_JOB + "#pod-failure-policy"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/tasks/failure_policies/"
_IGNORE = '{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FAIL = '{action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FATAL = "{action: FailJob, onExitCodes: {operator: In, values: [2, 70]}}"
_RESUMABLE = {EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}
_FREE = ("RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts")
_LAST_CODE = 255


def _policy(*rules: str) -> str:
    return f"spec: {{podFailurePolicy: {{rules: [{', '.join(rules)}]}}}}"


def _is_on_disruption(failure_rule: dict[str, Any]) -> bool:
    for condition in as_maps(failure_rule.get("onPodConditions")):
        is_true = condition.get("status") in (None, "True", True)
        if is_true and condition.get("type") == "DisruptionTarget":
            return True
    return False


def _find_disruption_rules(job: Job) -> list[int]:
    """Returns the indices of the failure rules on DisruptionTarget."""
    indices: list[int] = []
    for index, failure_rule in enumerate(job.rules):
        if _is_on_disruption(failure_rule):
            indices.append(index)
    return indices


def _is_interruptible(job: Job, context: Context) -> bool:
    return job.pod is not None and context.place(job.pod).interruptible


@rule(
    "HF110",
    "no-pod-failure-policy",
    Severity.ERROR,
    on=Job,
    what="A Job on Spot or flex-start has no podFailurePolicy for disruptions.",
    why="Each eviction then counts against backoffLimit, and a few of them fail a healthy Job.",
    source=DOC_POLICY,
    fix="add podFailurePolicy with Ignore on DisruptionTarget as the first rule",
    base="job",
    bad="""\
spec:
  podFailurePolicy: null
""",
)
def no_pod_failure_policy(job: Job, context: Context) -> Iterator[Hit]:
    if not _is_interruptible(job, context):
        return
    for index in _find_disruption_rules(job):
        # In a JobSet the rule fails the child, and HF116 judges it.
        if job.in_jobset or job.rules[index].get("action") == "Ignore":
            return
    pool = context.place(job.pod).on_spot if job.pod else None
    basis = context.platform.basis(pool, f"pool {pool.name} is Spot") if pool else ""
    path = job.path
    fix = ""
    if job.spec.get("podFailurePolicy"):
        path = (*job.path, "podFailurePolicy")
        fix = "its first rule: Ignore on DisruptionTarget"
    message = "evictions count as failures of the Job"
    yield Hit(path, message, basis, fix)


@rule(
    "HF111",
    "failure-policy-order",
    Severity.ERROR,
    on=Job,
    what="Another rule comes before Ignore on DisruptionTarget.",
    why=(
        "The first rule that matches decides. An evicted pod also has an exit code, so an earlier"
        " rule may match it."
    ),
    source=DOC_POLICY,
    fix="put the rule on DisruptionTarget first",
    base="job",
    bad=_policy(_FATAL, _IGNORE),
)
def failure_policy_order(job: Job, context: Context) -> Iterator[Hit]:
    indices = _find_disruption_rules(job)
    if indices and indices[0] > 0:
        path = (*job.path, "podFailurePolicy", "rules", indices[0])
        yield Hit(path, f"is rule {indices[0] + 1}; an earlier rule may match first")


@rule(
    "HF112",
    "policy-needs-never",
    Severity.ERROR,
    on=Job,
    what="A Job with a podFailurePolicy has a restartPolicy other than Never.",
    why=(
        "The API server refuses it: with OnFailure the kubelet restarts the container, and no pod"
        " fails."
    ),
    source=DOC_POLICY,
    fix="set restartPolicy: Never",
    base="job-pod",
    bad="""\
restartPolicy: OnFailure
""",
)
def policy_needs_never(job: Job, context: Context) -> Iterator[Hit]:
    if not job.pod or not job.spec.get("podFailurePolicy"):
        return
    if job.pod.spec.get("restartPolicy") != "Never":
        path = (*job.pod.spec_path, "restartPolicy")
        yield Hit(path, "podFailurePolicy needs restartPolicy Never")


@rule(
    "HF113",
    "restart-in-place-on-spot",
    Severity.WARNING,
    on=Job,
    what="restartPolicy OnFailure on Spot or flex-start.",
    why=(
        "The kubelet restarts the container on the node that shuts down, and the Job does not see"
        " the exit code."
    ),
    source=DOC_JOB,
    fix="set restartPolicy: Never, and a podFailurePolicy",
    base="job",
    bad="""\
spec:
  podFailurePolicy: null
  template:
    spec:
      restartPolicy: OnFailure
""",
)
def restart_in_place(job: Job, context: Context) -> Iterator[Hit]:
    if not job.pod or job.spec.get("podFailurePolicy") or not _is_interruptible(job, context):
        return
    if job.pod.spec.get("restartPolicy") == "OnFailure":
        yield Hit(
            (*job.pod.spec_path, "restartPolicy"), "restarts in place on a node that shuts down"
        )


@rule(
    "HF114",
    "backoff-of-ignored-disruptions",
    Severity.WARNING,
    on=Job,
    what="A plain Job on Spot has one back-off for all its pods.",
    why=(
        "The controller waits 10, 20, 40 s up to 10 min, even after failures that it ignores, and"
        " counts each of several pods lost together. By index, or in a JobSet, a new pod comes"
        " within seconds."
    ),
    source="measured: 20 pods, 2 nodes preempted: not recovered in 45 s against 10 s",
    fix="use a JobSet, or completionMode Indexed with backoffLimitPerIndex",
    base="job",
    bad="""\
spec:
  backoffLimitPerIndex: null
  backoffLimit: 3
""",
)
def require_backoff_by_index(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.pod is None or context.place(job.pod).on_spot is None:
        return
    if "backoffLimitPerIndex" not in job.spec:
        path = (*job.path, "backoffLimit") if "backoffLimit" in job.spec else job.path
        yield Hit(path, "each round of evictions doubles the time to the next start")


@rule(
    "HF115",
    "eviction-treated-as-bug",
    Severity.ERROR,
    on=Job,
    what="A FailJob rule matches exit codes of an orderly stop or a kill.",
    why=(
        "143, 137 and 75 mean that the work can be resumed. Such a rule ends the Job at the first"
        " eviction."
    ),
    source="holdfast/vocabulary/exit_codes.py",
    base="job",
    fix=f"list the codes of bugs only: {list(FATAL_EXIT_CODES)}",
    bad=_policy(_IGNORE, "{action: FailJob, onExitCodes: {operator: NotIn, values: [0]}}"),
)
def eviction_treated_as_bug(job: Job, context: Context) -> Iterator[Hit]:
    for index, failure_rule in enumerate(job.rules):
        condition = as_map(failure_rule.get("onExitCodes"))
        if failure_rule.get("action") != "FailJob" or not condition:
            continue
        codes = {code for code in as_list(condition.get("values")) if isinstance(code, int)}
        if condition.get("operator") == "In":
            resumable_codes = _RESUMABLE & codes
        else:
            resumable_codes = _RESUMABLE - codes
        if resumable_codes:
            path = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "values")
            yield Hit(path, f"fails the Job on {sorted(resumable_codes)}")


@rule(
    "HF116",
    "jobset-counts-disruptions",
    Severity.ERROR,
    on=Object,
    kinds=("JobSet",),
    what="Restarts after evictions use up maxRestarts of a JobSet on Spot.",
    why="After that many evictions the JobSet fails, although nothing was wrong with it.",
    source=DOC_JOBSET,
    base="jobset",
    bad="""\
spec:
  failurePolicy:
    maxRestarts: 3
    rules: null
""",
    fix=(
        "child Jobs: FailJob on DisruptionTarget; JobSet: RestartJobSetAndIgnoreMaxRestarts on"
        " PodFailurePolicy"
    ),
)
def jobset_counts_disruptions(obj: Object, context: Context) -> Iterator[Hit]:
    jobs = [job for job in obj.jobs if _is_interruptible(job, context)]
    if jobs and not _restarts_freely(obj):
        yield Hit(("spec", "failurePolicy"), "evictions use up maxRestarts")
    message = "with Ignore the gang waits for one pod; with FailJob the JobSet restarts it"
    for job in jobs:
        for index in _find_disruption_rules(job):
            if job.rules[index].get("action") == "Ignore":
                yield Hit((*job.path, "podFailurePolicy"), message)
                break


def _restarts_freely(jobset: Object) -> bool:
    """Returns whether a rule of a JobSet restarts it without counting the restart."""
    for failure_rule in as_list(dig(jobset.spec, "failurePolicy", "rules")):
        if dig(failure_rule, "action") in _FREE:
            return True
    return False


@rule(
    "HF117",
    "jobset-exit-codes-look-like-evictions",
    Severity.WARNING,
    on=Object,
    kinds=("JobSet",),
    what="A child of a JobSet fails by policy on disruptions and on exit codes.",
    why=(
        "The JobSet sees reason PodFailurePolicy for both, so a bug restarts for ever and is not"
        " counted."
    ),
    source=DOC_JOBSET,
    fix="leave exit codes to backoffLimit: 0 of the child; those restarts count",
    base="jobset-job",
    bad=f"podFailurePolicy: {{rules: [{_FAIL}, {_FATAL}]}}",
)
def jobset_exit_codes(obj: Object, context: Context) -> Iterator[Hit]:
    for job in obj.jobs:
        if not _find_disruption_rules(job):
            continue
        for index, failure_rule in enumerate(job.rules):
            if failure_rule.get("action") == "FailJob" and failure_rule.get("onExitCodes"):
                path = (*job.path, "podFailurePolicy", "rules", index)
                yield Hit(path, "the JobSet takes this failure for an eviction")
                break


@rule(
    "HF123",
    "gang-without-restarts",
    Severity.WARNING,
    on=Object,
    kinds=("JobSet",),
    what="A JobSet on Spot has no maxRestarts.",
    why=(
        "Evictions restart it, but the first crash of any pod ends all of them, for example by"
        " a full disk."
    ),
    source=DOC_JOBSET,
    fix="set failurePolicy.maxRestarts to 3",
    base="jobset",
    bad="""\
spec:
  failurePolicy:
    maxRestarts: 0
""",
)
def gang_without_restarts(obj: Object, context: Context) -> Iterator[Hit]:
    policy = as_map(obj.spec.get("failurePolicy"))
    is_off = policy.get("maxRestarts") == 0
    if policy.get("maxRestarts") or not (policy.get("rules") or is_off):
        return
    for job in obj.jobs:
        if job.pod and job.parallelism > 1 and context.place(job.pod).on_spot:
            yield Hit(("spec", "failurePolicy", "maxRestarts"), "one crash ends the gang")
            return


@rule(
    "HF124",
    "exit-codes-of-no-container",
    Severity.ERROR,
    on=Job,
    what="A rule on exit codes names a container, or a code, that there is not.",
    why="The API server refuses the Job. In a JobSet nothing is refused: the Jobs are never made.",
    source=DOC_POLICY,
    fix="name a container of the pod, or none",
    base="job",
    bad=_policy(_IGNORE, _FATAL.replace("operator", "containerName: trainer, operator")),
)
def exit_codes_without_container(job: Job, context: Context) -> Iterator[Hit]:
    names = [container.name for container in job.containers]
    for index, failure_rule in enumerate(job.rules):
        name = as_text(dig(failure_rule, "onExitCodes", "containerName"))
        if name and names and name not in names:
            path = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "containerName")
            yield Hit(path, f"no container {name}; there are {', '.join(names)}")
        for code in as_list(dig(failure_rule, "onExitCodes", "values")):
            if (as_int(code) or 0) > _LAST_CODE:
                path = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "values")
                yield Hit(path, f"no program ends with {code}: {_LAST_CODE} is the last code")
