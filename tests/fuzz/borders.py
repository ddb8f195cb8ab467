"""Every place where the product reads what somebody else wrote, each with inputs made from what the product writes."""

import contextlib
import io
import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from holdfast.checkpoint.decoding import decode_commit, parse_manifest
from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import digest_of
from holdfast.checkpoint.loading import read_whole
from holdfast.checkpoint.reading import open_step
from holdfast.checkpoint.soundness import check_manifests
from holdfast.checkpoint.storage import Stat
from holdfast.commands import app as holdfast
from holdfast.contract.errors import InputError, Unjudged, unusable_path
from holdfast.inference import items, sources
from holdfast.inference.errors import MalformedMessage, PredictorError
from holdfast.inference.predictor import frames, replies
from holdfast.inference.server import tensors
from holdfast.inference.server.errors import Refused
from holdfast.inference.values import encode_value
from infra import environments
from infra.placement import prices
from monitoring.__main__ import app as monitoring
from monitoring.ledger.events import parse
from monitoring.ledger.job_ledger import job_ledgers
from monitoring.ledger.job_summary import job_summaries
from monitoring.report.cli import read_report
from monitoring.report.page import render
from tests.fuzz.campaign import Border
from tests.fuzz.mutations import ODD, dumped, hostile
from tests.monitoring import sample
from tests.workloads.library.checkpoint.forgeries import encoded, envelope
from workloads.__main__ import app as workloads
from workloads.jobs import manifest, submit
from workloads.manifests import rendering
from workloads.manifests.lint.engine import Options, lint_texts
from workloads.manifests.lint.formats import FORMATS

RUN, STEP, ATTEMPT = "run", 3, "0123456789ab"
NOW_S = sample.EPOCH + 3_600


def seeded(*seeds: Any) -> Callable[[random.Random], bytes]:
    return lambda draw: hostile(seeds, draw)


# Event lines


def _lines() -> list[bytes]:
    return sample.encoded(sample.training("good", total=12))[:60]


def _enter_lines(data: bytes) -> None:
    reading = parse([*_lines(), *data.split(b"\n")], now_s=NOW_S)
    job_ledgers(reading.events)
    job_summaries(reading.events)


