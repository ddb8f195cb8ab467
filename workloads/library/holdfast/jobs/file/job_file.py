"""A job of a file: what its fields mean, and which of them contradict each other.

Each field is checked alone, as `fields` describes it, and then with the others.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from holdfast.jobs.file import formats, sweep_points
from holdfast.jobs.file.fields import MAX_NODES, check
from holdfast.jobs.file.formats import TEXT, parse_gpus
from holdfast.jobs.file.job_fields import (
    CPU_ONLY,
    HOUR_S,
    MAX_HOURS,
    ON_DISK,
    JobFields,
    OnNotice,
)
from holdfast.place.job import parse_accelerator
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.kubernetes import PRIORITY_NORMAL
from holdfast.vocabulary.roles import KSA_NAMESPACES

FEWEST_SHARDED = 2
BELOW_LEAST_WAIT_S = 300.0
_IN_MEMORY = " memory"
_LOGS_GIB = 2  # in addition to /tmp: logs and the container's own layer
_SHARES_ON_DISK = 4
"""The shares that a node has on its disk: two versions of its own and two of a neighbor's."""
# Fields that a sweep cannot have: a point is one pod, and runs to its own end.
_NOT_IN_SWEEPS = ("nodes", "sharded", "predictor", "deadline_hours")
_SHARDED_ONLY = ("copies", "copies_in", "state", "wait_hours")
# Fields that a gang whose pods stay cannot have: the library takes its notices, and its nodes come
# from one pool, one by one.
_NOT_IN_PLACE = ("predictor", "deadline_hours", "on_notice", "resumes")
Contradiction = tuple[str, object, str, str]
"""Fields that do not go together: what, got, allowed, fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec(JobFields):
    """A job of a file whose fields agree."""

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
        if self.predictor and self.command and not self.command[0].startswith("-"):
            allowed = "options of `holdfast batch run`, for a batch: it runs the predictor"
            yield "command", repr(self.command[0][:200]), allowed, "leave the program out"
        if self.predictor and "." in self.predictor and ":" not in self.predictor:
            module, _, function = self.predictor.rpartition(".")
            allowed = "MODULE:FUNCTION of the image, or a name without dots"
            yield "predictor", self.predictor, allowed, f"write {module}:{function}"
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
        variables = {*self.env, *self.secrets}
        shared = variables & set(self.points[0])
        if shared:
            names = ", ".join(sorted(shared))
            yield "sweep: a variable of env or secrets", names, "other names", "rename it"
        total_h = self.hours * self.rounds
        longest_h = self.max_hours or MAX_HOURS
        if longest_h < total_h:
            got = (
                f"{len(self.points)} points of {self.hours:g} h, {self.pods} at a time:"
                f" {total_h:g} h"
            )
            allowed = f"max_hours {longest_h:,g}, for all points together"
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
            return self.wait_hours * HOUR_S
        # Below its minimum no pod works: it waits only as long as its next start would take.
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
    first, *arguments = program.split() or [""]
    if not arguments:
        return False
    if "/" not in first:
        return True
    return any(word.startswith("-") or "." in word for word in arguments)
