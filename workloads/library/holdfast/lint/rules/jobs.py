"""HF118, HF119, HF121, HF122, HF127: runs, nodes, names and time limits of Jobs and JobSets."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, Pod, as_int, as_text
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX, ENV_JOB

DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
_NODES = ("--nodes", "--nnodes", "--num-nodes", "--num_nodes", "--num_machines")


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
    source="decision 0068 of Holdfast",
    fix="put $(JOB_COMPLETION_INDEX) into --run, or make a gang of them",
    base="job-pod",
    bad=(
        """\
containers:
- name: main
  image: train
  command:
  - python
  - -m
  - holdfast
  - train
  - run
  - --run
  - sweep
"""
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
    bad="""\
containers:
- name: main
  image: train
  command:
  - torchrun
  - --nnodes=4
  - train.py
""",
)
def nodes_are_not_the_pods(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        for name in _NODES:
            nodes = container.number(name)
            if nodes is not None and nodes != job.parallelism:
                message = f"{name} {nodes}, but the Job has {job.parallelism} pods"
                fix = f"write {name} {job.parallelism}, or make it {nodes} pods"
                yield Hit(container.command_path, message, fix=fix)
            completions = as_int(job.spec.get("completions"))
            pods = as_int(job.spec.get("parallelism")) or 1
            # Pods that have to meet must all run at once, not one set after another.
            is_meeting = "rdzv" in container.script or "master" in container.script.lower()
            is_ranked = ENV_COMPLETION_INDEX in container.script or is_meeting
            if is_ranked and nodes is not None and completions and completions > pods:
                message = f"{completions} completions for a gang of {nodes}: {pods} run at once"
                yield Hit((*job.path, "completions"), message)


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
    bad="""\
spec:
  activeDeadlineSeconds: null
""",
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
    bad="""\
spec:
  ttlSecondsAfterFinished: null
""",
)
def job_without_ttl(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.spec.get("ttlSecondsAfterFinished") is None:
        yield Hit(("spec",), "is kept for ever after it ends")