def _enter_report(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.jsonl").write_bytes(b"\n".join([*_lines(), data]))
        render(read_report(Path(folder), None))


# Checkpoints


class Memory:
    """Objects as bytes by name."""

    read_bytes = 1 << 20
    create_only = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def stat(self, name: str) -> Stat:
        if name not in self._objects:
            raise NotFound(name)
        return Stat(name=name, bytes=len(self._objects[name]), modified=0.0)

    def list(self, prefix: str) -> Iterator[Stat]:
        return (self.stat(name) for name in self._objects if name.startswith(prefix))

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        found = self._objects[name][start : start + len(into)]
        if len(found) < len(into):
            raise EOFError(name)
        into[:] = found

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError


@cache
def _saved() -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Commit body, manifest and shard of a small state, as the library makes them."""
    import torch

    from holdfast.checkpoint.checksum import crc32c
    from holdfast.checkpoint.format import Commit, Manifest, Shard
    from holdfast.checkpoint.pieces import memory_of, pieces_of, stream_bytes
    from holdfast.checkpoint.staging import copy_into
    from holdfast.checkpoint.tree import capture

    model = torch.nn.Linear(8, 8)
    captured = capture({"model": model, "at": 3, "seen": (1, 2.5, {"a": float("inf")})})
    pieces = pieces_of(captured, 0, 1)
    stream = torch.empty(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    shard = bytes(memory_of(stream))
    own = Manifest(
        run=RUN,
        step=STEP,
        attempt=ATTEMPT,
        rank=0,
        world_size=1,
        shards=(Shard(bytes=len(shard), crc32c=crc32c(memoryview(bytearray(shard)))),),
        tensors=tuple(piece.part for piece in pieces),
        values=captured.skeleton | {"__notes__": {}},
    )
    commit = Commit(
        run=RUN,
        step=STEP,
        attempt=ATTEMPT,
        world_size=1,
        total_bytes=len(shard),
        created=1_790_000_000,
        manifests=(digest_of(own.encode()),),
    )
    return json.loads(commit.encode())["body"], json.loads(own.encode()), shard


def _make_commit(draw: random.Random) -> bytes:
    body, _, _ = _saved()
    # Half of them with a digest that matches, or nothing behind the digest would ever be reached.
    return envelope(hostile((body,), draw)) if draw.random() < 0.7 else hostile((envelope(encoded(body)),), draw)


def _make_manifest(draw: random.Random) -> bytes:
    return hostile((_saved()[1],), draw)


def _enter_manifest(data: bytes) -> None:
    check_manifests([parse_manifest(data)])


def _enter_checkpoint(data: bytes) -> None:
    """A manifest that a commit names rightly: all that stands between it and memory is its own soundness."""
    body, _, shard = _saved()
    digest = digest_of(data)
    body = body | {"manifests": [{"length": digest.length, "sha256": digest.sha256}]}
    step = f"{RUN}/step-{STEP:010d}"
    objects = {
        f"{step}/COMMIT.json": envelope(encoded(body)),
        f"{step}/{ATTEMPT}/rank-00000.json": data,
        f"{step}/{ATTEMPT}/rank-00000-00000.bin": shard,
    }
    opened = open_step(Memory(objects), RUN, STEP)
    read_whole(Memory(objects), opened, None)


# Batch


ITEM = items.encode(items.Item(job="job", id="an-id", body=b"some text"))
ROWS = b'{"id": 1, "text": "one"}\n{"id": "b", "text": "two", "more": [1, {"a": null}]}\n'
TABLE = b'id,text\n1,one\n2,"two, three"\n'
REPLY = {"values": [{"score": 1.5, "label": "x"}, {"score": 2}], "seconds": 0.25, "configuration": {"a": [1]}}


def _enter_rows(suffix: str) -> Callable[[bytes], None]:
    def enter(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"rows{suffix}"
            path.write_bytes(data)
            for _ in sources.items_of("job", str(path), pattern="*", id_column="id", body_column="text"):
                pass

    return enter


@cache
def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = io.BytesIO()
    pq.write_table(pa.table({"id": ["1", "2"], "text": ["one", "two"]}), written)
    return written.getvalue()


def _enter_reply(data: bytes) -> None:
    framed = bytearray(struct.pack(">I", len(data)) + data)
    reply = frames.pop_message(framed)
    values, _ = replies.values_of(reply, 2)
    for value in values:
        encode_value(value)
    replies.configuration_of(reply.get("configuration") if reply else None)


INFER = {
    "id": "1",
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        {"name": "n", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]},
    ],
}


# Manifests, jobs, environments


@cache
def _rendered() -> tuple[bytes, ...]:
    return tuple(text.encode() for name, text in rendering.texts("example").items() if name.startswith("samples"))


def _make_yaml(draw: random.Random) -> bytes:
    from ruamel.yaml import YAML

    if draw.random() < 0.5:
        documents = draw.choice(_rendered()).split(b"\n---\n")
        return hostile((draw.choice(documents),), draw)
    (document, *_) = YAML(typ="safe", pure=True).load_all(draw.choice(_rendered()))
    return hostile((json.loads(json.dumps(document)),), draw)


def _enter_lint(data: bytes) -> None:
    report = lint_texts({"a.yaml": data.decode("utf-8", "replace")}, Options())
    for render_format in FORMATS.values():
        render_format(report).encode()


def _enter_submit(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_bytes(data)
        env = environments.load("example")
        submit.plan(manifest.read(path), env, prices.load(), submit.Caps(usd_per_hour=1.0), 2.0)


def _make_field(draw: random.Random) -> bytes:
    """A path of field names, and the odd value to put there."""
    path, node = [], environments.load(draw.choice(environments.names()))
    while is_dataclass(node):
        name = draw.choice([field.name for field in fields(node)])
        path.append(name)
        node = getattr(node, name)
        if not is_dataclass(node) or draw.random() < 0.2:
            break
    return repr((path, draw.randrange(len(ODD)))).encode()


def _enter_environment(data: bytes) -> None:
    path, odd = eval(data, {"__builtins__": {}})  # noqa: S307  made above, one line of literals
    environments.built("prod", lambda: _put(environments.load("prod"), path, ODD[odd]))


def _put(node: Any, path: list[str], value: Any) -> Any:
    inner = (
        _put(getattr(node, path[0]), path[1:], value) if path[1:] and is_dataclass(getattr(node, path[0])) else value
    )
    return replace(node, **{path[0]: inner})


# Commands. Only those that read: nothing here starts, sends or deletes.

COMMANDS: tuple[tuple[typer.Typer, tuple[str, ...]], ...] = (
    (holdfast, ("checkpoints", "list")),
    (workloads, ("lint",)),
    (workloads, ("rules",)),
    (monitoring, ("report",)),
    (monitoring, ("receipt",)),
    (monitoring, ("churn",)),
)
# A hostile value is a path too: none is given to what writes a file, and none to what would ask a cloud or a cluster.
NEVER = {"out", "output", "write_baseline", "annotate", "project", "kubeconfig", "history"}


def _make_words(draw: random.Random) -> bytes:
    app, path = draw.choice(COMMANDS)
    command: Any = get_command(app)
    found: list[str] = []
    for name in path:
        command = command.commands[name]
        found.append(name)
    chosen = [parameter for parameter in command.params if parameter.name not in NEVER]
    for parameter in draw.sample(chosen, min(len(chosen), draw.randrange(5))):
        if parameter.param_type_name == "option":
            found.append(parameter.opts[0])
        if not getattr(parameter, "is_flag", False):
            found.append(str(draw.choice(ODD[:-1]))[:3_000])
    return dumped([COMMANDS.index((app, path)), found])


def _enter_words(data: bytes) -> None:
    which, words = json.loads(data)
    words = [word.replace("\x00", "") for word in words]
    written = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(contextlib.redirect_stdout(written))
        stack.enter_context(contextlib.redirect_stderr(written))
        try:
            COMMANDS[which][0](words)
        except OSError as error:
            raise unusable_path(error) or error from None


BORDERS: dict[str, Border] = {
    "event lines": Border(make=seeded(*(json.loads(line) for line in _lines())), enter=_enter_lines),
    "report": Border(
        make=seeded(*(json.loads(line) for line in _lines())), enter=_enter_report, refusals=(InputError,), cpu_s=30
    ),
    "commits": Border(
        make=_make_commit, enter=lambda data: decode_commit(data, run=RUN, step=STEP), refusals=(Damaged, InputError)
    ),
    "manifests": Border(make=_make_manifest, enter=_enter_manifest, refusals=(Damaged, InputError)),
    "checkpoints": Border(make=_make_manifest, enter=_enter_checkpoint, refusals=(Damaged, InputError)),
    "batch messages": Border(make=seeded(json.loads(ITEM), ITEM), enter=items.decode, refusals=(MalformedMessage,)),
    "rows of JSON": Border(make=seeded(ROWS), enter=_enter_rows(".jsonl"), refusals=(InputError,)),
    "rows of CSV": Border(make=seeded(TABLE), enter=_enter_rows(".csv"), refusals=(InputError,)),
    "rows of Parquet": Border(
        make=lambda draw: hostile((_parquet(),), draw), enter=_enter_rows(".parquet"), refusals=(InputError,)
    ),
    "predictor's replies": Border(
        make=seeded(REPLY),
        enter=_enter_reply,
        # Of pop_message and encode_value, as they document.
        refusals=(PredictorError, InputError, ValueError, RecursionError, EOFError),
    ),
    "HTTP requests": Border(make=seeded(INFER), enter=lambda data: tensors.parse(data, 64), refusals=(Refused,)),
    "linted files": Border(make=_make_yaml, enter=_enter_lint, refusals=(InputError,)),
    "job files": Border(make=_make_yaml, enter=_enter_submit, refusals=(InputError, Unjudged)),
    "environments": Border(make=_make_field, enter=_enter_environment, refusals=(InputError,)),
    # Click ends every command by SystemExit, with the code of what it found.
    "command lines": Border(make=_make_words, enter=_enter_words, refusals=(InputError, Unjudged, SystemExit)),
}
