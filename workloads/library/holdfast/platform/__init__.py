"""The platform document: what a platform says about itself, and all that the library knows of it.

`python -m infra describe ENV` writes it as platform.json, `make apply` puts it into the cluster.
"""

from holdfast.platform.document import Platform
from holdfast.platform.reading import parse, read

__all__ = ["Platform", "parse", "read"]
