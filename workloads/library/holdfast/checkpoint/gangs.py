"""Saves and restores for a trainer with its own membership, such as an elastic gang: a writer
behind a fence, without the loop of Checkpointer. Loads torch.
"""

from holdfast.checkpoint.cadence import Hazard as Hazard
from holdfast.checkpoint.format import fence as fence
from holdfast.checkpoint.format import signing_key as signing_key
from holdfast.checkpoint.memory_commits import store_newest as store_newest
from holdfast.checkpoint.restore import Restored as Restored
from holdfast.checkpoint.restore import restore as restore
from holdfast.checkpoint.restore.run_start import Start as Start
from holdfast.checkpoint.restore.run_start import behind_fence as behind_fence
from holdfast.checkpoint.restore.state_loading import load_entry as load_entry
from holdfast.checkpoint.save.uploader import Report as Report
from holdfast.checkpoint.save.writer import CheckpointWriter as CheckpointWriter
