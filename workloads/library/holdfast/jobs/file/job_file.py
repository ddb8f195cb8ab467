"""The file of one job: the metadata of a field is its documentation, its line in the file, its JSON
schema, its check.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from holdfast.jobs.file import formats
from holdfast.jobs.file.formats import SIZE, TEXT, Form, gpus
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.roles import KSA_NAMESPACES

AUTO = "auto"
CPU_ONLY = "none"
MAX_NODES = 1000
FEWEST_SHARDED = 2
MAX_HOURS = 168.0


class OnNotice(StrEnum):
    """What the program does on the preemption of its node."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


def described(text: str, form: Form = TEXT, **schema: Any) -> dict[str, Any]:
    return {
        "about": text,
        "form": form,
        "schema": schema,
    }


def about(text: str, default: Any = None, /, *, form: Form = TEXT, **schema: Any) -> Any:
    """A field with its documentation and its JSON schema; `None` as default: it must be given. Its
    type is the default's.
    """
    if form is not TEXT:
        fits = default is None or re.fullmatch(form.pattern, default)
        schema["pattern"] = form.pattern if fits else f"{default}|{form.pattern}"
    kept = described(text, form, **{"type": _TYPES.get(type(default), "string")} | schema)
    if default is None:
        return field(metadata=kept)
    return field(default=default, metadata=kept)


_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
}
_TEXTS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "string"},
}
_WORDS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
}


