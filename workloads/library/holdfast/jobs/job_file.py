"""The file of one job: the metadata of a field is its documentation, its line in the file, its JSON schema, its check."""

import re
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from holdfast.contract import node_range
from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError
from holdfast.contract.roles import KSA_NAMESPACES
from holdfast.contract.values import between
from holdfast.place.job import accelerator

AUTO, CPU_ONLY = "auto", "none"
# A child Job, an index of three digits and the pod's suffix come behind it, and a pod's name is its host name.
MAX_NAME = 34
MAX_NODES, MAX_GPUS = 1000, 8
MAX_HOURS = 168.0
LONGEST_TEXT = 4096
DATA = "/data"


class OnNotice(StrEnum):
    """What the program does on the preemption of its node."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


@dataclass(frozen=True, slots=True)
class Form:
    """A text by a pattern, and what an error says about another one."""

    pattern: str
    allowed: str
    fix: str
    longest: int = LONGEST_TEXT

    def matched(self, what: str, got: object) -> str:
        """The text. InputError names `what`."""
        if not isinstance(got, str) or not re.fullmatch(self.pattern, got):
            raise InputError(what, got=repr(got), allowed=self.allowed, fix=self.fix)
        if len(got) > self.longest:
            long = f"{got} ({len(got)} characters)"
            raise InputError(f"{what} is too long", got=long, allowed=f"{self.longest} characters", fix="shorten it")
        return got


_NAME = ("[a-z]([-a-z0-9]*[a-z0-9])?", "a-z, 0-9 and '-', beginning with a letter, not ending with '-'", "choose another name")  # fmt: skip
NAME, CLAIM = Form(*_NAME, longest=MAX_NAME), Form(*_NAME, longest=63)
GPUS = Form("[1-9][0-9]*x[A-Za-z0-9 ._-]+", "COUNTxGPU, as 1xl4 or 8xa100-80gb; none", "write it as 8xa100")
BUCKET = Form(
    "gs://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[^*?\\[\\]#,\"'\\s]*)?",
    "gs://BUCKET or gs://BUCKET/FOLDER", "write the bucket with gs://",
)  # fmt: skip
SECRET = Form("[A-Za-z0-9_-]{1,255}(/(latest|[1-9][0-9]*))?", "NAME or NAME/VERSION of Secret Manager", "`gcloud secrets list`")  # fmt: skip
SIZE = Form("[1-9][0-9]{0,4}(Mi|Gi)", "a size as 512Mi or 32Gi", "write it with its unit")
_TEXT = Form("[^\\x00-\\x08\\x0b-\\x1f\\x7f]*", "text without control characters", "put it into a file of the image")
# Not what the platform sets itself: it would part a process from its job, its window or its peers.
_VARIABLE = Form(
    "(?!HOLDFAST_|PET_|JOB_COMPLETION_INDEX)[A-Za-z_][A-Za-z0-9_]{0,127}",
    "letters, digits and '_', and no name that the platform sets",
    "rename it, or leave it out",
)
# Where the platform mounts.
_TAKEN = ("/tmp", "/dev", DATA, "/run", "/var/run", "/proc", "/sys", "/etc", "/bin", "/usr", "/lib")
_PATH = Form(
    f"(?!.*[.][.])(?!({'|'.join(_TAKEN)})(/|$))/[A-Za-z0-9._/-]{{1,200}}",
    f"an absolute path of letters, digits, '.', '_' and '-', none below {', '.join(_TAKEN)}", "as /mnt/models",
)  # fmt: skip


def gpus(got: object) -> tuple[int, str]:
    """`8xa100` -> 8 and the accelerator's label."""
    count, _, kind = GPUS.matched("gpus", got).partition("x")
    if len(count) > 2 or int(count) > MAX_GPUS:
        fix = f"take {MAX_GPUS} on each node, and more --nodes"
        raise InputError("GPUs of a node", got=count, allowed=f"1 to {MAX_GPUS}", fix=fix)
    return int(count), accelerator(kind)


def bucket(field: str, got: object) -> tuple[str, str]:
    """`gs://b/a/c/` -> `b` and `a/c`."""
    head, _, folder = BUCKET.matched(field, got).removeprefix("gs://").partition("/")
    return head, folder.strip("/")


def secret(got: str) -> tuple[str, str]:
    """`hf/3` -> `hf` and `3`."""
    head, _, version = got.partition("/")
    return head, version or "latest"


def described(text: str, form: Form = _TEXT, **schema: Any) -> dict[str, Any]:
    return {"about": text, "form": form, "schema": schema}


def about(text: str, default: Any = None, /, *, form: Form = _TEXT, type: Any = "string", **schema: Any) -> Any:
    """A field with its documentation and its JSON schema; `None` as default: it must be given."""
    if form is not _TEXT:
        fits = default is None or re.fullmatch(form.pattern, default)
        schema["pattern"] = form.pattern if fits else f"{default}|{form.pattern}"
    kept = described(text, form, type=type, **schema)
    return field(metadata=kept) if default is None else field(default=default, metadata=kept)


_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}


