"""What an uploader process is started with, and what it is given for each save."""

import json
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.format import Manifest, TensorPart, fields_of
from holdfast.checkpoint.peers.places import Version
from holdfast.checkpoint.save.retention import Policy
from holdfast.checkpoint.settings import Tuning


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadOrders:
    """What an uploader is started with, as its one argument."""

    url: str
    run: str
    tuning: Tuning
    keep: int
    commit_count: int
    """Commits that this run has."""
    epoch: int
    """Number of this start."""
    damaged: tuple[str, ...] = ()
    """Attempts whose commit restore passed over."""
    stale: tuple[str, ...] = ()
    """Attempts that get no commit any more."""
    training_threads: int = 1
    """That all ranks of this machine compute with."""

    def encode(self) -> str:
        return json.dumps(self, default=fields_of)

    @classmethod
    def decode(cls, text: str) -> "UploadOrders":
        body = json.loads(text)
        return cls(**(body | {"tuning": Tuning(**body["tuning"])}))

    @property
    def policy(self) -> Policy:
        damaged, stale = frozenset(self.damaged), frozenset(self.stale)
        return Policy(keep=self.keep, keep_every=self.tuning.keep_every, damaged=damaged, stale=stale)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One save of one rank: the first `length` bytes of a staging memory hold its stream."""

    save: int
    memory: int = 0
    """Which of the staging memories."""
    length: int
    shard_bytes: int
    manifest: Manifest
    """Without shards: their checksums are computed by the uploader."""
    upload: bool = True
    copy: bool = False
    """Whether a neighbour gets it."""
    keep: Version = (-1, "")
    """Which copy the neighbour has to keep meanwhile."""

    def encode(self) -> bytes:
        return json.dumps(self, default=fields_of, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def decode(cls, body: dict[str, Any]) -> "Job":
        # Not parse_manifest: this one comes from the trainer itself, and its many parts are not worth a second check.
        fields: dict[str, Any] = body["manifest"]
        tensors = tuple(
            TensorPart(**(part | {name: tuple(part[name]) for name in ("shape", "offset", "extent")}))
            for part in fields.pop("tensors")
        )
        del fields["shards"]
        body |= {"manifest": Manifest(**fields, tensors=tensors, shards=()), "keep": tuple(body["keep"])}
        return cls(**body)
