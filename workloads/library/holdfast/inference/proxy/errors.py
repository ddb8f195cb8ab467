"""The exception of the proxy's watcher.

Expired (HoldfastError)   the API server no longer holds what the watch goes on from
"""

from holdfast.contract.errors import HoldfastError


class Expired(HoldfastError):
    """The watch cannot go on from where it was: the list is read anew."""
