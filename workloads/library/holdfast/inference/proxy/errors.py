"""The exception of the proxy's watcher.

Expired (Exception)   the API server no longer holds what the watch goes on from
"""


class Expired(Exception):
    """The watch cannot go on from where it was: the list is read anew."""
