"""The job file as a dataclass.

The metadata of a field is its documentation, its line in the file, its JSON schema and its check.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from itertools import chain
from typing import Any

from holdfast.jobs.file import formats
from holdfast.jobs.file.formats import SIZE, TEXT, Form, parse_gpus
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.roles import KSA_NAMESPACES

AUTO = "auto"
CPU_ONLY = "none"
MAX_NODES = 1000
FEWEST_SHARDED = 2
MAX_HOURS = 10_000.0
MAX_WAIT_HOURS = 168.0
_LOGS_GIB = 2  # in addition to /tmp: logs and the container's own layer
Contradiction = tuple[str, object, str, str]
"""Fields that do not go together: what, got, allowed, fix."""


class OnNotice(StrEnum):
    """The behaviour of the program on the preemption of its node."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


def make_metadata(text: str, form: Form = TEXT, **schema: Any) -> dict[str, Any]:
    return {
        "about": text,
        "form": form,
        "schema": schema,
    }


def about(text: str, default: Any = None, /, *, form: Form = TEXT, **schema: Any) -> Any:
    """Return a field with its documentation and its JSON schema.

    The field has the type of its default; with `None` it has no default and must be given.
    """
    if form is not TEXT:
        fits = default is None or re.fullmatch(form.pattern, default)
        schema["pattern"] = form.pattern if fits else f"{default}|{form.pattern}"
    kind = _TYPES.get(type(default), "string")
    metadata = make_metadata(text, form, **{"type": kind} | schema)
    if default is None:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


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

_SHARDED_ONLY = ("copies", "state", "wait_hours")
# Fields that a gang whose pods stay cannot have: the library takes its notices, and its nodes come
# from one pool, one by one.
_NOT_IN_PLACE = ("predictor", "deadline_hours", "on_notice", "resumes")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnJob:
    """A job as its file states it."""

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
        maximum=MAX_WAIT_HOURS,
    )
    capacity: str = about(
        "Where it runs; auto: as the placement matrix says.",
        AUTO,
        enum=[AUTO, *(capacity.value for capacity in Capacity)],
    )
    hours: float = about(
        "Undisturbed work, for prices and placement; 0: unknown.",
        0.0,
        minimum=0,
        maximum=MAX_HOURS,
    )
    deadline_hours: float = about(
        "Deadline in hours after submission. The job runs on Spot while there is time, and then on"
        " demand. 0: no deadline. Needs `hours`.",
        0.0,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_hours: float = about(
        "The job is stopped after this many hours, waits included. 0: after twice the bad end that"
        " `holdfast place` prints, a week at least; without `hours` after 30 days.",
        0.0,
        minimum=0,
        maximum=MAX_HOURS,
    )
    resumes: bool = about("Another machine can go on where this one stopped.", True)
    on_notice: str = about(
        "handles: the program handles SIGTERM and then exits non-zero. drain: a preStop hook stops"
        " the process in it that uses holdfast. wrap: the program knows nothing of notices.",
        OnNotice.HANDLES.value,
        enum=[answer.value for answer in OnNotice],
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
        default_factory=dict, metadata=make_metadata("Environment variables.", **_TEXTS)
    )
    secrets: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose"
            " path is in VARIABLE_FILE.",
            **_TEXTS,
        ),
    )
    claims: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
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
        for each_field in fields(self):
            _check(
                each_field.name,
                getattr(self, each_field.name),
                each_field.metadata["schema"],
                each_field.metadata["form"],
                each_field.default,
            )
        self._check_mappings()
        if self.gpus != CPU_ONLY:
            parse_gpus(self.gpus)
        for problem, got, allowed, fix in chain(self._check_work(), self._check_gang_fields()):
            raise InputError(problem, got=got, allowed=allowed, fix=fix)

    def _check_mappings(self) -> None:
        for name, form in (("env", TEXT), ("secrets", formats.SECRET)):
            for variable, value in getattr(self, name).items():
                formats.VARIABLE.match(f"{name}: {variable[:99]}", variable)
                form.match(f"{name}[{variable}]", value)
        for path, claim in self.claims.items():
            formats.PATH.match("claims: path", path)
            formats.CLAIM.match(f"claims[{path}]", claim)

    def _check_work(self) -> Iterator[Contradiction]:
        hours = self.hours
        deadline = self.deadline_hours
        max_hours = self.max_hours
        if not self.command and not self.predictor:
            allowed = "a program and its options, word by word"
            yield "command is missing", "nothing", allowed, "add -- python train.py"
        if self.command and not self.predictor and _is_command_line(self.command[0]):
            words = [*self.command[0].split(), *self.command[1:]]
            allowed = "the program alone as the first word: no shell splits it"
            yield (
                "command",
                repr(self.command[0][:200]),
                allowed,
                f"write {json.dumps(words)[:400]}",
            )
        if self.predictor and deadline:
            yield "deadline_hours", deadline, "0 for a batch", "leave it out"
        if deadline and not 0 < hours < deadline <= (max_hours or MAX_HOURS):
            got = f"hours {hours:g}, deadline_hours {deadline:g}"
            if max_hours:
                got += f", max_hours {max_hours:g}"
            allowed = "hours of work above 0 and below the deadline, and max_hours not before it"
            fix = "move the deadline, or state the undisturbed work as --hours"
            yield "deadline_hours", got, allowed, fix
        if hours and 0 < max_hours <= hours:
            allowed = f"more than the {hours:g} hours of work"
            yield "max_hours", max_hours, allowed, "leave it out, or raise it"
        if self.predictor and not self.data:
            yield "a batch needs items", "no data", "data: gs://BUCKET/FOLDER", "add --data"
        if self.predictor and self.on_notice != OnNotice.HANDLES:
            yield "on_notice", self.on_notice, "handles, for a batch", "leave it out"
        if self.predict_seconds and not self.predictor:
            yield "predict_seconds", "no predictor", "0 without one", "leave it out"

    def _check_gang_fields(self) -> Iterator[Contradiction]:
        if self.sharded and (self.elastic or self.pods < FEWEST_SHARDED):
            allowed = "a fixed number of nodes, 2 at least: each has a part of the state"
            fix = f"nodes: {max(FEWEST_SHARDED, self.pods)}, or leave sharded out"
            yield "sharded", f"nodes: {self.nodes}", allowed, fix
        defaults = self._list_changed_defaults()
        if not self.sharded:
            for name in _SHARDED_ONLY:
                if name in defaults:
                    allowed = f"{defaults[name] or 'nothing'}, without sharded"
                    fix = "leave it out, or sharded: true"
                    yield name, getattr(self, name), allowed, fix
        if self.in_place:
            gang = "a sharded" if self.sharded else "an elastic"
            reason = "sharded" if self.sharded else f"nodes: {self.nodes}"
            other = "sharded" if self.sharded else f"nodes: {self.pods}"
            for name in _NOT_IN_PLACE:
                if name in defaults:
                    got = f"{getattr(self, name)} with {reason}"
                    allowed = f"{defaults[name]}, for {gang} gang"
                    yield name, got, allowed, f"leave it out, or {other}"

    def _list_changed_defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        for each_field in fields(self):
            if getattr(self, each_field.name) != each_field.default:
                defaults[each_field.name] = each_field.default
        return defaults

    @property
    def pods(self) -> int:
        """The number of pods; of an elastic gang the most."""
        return node_range.parse(self.nodes, MAX_NODES)[1]

    @property
    def min_nodes(self) -> int:
        return node_range.parse(self.nodes, MAX_NODES)[0]

    @property
    def elastic(self) -> bool:
        return isinstance(self.nodes, str)

    @property
    def in_place(self) -> bool:
        """The other pods stay when one is lost."""
        return self.elastic or self.sharded

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of each node."""
        return 0 if self.gpus == CPU_ONLY else parse_gpus(self.gpus)[0]

    @property
    def accelerator(self) -> str:
        return "" if self.gpus == CPU_ONLY else parse_gpus(self.gpus)[1]

    @property
    def disk_gib(self) -> int:
        """The disk that each pod requests."""
        number = int(self.scratch[:-2])
        unit = self.scratch[-2:]
        scratch_gib = number if unit == "Gi" else -(-number // 1024)
        return scratch_gib + _LOGS_GIB

    @property
    def gang(self) -> bool:
        """The job is a rigid gang: all of its pods run, or none."""
        return self.pods > 1 and not (self.predictor or self.in_place)

    @property
    def role(self) -> str:
        """The role whose service account the job has."""
        return "batch" if self.predictor else "trainer"

    @property
    def home(self) -> str:
        """The namespace of the job's objects."""
        return self.namespace or KSA_NAMESPACES[self.role]


