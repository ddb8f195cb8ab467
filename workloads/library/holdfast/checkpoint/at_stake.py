"""What is at stake: before a notice, and at a departure."""

import math
import time

from holdfast.checkpoint.history import node_age_s
from holdfast.checkpoint.interval import SaveCostModel
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.saving import Saver
from holdfast.checkpoint.settings import Cadence
from holdfast.contract.lifecycle import WINDOW_MARGIN_S


def window_line(saver: Saver, cost: SaveCostModel, window_s: float, every: Cadence) -> str:
    """What the window allows, before it is needed."""
    # Logged early: at the notice it is too late to choose a longer window or a smaller state.
    save_s = saver.full_save_s()
    verdict = "a last save fits" if save_s < window_s - WINDOW_MARGIN_S else "no save in the window"
    kind, value = every
    interval_s = {"steps": value * cost.step_s, "seconds": value, "auto": cost.interval_s(node_age_s())}[kind]
    return (
        f"window {window_s:.0f} s, upload {saver.upload_rate / 1e6:.0f} MB/s, "
        f"full save {save_s:.1f} s: {verdict}, at most {(interval_s + save_s) / 60:.1f} min lost"
    )


def loss_line(saver: Saver, step: int) -> str:
    """What leaving at `step` loses; empty where it loses nothing."""
    # Counted from the commit: a save that was staged or uploaded and has no commit is not restored.
    lost = step - saver.durable_step
    seconds = time.monotonic() - saver.durable_since
    newest = f"leaving at step {step}, the newest checkpoint is of step {saver.durable_step}"
    return f"{newest}: {lost} steps ({seconds:.0f} s) are lost" if lost > 0 else ""


def last_save_fits(saver: Saver, ranks: Ranks, left_s: float) -> bool:
    """Whether every rank may try one more save in what is left of the window."""
    known_s = saver.full_save_s()
    # Unknown, as no upload has ended yet: to try costs nothing, and not to try loses the steps for certain.
    mine = not saver.busy and left_s > 0 and (math.isinf(known_s) or known_s < left_s)
    return bool(ranks.agree(mine, all, timeout_s=max(0.1, left_s)))
