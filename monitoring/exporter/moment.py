"""Times of Kubernetes objects. Used by cluster.py and ends.py."""

from datetime import datetime


def seconds(text: str | None) -> float:
    """RFC 3339 -> Unix seconds; 0 for nothing or nonsense, which counts as no time."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0
