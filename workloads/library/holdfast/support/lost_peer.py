"""What a collective raises when another process of the job is gone: worth another start, and no bug
of the program's.
"""

import re

# What torch's RuntimeErrors contain then (gloo; nccl raises DistError).
_PEER_LOST = re.compile(
    "closed by peer|reset by peer|Connection refused|Broken pipe|Timed out|recv header|caused pair"
    " closure"
)


def says_lost_peer(error: BaseException) -> bool:
    # By its name: this room does not import torch.
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _PEER_LOST.search(str(error)) is not None