_OF_SHARDED = ("copies", "state", "wait_hours")
# Of a gang whose pods stay: its library takes the notices, and its nodes come from one pool, one by
# one.
_NOT_IN_PLACE = ("predictor", "deadline_hours", "on_notice", "resumes")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnJob:
    name: str = about(
        "Name of the run; a job started again under it resumes from its checkpoints.",
        form=formats.NAME,
        maxLength=formats.MAX_NAME,
    )
    environment: str = about("Environment whose pools, buckets and queues it uses.")
    namespace: str = about(
        "Namespace of your team; empty: training, or batch for a batch.", "", form=formats.CLAIM
    )
    image: str = about(
        "NAME@sha256:DIGEST, or a role of the environment: trainer, batch.", minLength=1
    )
    command: tuple[str, ...] = about("What runs in each pod, word by word; no shell.", **_WORDS)
    gpus: str = about(
        f"GPUs of each node, as 8xa100; {CPU_ONLY}: CPU only.", CPU_ONLY, form=formats.GPUS
    )
    nodes: int | str = about(
        "Pods; above 1 they are a gang, unless they are workers: all run or none. 4..8: an elastic"
        " gang, which goes on with at least 4 of 8 nodes, one process for each GPU.",
        1,
        type=["integer", "string"],
        minimum=1,
        maximum=MAX_NODES,
        pattern=node_range.PATTERN,
    )
    sharded: bool = about(
        "The state is sharded over the nodes, as by FSDP2. When a node is lost, the other pods stay"
        " and wait for its replacement, and the gang continues from copies of the shards in"
        " memory.",
        False,
    )
    copies: int = about(
        "Copies of each shard of a sharded gang in the next node's memory; 0: a lost shard is read"
        " from the bucket.",
        1,
        minimum=0,
        maximum=1,
    )
    state: str = about(
        "Size of all that a sharded gang saves, as 60Gi, to check that its pods have the memory for"
        " the copies; empty: unknown.",
        "",
        form=SIZE,
    )
    wait_hours: float = about(
        "Hours for which a sharded gang waits for a lost node; then all its pods end and start"
        " again from the bucket.",
        0.5,
        minimum=0,
        maximum=MAX_HOURS,
    )
    capacity: str = about(
        "Where it runs; auto: as the placement matrix says.",
        AUTO,
        enum=[AUTO, *(each.value for each in Capacity)],
    )
    hours: float = about(
        "Undisturbed work, for prices and placement; 0: unknown.",
        0.0,
        minimum=0,
        maximum=10_000,
    )
    deadline_hours: float = about(
        "Deadline in hours after submission. The job runs on Spot while there is time, and then on"
        " demand. 0: no deadline. Needs `hours`.",
        0.0,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_hours: float = about(
        "The job is stopped after this many hours, waits included.",
        MAX_HOURS,
        minimum=0.1,
        maximum=MAX_HOURS,
    )
    resumes: bool = about("Another machine can go on where this one stopped.", True)
    on_notice: str = about(
        "handles: the program handles SIGTERM and then exits non-zero. drain: a preStop hook stops"
        " the process in it that uses holdfast. wrap: the program knows nothing of notices.",
        OnNotice.HANDLES.value,
        enum=[each.value for each in OnNotice],
    )
    restarts: int = about(
        "Crashes before the job fails; evictions do not count. A gang on queued flex-start goes"
        " back to its queue so often when its nodes end.",
        3,
        minimum=0,
        maximum=100,
    )
    processes: int = about(
        "Processes that torchrun starts in a pod; 0: one for each GPU.",
        0,
        minimum=0,
        maximum=64,
    )
    data: str = about(
        f"gs://BUCKET/FOLDER, mounted read-only at {formats.DATA}.", "", form=formats.BUCKET
    )
    checkpoints: str = about(
        "gs://BUCKET of the checkpoints, in HOLDFAST_CHECKPOINTS; empty: the environment's.",
        "",
        form=formats.BUCKET,
    )
    checkpoint_key: str = about(
        "Secret of Secret Manager with the key that signs commits; empty: run-key-NAME of the"
        " namespace where the environment signs.",
        "",
        form=formats.SECRET,
    )
    env: dict[str, str] = field(
        default_factory=dict, metadata=described("Environment variables.", **_TEXTS)
    )
    secrets: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose"
            " path is in VARIABLE_FILE.",
            **_TEXTS,
        ),
    )
    claims: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "Path -> PersistentVolumeClaim, mounted read-only.",
            **_TEXTS,
        ),
    )
    scratch: str = about(
        "Size of /tmp, the only folder that can be written; lost with the pod.", "10Gi", form=SIZE
    )
    shm: str = about("Size of /dev/shm; empty: a quarter of the machine's memory.", "", form=SIZE)
    cpus: float = about(
        "CPUs of a pod without GPUs.",
        4.0,
        minimum=0.1,
        maximum=200,
    )
    memory: str = about("Memory of a pod without GPUs.", "16Gi", form=SIZE)
    predictor: str = about(
        "MODULE:FUNCTION of the image, or gpt, entropy: a batch over `data`, each item once, with"
        " `nodes` workers. `command` is then options of `holdfast batch run`.",
        "",
    )
    predict_seconds: float = about(
        "Seconds after which a prediction of a batch counts as hanging; 0: learned, 300 at most.",
        0.0,
        minimum=0,
        maximum=86_400,
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(
                each.name,
                getattr(self, each.name),
                each.metadata["schema"],
                each.metadata["form"],
                each.default,
            )
        for name, form in (("env", TEXT), ("secrets", formats.SECRET), ("claims", formats.CLAIM)):
            for key, value in getattr(self, name).items():
                if name == "claims":
                    keys, shown = (formats.PATH, "path")
                else:
                    keys, shown = (formats.VARIABLE, key[:99])
                keys.matched(f"{name}: {shown}", key)
                form.matched(f"{name}[{key}]", value)
        if self.gpus != CPU_ONLY:
            gpus(self.gpus)
        for what, got, allowed, fix in self._contradictions():
            raise InputError(what, got=got, allowed=allowed, fix=fix)

    def _contradictions(self) -> Iterator[tuple[str, object, str, str]]:
        """Fields that do not go together: what, got, allowed, fix."""
        hours = self.hours
        deadline = self.deadline_hours
        most = self.max_hours
        if not self.command and not self.predictor:
            yield (
                "command is missing",
                "nothing",
                "a program and its options, word by word",
                "add -- python train.py",
            )
        if self.predictor and self.deadline_hours:
            yield "deadline_hours", deadline, "0 for a batch", "leave it out"
        if deadline and not 0 < hours < deadline <= most:
            got = f"hours {hours:g}, deadline_hours {deadline:g}, max_hours {most:g}"
            allowed = "hours of work above 0 and below the deadline, and max_hours not before it"
            yield "deadline_hours", got, allowed, "state the undisturbed work as --hours"
        if self.predictor and not self.data:
            yield "a batch needs items", "no data", "data: gs://BUCKET/FOLDER", "add --data"
        if self.predictor and self.on_notice != OnNotice.HANDLES:
            yield "on_notice", self.on_notice, "handles, for a batch", "leave it out"
        if self.predict_seconds and not self.predictor:
            yield "predict_seconds", "no predictor", "0 without one", "leave it out"
        if self.sharded and (self.elastic or self.pods < FEWEST_SHARDED):
            allowed = "a fixed number of nodes, 2 at least: each has a part of the state"
            fix = f"nodes: {max(FEWEST_SHARDED, self.pods)}, or leave sharded out"
            yield "sharded", f"nodes: {self.nodes}", allowed, fix
        stated = {}
        for each in fields(self):
            if getattr(self, each.name) != each.default:
                stated[each.name] = each.default
        for name in (n for n in _OF_SHARDED if n in stated and not self.sharded):
            allowed = f"{stated[name] or 'nothing'}, without sharded"
            yield name, getattr(self, name), allowed, "leave it out, or sharded: true"
        for name in (n for n in _NOT_IN_PLACE if n in stated and self.in_place):
            if self.sharded:
                gang, how = ("a sharded", "sharded")
            else:
                gang, how = ("an elastic", f"nodes: {self.nodes}")
            other = "sharded" if self.sharded else f"nodes: {self.pods}"
            allowed = f"{stated[name]}, for {gang} gang"
            yield name, f"{getattr(self, name)} with {how}", allowed, f"leave it out, or {other}"

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
    def in_place(self) -> bool:
        """Its other pods stay when one is lost."""
        return self.elastic or self.sharded

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
        return self.pods > 1 and not (self.predictor or self.in_place)

    @property
    def role(self) -> str:
        """Whose service account it has."""
        return "batch" if self.predictor else "trainer"

    @property
    def home(self) -> str:
        """Namespace of its objects."""
        return self.namespace or KSA_NAMESPACES[self.role]


def _check(
    name: str,
    got: Any,
    schema: dict[str, Any],
    form: Form,
    default: Any,
) -> None:
    if name == "nodes":
        node_range.parse(got, MAX_NODES)
        return
    _require_type(name, got, schema["type"])
    if got == default:
        return
    for text in got if isinstance(got, tuple) else [got] if isinstance(got, str) else []:
        form.matched(name, text)
    if "enum" in schema and got not in schema["enum"]:
        fix = (
            "".join(f"write {n}" for n in get_close_matches(got, schema["enum"], 1, 0.4))
            or "choose one of these"
        )
        raise InputError(
            name,
            got=repr(got),
            allowed=", ".join(schema["enum"]),
            fix=fix,
        )
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
        "object": (
            isinstance(got, dict)
            and all(isinstance(each, str) for pair in got.items() for each in pair)
        ),
    }
    if not right[kind]:
        allowed = {"array": "a list of texts", "object": "texts by name"}.get(
            kind, f"a value of type {kind}"
        )
        raise InputError(
            name,
            got=f"{got!r}"[:120],
            allowed=allowed,
            fix="put numbers and words like yes in quotes",
        )
