"""HF53x: times and retries of jobs that were not meant."""

import re
from collections.abc import Iterator
from zoneinfo import available_timezones

from holdfast.lint import api_fields
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Object, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import suggest
from holdfast.vocabulary.capacity import ANNOTATION_HOURS

DOC_CRON = "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/"
DOC_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/"
DOC_JOBSET = "https://jobset.sigs.k8s.io/docs/tasks/failure_policies/"
_PLACEHOLDER = re.compile(r"[$<{]")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_NAMES = {
    3: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    4: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_PART = re.compile(r"(\*|\?|[a-z0-9]{1,3})(?:-([a-z0-9]{1,3}))?(?:/(\d{1,4}))?")
# A controller looks every ten seconds; a shorter deadline misses every start.
_SHORTEST_START_S = 10
# A pod on a new node with a GPU has not pulled its image by then.
_SHORTEST_DEADLINE_S = 120
_SHORTEST_TTL_S = 60
_YEAR_S = 31_622_400
_HOUR_S = 3_600
_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
    "FailedIndexes",
)


def _cron(schedule: str) -> str:
    return f"""\
apiVersion: batch/v1
kind: CronJob
metadata: {{name: nightly, namespace: monitoring}}
spec:
  schedule: '{schedule}'
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      activeDeadlineSeconds: 600
      ttlSecondsAfterFinished: 86400
      template:
        spec:
          restartPolicy: Never
          containers: [{{name: main, image: check, command: [check]}}]
"""


@rule(
    "HF530",
    "schedule-wrong",
    Severity.ERROR,
    on=Object,
    kinds=("CronJob",),
    what="The schedule of a CronJob is no schedule, or starts a job each minute of some hours.",
    why="The API server refuses it, or 60 jobs start in the place of one.",
    source=DOC_CRON,
    fix='five fields: minute, hour, day, month, weekday, as "0 3 * * *"',
    bad=_cron("0 25 * * *"),
    good=_cron("0 3 * * *"),
)
def schedule_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    schedule = as_text(obj.spec.get("schedule"))
    if schedule and not _PLACEHOLDER.search(schedule[:200]):
        problem = _judge_schedule(schedule[:200].strip())
        if problem:
            yield Hit(("spec", "schedule"), problem)
    zone = as_text(obj.spec.get("timeZone"))
    if zone and zone not in available_timezones():
        hint = suggest(zone, available_timezones(), 0.7)
        fix = "write a name of the IANA database, as Europe/Berlin"
        message = f"no time zone {zone}{hint}"
        yield Hit(("spec", "timeZone"), message, fix=fix)
    deadline_s = as_int(obj.spec.get("startingDeadlineSeconds"))
    if deadline_s is not None and deadline_s < _SHORTEST_START_S:
        path = ("spec", "startingDeadlineSeconds")
        message = "every start is missed: 10 at least"
        yield Hit(path, message, fix="raise it, or leave it out")


def _judge_schedule(schedule: str) -> str:
    """Returns what is wrong with a schedule; empty if nothing is."""
    if schedule.startswith("@"):
        is_known = schedule in _MACROS or schedule.startswith("@every ")
        return "" if is_known else f"{schedule} is no schedule; there are {', '.join(_MACROS)}"
    if schedule.startswith(("TZ=", "CRON_TZ=")):
        return "the time zone belongs to timeZone"
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        return f"has {len(fields)} fields, not five"
    for index, field in enumerate(fields):
        for part in field.lower().split(","):
            if not _is_part(part, index):
                return f"{field} is no {_FIELDS[index]}"
    is_few_hours = re.fullmatch(r"[\d,]+", fields[1])
    if fields[0] in ("*", "*/1") and is_few_hours:
        return "starts a job each minute of its hours"
    return _judge_days(fields)


def _judge_days(fields: list[str]) -> str:
    """Returns which of the days of a schedule its months do not have; empty if none."""
    day, month, weekday = fields[2:]
    if not day.isdecimal() or weekday not in ("*", "?"):
        return ""
    months = [_parse(word, 3) for word in month.lower().split(",")]
    longest = max(_DAYS[number - 1] if number else 31 for number in months)
    return f"no month of {month} has a day {day}" if int(day) > longest else ""


def _is_part(part: str, index: int) -> bool:
    match = _PART.fullmatch(part)
    if not match:
        return False
    first, last, step = match.groups()
    if first in ("*", "?"):
        return last is None and _is_step(step, index)
    low, high = _BOUNDS[index]
    numbers: list[int] = []
    for word in filter(None, (first, last)):
        number = _parse(word, index)
        if number is None or not low <= number <= high:
            return False
        numbers.append(number)
    return _is_step(step, index) and numbers == sorted(numbers)


def _is_step(step: str | None, index: int) -> bool:
    low, high = _BOUNDS[index]
    return step is None or 0 < int(step) <= high - low + 1


