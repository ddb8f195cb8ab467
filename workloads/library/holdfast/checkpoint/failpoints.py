"""Named points at which a test may kill the process. They cost one call in production.

HOLDFAST_KILL_AT="upload.shard:3" kills the process that reaches that point for the third time.
"""

import os
import signal
from collections import Counter
from functools import cache

from holdfast.vocabulary.environment import ENV_KILL_AT

POINTS = (
    "stage.begin",
    "stage.end",
    "upload.begin",
    "upload.shard",
    "upload.manifest",
    "upload.end",
    "commit.verified",
    "commit.drafted",
    "commit.written",
    "restore.chosen",
    "restore.verified",
    "restore.applied",
    "retention.begin",
    "retention.uncommitted",
    "retention.end",
)

# Points of elastic gangs.
GANG_POINTS = (
    "gang.join",
    "gang.report",
    "gang.propose",
    "gang.proposed",
    "gang.connect",
    "gang.synchronize",
    "gang.reduce",
    "gang.reduced",
)

# Points of copies in neighbors' memory.
PEER_POINTS = (
    "peer.agree",
    "peer.copy",
    "peer.send",
    "peer.receive",
    "peer.copied",
    "peer.restore",
)

_passes: Counter[str] = Counter()


@cache
def _kill_at() -> str:
    return os.environ.get(ENV_KILL_AT, "")


# A test sets the variable for one child process; the fork server may have read it before.
os.register_at_fork(after_in_child=_kill_at.cache_clear)


def failpoint(name: str) -> None:
    kill_at = _kill_at()
    if not kill_at:
        return
    assert name in (*POINTS, *GANG_POINTS, *PEER_POINTS), name
    _passes[name] += 1
    point, _, count = kill_at.partition(":")
    if point == name and _passes[name] == int(count or 1):
        # Not os._exit: buffers, destructors and exit hooks must be skipped as a lost machine skips
        # them.
        os.kill(os.getpid(), signal.SIGKILL)
