"""Reads the platform document: all that the library knows of the platform it runs on.

`python -m infra describe ENV` writes it as platform.json, `make apply` puts it into the cluster.
"""

from holdfast.platform.codec import parse, read
from holdfast.platform.document import Platform

__all__ = ["Platform", "parse", "read"]