def _parse(word: str, index: int) -> int | None:
    names = _NAMES.get(index, ())
    if word in names:
        return names.index(word) + (1 if index == 3 else 0)
    return int(word) if word.isdecimal() else None


@rule(
    "HF531",
    "job-gone-at-once",
    Severity.WARNING,
    on=Object,
    kinds=("Job", "JobSet"),
    what="A finished Job or JobSet is deleted within a minute.",
    why="Its logs and its reason are gone before anybody, or any alert, can read them.",
    source=DOC_JOB + "#clean-up-finished-jobs-automatically",
    fix="set ttlSecondsAfterFinished to a day: 86400",
    base="job",
    bad="""\
spec:
  ttlSecondsAfterFinished: 0
""",
    good="""\
spec:
  ttlSecondsAfterFinished: 86400
""",
)
def job_gone_at_once(obj: Object, context: Context) -> Iterator[Hit]:
    seconds = as_int(obj.spec.get("ttlSecondsAfterFinished"))
    if seconds is not None and seconds < _SHORTEST_TTL_S:
        yield Hit(("spec", "ttlSecondsAfterFinished"), f"is deleted {seconds} s after its end")


@rule(
    "HF532",
    "deadline-before-a-start",
    Severity.WARNING,
    on=Job,
    what="A Job with GPUs ends by its deadline before a new node has started its container.",
    why="A node, its driver and a large image take minutes. The unit of the field is seconds.",
    source=DOC_JOB + "#job-termination-and-cleanup",
    fix="set activeDeadlineSeconds in seconds",
    base="job",
    bad="""\
spec:
  activeDeadlineSeconds: 48
""",
    good="""\
spec:
  activeDeadlineSeconds: 172800
""",
)
def deadline_before_a_start(job: Job, context: Context) -> Iterator[Hit]:
    if job.pod is None or not job.pod.gpus:
        return
    for path, seconds in job.deadlines:
        if 0 < seconds < _SHORTEST_DEADLINE_S:
            yield Hit(path, f"ends after {seconds} s")


