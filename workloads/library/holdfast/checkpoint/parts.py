"""What the other trainers and servers of the library are built from, in addition to Checkpointer. Loads torch."""

from holdfast.checkpoint.cadence import Hazard
from holdfast.checkpoint.format import fence, signing_key
from holdfast.checkpoint.format.commit import survey
from holdfast.checkpoint.peers.keeper import Keeper
from holdfast.checkpoint.peers.places import PeerPlaces
from holdfast.checkpoint.ranks import Json, Ranks, error_of, failure_of, is_lost_peer
from holdfast.checkpoint.restore import Restored, restore
from holdfast.checkpoint.restore.loading import only_run, read_whole
from holdfast.checkpoint.restore.reading import open_step
from holdfast.checkpoint.restore.starting import Start, behind_fence
from holdfast.checkpoint.restore.target import load_entry
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.state import RNG_KEY, Captured, Skeleton, capture, checked_state, decode, targets
from holdfast.checkpoint.state.random_streams import Generators, packed_streams, set_streams
from holdfast.checkpoint.state.shielding import Shielded, obey_only
from holdfast.checkpoint.state.tensors import NO_KERNEL, as_dtensor, dtype_of, local_of

__all__ = [
    "NO_KERNEL",
    "RNG_KEY",
    "Captured",
    "CheckpointWriter",
    "Generators",
    "Hazard",
    "Json",
    "Keeper",
    "PeerPlaces",
    "Ranks",
    "Report",
    "Restored",
    "Shielded",
    "Skeleton",
    "Start",
    "as_dtensor",
    "behind_fence",
    "capture",
    "checked_state",
    "decode",
    "dtype_of",
    "error_of",
    "failure_of",
    "fence",
    "is_lost_peer",
    "load_entry",
    "local_of",
    "obey_only",
    "only_run",
    "open_step",
    "packed_streams",
    "read_whole",
    "restore",
    "set_streams",
    "signing_key",
    "survey",
    "targets",
]
