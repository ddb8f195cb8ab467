"""Usage: python read_holdfast.py FOLDER RUN [STEP]. Reads a checkpoint with NumPy alone.

It needs no holdfast. The page "Checkpoint format" describes every byte that it reads. Dtypes that
NumPy lacks, such as bfloat16, are returned as unsigned integers of their size.
"""

import hashlib
import json
import math
import re
import sys
from pathlib import Path

import numpy as np

TAIL = re.compile(rb'(?:,"seal":"[0-9a-f]{64}")?,"sha256":"([0-9a-f]{64})"\}\Z')
PLAIN = re.compile("bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
LANES = 4096
TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    TABLE = np.where(TABLE & 1, (TABLE >> 1) ^ np.uint32(0x82F63B78), TABLE >> 1)


def extend(state, columns):
    for column in columns:
        state = TABLE[(state ^ column) & 0xFF] ^ (state >> 8)
    return state


def crc32c(data):
    """Return the CRC-32C of an array of bytes, computed in lanes that are joined at the end."""
    length = len(data) // LANES
    checksums = extend(np.uint32([0] * LANES), data[: LANES * length].reshape(LANES, length).T)
    # A checksum is linear: what `length` zeros do to each of its bits is known from 32 of them.
    places = np.arange(32, dtype=np.uint32)
    bits = extend(np.uint32(1) << places, np.zeros(length, np.uint8))
    state = np.uint32(0xFFFFFFFF)
    for checksum in checksums if length else ():
        state = np.bitwise_xor.reduce(bits[(state >> places) & 1 == 1], initial=0) ^ checksum
    return f"{int(extend(state, data[LANES * length :])) ^ 0xFFFFFFFF:08x}"


def check(condition, subject):
    if not condition:
        raise ValueError(f"damaged: {subject}")


def read_stream(folder, rank, manifest):
    shards = [np.empty(0, np.uint8)]
    for index, shard in enumerate(manifest["shards"]):
        name = f"rank-{rank:05d}-{index:05d}.bin"
        shared = folder.parent.parent / f"shared/{shard.get('sha256')}.bin"
        data = np.fromfile(shared if "sha256" in shard else folder / name, np.uint8)
        check(len(data) == shard["bytes"] and crc32c(data) == shard["crc32c"], name)
        shards.append(data)
    return np.concatenate(shards)


def read(folder, run, step=None):
    """Return the step, tensors by key and values of each rank; the newest step without `step`."""
    pattern = "step-*" if step is None else f"step-{int(step):010d}"
    path = max(Path(folder, run).glob(f"{pattern}/COMMIT.json"))
    tail = TAIL.search(path.read_bytes())
    check(tail and tail.string.startswith(b'{"body":'), "the commit is not whole")
    body = tail.string[8 : tail.start()]
    check(hashlib.sha256(body).hexdigest().encode() == tail[1], "the commit's digest")
    commit = json.loads(body)
    check(commit["schema"] == "holdfast.checkpoint/1", commit["schema"])
    check(path.match(f"{commit['run']}/step-{commit['step']:010d}/*"), "a copied folder")
    attempt = path.parent / commit["attempt"]
    tensors = {}
    sizes = {}
    values = []
    for rank, digest in enumerate(commit["manifests"]):
        data = (attempt / f"rank-{rank:05d}.json").read_bytes()
        check(hashlib.sha256(data).hexdigest() == digest["sha256"], f"manifest of rank {rank}")
        manifest = json.loads(data)
        check(re.fullmatch(r"holdfast\.checkpoint/[12]", manifest["schema"]), manifest["schema"])
        values.append(manifest["values"])
        stream = read_stream(attempt, rank, manifest)
        for part in manifest["tensors"]:
            size = math.prod(part["extent"])
            unsigned = f"u{part['bytes'] // max(1, size) or 1}"
            dtype = part["dtype"] if PLAIN.fullmatch(part["dtype"]) else unsigned
            whole = tensors.setdefault(part["key"], np.empty(part["shape"], dtype))
            box = tuple(map(slice, part["offset"], np.add(part["offset"], part["extent"])))
            if list(whole.shape) == part["shape"]:  # else an entry that differs between ranks
                source = stream[part["at"] : part["at"] + part["bytes"]].view(dtype)
                whole[box] = source.reshape(part["extent"])
                sizes.setdefault(part["key"], {})[str(box)] = size
    for key, boxes in sizes.items():
        check(sum(boxes.values()) == tensors[key].size, f"{key} is not whole")
    return commit["step"], tensors, values


if __name__ == "__main__" and len(sys.argv) < 3:
    sys.exit(print(__doc__) if "--help" in sys.argv else __doc__)
elif __name__ == "__main__":
    for key, array in read(*sys.argv[1:])[1].items():
        print(f"{key} {array.dtype} {list(array.shape)}")
