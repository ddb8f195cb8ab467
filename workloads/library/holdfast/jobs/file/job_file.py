"""The job file as a dataclass.

Each field is checked alone, as `fields` describes it, and then with the others.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain
from typing import Any

from holdfast.jobs.file import formats, sweep_points
from holdfast.jobs.file.fields import MAX_NODES, TEXTS, WORDS, about, check, make_metadata
from holdfast.jobs.file.formats import SIZE, TEXT, parse_gpus
from holdfast.place.job import parse_accelerator
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import JOB_PRIORITIES, PRIORITY_NORMAL
from holdfast.vocabulary.roles import KSA_NAMESPACES

AUTO = "auto"
CPU_ONLY = "none"
FEWEST_SHARDED = 2
HOUR_S = 3_600.0
MAX_HOURS = 10_000.0
MAX_USD = 10_000_000.0
MAX_WAIT_HOURS = 168.0
MAX_LANES = 20
_IN_MEMORY = " memory"
_LOGS_GIB = 2  # in addition to /tmp: logs and the container's own layer
# Fields that a sweep cannot have: a point is one pod, and runs to its own end.
_NOT_IN_SWEEPS = ("nodes", "sharded", "predictor", "deadline_hours")
Contradiction = tuple[str, object, str, str]
"""Fields that do not go together: what, got, allowed, fix."""


class OnNotice(StrEnum):
    """The behaviour of the program on the preemption of its node."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


