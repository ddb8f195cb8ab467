"""Begin a new run from a step of another run, or from a checkpoint of another format."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.format.commit import committed_steps, select_steps
from holdfast.checkpoint.interchange.foreign_storage import (
    RUN,
    ForeignStorage,
    detect_source,
)
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.factory import reliable_storage
from holdfast.checkpoint.stores.storage import Storage
from holdfast.support.errors import InputError

_FORM = re.compile(r"(?P<place>.+?)(?:@(?P<step>[0-9]{1,10}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """`URL/RUN[@STEP]`, or the path of a checkpoint of another format."""

    text: str
    place: str
    step: int | None

    def open(self, tuning: Tuning) -> tuple[Storage, str, int]:
        """Return the store, run and step to begin from. Raises InputError."""
        path = self._local_path()
        if path and path.exists() and not any(path.glob("step-*/COMMIT.json")):
            return ForeignStorage(detect_source(path)), RUN, 0
        url, _, run = self.place.rstrip("/").rpartition("/")
        if not url or not run:
            raise _origin_error(self.text, "no run in it")
        storage = reliable_storage(url, tuning)
        steps = select_steps(self.step, committed_steps(storage, run), run)
        if not steps:
            raise _origin_error(self.text, "no checkpoint there")
        return storage, run, steps[0]

    def _local_path(self) -> Path | None:
        parts = urlsplit(self.place)
        if parts.scheme not in ("", "file"):
            return None
        return Path(unquote(parts.path) if parts.scheme else self.place)


def _origin_error(text: str, reason: str) -> InputError:
    return InputError(
        "start_from names no checkpoint",
        got=f"{text[:200]} ({reason})",
        allowed=(
            "URL/RUN[@STEP] of a checkpoint of this library, or the path of a DCP folder,"
            " safetensors or a file of torch.save"
        ),
        fix="look with: holdfast checkpoints list URL",
    )


def parse_origin(text: str | None) -> Origin | None:
    """Parse `start_from`. Raises InputError."""
    if text is None:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        raise _origin_error(text, "empty")
    step = match["step"]
    return Origin(
        text=text,
        place=match["place"],
        step=None if step is None else int(step),
    )


def begin_from(
    origin: Origin,
    place: tuple[Storage, str, int],
    restore_from: Callable[..., Restored],
) -> Restored:
    """Restore a state from an origin, as the beginning of a run that has no checkpoint yet.

    `place` is what `Origin.open` returned.
    """
    storage, run, step = place
    restored = restore_from(
        storage,
        run=run,
        only_step=step,
        is_partial=True,
    )
    return replace(
        restored,
        skipped=[],
        damaged={},
        commit_count=0,
        missing=0,
        attempt="",
        origin=origin.text,
    )
