"""The file that describes a job of one's own. Everything that it does not say follows from the environment."""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from holdfast.contract import node_range
from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError
from holdfast.contract.kubernetes import FUSE_DRIVER
from holdfast.contract.roles import KSA_NAMESPACES
from holdfast.contract.values import between
from holdfast.jobs import forms

# The metadata of a field is its documentation, its line in the written file, and its JSON schema.

AUTO = "auto"
CAPACITIES = (AUTO, *(each.value for each in Capacity))
CPU_ONLY = "none"
# A child Job, an index of three digits and the pod's suffix come behind it, and a pod's name is its host name.
MAX_NAME = 34
MAX_NODES = 1000
MAX_HOURS = 168.0
LONGEST_TEXT = 4096
DATA, DRIVER = "/data", FUSE_DRIVER


class OnNotice(StrEnum):
    """What the program does when its node is taken away."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


LOSES = {
    OnNotice.HANDLES: "",
    OnNotice.DRAIN: "the preStop hook waits within the same window: what it takes, the program does not have, and the "
    "image needs the package holdfast",
    OnNotice.WRAP: "the program does not know that it is stopped: each eviction loses what it did since its own last "
    "save, and the image needs /bin/sh",
}


def described(text: str, **schema: Any) -> dict[str, Any]:
    return {"about": text, "schema": schema}


def about(text: str, default: Any = None, /, **schema: Any) -> Any:
    """A field with its documentation and its JSON schema; `None` as default: it must be given."""
    kept = described(text, **schema)
    return field(metadata=kept) if default is None else field(default=default, metadata=kept)


_OF_WHAT_ENDS = ("predictor", "hours", "deadline_hours", "max_hours", "restarts")
# Its speed follows its nodes, its notices end steps, and its checkpoints are for the case that all are lost.
_NOT_ELASTIC = ("predictor", "steady", "deadline_hours", "on_notice", "resumes")
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnJob:
    name: str = about(
        "Name of the run; a job started again under it resumes from its checkpoints.",
        type="string", pattern=forms.NAME, maxLength=MAX_NAME,
    )  # fmt: skip
    environment: str = about("Environment whose pools, buckets and queues it uses.", type="string")
    image: str = about(
        "NAME@sha256:DIGEST, or a role of the environment: trainer, batch.", type="string", minLength=1
    )  # fmt: skip
    command: tuple[str, ...] = about(
        "What runs in each pod, word by word; no shell.", type="array", items={"type": "string"}, minItems=1
    )
    gpus: str = about(
        f"GPUs of each node, as 8xa100; {CPU_ONLY}: CPU only.",
        CPU_ONLY,
        type="string",
        pattern=f"{CPU_ONLY}|{forms.GPUS}",
    )
    nodes: int | str = about(
        "Pods; above 1 they are a gang, unless they are workers: all run or none. 4..8: an elastic gang, which goes on "
        "with at least 4 of 8 nodes, one process for each GPU.",
        1,
        type=["integer", "string"], minimum=1, maximum=MAX_NODES, pattern=node_range.PATTERN,
    )  # fmt: skip
    capacity: str = about("Where it runs; auto: as the placement matrix says.", AUTO, enum=list(CAPACITIES))
    hours: float = about("Undisturbed work, for prices and placement; 0: unknown.", 0.0, type="number", minimum=0)
    deadline_hours: float = about(
        "Done so many hours after it is submitted, on Spot while there is time and on demand when there is not; 0: "
        "whenever. Needs `hours`.",
        0.0, type="number", minimum=0,
    )  # fmt: skip
    max_hours: float = about(
        "Stopped after so many hours, waits included.", MAX_HOURS, type="number", exclusiveMinimum=0, maximum=MAX_HOURS
    )
    resumes: bool = about("Another machine can go on where this one stopped.", True, type="boolean")
    on_notice: str = about(
        "handles: the program hears SIGTERM and does not exit 0 then. drain: a preStop hook stops the process in it that "
        "uses holdfast. wrap: it knows nothing of notices.",
        OnNotice.HANDLES.value, enum=[each.value for each in OnNotice],
    )  # fmt: skip
    restarts: int = about(
        "Crashes until it is given up; evictions are not counted.", 3, type="integer", minimum=0, maximum=100
    )
    processes: int = about(
        "Processes that torchrun starts in a pod; 0: one a GPU.", 0, type="integer", minimum=0, maximum=64
    )
    data: str = about(
        f"gs://BUCKET/FOLDER, mounted read-only at {DATA}.", "", type="string", pattern=f"|{forms.BUCKET}"
    )
    checkpoints: str = about(
        "gs://BUCKET of the checkpoints, in HOLDFAST_CHECKPOINTS; empty: the environment's.", "",
        type="string", pattern=f"|{forms.BUCKET}",
    )  # fmt: skip
    checkpoint_key: str = about(
        "Secret of Secret Manager with the key that signs commits; empty: run-key-NAME of the namespace where the environment signs.",
        "",
        type="string",
        pattern=f"|{forms.SECRET}",
    )
    env: dict[str, str] = field(default_factory=dict[str, str], metadata=described("Environment variables.", **_TEXTS))
    secrets: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=described(
            "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose path is in VARIABLE_FILE.",
            **_TEXTS,
        ),
    )
    claims: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=described("Path -> PersistentVolumeClaim, mounted read-only.", **_TEXTS),
    )
    scratch: str = about(
        "Size of /tmp, the only folder that can be written; lost with the pod.",
        "10Gi",
        type="string",
        pattern=forms.SIZE,
    )
    shm: str = about(
        "Size of /dev/shm; empty: a quarter of the machine's memory.", "", type="string", pattern=f"|{forms.SIZE}"
    )
    cpus: float = about("CPUs of a pod without GPUs.", 4.0, type="number", exclusiveMinimum=0, maximum=200)
    memory: str = about("Memory of a pod without GPUs.", "16Gi", type="string", pattern=forms.SIZE)
    steady: bool = about(
        "It never ends: `nodes` workers that do not need each other, as a Deployment that replaces each one that is lost. "
        "They may load checkpoints and save none.",
        False, type="boolean",
    )  # fmt: skip
    predictor: str = about(
        "MODULE:FUNCTION of the image, or gpt, hf, entropy: a batch over `data`, each item once, with `nodes` workers. "
        "`command` is then options of `holdfast batch run`.",
        "", type="string",
    )  # fmt: skip

    def __post_init__(self) -> None:
        forms.name("name", self.name, MAX_NAME)
        self._check_words()
        self._check_numbers()
        self._check_mappings()
        self._check_together()

    def _check_words(self) -> None:
        if not self.command and not self.predictor:
            raise InputError(
                "command is missing", got="nothing", allowed="a program and its options, word by word",
                fix="add -- python train.py",
            )  # fmt: skip
        for word in self.command:
            forms.text("command", word, LONGEST_TEXT)
        forms.one_of("capacity", self.capacity, CAPACITIES)
        forms.one_of("on_notice", self.on_notice, tuple(OnNotice))
        forms.text("image", self.image, 512, empty=False)
        if self.gpus != CPU_ONLY:
            forms.gpus(self.gpus)
        for what in ("data", "checkpoints"):
            if getattr(self, what):
                forms.bucket(what, getattr(self, what))
        if self.checkpoint_key:
            forms.secret("checkpoint_key", self.checkpoint_key)
        for what in ("scratch", "memory", *(("shm",) if self.shm else ())):
            forms.size(what, getattr(self, what))

    def _check_numbers(self) -> None:
        node_range.parse(self.nodes, MAX_NODES)
        for what, low, high in (("restarts", 0, 100), ("processes", 0, 64)):
            forms.whole(what, getattr(self, what), low, high)
        between("hours", self.hours, 0, 10_000)
        between("max_hours", self.max_hours, 0.1, MAX_HOURS)
        self._check_deadline()
        between("cpus", self.cpus, 0.1, 200)

    def _check_deadline(self) -> None:
        between("deadline_hours", self.deadline_hours, 0, MAX_HOURS)
        if not self.deadline_hours:
            return
        if self.predictor:
            raise InputError(
                "deadline_hours", got=self.deadline_hours, allowed="0 for a batch, whose backlog shows its progress",
                fix="leave it out",
            )  # fmt: skip
        if not 0 < self.hours < self.deadline_hours <= self.max_hours:
            raise InputError(
                "deadline_hours", got=f"hours {self.hours:g}, deadline_hours {self.deadline_hours:g}, max_hours {self.max_hours:g}",
                allowed="hours of work above 0 and below the deadline, and max_hours not before it",
                fix="state the undisturbed work as --hours",
            )  # fmt: skip

    def _check_mappings(self) -> None:
        for variable, value in self.env.items():
            forms.variable("env", variable)
            forms.text(f"env[{variable}]", value, LONGEST_TEXT)
        for variable, secret in self.secrets.items():
            forms.variable("secrets", variable)
            forms.secret(f"secrets[{variable}]", secret)
        for path, claim in self.claims.items():
            forms.path("claims", path)
            forms.name(f"claims[{path}]", claim, 63)

    def _check_together(self) -> None:
        if self.predictor and not self.data:
            raise InputError("a batch needs items", got="no data", allowed="data: gs://BUCKET/FOLDER", fix="add --data")
        if self.predictor and self.on_notice != OnNotice.HANDLES:
            raise InputError("on_notice", got=self.on_notice, allowed="handles, for a batch", fix="leave it out")
        if self.steady:
            self._check_steady()
        if self.elastic:
            self._check_elastic()

    def _check_steady(self) -> None:
        known = {each.name: each.default for each in fields(self)}
        stated = [name for name in _OF_WHAT_ENDS if getattr(self, name) != known[name]]
        if stated:
            raise InputError(
                "steady", got=f"with {', '.join(stated)}", allowed="nothing that is about an end: it has none",
                fix="leave them out, or steady",
            )  # fmt: skip

    def _check_elastic(self) -> None:
        known = {each.name: each.default for each in fields(self)}
        for name in _NOT_ELASTIC:
            if (got := getattr(self, name)) != known[name]:
                raise InputError(
                    name, got=f"{got} with nodes: {self.nodes}", allowed=f"{known[name]}, for an elastic gang",
                    fix=f"leave it out, or nodes: {self.pods}",
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
        return 0 if self.gpus == CPU_ONLY else forms.gpus(self.gpus)[0]

    @property
    def accelerator(self) -> str:
        return "" if self.gpus == CPU_ONLY else forms.gpus(self.gpus)[1]

    @property
    def gang(self) -> bool:
        """Rigid: all of its pods run, or none."""
        return self.pods > 1 and not (self.predictor or self.steady or self.elastic)

    @property
    def role(self) -> str:
        """Whose service account it has; of steady workers see infra/decisions/0102."""
        return "batch" if self.predictor or self.steady else "trainer"

    @property
    def namespace(self) -> str:
        return KSA_NAMESPACES[self.role]


def documented() -> list[tuple[str, str, dict[str, Any]]]:
    """Field, what it means, its JSON schema."""
    return [(each.name, each.metadata["about"], each.metadata["schema"]) for each in fields(OwnJob)]
