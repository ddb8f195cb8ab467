"""HF11x: Jobs and JobSets that meet evictions."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    Container,
    Job,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GPUS,
    ENV_JOB,
    PLACE,
)
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
# Options and variables with the host of a member, which may have no port.
_HOST_OPTIONS = ("--master-addr", "--master_addr", "--main_process_ip", "--coordinator-address")
_HOST_VARIABLES = (
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "JAX_COORDINATOR_ADDRESS",
    "COORDINATOR_ADDRESS",
    "RAY_ADDRESS",
    "HEAD_ADDRESS",
    "LEADER_ADDRESS",
)
_POD_OF_A_SET = re.compile(r"(.+)-(\d{1,6})-\d{1,6}")
_NODES = ("--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--num_machines")


def _policy(*rules: str) -> str:
    return f"spec: {{podFailurePolicy: {{rules: [{', '.join(rules)}]}}}}"


def _gang_at(host: str) -> str:
    return f"""\
template:
  spec:
    containers:
    - name: main
      image: train
      command: [torchrun, --rdzv-endpoint, '{host}:29500']
      resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


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
    bad="spec: {podFailurePolicy: null}",
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
    path = (*job.path, "podFailurePolicy") if job.spec.get("podFailurePolicy") else job.path
    yield Hit(path, "evictions count as failures of the Job", basis)


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
    bad="restartPolicy: OnFailure",
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
    bad="spec: {podFailurePolicy: null, template: {spec: {restartPolicy: OnFailure}}}",
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
    source="tests/cluster: 20 pods, 2 nodes preempted: not recovered in 45 s against 10 s",
    fix="use a JobSet, or completionMode Indexed with backoffLimitPerIndex",
    base="job",
    bad="spec: {backoffLimitPerIndex: null, backoffLimit: 3}",
)
def shared_backoff_on_spot(job: Job, context: Context) -> Iterator[Hit]:
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
    bad="spec: {failurePolicy: {maxRestarts: 3, rules: null}}",
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
    if job.in_jobset or job.parallelism < 2:
        return
    for container in job.containers:
        has_own_run = any(ENV_COMPLETION_INDEX in word for word in container.words)
        if has_own_run or "--rendezvous" in container.words:
            continue
        if container.runs("holdfast", "train", "run"):
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
    for container in job.containers:
        for name in _NODES:
            nodes = container.number(name)
            if nodes is not None and nodes != job.parallelism:
                message = f"{name} {nodes}, but the Job has {job.parallelism} pods"
                yield Hit(container.command_path, message)


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
    bad="spec: {failurePolicy: {maxRestarts: 0}}",
)
def gang_without_restarts(obj: Object, context: Context) -> Iterator[Hit]:
    policy = as_map(obj.spec.get("failurePolicy"))
    if policy.get("maxRestarts") or not policy.get("rules"):
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
    what="A rule on exit codes names a container that the pod does not have.",
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
        if not container.gpus:
            continue
        counts: dict[str, float | None] = {name: container.number(name) for name in _RANKS}
        counts[ENV_GPUS] = quantity(container.env.get(ENV_GPUS))
        for name, count in counts.items():
            if count is not None and count != container.gpus:
                message = f"{name} {count:g}, and the container has {container.gpus} GPUs"
                yield Hit(container.command_path, message)


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
    bad=_gang_at("other-workers-0-0.other"),
    good=_gang_at("train-workers-0-0.train"),
)
def rendezvous_elsewhere(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        for option in _HEADS:
            address = container.expand(container.option(option))
            host, _, port = address.partition(":")
            if address and "holdfast" in container.words and not port.isdecimal():
                yield Hit(container.command_path, f"{address} has no port")
            elif "$(" not in host and not _may_be_member(job, host):
                yield Hit(container.command_path, f"{host} is no pod of {job.owner.name}")
        for path, address in _list_hosts(container):
            host = address.partition("://")[2] or address
            host = host.partition(":")[0]
            if "$(" not in host and not _may_be_member(job, host):
                yield Hit(path, f"{host} is no pod of {job.owner.name}")
            fault = _find_service_fault(job, host, context)
            if fault:
                yield Hit(path, fault)
            has_names = dig(job.owner.spec, "network", "enableDNSHostnames") is not False
            if job.in_jobset and not has_names and _POD_OF_A_SET.fullmatch(host.partition(".")[0]):
                yield Hit(path, f"{host} has no name: enableDNSHostnames is false")
        address = container.expand(as_text(container.env.get(ENV_GANG_ADDRESS)))
        if job.pod and address and "$(" not in address:
            pods = f"{job.owner.name}-{PLACE}.{as_text(job.pod.spec.get('subdomain'))}"
            if address.partition(".svc")[0] not in (pods, f"{pods}.{job.owner.namespace}"):
                message = f"{ENV_GANG_ADDRESS} is {address}, and its pods are {pods}"
                yield Hit(container.path, message)


def _find_service_fault(job: Job, host: str, context: Context) -> str:
    """Returns why a host of a plain Job has no name: its Service gives names to no pods."""
    pod, dot, domain = host[:300].partition(".")
    if job.in_jobset or not dot or job.pod is None:
        return ""
    service = context.index.find("Service", domain.partition(".")[0], job.owner.namespace)
    names = (job.owner.name, as_text(job.pod.spec.get("hostname")))
    if service is None or (not pod.startswith(names[0]) and pod != names[1]):
        return ""
    if service.spec.get("clusterIP") == "None":
        return ""
    return f"Service {service.name} is not headless: {host} has no name"


def _list_hosts(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the addresses of a member in options and variables, each with its path."""
    for option in _HOST_OPTIONS:
        address = container.option(option)
        if address and "$(" not in address:
            yield container.command_path, address
    for path, name, value in container.variables:
        if name in _HOST_VARIABLES:
            yield path, container.expand(value)


def _may_be_member(job: Job, host: str) -> bool:
    """Returns whether a host may be a pod of the job's JobSet.

    One that is no pod of any JobSet may be a Service.
    """
    pod, dot, domain = host[:300].partition(".")
    match = _POD_OF_A_SET.fullmatch(pod)
    if not job.in_jobset and dot and job.pod and pod.rpartition("-")[0] == job.owner.name:
        return domain.partition(".")[0] == as_text(job.pod.spec.get("subdomain"))
    if not match or not job.in_jobset or "name" not in job.owner.metadata:
        return True
    subdomain = as_text(dig(job.owner.spec, "network", "subdomain")) or job.owner.name
    if dot and domain.partition(".")[0] != subdomain:
        return False
    for replicated_job in as_list(job.owner.spec.get("replicatedJobs")):
        if match[1] == f"{job.owner.name}-{as_text(dig(replicated_job, 'name'))}":
            jobs = as_int(dig(replicated_job, "replicas"))
            return int(match[2]) < (1 if jobs is None else jobs)
    return False


@rule(
    "HF127",
    "job-variable-wrong",
    Severity.ERROR,
    on=Pod,
    what=f"{ENV_JOB} is not the name of the object.",
    why="Events, receipts and `explain` then count this job's work, and its loss, for another one.",
    source="holdfast/vocabulary/environment.py",
    fix="set it to metadata.name",
    base="container",
    bad=f"env: [{{name: {ENV_JOB}, value: other}}]",
    good=f"env: [{{name: {ENV_JOB}, value: train}}]",
)
def job_variable_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.owner.metadata.get("name"))
    if not name or pod.owner.kind == "CronJob":
        return
    for container in pod.containers:
        job = as_text(container.env.get(ENV_JOB))
        if job and job != name:
            message = f"{ENV_JOB} is {job}, and the {pod.owner.kind} is {name}"
            yield Hit((*container.path, "env"), message)


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
    deadline = job.spec.get("activeDeadlineSeconds")
    pod_deadline = job.pod and job.pod.spec.get("activeDeadlineSeconds")
    if deadline is None and pod_deadline is None:
        yield Hit(job.path, "may run for ever")
    elif as_int(deadline) == 0:
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