def _is_command_line(program: str) -> bool:
    """Return whether a program's name is a whole command line.

    A path may hold spaces, as `./my tool`.
    """
    first, *others = program.split() or [""]
    if not others:
        return False
    return "/" not in first or any(word.startswith("-") or "." in word for word in others)


def _check(
    name: str,
    value: Any,
    schema: dict[str, Any],
    form: Form,
    default: Any,
) -> None:
    if name == "nodes":
        node_range.parse(value, MAX_NODES)
        return
    _require_type(name, value, schema["type"])
    if value == default:
        return
    if isinstance(value, str):
        form.match(name, value)
    elif isinstance(value, tuple):
        for text in value:
            form.match(name, text)
    if "enum" in schema and value not in schema["enum"]:
        matches = get_close_matches(value, schema["enum"], 1, 0.4)
        raise InputError(
            name,
            got=repr(value),
            allowed=", ".join(schema["enum"]),
            fix=f"write {matches[0]}" if matches else "choose one of these",
        )
    if "minimum" in schema:
        between(name, value, schema["minimum"], schema["maximum"])


def _require_type(name: str, value: Any, kind: str) -> None:
    """Raise InputError for another type.

    Python takes a text for a list of letters, and YAML reads 3 without quotes as a number.
    """
    if _has_type(value, kind):
        return
    phrases = {"array": "a list of texts", "object": "texts by name"}
    raise InputError(
        name,
        got=f"{value!r}"[:120],
        allowed=phrases.get(kind, f"a value of type {kind}"),
        fix="put numbers and words like yes in quotes",
    )


def _has_type(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        case _:
            if not isinstance(value, dict):
                return False
            return all(isinstance(text, str) for text in chain(value.keys(), value.values()))
