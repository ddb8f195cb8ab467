"""Cases of the alerts about jobs: commits, goodput, restarts, backlog."""

from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History
from tests.monitoring.alerting.rule_series import (
    CLUSTER,
    OTHER,
    gauge,
    here,
    labels,
    make_history,
    ours,
    risen,
)

JOB_A = {"job": "a", "namespace": "training"}
A = 'job="a",namespace="training"'
IN_TEAM_A, IN_TEAM_B = (f'job="a",namespace="team-{team}"' for team in "ab")
OF_A = labels(**JOB_A)
HERE = here(**JOB_A)
DEAD = EXAMPLE["dead_letters"]
FIRES_A = {"fires": HERE, **JOB_A}
_OF_B = 'job="b",reason="not an event"'
_NOT_AN_EVENT = f'{A},reason="not an event"'
UNDELIVERED = 'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="%s"}'
_FUTURE = f'{A},reason="from the future"'


def _age(values: str, labels: str = A, cluster: str = CLUSTER) -> tuple[str, str]:
    return ours("last_commit_age_seconds", labels, cluster), values


def _interval(values: str, labels: str = A) -> tuple[str, str]:
    return ours("commit_interval_seconds", labels), values


def _end(
    values: str,
    labels: str = A,
    node: str = "n1",
    cluster: str = CLUSTER,
) -> tuple[str, str]:
    return ours("node_end_seconds", f'{labels},node="{node}"', cluster), values


JOBS: dict[str, tuple[History, ...]] = {
    "HoldfastFlexNodeEndsUnsaved": (
        make_history(
            _age("0+60x60"),
            _end("21000-60x60"),
            _end("400000-60x60", node="n2"),
            at=36,
            fires=HERE,
            quiet=34,
        ),
        make_history(
            _age("1800x90", 'job="saved"'),
            _end("9000-60x60", 'job="saved"'),
            _age("0+60x90", 'job="young"'),
            _end("500000-60x90", 'job="young"', "n2"),
            _age("0+60x90", 'job="spot"'),
            at=60,
        ),
        make_history(_age("9999x60", cluster=OTHER), _end("99x60", cluster=OTHER), at=30),
        # six hours and a minute before the end it is too early
        make_history(_age("3000x60"), _end("21600x60"), at=30),
    ),
    "HoldfastNoRecentCommit": (
        make_history(
            _age("0+60x30"),
            _interval("300x30"),
            at=13,
            fires=OF_A,
            quiet=12,
        ),
        # no interval is known before the second commit: the environment's limit counts
        make_history(_age("0+60x70"), at=63, fires=OF_A, quiet=60),
        make_history(
            _age("0 60 120 180 240 300 0 60 120 180 240 300 360 _x2 420"),
            _interval("300x20"),
            _age("100x20", 'job="tiny"'),  # under two minutes no alert fires
            _interval("10x20", 'job="tiny"'),
            at=15,
        ),
        make_history(_age("9999x20", cluster=OTHER), at=15),
        # a job of the same name in another namespace saves
        make_history(
            _age("0+60x30", IN_TEAM_A),
            _age("10x30", IN_TEAM_B),
            _interval("300x30", IN_TEAM_A),
            _interval("900x30", IN_TEAM_B),
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
        **FIRES_A,
    ),
    "HoldfastGangBelowSize": (
        make_history(
            (ours("gang_below_size_seconds", A), "0x5 60+60x50"),
            at=43,
            fires=HERE,
            quiet=38,
        ),
        # a replacement that comes within the promise, and another cluster
        make_history(
            (ours("gang_below_size_seconds", A), "60+60x28 0x40"),
            (ours("gang_below_size_seconds", 'job="b"'), "1800x70"),
            (ours("gang_below_size_seconds", "", OTHER), "9999x70"),
            at=60,
        ),
    ),
    "HoldfastLossNotFinite": gauge(
        "loss_not_finite",
        "0x5 1x20",
        "0x5 1x3 0x20",
        quiet=10,
        at=12,
        end=20,
        **FIRES_A,
    ),
    "HoldfastRankSlow": gauge(
        "slowest_rank_ratio",
        "1.1x5 2x20",
        "1x5 2x8 1.2x20",
        quiet=15,
        at=17,
        end=20,
        **FIRES_A,
    ),
    "HoldfastRestartsWithoutProgress": gauge(
        "fruitless_restarts",
        "0 1 1 2 2 3 3",
        "2x30",
        quiet=4,
        at=5,
        end=20,
        **FIRES_A,
    ),
    "HoldfastBacklogPastDeadline": gauge(
        "batch_oldest_seconds",
        "86000+60x30",
        "86400x30",
        quiet=8,
        at=13,
        end=25,
        job="a",
    ),
    "HoldfastDeadLetters": (
        make_history(
            (UNDELIVERED % DEAD, "0x5 1x5"),
            at=7,
            fires=labels(subscription_id=DEAD),
            quiet=4,
        ),
        make_history((UNDELIVERED % "holdfast-example-work", "500x90"), at=80),
        *risen("dead_letters_total", A, OF_A),
    ),
    "HoldfastEventLinesRefused": (
        *risen(
            "event_lines_refused_total",
            _NOT_AN_EVENT,
            labels(**JOB_A, reason="not an event"),
            most=10,
        ),
        make_history(  # jobs and reasons are judged alone
            *(
                (ours("event_lines_refused_total", labels), "0x80 8x90")
                for labels in (_NOT_AN_EVENT, _OF_B, _FUTURE)
            ),
            at=85,
        ),
    ),
    "HoldfastResultsDatabaseErrors": (
        *risen(
            "batch_failures_total",
            f'{A},error_class="database"',
            OF_A,
            most=5,
            window=10,
        ),
        make_history((ours("batch_failures_total", f'{A},error_class="input"'), "0+9x60"), at=30),
    ),
}