BELOW_LEAST_WAIT_S = 300.0
IN_MEMORY = "memory"
ON_DISK = "disk"
_SHARDED_ONLY = ("copies", "copies_in", "state", "wait_hours")
_SHARES_ON_DISK = 4
"""Shares of a node on its disk: two versions of its own and two of a neighbour."""
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
    command: tuple[str, ...] = about("What runs in each pod, word by word; no shell.", **WORDS)
    source: str = about(
        "Folder with your code, from the folder of this file. It is packed without what .gitignore"
        f" names, and unpacked read-only to {formats.SOURCE}, where the command starts. Empty: the"
        " image has the code.",
        "",
    )
    source_include: tuple[str, ...] = field(
        default=(),
        metadata=make_metadata(
            "Files of `source` that are packed although .gitignore names them or they look like"
            " secrets. Everyone who may read the namespace can read them.",
            type="array",
            items={"type": "string"},
        ),
    )
    sweep: dict[str, Any] | tuple[dict[str, Any], ...] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Parameters that each pod gets as environment variables and for $(NAME) in `command`."
            " Lists of values by name make a point of every combination; a list of rows has a point"
            " in each row. A point is a run of its own, NAME-0, NAME-1 and so on, and restarts by"
            " itself.",
            **sweep_points.SCHEMA,
        ),
    )
    parallel: int = about(
        "Points of a sweep that run at the same time.",
        4,
        minimum=1,
        maximum=sweep_points.MAX_POINTS,
    )
    gpus: str = about(
        f"GPUs of each node, as 8xa100; {CPU_ONLY}: CPU only. any of 1xl4, 1xa100: the"
        " cheapest first on"
        " Spot, the next if it is sold out.",
        CPU_ONLY,
        form=formats.GPUS,
    )
    speeds: dict[str, float] = field(
        default_factory=dict[str, float],
        metadata=make_metadata(
            "GPU -> steps per second that you measured on it, as l4: 2.1. With one"
            " for each GPU of `any"
            " of`, the cheapest per step is first; else the cheapest per hour.",
            type="object",
            additionalProperties={"type": "number", "exclusiveMinimum": 0},
        ),
    )
    nodes: int | str = about(
        "Pods; above 1 they are a gang, unless they are workers: all run or none. 4..8: an elastic"
        " gang, which goes on with at least 4 of 8 nodes, one process for each GPU; with sharded"
        " the nodes divide the state again.",
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
    copies_in: str = about(
        "memory or disk: where each pod of a sharded gang keeps the copies. In memory a pod needs"
        " five times its share of the state, with the disk twice in memory and four times on the"
        " disk, which should be a local SSD.",
        IN_MEMORY,
        enum=[IN_MEMORY, ON_DISK],
    )
    state: str = about(
        "Size of all that a sharded gang saves, as 60Gi, to check that its pods have room for the"
        " copies; empty: unknown.",
        "",
        form=SIZE,
    )
    wait_hours: float = about(
        "Hours for which a sharded gang waits for a lost node; with nodes: 4..8 it waits only below"
        " 4. Then it gives its nodes back, and its queue starts it again later, from the bucket. 0:"
        " 5 minutes.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_WAIT_HOURS,
    )
    priority: str = about(
        "low, normal or high: the order in which the queue starts jobs of your team. A job of high"
        " priority takes the GPUs of lower ones of the team, which continue later; never those of"
        " another team.",
        PRIORITY_NORMAL,
        enum=[PRIORITY_NORMAL, *JOB_PRIORITIES],
    )
    capacity: str = about(
        "Where it runs; auto: as the placement matrix says.",
        AUTO,
        enum=[AUTO, *(capacity.value for capacity in Capacity)],
    )
    hours: float = about(
        "Undisturbed work in hours, or as 90m or 2d, for prices and placement; 0: unknown.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    deadline_hours: float = about(
        "Deadline in hours after submission. The job runs on Spot while there is time, and then on"
        " demand. 0: no deadline. Needs `hours`.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_hours: float = about(
        "The job is stopped after this many hours, waits included. 0: after twice the bad end that"
        " `holdfast place` prints, a week at least; without `hours` after 30 days.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_usd: float = about(
        "The platform stops the job, with a last save, before its machines have cost more dollars,"
        " those of all restarts together. `holdfast resume NAME --max-usd` raises it. 0: no limit.",
        0.0,
        minimum=0,
        maximum=MAX_USD,
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
    cache: str = about(
        f"Size of a cache for {formats.DATA}, as 50Gi on the node's disk or `20Gi"
        " memory`. What is read"
        " again comes from there. Only for data that does not change. Empty: none.",
        "",
        form=formats.CACHE,
    )
    output: str = about(
        "gs://BUCKET/FOLDER for results; the job writes below NAME in it, at"
        " HOLDFAST_OUTPUT. Empty:"
        " `output` in the folder of the run's checkpoints.",
        "",
        form=formats.BUCKET,
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
        default_factory=dict, metadata=make_metadata("Environment variables.", **TEXTS)
    )
    secrets: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose"
            " path is in VARIABLE_FILE.",
            **TEXTS,
        ),
    )
    claims: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Path -> PersistentVolumeClaim, mounted read-only.",
            **TEXTS,
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
    rows: str = about(
        "Files of `data` whose rows are the items of the batch, as `*.parquet id prompt`: a name or"
        " pattern, the column with the id and that with the content; without columns `id` and the"
        " whole row. Empty: each file is an item.",
        "",
        form=formats.ROWS,
    )
    lane: int = about(
        "Queue of the batch: the number of a lane on Pub/Sub, which one batch uses at"
        " a time; 0: the"
        " results database.",
        0,
        minimum=0,
        maximum=MAX_LANES,
    )
    predict_seconds: float = about(
        "Seconds after which a prediction of a batch counts as hanging; 0: learned, 300 at most.",
        0.0,
        unit_s=1.0,
        minimum=0,
        maximum=86_400,
    )

    def __post_init__(self) -> None:
        for each_field in fields(self):
            check(
                each_field.name,
                getattr(self, each_field.name),
                each_field.metadata["schema"],
                each_field.metadata["form"],
                each_field.default,
            )
        self._check_mappings()
        if self.gpus != CPU_ONLY:
            parse_gpus(self.gpus)
        self._check_speeds()
        problems = chain(
            self._check_work(),
            self._check_gpus_and_data(),
            self._check_sweep(),
            self._check_gang_fields(),
        )
        for problem, got, allowed, fix in problems:
            raise InputError(problem, got=got, allowed=allowed, fix=fix)

    def _check_mappings(self) -> None:
        for name, form in (("env", TEXT), ("secrets", formats.SECRET)):
            for variable, value in getattr(self, name).items():
                formats.VARIABLE.match(f"{name}: {variable[:99]}", variable)
                form.match(f"{name}[{variable}]", value)
        for path, claim in self.claims.items():
            formats.PATH.match("claims: path", path)
            formats.CLAIM.match(f"claims[{path}]", claim)

    def _check_speeds(self) -> None:
        kinds = {kind for _, kind in self.gpu_choices}
        for name, speed in self.speeds.items():
            if len(kinds) < 2 or parse_accelerator(name) not in kinds:
                raise InputError(
                    "speeds",
                    got=name,
                    allowed="GPUs of `gpus: any of`",
                    fix="leave it out, or name it in gpus",
                )
            between(f"speeds[{name}]", speed, 1e-9, 1e9)

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
            yield (
                "a batch needs items",
                "no data",
                "data: gs://BUCKET/FOLDER",
                "add --set data=gs://BUCKET/FOLDER",
            )
        if self.predictor and self.on_notice != OnNotice.HANDLES:
            yield "on_notice", self.on_notice, "handles, for a batch", "leave it out"
        if self.rows and not self.predictor:
            yield "rows", self.rows, "nothing, without a predictor", "leave it out"
        if self.lane and not self.predictor:
            yield "lane", self.lane, "0, without a predictor", "leave it out"
        if self.predict_seconds and not self.predictor:
            yield "predict_seconds", "no predictor", "0 without one", "leave it out"

    def _check_gpus_and_data(self) -> Iterator[Contradiction]:
        if len(self.gpu_choices) > 1:
            if self.pods > 1 and not (self.predictor or self.sweep):
                allowed = "one node, the workers of a batch, or the points of a sweep"
                yield "gpus: any of", f"nodes: {self.nodes}", allowed, "name one GPU for a gang"
            if self.deadline_hours:
                got = self.deadline_hours
                yield "deadline_hours", got, "0, with any of several GPUs", "name one GPU"
        if self.priority != PRIORITY_NORMAL and self.gpus == CPU_ONLY:
            allowed = f"{PRIORITY_NORMAL}, for a job without GPUs: no queue orders it"
            yield "priority", self.priority, allowed, "leave it out"
        if self.cache and not self.data:
            yield "cache", self.cache, "nothing, without data", "add data: gs://BUCKET/FOLDER"

    def _check_sweep(self) -> Iterator[Contradiction]:
        if self.source_include and not self.source:
            yield "source_include", self.source_include, "files of `source`", "add source: ."
        defaults = self._list_changed_defaults()
        if not self.sweep:
            if "parallel" in defaults:
                yield "parallel", self.parallel, "4, without a sweep", "leave it out"
            return
        for name in _NOT_IN_SWEEPS:
            if name in defaults:
                allowed = f"{defaults[name] or 'nothing'}, for a sweep"
                fix = "leave it out, or leave the sweep out"
                yield name, getattr(self, name), allowed, fix
        shared = sorted({*self.points[0]} & ({*self.env} | {*self.secrets}))
        if shared:
            names = ", ".join(shared)
            yield "sweep: a variable of env or secrets", names, "other names", "rename it"
        total_h = self.hours * self.rounds
        if 0 < self.max_hours < total_h:
            got = (
                f"{len(self.points)} points of {self.hours:g} h, {self.pods} at a time:"
                f" {total_h:g} h"
            )
            allowed = f"max_hours {self.max_hours:g}, for all points together"
            yield "hours of a sweep", got, allowed, "raise parallel, or use several job files"

    def _check_gang_fields(self) -> Iterator[Contradiction]:
        if self.sharded and self.pods < FEWEST_SHARDED:
            allowed = "2 nodes at least: each has a part of the state"
            fix = f"nodes: {FEWEST_SHARDED}, or leave sharded out"
            yield "sharded", f"nodes: {self.nodes}", allowed, fix
        if self.sharded and self.elastic and not self.copies:
            allowed = "1 with a range of nodes: the others take a lost shard from its copy"
            yield (
                "copies",
                f"0 with nodes: {self.nodes}",
                allowed,
                f"copies: 1, or nodes: {self.pods}",
            )
        if self.copies_in == ON_DISK and not (self.copies and self.state):
            yield (
                "copies_in",
                f"{ON_DISK} with copies: {self.copies} and state: {self.state or 'unknown'}",
                "copies: 1 and the size of the state, of which a pod requests four shares of disk",
                "state: 60Gi, or copies_in: memory",
            )
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
        """The number of pods at the same time; of an elastic gang the most."""
        if self.sweep:
            return min(self.parallel, len(self.points))
        return node_range.parse(self.nodes, MAX_NODES)[1]

    @property
    def points(self) -> list[sweep_points.Point]:
        """The points of the sweep; none without one."""
        return sweep_points.parse(self.sweep) if self.sweep else []

    @property
    def rounds(self) -> int:
        """The number of times that `pods` points run one after the other."""
        return max(1, -(-len(self.points) // self.pods))

    @property
    def min_nodes(self) -> int:
        return node_range.parse(self.nodes, MAX_NODES)[0]

    @property
    def elastic(self) -> bool:
        return isinstance(self.nodes, str)

    @property
    def wait_s(self) -> float:
        """Seconds for which a sharded gang waits, with all its other nodes billed."""
        if self.wait_hours:
            return self.wait_hours * 3600
        # Below its least nothing of it works: it waits as long as its next start would cost.
        return BELOW_LEAST_WAIT_S

    @property
    def in_place(self) -> bool:
        """The other pods stay when one is lost."""
        return self.elastic or self.sharded

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of each node."""
        return self.gpu_choices[0][0] if self.gpu_choices else 0

    @property
    def accelerator(self) -> str:
        """The accelerator's label; of `any of` the first."""
        return self.gpu_choices[0][1] if self.gpu_choices else ""

    @property
    def gpu_choices(self) -> list[tuple[int, str]]:
        """The number and the label of each GPU that the job takes; more than one for `any of`."""
        return [] if self.gpus == CPU_ONLY else parse_gpus(self.gpus)

    def find_speed(self, accelerator: str) -> float:
        """Return the measured steps per second on a GPU; 0 if unknown."""
        for name, speed in self.speeds.items():
            if parse_accelerator(name) == accelerator:
                return speed
        return 0.0

    @property
    def disk_gib(self) -> int:
        """The disk that the program of each pod requests."""
        scratch_gib = -(-formats.parse_size_mib(self.scratch) // 1024)
        return scratch_gib + _LOGS_GIB + (1 if self.source else 0) + self.copies_gib

    @property
    def copies_gib(self) -> int:
        """The disk for copies of shards in each pod, with the fewest nodes; 0: none there."""
        if self.copies_in != ON_DISK:
            return 0
        state_mib = _SHARES_ON_DISK * formats.parse_size_mib(self.state)
        return -(-state_mib // (1024 * self.min_nodes))

    @property
    def cache_mib(self) -> int:
        """The size of the cache for the data; 0 for none."""
        size = self.cache.removesuffix(_IN_MEMORY)
        return formats.parse_size_mib(size) if size else 0

    @property
    def caches_in_memory(self) -> bool:
        return self.cache.endswith(_IN_MEMORY)

    @property
    def pod_disk_gib(self) -> int:
        """The disk that each pod takes, with that of the cache."""
        cache_gib = 0 if self.caches_in_memory else -(-self.cache_mib // 1024)
        return self.disk_gib + cache_gib

    @property
    def gang(self) -> bool:
        """The job is a rigid gang: all of its pods run, or none."""
        return self.pods > 1 and not (self.predictor or self.in_place or self.sweep)

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