@rule(
    "HF533",
    "first-crash-ends-it",
    Severity.WARNING,
    on=Job,
    what="A plain Job on Spot has no retry: its first failure is its last.",
    why="A node that dies without a notice, or a full disk, then ends days of work.",
    source=DOC_JOB + "#pod-backoff-failure-policy",
    fix="set backoffLimit above 0, or backoffLimitPerIndex",
    base="job",
    bad="""\
spec:
  backoffLimitPerIndex: 0
""",
    good="""\
spec:
  backoffLimitPerIndex: 3
""",
)
def first_crash_ends_it(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or job.pod is None or not context.place(job.pod).interruptible:
        return
    for field in ("backoffLimitPerIndex", "backoffLimit"):
        if field in job.spec:
            if as_int(job.spec.get(field)) == 0:
                yield Hit((*job.path, field), "the first failure is the last")
            return


@rule(
    "HF534",
    "child-retries-alone",
    Severity.WARNING,
    on=Job,
    what="A Job of a gang in a JobSet restarts a crashed pod by itself.",
    why=(
        "The others wait for it in a collective call that never returns; the JobSet, which would"
        " restart all, hears of it only after the last retry."
    ),
    source=DOC_JOBSET,
    fix="backoffLimit: 0 in the child; maxRestarts in the JobSet",
    base="jobset-job",
    bad="""\
backoffLimit: 6
""",
    good="""\
backoffLimit: 0
""",
)
def child_retries_alone(job: Job, context: Context) -> Iterator[Hit]:
    has_policy = bool(dig(job.owner.spec, "failurePolicy"))
    if not job.in_jobset or job.parallelism < 2 or not has_policy:
        return
    limit = as_int(job.spec.get("backoffLimit"))
    if limit:
        yield Hit((*job.path, "backoffLimit"), f"retries {limit} times before the JobSet restarts")


@rule(
    "HF535",
    "failure-reason-unknown",
    Severity.ERROR,
    on=Object,
    kinds=("JobSet",),
    what="A failure rule of a JobSet waits for a reason that no Job has.",
    why="The rule never matches: its action is not taken, and the restart counts.",
    source=DOC_JOBSET,
    fix=f"one of {', '.join(_REASONS)}",
    base="jobset",
    bad="""\
spec:
  failurePolicy:
    rules:
      - name: a
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons:
          - PodFailure
""",
    good="""\
spec:
  failurePolicy:
    rules:
      - name: a
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons:
          - PodFailurePolicy
""",
)
def failure_reason_unknown(obj: Object, context: Context) -> Iterator[Hit]:
    for index, entry in enumerate(as_list(dig(obj.spec, "failurePolicy", "rules"))):
        for number, reason in enumerate(as_list(dig(entry, "onJobFailureReasons"))):
            if reason not in _REASONS:
                path = ("spec", "failurePolicy", "rules", index, "onJobFailureReasons", number)
                yield Hit(path, f"no Job fails for {reason}")


@rule(
    "HF536",
    "time-of-another-unit",
    Severity.WARNING,
    on=Object,
    what="A time is so long that it was meant in another unit: the fields of the API are seconds.",
    why=(
        "A job that hangs runs for years; a pod that does not answer keeps its requests, or is"
        " first asked tomorrow."
    ),
    source="https://kubernetes.io/docs/reference/kubernetes-api/",
    fix="write seconds",
    base="job",
    bad="""\
spec:
  activeDeadlineSeconds: 259200000
""",
    good="""\
spec:
  activeDeadlineSeconds: 259200
""",
)
def check_scales(obj: Object, context: Context) -> Iterator[Hit]:
    for field in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        seconds = as_int(dig(obj.spec, "runPolicy", field))
        if seconds is not None and seconds > _YEAR_S:
            yield Hit(("spec", "runPolicy", field), f"{seconds} s are {_describe_time(seconds)}")
    for path, type_name, value in api_fields.walk_object(obj):
        for field, longest_s in _LONGEST_S.get(type_name, {}).items():
            # A job that states its hours of work got its deadline from them.
            if field == "activeDeadlineSeconds" and ANNOTATION_HOURS in obj.annotations:
                continue
            seconds = as_int(value.get(field))
            if seconds is not None and seconds > longest_s:
                yield Hit((*path, field), f"{seconds} s are {_describe_time(seconds)}")
        if path[-1:] == ("readinessProbe",):
            failures = as_int(value.get("failureThreshold")) or 3
            seconds = failures * (as_int(value.get("periodSeconds")) or 10)
            if seconds > _LONGEST_SILENCE_S:
                message = f"a pod gets requests for {_describe_time(seconds)} after it stopped"
                yield Hit((*path, "failureThreshold"), message)


_LONGEST_S = {
    "V1JobSpec": {"activeDeadlineSeconds": _YEAR_S, "ttlSecondsAfterFinished": _YEAR_S},
    "V1PodSpec": {"activeDeadlineSeconds": _YEAR_S},
    "V1DeploymentSpec": {"minReadySeconds": _HOUR_S, "progressDeadlineSeconds": 24 * _HOUR_S},
    "V1Probe": {
        "initialDelaySeconds": 2 * _HOUR_S,
        "periodSeconds": _HOUR_S,
        "timeoutSeconds": 600,
    },
    "jobset.x-k8s.io/v1alpha2/JobSet.spec": {"ttlSecondsAfterFinished": _YEAR_S},
}
_LONGEST_SILENCE_S = 600


def _describe_time(seconds: int) -> str:
    hours = seconds / _HOUR_S
    if hours < 2:
        return f"{seconds / 60:.0f} minutes"
    return f"{hours:.0f} hours" if hours < 72 else f"{hours / 24:.0f} days"


@rule(
    "HF537",
    "runs-overlap",
    Severity.WARNING,
    on=Object,
    kinds=("CronJob",),
    what="A CronJob starts its next run while the last one may still work.",
    why="Two runs do the same work at once, or with Replace none of them ever ends.",
    source=DOC_CRON,
    fix="concurrencyPolicy: Forbid, and a deadline below the time between two starts",
    bad=_cron("*/5 * * * *").replace("Forbid", "Replace"),
    good=_cron("*/15 * * * *").replace("Forbid", "Replace"),
)
def compare_runs(obj: Object, context: Context) -> Iterator[Hit]:
    interval_s = _find_interval_s(as_text(obj.spec.get("schedule"))[:200])
    policy = as_text(obj.spec.get("concurrencyPolicy")) or "Allow"
    for job in obj.jobs:
        for path, deadline_s in job.deadlines:
            if interval_s and deadline_s > interval_s and policy != "Forbid":
                message = f"may run for {deadline_s} s, and starts each {interval_s} s: {policy}"
                yield Hit(path, message)
                return


def _find_interval_s(schedule: str) -> int:
    """Returns the seconds between two starts of the simplest schedules; 0 for the others."""
    fields = schedule.split()
    if len(fields) != len(_FIELDS) or fields[2:] != ["*", "*", "*"]:
        return {"@hourly": _HOUR_S, "@daily": 24 * _HOUR_S}.get(schedule, 0)
    if fields[:2] == ["*", "*"]:
        return 60
    for field, unit_s in ((fields[0], 60), (fields[1], _HOUR_S)):
        step = field.partition("*/")[2]
        if step.isdecimal():
            return int(step) * unit_s
    minute, hour = fields[:2]
    if not minute.isdecimal():
        return 0
    if hour == "*":
        return _HOUR_S
    return 24 * _HOUR_S if hour.isdecimal() else 0
