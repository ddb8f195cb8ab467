"""What fires does not depend on how the time is cut: a month is played in slices."""

import pytest

from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.alerts import alerts
from tests.monitoring.alerting.firings import Recorder, firings

OURS = "custom_googleapis_com:holdfast_"
BLIND = range(200, 240)


def history() -> Recorder:
    """Ten hours: an exporter that is away for 40 minutes, a job that waits all along, two damaged checkpoints."""
    found = Recorder(began_s=1_700_000_000.0)
    cluster = {"cluster": EXAMPLE["cluster"], "cluster_name": EXAMPLE["cluster"]}
    for minute in range(1, 600):
        found.minute = minute
        if minute in BLIND:
            continue
        found.add(f"{OURS}exporter_heartbeat_seconds", cluster, 60.0 * minute)
        found.add(f"{OURS}queue_wait_seconds", cluster | {"queue": "spot", "accelerator": "l4", "reason": "quota", "flavor": "spot"}, 60.0 * minute)  # fmt: skip
        damaged = sum(minute >= at for at in (100, 421))
        found.add(f"{OURS}restores_skipped_total", cluster | {"job": "a"}, damaged)
    return found


@pytest.mark.process
def test_slices_of_time_fire_as_the_whole_does() -> None:
    whole = firings(alerts(EXAMPLE), history(), slice_min=1_000)
    assert [firing.alert for firing in whole] == ["HoldfastRestoreSkippedCheckpoint", "HoldfastMonitoringSilent", "HoldfastQueueWaitTooLong", "HoldfastRestoreSkippedCheckpoint"]  # fmt: skip
    assert firings(alerts(EXAMPLE), history(), slice_min=97) == whole
