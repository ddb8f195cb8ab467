"""Whether a call to a Checkpointer comes inside its `with` block, in the process that entered it."""

import os

from holdfast.contract.errors import InputError


class Use:
    def __init__(self) -> None:
        self._process = self._entered_by = 0

    def begin(self) -> None:
        self._process = self._entered_by = os.getpid()

    def end(self) -> None:
        self._process = 0

    @property
    def here(self) -> bool:
        """False too in a process that was forked inside the block: an uploader would answer it, and not the trainer."""
        return self._process == os.getpid()

    def check(self, *, or_after: bool = False) -> None:
        """Raises InputError. `or_after`: what may be asked when the block is over."""
        if self.here or (or_after and self._entered_by == os.getpid()):
            return
        left = "after its `with` block" if self._entered_by else "before its `with` block"
        raise InputError(
            "Checkpointer is not in use",
            got=f"a call {'in a process that was forked from the trainer' if self._process else left}",
            allowed="calls inside `with Checkpointer(...) as ckpt:`, in the process that entered it",
            fix="move the call into the block; leave saving to the trainer's own process",
        )
