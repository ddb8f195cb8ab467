"""Copies of shards in the memory of nodes, from which a gang that lost a node restores without the
bucket; the public names of this room.
"""

from holdfast.checkpoint.peers.keeper_client import PeerPlaces as PeerPlaces
from holdfast.checkpoint.peers.memory_keeper import Keeper as Keeper
from holdfast.checkpoint.peers.rooms import check_folder as check_folder
from holdfast.checkpoint.peers.rooms import free_disk_bytes as free_disk_bytes
