"""HF11x: Jobs and JobSets that meet evictions."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, Pod, as_int, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_GANG_ADDRESS, ENV_GPUS, ENV_JOB, PLACE
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_POLICY = DOC_JOB + "#pod-failure-policy"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/tasks/failure_policies/"
_IGNORE = '{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FAIL = '{action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}'
_FATAL = "{action: FailJob, onExitCodes: {operator: In, values: [2, 70]}}"
_RESUMABLE = {EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}
_FREE = ("RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts")
_RANKS = ("--ranks", "--nproc-per-node", "--nproc_per_node")
_HEADS = ("--rendezvous", "--rdzv-endpoint", "--rdzv_endpoint")
_POD_OF_A_SET = re.compile(r"(.+)-\d+-\d+")
_NODES = ("--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--num_machines")


def _policy(*rules: str) -> str:
    return f"spec: {{podFailurePolicy: {{rules: [{', '.join(rules)}]}}}}"


def _meets(host: str) -> str:
    main = (
        f"command: [torchrun, --rdzv-endpoint, '{host}:29500'], resources: {{limits:"
        " {nvidia.com/gpu: 1}}"
    )
    return f"template: {{spec: {{containers: [{{name: main, image: train, {main}}}]}}}}"


def _about_disruption(rule_: dict[str, Any]) -> bool:
    listed = [as_map(c) for c in as_list(rule_.get("onPodConditions"))]
    return any(
        c.get("type") == "DisruptionTarget" and c.get("status") in (None, "True", True)
        for c in listed
    )


def _interruptible(job: Job, context: Context) -> bool:
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
    bad="spec: {podFailurePolicy: null}",
)
def no_pod_failure_policy(job: Job, context: Context) -> Iterator[Hit]:
    # In a JobSet the rule fails the child, and HF116 judges it.
    spared = []
    for r in job.rules:
        if _about_disruption(r) and (job.in_jobset or r.get("action") == "Ignore"):
            spared.append(r)
    if _interruptible(job, context) and not spared:
        pool = context.place(job.pod).on_spot if job.pod else None
        basis = context.platform.basis(pool, f"pool {pool.name} is Spot") if pool else ""
        at = (*job.path, "podFailurePolicy") if job.spec.get("podFailurePolicy") else job.path
        yield Hit(at, "evictions count as failures of the Job", basis)


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
    places = [i for i, r in enumerate(job.rules) if _about_disruption(r)]
    if places and places[0] > 0:
        at = (*job.path, "podFailurePolicy", "rules", places[0])
        yield Hit(at, f"is rule {places[0] + 1}; an earlier rule may match first")


@rule(
    "HF112",
    "policy-needs-never",
    Severity.ERROR,
    on=Job,
    what="A podFailurePolicy with a restartPolicy other than Never.",
    why=(
        "The API server refuses it: with OnFailure the kubelet restarts the container, and no pod"
        " fails."
    ),
    source=DOC_POLICY,
    fix="set restartPolicy: Never",
    base="job-pod",
    bad="restartPolicy: OnFailure",
)
def policy_needs_never(job: Job, context: Context) -> Iterator[Hit]:
    if (
        job.pod
        and job.spec.get("podFailurePolicy")
        and job.pod.spec.get("restartPolicy") != "Never"
    ):
        yield Hit((*job.pod.at, "restartPolicy"), "podFailurePolicy needs restartPolicy Never")


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
    bad="spec: {podFailurePolicy: null, template: {spec: {restartPolicy: OnFailure}}}",
)
def restart_in_place(job: Job, context: Context) -> Iterator[Hit]:
    if not job.pod or job.spec.get("podFailurePolicy") or not _interruptible(job, context):
        return
    if job.pod.spec.get("restartPolicy") == "OnFailure":
        yield Hit((*job.pod.at, "restartPolicy"), "restarts in place on a node that shuts down")


@rule(
    "HF114",
    "backoff-of-ignored-disruptions",
    Severity.WARNING,
    on=Job,
    what="A plain Job on Spot with one back-off for all its pods.",
    why=(
        "The controller waits 10, 20, 40 s up to 10 min after failures that it was to ignore, and"
        " counts each of several pods lost together. By index, or in a JobSet, a new pod comes"
        " within seconds."
    ),
    source="tests/cluster: 20 pods, 2 nodes preempted: not recovered in 45 s against 10 s",
    fix="use a JobSet, or completionMode Indexed with backoffLimitPerIndex",
    base="job",
    bad="spec: {backoffLimitPerIndex: null, backoffLimit: 3}",
)
def backoff_of_ignored_disruptions(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.pod is None or context.place(job.pod).on_spot is None:
        return
    if "backoffLimitPerIndex" not in job.spec:
        at = (*job.path, "backoffLimit") if "backoffLimit" in job.spec else job.path
        yield Hit(at, "each round of evictions doubles the time to the next start")


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
    source="workloads/library/holdfast/vocabulary/exit_codes.py",
    base="job",
    fix=f"list the codes of bugs only: {list(FATAL_EXIT_CODES)}",
    bad=_policy(_IGNORE, "{action: FailJob, onExitCodes: {operator: NotIn, values: [0]}}"),
)
def eviction_treated_as_bug(job: Job, context: Context) -> Iterator[Hit]:
    for index, failing in enumerate(job.rules):
        codes = as_map(failing.get("onExitCodes"))
        if failing.get("action") != "FailJob" or not codes:
            continue
        listed = {code for code in as_list(codes.get("values")) if isinstance(code, int)}
        taken = _RESUMABLE & listed if codes.get("operator") == "In" else _RESUMABLE - listed
        if taken:
            at = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "values")
            yield Hit(at, f"fails the Job on {sorted(taken)}")


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
    bad="spec: {failurePolicy: {maxRestarts: 3, rules: null}}",
    fix=(
        "child Jobs: FailJob on DisruptionTarget; JobSet: RestartJobSetAndIgnoreMaxRestarts on"
        " PodFailurePolicy"
    ),
)
def jobset_counts_disruptions(obj: Object, context: Context) -> Iterator[Hit]:
    judged = [job for job in obj.jobs if _interruptible(job, context)]
    rules = as_list(dig(obj.spec, "failurePolicy", "rules"))
    if judged and not any(dig(r, "action") in _FREE for r in rules):
        yield Hit(("spec", "failurePolicy"), "evictions use up maxRestarts")
    for job in judged:
        if any(_about_disruption(r) and r.get("action") == "Ignore" for r in job.rules):
            message = "with Ignore the gang waits for one pod; with FailJob the JobSet restarts it"
            yield Hit((*job.path, "podFailurePolicy"), message)


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
        failing = [
            i
            for i, r in enumerate(job.rules)
            if r.get("action") == "FailJob" and r.get("onExitCodes")
        ]
        if failing and any(_about_disruption(r) for r in job.rules):
            at = (*job.path, "podFailurePolicy", "rules", failing[0])
            yield Hit(at, "the JobSet takes this failure for an eviction")


@rule(
    "HF121",
    "indices-share-a-run",
    Severity.ERROR,
    on=Job,
    what="Several pods of an Indexed Job write one run.",
    why=(
        "They do not form a gang, so each takes the other's checkpoints for its own, and every"
        " restart loses steps."
    ),
    source="infra/decisions/0068",
    fix="put $(JOB_COMPLETION_INDEX) into --run, or make a gang of them",
    base="job-pod",
    bad=(
        "containers: [{name: main, image: train, command: [python, -m, holdfast, train, run, --run,"
        " sweep]}]"
    ),
)
def indices_share_a_run(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.parallelism < 2 or job.pod is None:
        return
    for container in job.pod.containers:
        words = container.words
        apart = "--rendezvous" in words or any("JOB_COMPLETION_INDEX" in word for word in words)
        if container.runs("holdfast", "train", "run") and not apart:
            yield Hit((*container.path, "command"), f"{job.parallelism} pods write the same run")


@rule(
    "HF122",
    "nodes-are-not-the-pods",
    Severity.ERROR,
    on=Job,
    what="The launcher waits for more or fewer nodes than the Job has pods.",
    why=(
        "A gang of four with two pods waits for the others until the deadline, and pays for its"
        " nodes."
    ),
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    fix="make --nodes and parallelism equal",
    base="job-pod",
    bad="containers: [{name: main, image: train, command: [torchrun, --nnodes=4, train.py]}]",
)
def nodes_are_not_the_pods(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.pod.containers if job.pod else []:
        for name in _NODES:
            nodes = container.number(name)
            if nodes is not None and nodes != job.parallelism:
                yield Hit(
                    container.command_at, f"{name} {nodes}, but the Job has {job.parallelism} pods"
                )


@rule(
    "HF123",
    "gang-without-restarts",
    Severity.WARNING,
    on=Object,
    kinds=("JobSet",),
    what="A JobSet on Spot has no maxRestarts.",
    why=(
        "Evictions restart it, but the first crash of any pod ends all of them: a full disk, one"
        " slow answer of a store."
    ),
    source=DOC_JOBSET,
    fix="set failurePolicy.maxRestarts to 3",
    base="jobset",
    bad="spec: {failurePolicy: {maxRestarts: 0}}",
)
def gang_without_restarts(obj: Object, context: Context) -> Iterator[Hit]:
    policy = as_map(obj.spec.get("failurePolicy"))
    on_spot = any(
        job.pod and job.parallelism > 1 and context.place(job.pod).on_spot for job in obj.jobs
    )
    if on_spot and not policy.get("maxRestarts") and policy.get("rules"):
        yield Hit(("spec", "failurePolicy", "maxRestarts"), "one crash ends the gang")


@rule(
    "HF124",
    "exit-codes-of-no-container",
    Severity.ERROR,
    on=Job,
    what="A rule on exit codes names a container that the pod does not have.",
    why="The API server refuses the Job. In a JobSet nothing is refused: the Jobs are never made.",
    source=DOC_POLICY,
    fix="name a container of the pod, or none",
    base="job",
    bad=_policy(_IGNORE, _FATAL.replace("operator", "containerName: trainer, operator")),
)
def exit_codes_of_no_container(job: Job, context: Context) -> Iterator[Hit]:
    known = [container.name for container in job.pod.containers] if job.pod else []
    for index, each in enumerate(job.rules):
        name = as_text(dig(each, "onExitCodes", "containerName"))
        if name and known and name not in known:
            at = (*job.path, "podFailurePolicy", "rules", index, "onExitCodes", "containerName")
            yield Hit(at, f"no container {name}; there are {', '.join(known)}")


@rule(
    "HF125",
    "ranks-are-not-the-gpus",
    Severity.ERROR,
    on=Pod,
    what=(
        "A launcher starts more or fewer processes than the container has GPUs, or HOLDFAST_GPUS"
        " has another number."
    ),
    why=(
        "Processes without a GPU of their own fail or share one. A GPU without a process is paid"
        " for and idle."
    ),
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    fix="make --ranks and nvidia.com/gpu equal",
    base="container",
    bad="command: [torchrun, --nproc-per-node=8, train.py]",
)
def ranks_are_not_the_gpus(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        stated = {name: container.number(name) for name in _RANKS} | {
            ENV_GPUS: quantity(container.env.get(ENV_GPUS))
        }
        for name, count in stated.items() if container.gpus else ():
            if count is not None and count != container.gpus:
                yield Hit(
                    container.command_at,
                    f"{name} {count:g}, and the container has {container.gpus} GPUs",
                )


@rule(
    "HF126",
    "rendezvous-elsewhere",
    Severity.ERROR,
    on=Job,
    what="Members of a gang meet at a pod of another job, or at an address without a port.",
    why="They wait there until the deadline, or join the other gang.",
    source="https://jobset.sigs.k8s.io/docs/concepts/",
    base="jobset-job",
    fix="NAME-REPLICATEDJOB-0-0.NAME:29500, of the JobSet's own name",
    bad=_meets("other-workers-0-0.other"),
    good=_meets("train-workers-0-0.train"),
)
def rendezvous_elsewhere(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.pod.containers if job.pod else []:
        for option in _HEADS:
            address = container.expanded(container.option(option))
            host, _, port = address.partition(":")
            if address and "holdfast" in container.words and not port.isdecimal():
                yield Hit(container.command_at, f"{address} has no port")
            elif "$(" not in host and not _is_of(job, host):
                yield Hit(container.command_at, f"{host} is no pod of {job.owner.name}")
        place = container.expanded(as_text(container.env.get(ENV_GANG_ADDRESS)))
        if job.pod and place and "$(" not in place:
            own = f"{job.owner.name}-{PLACE}.{as_text(job.pod.spec.get('subdomain'))}"
            if place.partition(".svc")[0] not in (own, f"{own}.{job.owner.namespace}"):
                yield Hit(container.path, f"{ENV_GANG_ADDRESS} is {place}, and its pods are {own}")


def _is_of(job: Job, host: str) -> bool:
    """Whether a host may be a pod of the job's JobSet; one that is no pod of any JobSet may be a
    Service.
    """
    pod, dot, rest = host[:300].partition(".")
    named = _POD_OF_A_SET.fullmatch(pod)
    if not named or not job.in_jobset or "name" not in job.owner.metadata:
        return True
    jobs = [as_text(dig(each, "name")) for each in as_list(job.owner.spec.get("replicatedJobs"))]
    subdomain = as_text(dig(job.owner.spec, "network", "subdomain")) or job.owner.name
    inside = not dot or rest.partition(".")[0] == subdomain
    return inside and named[1] in [f"{job.owner.name}-{name}" for name in jobs]


@rule(
    "HF127",
    "job-variable-wrong",
    Severity.ERROR,
    on=Pod,
    what=f"{ENV_JOB} is not the name of the object.",
    why="Events, receipts and `explain` then count this job's work, and its loss, for another one.",
    source="workloads/library/holdfast/vocabulary/environment.py",
    fix="set it to metadata.name",
    base="container",
    bad=f"env: [{{name: {ENV_JOB}, value: other}}]",
    good=f"env: [{{name: {ENV_JOB}, value: train}}]",
)
def job_variable_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.owner.metadata.get("name"))
    for container in pod.containers if name and pod.owner.kind != "CronJob" else []:
        stated = as_text(container.env.get(ENV_JOB))
        if stated and stated != name:
            yield Hit(
                (*container.path, "env"),
                f"{ENV_JOB} is {stated}, and the {pod.owner.kind} is {name}",
            )


@rule(
    "HF118",
    "job-without-deadline",
    Severity.WARNING,
    on=Job,
    what="A Job has no activeDeadlineSeconds.",
    why="A Job that hangs holds its GPUs until a person reads the bill.",
    source=DOC_JOB,
    fix="set activeDeadlineSeconds",
    base="job",
    bad="spec: {activeDeadlineSeconds: null}",
)
def job_without_deadline(job: Job, context: Context) -> Iterator[Hit]:
    stated = job.spec.get("activeDeadlineSeconds")
    of_pod = job.pod and job.pod.spec.get("activeDeadlineSeconds")
    if stated is None and of_pod is None:
        yield Hit(job.path, "may run for ever")
    elif as_int(stated) == 0:
        yield Hit((*job.path, "activeDeadlineSeconds"), "ends the Job at once")


@rule(
    "HF119",
    "job-without-ttl",
    Severity.WARNING,
    on=Object,
    kinds=("Job", "JobSet"),
    what="A Job or JobSet has no ttlSecondsAfterFinished.",
    why="Finished Jobs and their pods stay in the API server for ever.",
    source=DOC_JOB,
    fix="set ttlSecondsAfterFinished",
    base="job",
    bad="spec: {ttlSecondsAfterFinished: null}",
)
def job_without_ttl(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.spec.get("ttlSecondsAfterFinished") is None:
        yield Hit(("spec",), "is kept for ever after it ends")
