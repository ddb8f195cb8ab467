"""A trainer that a newer one has replaced commits nothing, wherever it was stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import AlreadyExists, Fenced, NotFound
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import Stat, put_new
from holdfast.support import object_names
from workloads.library.tests.checkpoint.saves.starts import RUN, commit_step, find_committer

CHILD = "workloads.library.tests.checkpoint.saves.stopped_committer"
STEP = 4
# Numbers of the starts.
OLDEST = 1
OLDER = 2
NEWER = 3
WAIT_S = 60.0


@contextmanager
def start_committer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that looks at the fence and is then stopped, before it writes its commit."""
    command = [sys.executable, "-m", CHILD, str(folder), str(STEP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            yield process
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.parametrize("newer_steps", [[], [STEP], [STEP + 1]])
def test_trainer_stopped_before_its_write_commits_nothing(
    tmp_path: Path, newer_steps: list[int]
) -> None:
    storage = LocalStorage.open(str(tmp_path))
    with start_committer(tmp_path) as process:
        number = fence.take(storage, RUN)
        for step in newer_steps:
            commit_step(storage, step, number)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=WAIT_S)
    assert output == "fenced\n"
    assert committed_steps(storage, RUN) == newer_steps
    for step in newer_steps:
        assert find_committer(storage, step) == number, step


class Objects:
    """A store in memory."""

    read_bytes = 1 << 20

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        with self._lock:
            if name in self._objects:
                raise AlreadyExists(name)
            self._objects[name] = bytes(data)

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        with self._lock:
            into[:] = self._find(name)[start : start + len(into)]

    def list(self, prefix: str) -> Iterator[Stat]:
        with self._lock:
            stats: list[Stat] = []
            for name in self._objects:
                if name.startswith(f"{prefix}/"):
                    stats.append(self._describe(name))
            return iter(stats)

    def stat(self, name: str) -> Stat:
        with self._lock:
            return self._describe(name)

    def delete(self, name: str) -> None:
        with self._lock:
            self._objects.pop(name, None)

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        with self._lock:
            data = self._find(source)
            if target in self._objects and not replace:
                raise AlreadyExists(target)
            self._objects[target] = data
            del self._objects[source]

    def _find(self, name: str) -> bytes:
        if name not in self._objects:
            raise NotFound(name)
        return self._objects[name]

    def _describe(self, name: str) -> Stat:
        return Stat(name=name, bytes=len(self._find(name)), modified=0.0)


class Interrupted:
    """A store as one start uses it: each of its calls waits for its turn."""

    read_bytes = 1 << 20

    def __init__(
        self,
        storage: Objects,
        turn: Callable[[], None],
        after_change: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._turn = turn
        self._after_change = after_change

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        self._turn()
        self._storage.put(name, data, crc32c)
        self._after_change()

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self._storage.read_into(name, start, into)

    def list(self, prefix: str) -> Iterator[Stat]:
        self._turn()
        return self._storage.list(prefix)

    def stat(self, name: str) -> Stat:
        self._turn()
        return self._storage.stat(name)

    def delete(self, name: str) -> None:
        self._turn()
        self._storage.delete(name)
        self._after_change()

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        self._turn()
        self._storage.move(source, target, replace=replace)
        self._after_change()


class Interleaving:
    """Two starts whose calls to the store are made in a given order: `first` calls of the older
    start, `second` calls of the newer one, then the rest of the older, then that of the newer.
    """

    def __init__(self, storage: Objects, first: int, second: int) -> None:
        self._storage = storage
        self._quotas = {OLDER: [first, sys.maxsize], NEWER: [second, sys.maxsize]}
        self._running = OLDER
        self._ended = set[int]()
        self._changed = threading.Condition()
        self._commits = [find_committer(storage, STEP)]
        self.is_taken = False
        """True once the newer start has taken the fence."""
        self.violations = list[str]()
        self.outcomes = dict[int, str]()

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._run_start, args=(OLDER,)),
            threading.Thread(target=self._run_start, args=(NEWER,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _run_start(self, number: int) -> None:
        storage = Interrupted(
            self._storage,
            turn=lambda: self._wait_for_turn(number),
            after_change=self._check,
        )
        try:
            if number == NEWER:
                assert fence.take(storage, RUN) == NEWER
                self.is_taken = True
            commit_step(storage, STEP, number)
            self.outcomes[number] = "committed"
        except Fenced:
            self.outcomes[number] = "fenced"
        finally:
            with self._changed:
                self._ended.add(number)
                self._running = OLDER + NEWER - number
                self._changed.notify_all()

    def _wait_for_turn(self, number: int) -> None:
        other = OLDER + NEWER - number
        with self._changed:
            assert self._changed.wait_for(lambda: self._running == number, WAIT_S)
            quotas = self._quotas[number]
            if quotas[0] == 0 and other not in self._ended:
                quotas.pop(0)
                self._running = other
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._running == number, WAIT_S)
            quotas[0] -= 1

    def _check(self) -> None:
        """Notes a commit that appeared late or was lost."""
        committer = find_committer(self._storage, STEP)
        if committer == self._commits[-1]:
            return
        if committer < self._commits[-1]:
            self.violations.append(f"{committer} after {self._commits}")
        if committer == OLDER and self.is_taken:
            self.violations.append("a commit of the older start after the newer took the fence")
        self._commits.append(committer)


CALLS = range(16)
"""More than a start makes before it ends."""


def explore(*, is_repeated: bool) -> Iterator[Interleaving]:
    """Plays all orders of the calls. `is_repeated`: an even older start has committed the step."""
    for first, second in product(CALLS, CALLS):
        storage = Objects()
        assert fence.take(storage, RUN) == OLDEST
        if is_repeated:
            commit_step(storage, STEP, OLDEST)
        assert fence.take(storage, RUN) == OLDER
        interleaving = Interleaving(storage, first, second)
        interleaving.run()
        yield interleaving


@pytest.mark.parametrize("is_repeated", [False, True])
def test_older_start_neither_commits_late_nor_removes_a_newer_commit(is_repeated: bool) -> None:
    older_outcomes = set[str]()
    for interleaving in explore(is_repeated=is_repeated):
        assert interleaving.violations == []
        assert interleaving.outcomes[NEWER] == "committed"
        older_outcomes.add(interleaving.outcomes[OLDER])
    assert older_outcomes == {"committed", "fenced"}


def test_exploration_finds_the_late_commit_if_drafts_are_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fence, "_delete_older_drafts", lambda *_: None)
    violations = list[str]()
    for interleaving in explore(is_repeated=False):
        violations += interleaving.violations
    assert "a commit of the older start after the newer took the fence" in violations


def test_late_start_keeps_newer_drafts() -> None:
    storage = Objects()
    older = fence.take(storage, RUN)
    newer = fence.take(storage, RUN)
    draft = object_names.draft_object(RUN, newer, "0" * 12)
    put_new(storage, draft, b"{}")
    fence._delete_older_drafts(storage, RUN, older)
    assert storage.stat(draft).bytes == 2
    fence._delete_older_drafts(storage, RUN, newer + 1)
    assert not [*storage.list(object_names.drafts_prefix(RUN))]