_OF_WHAT_ENDS = ("predictor", "hours", "deadline_hours", "max_hours", "restarts")
# Its speed follows its nodes, its notices end steps, and its checkpoints are for the case that all are lost.
_NOT_ELASTIC = ("predictor", "steady", "deadline_hours", "on_notice", "resumes")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnJob:
    name: str = about("Name of the run; a job started again under it resumes from its checkpoints.", form=NAME, maxLength=MAX_NAME)  # fmt: skip
    environment: str = about("Environment whose pools, buckets and queues it uses.")
    namespace: str = about(
        "Namespace of your team; empty: training, or batch for a batch and steady workers.", "", form=CLAIM
    )
    image: str = about("NAME@sha256:DIGEST, or a role of the environment: trainer, batch.", minLength=1)
    command: tuple[str, ...] = about(
        "What runs in each pod, word by word; no shell.", type="array", items={"type": "string"}, minItems=1
    )
    gpus: str = about(f"GPUs of each node, as 8xa100; {CPU_ONLY}: CPU only.", CPU_ONLY, form=GPUS)
    nodes: int | str = about(
        "Pods; above 1 they are a gang, unless they are workers: all run or none. 4..8: an elastic gang, which goes on "
        "with at least 4 of 8 nodes, one process for each GPU.",
        1, type=["integer", "string"], minimum=1, maximum=MAX_NODES, pattern=node_range.PATTERN,
    )  # fmt: skip
    capacity: str = about("Where it runs; auto: as the placement matrix says.", AUTO, enum=[AUTO, *(each.value for each in Capacity)])  # fmt: skip
    hours: float = about("Undisturbed work, for prices and placement; 0: unknown.", 0.0, type="number", minimum=0, maximum=10_000)  # fmt: skip
    deadline_hours: float = about(
        "Deadline in hours after submission. The job runs on Spot while there is time, and then on demand. 0: no deadline. "
        "Needs `hours`.",
        0.0, type="number", minimum=0, maximum=MAX_HOURS,
    )  # fmt: skip
    max_hours: float = about("The job is stopped after this many hours, waits included.", MAX_HOURS, type="number", minimum=0.1, maximum=MAX_HOURS)  # fmt: skip
    resumes: bool = about("Another machine can go on where this one stopped.", True, type="boolean")
    on_notice: str = about(
        "handles: the program handles SIGTERM and then exits non-zero. drain: a preStop hook stops the process in it that "
        "uses holdfast. wrap: the program knows nothing of notices.",
        OnNotice.HANDLES.value, enum=[each.value for each in OnNotice],
    )  # fmt: skip
    restarts: int = about("Crashes before the job fails; evictions do not count. A gang on queued flex-start goes back to its queue so often when its nodes end.", 3, type="integer", minimum=0, maximum=100)  # fmt: skip
    processes: int = about("Processes that torchrun starts in a pod; 0: one for each GPU.", 0, type="integer", minimum=0, maximum=64)  # fmt: skip
    data: str = about(f"gs://BUCKET/FOLDER, mounted read-only at {DATA}.", "", form=BUCKET)
    checkpoints: str = about("gs://BUCKET of the checkpoints, in HOLDFAST_CHECKPOINTS; empty: the environment's.", "", form=BUCKET)  # fmt: skip
    checkpoint_key: str = about(
        "Secret of Secret Manager with the key that signs commits; empty: run-key-NAME of the namespace where the "
        "environment signs.",
        "", form=SECRET,
    )  # fmt: skip
    env: dict[str, str] = field(default_factory=dict, metadata=described("Environment variables.", **_TEXTS))
    secrets: dict[str, str] = field(default_factory=dict, metadata=described(
        "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose path is in VARIABLE_FILE.",
        **_TEXTS,
    ))  # fmt: skip
    claims: dict[str, str] = field(
        default_factory=dict, metadata=described("Path -> PersistentVolumeClaim, mounted read-only.", **_TEXTS)
    )
    scratch: str = about("Size of /tmp, the only folder that can be written; lost with the pod.", "10Gi", form=SIZE)
    shm: str = about("Size of /dev/shm; empty: a quarter of the machine's memory.", "", form=SIZE)
    cpus: float = about("CPUs of a pod without GPUs.", 4.0, type="number", minimum=0.1, maximum=200)
    memory: str = about("Memory of a pod without GPUs.", "16Gi", form=SIZE)
    steady: bool = about(
        "It never ends: `nodes` workers that do not need each other, as a Deployment that replaces each one that is lost. "
        "They may load checkpoints and save none.",
        False, type="boolean",
    )  # fmt: skip
    predictor: str = about(
        "MODULE:FUNCTION of the image, or gpt, hf, entropy: a batch over `data`, each item once, with `nodes` workers. "
        "`command` is then options of `holdfast batch run`.",
        "",
    )
    predict_seconds: float = about(
        "Seconds after which a prediction of a batch counts as hanging; 0: learned, 300 at most.",
        0.0, type="number", minimum=0, maximum=86_400,
    )  # fmt: skip

    def __post_init__(self) -> None:
        known = {each.name: each.default for each in fields(self)}
        for each in fields(self):
            _check(each.name, getattr(self, each.name), each.metadata["schema"], each.metadata["form"], each.default)
        if not self.command and not self.predictor:
            raise InputError("command is missing", got="nothing", allowed="a program and its options, word by word", fix="add -- python train.py")  # fmt: skip
        self._check_mappings()
        if self.gpus != CPU_ONLY:
            gpus(self.gpus)
        if self.deadline_hours:
            self._check_deadline()
        self._check_batch()
        stated = [name for name in _OF_WHAT_ENDS if self.steady and getattr(self, name) != known[name]]
        if stated:
            raise InputError(
                "steady", got=f"with {', '.join(stated)}", allowed="nothing that is about an end: it has none",
                fix="leave them out, or steady",
            )  # fmt: skip
        for name in _NOT_ELASTIC if self.elastic else ():
            if (got := getattr(self, name)) != known[name]:
                raise InputError(
                    name, got=f"{got} with nodes: {self.nodes}", allowed=f"{known[name]}, for an elastic gang",
                    fix=f"leave it out, or nodes: {self.pods}",
                )  # fmt: skip

    def _check_mappings(self) -> None:
        for name, keys, form in (("env", _VARIABLE, _TEXT), ("secrets", _VARIABLE, SECRET), ("claims", _PATH, CLAIM)):
            for key, value in getattr(self, name).items():
                keys.matched(f"{name}: {'path' if keys is _PATH else key[:99]}", key)
                form.matched(f"{name}[{key}]", value)

    def _check_batch(self) -> None:
        if self.predictor and not self.data:
            raise InputError("a batch needs items", got="no data", allowed="data: gs://BUCKET/FOLDER", fix="add --data")
        if self.predictor and self.on_notice != OnNotice.HANDLES:
            raise InputError("on_notice", got=self.on_notice, allowed="handles, for a batch", fix="leave it out")
        if self.predict_seconds and not self.predictor:
            raise InputError("predict_seconds", got="no predictor", allowed="0 without one", fix="leave it out")

    def _check_deadline(self) -> None:
        if self.predictor:
            raise InputError("deadline_hours", got=self.deadline_hours, allowed="0 for a batch", fix="leave it out")
        if not 0 < self.hours < self.deadline_hours <= self.max_hours:
            raise InputError(
                "deadline_hours", got=f"hours {self.hours:g}, deadline_hours {self.deadline_hours:g}, max_hours {self.max_hours:g}",
                allowed="hours of work above 0 and below the deadline, and max_hours not before it",
                fix="state the undisturbed work as --hours",
            )  # fmt: skip

    @property
    def pods(self) -> int:
        """At most."""
        return node_range.parse(self.nodes, MAX_NODES)[1]

    @property
    def min_nodes(self) -> int:
        return node_range.parse(self.nodes, MAX_NODES)[0]

    @property
    def elastic(self) -> bool:
        return isinstance(self.nodes, str)

    @property
    def gpu_count(self) -> int:
        """Of each node."""
        return 0 if self.gpus == CPU_ONLY else gpus(self.gpus)[0]

    @property
    def accelerator(self) -> str:
        return "" if self.gpus == CPU_ONLY else gpus(self.gpus)[1]

    @property
    def gang(self) -> bool:
        """Rigid: all of its pods run, or none."""
        return self.pods > 1 and not (self.predictor or self.steady or self.elastic)

    @property
    def role(self) -> str:
        """Whose service account it has; of steady workers see infra/decisions/0102."""
        return "batch" if self.predictor or self.steady else "trainer"

    @property
    def home(self) -> str:
        """Namespace of its objects."""
        return self.namespace or KSA_NAMESPACES[self.role]


