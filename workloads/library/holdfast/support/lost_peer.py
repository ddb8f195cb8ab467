"""Recognizes the errors of a collective whose peer has ended: worth a restart, and no bug."""

import re

# Messages of torch's RuntimeErrors then (gloo; nccl raises DistError).
_PEER_LOST = re.compile(
    "closed by peer|reset by peer|Connection refused|Broken pipe|Timed out|recv header|caused pair"
    " closure"
)


def says_lost_peer(error: BaseException) -> bool:
    # Compares names, because this room does not import torch.
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _PEER_LOST.search(str(error)) is not None
