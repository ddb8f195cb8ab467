"""Cases of the alerts about jobs: commits, goodput, restarts, backlog."""

from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History
from tests.monitoring.alerting.rule_series import OTHER, gauge, here, labels, ours, played, risen

JOB_A = {"job": "a", "namespace": "training"}
A = 'job="a",namespace="training"'
OF_A, HERE = labels(**JOB_A), here(**JOB_A)
_DATABASE = ours("batch_failures_total", f'{A},error_class="database"')
_OF_B = 'job="b",reason="not an event"'
_REFUSED = ours("event_lines_refused_total", f'{A},reason="not an event"')
_NOT_AN_EVENT = labels(**JOB_A, reason="not an event")
JOBS: dict[str, tuple[History, ...]] = {
    "HoldfastFlexNodeEndsUnsaved": (
        played(
            (ours("last_commit_age_seconds", A), "0+60x60"),
            (ours("node_end_seconds", f'{A},node="n1"'), "21000-60x60"),
            (ours("node_end_seconds", f'{A},node="n2"'), "400000-60x60"),
            at=36,
            fires=HERE,
            quiet=34,
        ),
        played(
            (ours("last_commit_age_seconds", 'job="saved"'), "1800x90"),
            (ours("node_end_seconds", 'job="saved",node="n1"'), "9000-60x60"),
            (ours("last_commit_age_seconds", 'job="young"'), "0+60x90"),
            (ours("node_end_seconds", 'job="young",node="n2"'), "500000-60x90"),
            (ours("last_commit_age_seconds", 'job="spot"'), "0+60x90"),
            at=60,
        ),
        played(
            (ours("last_commit_age_seconds", A, OTHER), "9999x60"),
            (ours("node_end_seconds", f'{A},node="n1"', OTHER), "99x60"),
            at=30,
        ),
        # six hours and a minute before the end it is too early
        played(
            (ours("last_commit_age_seconds", A), "3000x60"),
            (ours("node_end_seconds", f'{A},node="n1"'), "21600x60"),
            at=30,
        ),
    ),
    "HoldfastNoRecentCommit": (
        played(
            (ours("last_commit_age_seconds", A), "0+60x30"),
            (ours("commit_interval_seconds", A), "300x30"),
            at=13,
            fires=OF_A,
            quiet=12,
        ),
        # no interval is known before the second commit: the environment's limit counts
        played((ours("last_commit_age_seconds", A), "0+60x70"), at=63, fires=OF_A, quiet=60),
        played(
            (ours("last_commit_age_seconds", A), "0 60 120 180 240 300 0 60 120 180 240 300 360 _x2 420"),
            (ours("commit_interval_seconds", A), "300x20"),
            (ours("last_commit_age_seconds", 'job="tiny"'), "100x20"),  # under two minutes nobody is woken
            (ours("commit_interval_seconds", 'job="tiny"'), "10x20"),
            at=15,
        ),
        played((ours("last_commit_age_seconds", A, OTHER), "9999x20"), at=15),
        # a job of the same name in another namespace saves
        played(
            (ours("last_commit_age_seconds", 'job="a",namespace="team-a"'), "0+60x30"),
            (ours("last_commit_age_seconds", 'job="a",namespace="team-b"'), "10x30"),
            (ours("commit_interval_seconds", 'job="a",namespace="team-a"'), "300x30"),
            (ours("commit_interval_seconds", 'job="a",namespace="team-b"'), "900x30"),
            at=13,
            fires=labels(job="a", namespace="team-a"),
            quiet=12,
        ),
    ),
    "HoldfastRestoreSkippedCheckpoint": risen("restores_skipped_total", A, OF_A),
    "HoldfastGoodputBelowBreakEven": gauge(
        "useful_paid_ratio",
        "0.9x10 0.79x50",
        "0.2x20 0.8x60",
        quiet=38,
        at=42,
        end=75,
        other="0x80",
        fires=HERE,
        **JOB_A,
    ),
    "HoldfastGangBelowSize": (
        played((ours("gang_below_size_seconds", A), "0x5 60+60x50"), at=43, fires=HERE, quiet=38),
        # a replacement that comes within the promise, and another cluster
        played(
            (ours("gang_below_size_seconds", A), "60+60x28 0x40"),
            (ours("gang_below_size_seconds", 'job="b"'), "1800x70"),
            (ours("gang_below_size_seconds", "", OTHER), "9999x70"),
            at=60,
        ),
    ),
    "HoldfastLossNotFinite": gauge(
        "loss_not_finite", "0x5 1x20", "0x5 1x3 0x20", quiet=10, at=12, end=20, fires=HERE, **JOB_A
    ),
    "HoldfastRankSlow": gauge(
        "slowest_rank_ratio", "1.1x5 2x20", "1x5 2x8 1.2x20", quiet=15, at=17, end=20, fires=HERE, **JOB_A
    ),
    "HoldfastRestartsWithoutProgress": gauge(
        "fruitless_restarts", "0 1 1 2 2 3 3", "2x30", quiet=4, at=5, end=20, fires=HERE, **JOB_A
    ),
    "HoldfastBacklogPastDeadline": gauge(
        "batch_oldest_seconds", "86000+60x30", "86400x30", quiet=8, at=13, end=25, job="a"
    ),
    "HoldfastDeadLetters": (
        played(
            (
                f'''pubsub_googleapis_com:subscription_num_undelivered_messages{{subscription_id="{EXAMPLE["dead_letters"]}"}}''',
                "0x5 1x5",
            ),
            at=7,
            fires=labels(subscription_id=EXAMPLE["dead_letters"]),
            quiet=4,
        ),
        played((ours("dead_letters_total", A), "_x70 1x20"), at=72, fires=OF_A),
        played((ours("dead_letters_total", A), "2x90 3x9"), at=95, fires=OF_A),
        played((ours("dead_letters_total", A), "0x80 1x20"), at=85, fires=OF_A),  # one, exactly
        played((ours("dead_letters_total", A), "3x80 4x100"), at=175),
        played((ours("dead_letters_total", A), "4x15 _x120 4x20"), at=140, fires=OF_A),
        played(
            (
                'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="holdfast-example-work"}',
                "500x90",
            ),
            (ours("dead_letters_total", A), "2x60 _x7 2x90"),
            (ours("dead_letters_total", A, OTHER), "_x70 5x90"),
            at=130,
        ),
    ),
    "HoldfastEventLinesRefused": (
        played(
            (_REFUSED, "0x90 0+2x30"),
            (ours("event_lines_refused_total", _OF_B), "5x120"),
            at=105,
            fires=_NOT_AN_EVENT,
            quiet=95,
        ),
        played((_REFUSED, "_x70 15x20"), at=72, fires=_NOT_AN_EVENT),
        played((_REFUSED, "_x70 8x20"), at=72),
        played((_REFUSED, "0x80 15x20"), at=85, fires=_NOT_AN_EVENT),
        played((_REFUSED, "0x30 40x150"), at=145),  # an hour and more ago
        played((_REFUSED, "4x15 _x120 40x20"), at=140, fires=_NOT_AN_EVENT),
        played((_REFUSED, "0x80 9x90"), at=85),
        played(
            (_REFUSED, "40x60 _x7 40x90"),  # a short silence is no birth
            (ours("event_lines_refused_total", _OF_B), "0x80 8x90"),
            (ours("event_lines_refused_total", f'{A},reason="from the future"'), "0x80 8x90"),
            (
                ours("event_lines_refused_total", f'{A},reason="not an event"', OTHER),
                "_x70 50x90",
            ),
            at=130,
        ),
    ),
    "HoldfastResultsDatabaseErrors": (
        played((_DATABASE, "1x20 2+1x20"), at=30, fires=OF_A, quiet=22),
        played((_DATABASE, "0x5 0+0.4x60"), at=40),  # four in ten minutes
        played((_DATABASE, "9x60"), at=40),  # an outage long over
        played((_DATABASE, "_x30 4x20"), at=31),
        played((_DATABASE, "9x5 _x25 9x20"), at=33, fires=OF_A),
        played((_DATABASE, "9x5 _x11 9x20"), at=21),  # a short silence is no birth
        # born in the middle of an outage
        played((_DATABASE, "_x30 9x20"), at=31, fires=OF_A),
        played(
            (_DATABASE, "1x20 2 3 4 5x40"),
            (ours("batch_failures_total", f'{A},error_class="input"'), "0+9x60"),
            (ours("batch_failures_total", f'{A},error_class="database"', OTHER), "0+9x60"),
            at=30,
        ),
    ),
}
