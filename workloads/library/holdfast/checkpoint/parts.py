"""What the other trainers and servers of the library are built from, in addition to Checkpointer.
Loads torch.
"""

from holdfast.checkpoint.cadence import Hazard as Hazard
from holdfast.checkpoint.format import fence as fence
from holdfast.checkpoint.format import signing_key as signing_key
from holdfast.checkpoint.format.commit import survey as survey
from holdfast.checkpoint.peers.keeper import Keeper as Keeper
from holdfast.checkpoint.peers.places import PeerPlaces as PeerPlaces
from holdfast.checkpoint.ranks import Json as Json
from holdfast.checkpoint.ranks import Ranks as Ranks
from holdfast.checkpoint.ranks import error_of as error_of
from holdfast.checkpoint.ranks import failure_of as failure_of
from holdfast.checkpoint.ranks import is_lost_peer as is_lost_peer
from holdfast.checkpoint.restore import Restored as Restored
from holdfast.checkpoint.restore import restore as restore
from holdfast.checkpoint.restore.loading import only_run as only_run
from holdfast.checkpoint.restore.loading import read_whole as read_whole
from holdfast.checkpoint.restore.reading import open_step as open_step
from holdfast.checkpoint.restore.starting import Start as Start
from holdfast.checkpoint.restore.starting import behind_fence as behind_fence
from holdfast.checkpoint.restore.target import load_entry as load_entry
from holdfast.checkpoint.save.uploader import Report as Report
from holdfast.checkpoint.save.writer import CheckpointWriter as CheckpointWriter
from holdfast.checkpoint.state import RNG_KEY as RNG_KEY
from holdfast.checkpoint.state import Captured as Captured
from holdfast.checkpoint.state import Skeleton as Skeleton
from holdfast.checkpoint.state import capture as capture
from holdfast.checkpoint.state import checked_state as checked_state
from holdfast.checkpoint.state import decode as decode
from holdfast.checkpoint.state import targets as targets
from holdfast.checkpoint.state.random_streams import Generators as Generators
from holdfast.checkpoint.state.random_streams import packed_streams as packed_streams
from holdfast.checkpoint.state.random_streams import set_streams as set_streams
from holdfast.checkpoint.state.tensors import NO_KERNEL as NO_KERNEL
from holdfast.checkpoint.state.tensors import as_dtensor as as_dtensor
from holdfast.checkpoint.state.tensors import dtype_of as dtype_of
from holdfast.checkpoint.state.tensors import local_of as local_of
from holdfast.checkpoint.state.tracking import Shielded as Shielded
from holdfast.checkpoint.state.tracking import obey_only as obey_only