def _check(name: str, got: Any, schema: dict[str, Any], form: Form, default: Any) -> None:
    if name == "nodes":
        node_range.parse(got, MAX_NODES)
        return
    _require_type(name, got, schema["type"])
    if got == default:
        return
    for text in got if isinstance(got, tuple) else [got] if isinstance(got, str) else []:
        form.matched(name, text)
    if "enum" in schema and got not in schema["enum"]:
        fix = "".join(f"write {n}" for n in get_close_matches(got, schema["enum"], 1, 0.4)) or "choose one of these"
        raise InputError(name, got=repr(got), allowed=", ".join(schema["enum"]), fix=fix)
    if "minimum" in schema:
        between(name, got, schema["minimum"], schema["maximum"])


def _require_type(name: str, got: Any, kind: str) -> None:
    """Python would take a text for a list of letters, and YAML reads 3 where "3" was meant."""
    right = {
        "string": isinstance(got, str),
        "boolean": isinstance(got, bool),
        "integer": isinstance(got, int) and not isinstance(got, bool),
        "number": isinstance(got, int | float) and not isinstance(got, bool),
        "array": isinstance(got, tuple) and all(isinstance(each, str) for each in got),
        "object": isinstance(got, dict) and all(isinstance(each, str) for pair in got.items() for each in pair),
    }
    if not right[kind]:
        allowed = {"array": "a list of texts", "object": "texts by name"}.get(kind, f"a value of type {kind}")
        raise InputError(name, got=f"{got!r}"[:120], allowed=allowed, fix="put numbers and words like yes in quotes")
