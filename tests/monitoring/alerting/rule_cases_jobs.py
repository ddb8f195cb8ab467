"""Cases of the alerts about jobs: commits, goodput, restarts, backlog."""

from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.rule_test import History
from tests.monitoring.alerting.rule_series import OTHER, labels, ours, risen

_DATABASE = ours("batch_failures_total", 'job="a",namespace="training",error_class="database"')
_OF_B = 'job="b",reason="not an event"'
_REFUSED = ours("event_lines_refused_total", 'job="a",namespace="training",reason="not an event"')
JOBS: dict[str, tuple[History, ...]] = {
    "HoldfastFlexNodeEndsUnsaved": (
        History(
            series=(
                (ours("last_commit_age_seconds", 'job="a",namespace="training"'), "0+60x60"),
                (ours("node_end_seconds", 'job="a",namespace="training",node="n1"'), "21000-60x60"),
                (ours("node_end_seconds", 'job="a",namespace="training",node="n2"'), "400000-60x60"),
            ),
            at_min=36,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=34,
        ),
        History(
            series=(
                (ours("last_commit_age_seconds", 'job="saved"'), "1800x90"),
                (ours("node_end_seconds", 'job="saved",node="n1"'), "9000-60x60"),
                (ours("last_commit_age_seconds", 'job="young"'), "0+60x90"),
                (ours("node_end_seconds", 'job="young",node="n2"'), "500000-60x90"),
                (ours("last_commit_age_seconds", 'job="spot"'), "0+60x90"),
            ),
            at_min=60,
        ),
        History(
            series=(
                (ours("last_commit_age_seconds", 'job="a",namespace="training"', OTHER), "9999x60"),
                (ours("node_end_seconds", 'job="a",namespace="training",node="n1"', OTHER), "99x60"),
            ),
            at_min=30,
        ),
        History(  # six hours and a minute before the end it is too early
            series=(
                (ours("last_commit_age_seconds", 'job="a",namespace="training"'), "3000x60"),
                (ours("node_end_seconds", 'job="a",namespace="training",node="n1"'), "21600x60"),
            ),
            at_min=30,
        ),
    ),
    "HoldfastNoRecentCommit": (
        History(
            series=(
                (ours("last_commit_age_seconds", 'job="a",namespace="training"'), "0+60x30"),
                (ours("commit_interval_seconds", 'job="a",namespace="training"'), "300x30"),
            ),
            at_min=13,
            fires=labels(job="a", namespace="training"),
            quiet_until_min=12,
        ),
        History(  # no interval is known before the second commit: the environment's limit counts
            series=((ours("last_commit_age_seconds", 'job="a",namespace="training"'), "0+60x70"),),
            at_min=63,
            fires=labels(job="a", namespace="training"),
            quiet_until_min=60,
        ),
        History(
            series=(
                (
                    ours("last_commit_age_seconds", 'job="a",namespace="training"'),
                    "0 60 120 180 240 300 0 60 120 180 240 300 360 _x2 420",
                ),
                (ours("commit_interval_seconds", 'job="a",namespace="training"'), "300x20"),
                (ours("last_commit_age_seconds", 'job="tiny"'), "100x20"),  # under two minutes nobody is woken
                (ours("commit_interval_seconds", 'job="tiny"'), "10x20"),
            ),
            at_min=15,
        ),
        History(
            series=((ours("last_commit_age_seconds", 'job="a",namespace="training"', OTHER), "9999x20"),), at_min=15
        ),
        History(  # a job of the same name in another namespace saves
            series=(
                (ours("last_commit_age_seconds", 'job="a",namespace="team-a"'), "0+60x30"),
                (ours("last_commit_age_seconds", 'job="a",namespace="team-b"'), "10x30"),
                (ours("commit_interval_seconds", 'job="a",namespace="team-a"'), "300x30"),
                (ours("commit_interval_seconds", 'job="a",namespace="team-b"'), "900x30"),
            ),
            at_min=13,
            fires=labels(job="a", namespace="team-a"),
            quiet_until_min=12,
        ),
    ),
    "HoldfastRestoreSkippedCheckpoint": risen(
        "restores_skipped_total", 'job="a",namespace="training"', labels(job="a", namespace="training")
    ),
    "HoldfastGoodputBelowBreakEven": (
        History(
            series=((ours("useful_paid_ratio", 'job="a",namespace="training"'), "0.9x10 0.79x50"),),
            at_min=42,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=38,
        ),
        History(
            series=(
                (ours("useful_paid_ratio", 'job="a",namespace="training"'), "0.2x20 0.8x60"),
                (ours("useful_paid_ratio", "", OTHER), "0x80"),
            ),
            at_min=75,
        ),
    ),
    "HoldfastGangBelowSize": (
        History(
            series=((ours("gang_below_size_seconds", 'job="a",namespace="training"'), "0x5 60+60x50"),),
            at_min=43,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=38,
        ),
        History(  # a replacement that comes within the promise, and another cluster
            series=(
                (ours("gang_below_size_seconds", 'job="a",namespace="training"'), "60+60x28 0x40"),
                (ours("gang_below_size_seconds", 'job="b"'), "1800x70"),
                (ours("gang_below_size_seconds", "", OTHER), "9999x70"),
            ),
            at_min=60,
        ),
    ),
    "HoldfastLossNotFinite": (
        History(
            series=((ours("loss_not_finite", 'job="a",namespace="training"'), "0x5 1x20"),),
            at_min=12,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=10,
        ),
        History(
            series=(
                (ours("loss_not_finite", 'job="a",namespace="training"'), "0x5 1x3 0x20"),
                (ours("loss_not_finite", "", OTHER), "1x30"),
            ),
            at_min=20,
        ),
    ),
    "HoldfastRankSlow": (
        History(
            series=((ours("slowest_rank_ratio", 'job="a",namespace="training"'), "1.1x5 2x20"),),
            at_min=17,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=15,
        ),
        History(
            series=(
                (ours("slowest_rank_ratio", 'job="a",namespace="training"'), "1x5 2x8 1.2x20"),
                (ours("slowest_rank_ratio", "", OTHER), "3x30"),
            ),
            at_min=20,
        ),
    ),
    "HoldfastRestartsWithoutProgress": (
        History(
            series=((ours("fruitless_restarts", 'job="a",namespace="training"'), "0 1 1 2 2 3 3"),),
            at_min=5,
            fires=labels(job="a", namespace="training", cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=4,
        ),
        History(
            series=(
                (ours("fruitless_restarts", 'job="a",namespace="training"'), "2x30"),
                (ours("fruitless_restarts", "", OTHER), "9x30"),
            ),
            at_min=20,
        ),
    ),
    "HoldfastBacklogPastDeadline": (
        History(
            series=((ours("batch_oldest_seconds", 'job="a"'), "86000+60x30"),),
            at_min=13,
            fires=labels(job="a"),
            quiet_until_min=8,
        ),
        History(
            series=(
                (ours("batch_oldest_seconds", 'job="a"'), "86400x30"),
                (ours("batch_oldest_seconds", "", OTHER), "99999x30"),
            ),
            at_min=25,
        ),
    ),
    "HoldfastDeadLetters": (
        History(
            series=(
                (
                    f'pubsub_googleapis_com:subscription_num_undelivered_messages{{subscription_id="{EXAMPLE["dead_letters"]}"}}',
                    "0x5 1x5",
                ),
            ),
            at_min=7,
            fires=labels(subscription_id=EXAMPLE["dead_letters"]),
            quiet_until_min=4,
        ),
        History(
            series=((ours("dead_letters_total", 'job="a",namespace="training"'), "_x70 1x20"),),
            at_min=72,
            fires=labels(job="a", namespace="training"),
        ),
        History(
            series=((ours("dead_letters_total", 'job="a",namespace="training"'), "2x90 3x9"),),
            at_min=95,
            fires=labels(job="a", namespace="training"),
        ),
        History(
            series=((ours("dead_letters_total", 'job="a",namespace="training"'), "0x80 1x20"),),
            at_min=85,
            fires=labels(job="a", namespace="training"),
        ),  # one, exactly
        History(series=((ours("dead_letters_total", 'job="a",namespace="training"'), "3x80 4x100"),), at_min=175),
        History(
            series=((ours("dead_letters_total", 'job="a",namespace="training"'), "4x15 _x120 4x20"),),
            at_min=140,
            fires=labels(job="a", namespace="training"),
        ),
        History(
            series=(
                (
                    'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="holdfast-example-work"}',
                    "500x90",
                ),
                (ours("dead_letters_total", 'job="a",namespace="training"'), "2x60 _x7 2x90"),
                (ours("dead_letters_total", 'job="a",namespace="training"', OTHER), "_x70 5x90"),
            ),
            at_min=130,
        ),
    ),
    "HoldfastEventLinesRefused": (
        History(
            series=((_REFUSED, "0x90 0+2x30"), (ours("event_lines_refused_total", _OF_B), "5x120")),
            at_min=105,
            fires=labels(job="a", namespace="training", reason="not an event"),
            quiet_until_min=95,
        ),
        History(
            series=((_REFUSED, "_x70 15x20"),),
            at_min=72,
            fires=labels(job="a", namespace="training", reason="not an event"),
        ),
        History(series=((_REFUSED, "_x70 8x20"),), at_min=72),
        History(
            series=((_REFUSED, "0x80 15x20"),),
            at_min=85,
            fires=labels(job="a", namespace="training", reason="not an event"),
        ),
        History(series=((_REFUSED, "0x30 40x150"),), at_min=145),  # an hour and more ago
        History(
            series=((_REFUSED, "4x15 _x120 40x20"),),
            at_min=140,
            fires=labels(job="a", namespace="training", reason="not an event"),
        ),
        History(series=((_REFUSED, "0x80 9x90"),), at_min=85),
        History(
            series=(
                (_REFUSED, "40x60 _x7 40x90"),  # a short silence is no birth
                (ours("event_lines_refused_total", _OF_B), "0x80 8x90"),
                (
                    ours("event_lines_refused_total", 'job="a",namespace="training",reason="from the future"'),
                    "0x80 8x90",
                ),
                (
                    ours("event_lines_refused_total", 'job="a",namespace="training",reason="not an event"', OTHER),
                    "_x70 50x90",
                ),
            ),
            at_min=130,
        ),
    ),
    "HoldfastResultsDatabaseErrors": (
        History(
            series=(
                (ours("batch_failures_total", 'job="a",namespace="training",error_class="database"'), "1x20 2+1x20"),
            ),
            at_min=30,
            fires=labels(job="a", namespace="training"),
            quiet_until_min=22,
        ),
        History(series=((_DATABASE, "0x5 0+0.4x60"),), at_min=40),  # four in ten minutes
        History(series=((_DATABASE, "9x60"),), at_min=40),  # an outage long over
        History(series=((_DATABASE, "_x30 4x20"),), at_min=31),
        History(series=((_DATABASE, "9x5 _x25 9x20"),), at_min=33, fires=labels(job="a", namespace="training")),
        History(series=((_DATABASE, "9x5 _x11 9x20"),), at_min=21),  # a short silence is no birth
        History(  # born in the middle of an outage
            series=(
                (ours("batch_failures_total", 'job="a",namespace="training",error_class="database"'), "_x30 9x20"),
            ),
            at_min=31,
            fires=labels(job="a", namespace="training"),
        ),
        History(
            series=(
                (
                    ours("batch_failures_total", 'job="a",namespace="training",error_class="database"'),
                    "1x20 2 3 4 5x40",
                ),
                (ours("batch_failures_total", 'job="a",namespace="training",error_class="input"'), "0+9x60"),
                (ours("batch_failures_total", 'job="a",namespace="training",error_class="database"', OTHER), "0+9x60"),
            ),
            at_min=30,
        ),
    ),
}
