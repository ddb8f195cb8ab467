"""Cases of the alerts about online inference: series as servers and proxies export them."""

from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History
from tests.monitoring.alerting.rule_series import Firings, labels, make_history, risen_series

CLUSTER = f'cluster="{EXAMPLE["cluster"]}"'
ELSE = 'cluster="someone-else"'
FIRES: Firings = ((),)
# Minutes between samples where the windows are of hours: a sample each minute would take ten times
# as long.
SLOW = 5


def _answers(code_class: int, cluster: str = CLUSTER, listener: str = "requests") -> str:
    labels = f'envoy_http_conn_manager_prefix="{listener}",envoy_response_code_class="{code_class}"'
    return f"envoy_http_downstream_rq_xx{{{cluster},{labels}}}"


def _requests(code: int = 200, cluster: str = CLUSTER) -> str:
    return f'holdfast_server_requests_total{{{cluster},code="{code}",pod="a"}}'


def _refusals(reason: str, cluster: str = CLUSTER) -> str:
    return f'holdfast_server_refused_total{{{cluster},reason="{reason}",pod="a"}}'


def _queue(bound: str, cluster: str = CLUSTER) -> str:
    return f'holdfast_server_queue_seconds_bucket{{{cluster},le="{bound}",pod="a"}}'


def _ready(pod: str, tier: str = "base", cluster: str = CLUSTER) -> str:
    return f'holdfast_server_ready{{{cluster},pod="{pod}",tier="{tier}"}}'


def rate(*legs: tuple[int, int], step: int = 1) -> str:
    """A counter: (minutes, growth a minute) each, with a sample each `step` minutes."""
    text = ""
    value = 0
    for minutes, growth in legs:
        text += f"{value}+{growth * step}x{minutes // step - 1} "
        value += growth * minutes
    return text + str(value)


def _burn(
    good: int,
    *bad: tuple[int, int],
    then: tuple[int, int] = (0, 0),
    step: int = 1,
) -> tuple[tuple[str, str], ...]:
    """Return one listener's answers, whose rate changes by `then` (minute, answers a minute), and
    failures of others, which must not count.
    """
    total = sum(minutes for minutes, _ in bad)
    changed, later = then if then[0] else (total - step, good)
    return (
        (_answers(2), rate((changed, good), (total - changed, later), step=step)),
        (_answers(5), rate(*bad, step=step)),
        (_answers(4), rate((total, 1), step=step)),
        (_answers(5, ELSE), rate((total, good), step=step)),
        (_answers(5, listener="metrics"), rate((total, good), step=step)),
    )


def _slowly(
    good: int,
    *bad: tuple[int, int],
    then: tuple[int, int] = (0, 0),
    at: int,
    fires: Firings = (),
    quiet: int = -1,
) -> History:
    return make_history(
        *_burn(good, *bad, then=then, step=SLOW),
        at=at,
        fires=fires,
        quiet=quiet,
        step=SLOW,
    )


def _waits(*legs: tuple[int, int, int]) -> tuple[tuple[str, str], ...]:
    """(minutes, requests within half a second, within one, of a hundred a minute) each."""
    total = 0
    halves = []
    ones = []
    for minutes, half, below_one in legs:
        total += minutes
        halves.append((minutes, half))
        ones.append((minutes, below_one))
    return (
        (_queue("0.5"), rate(*halves)),
        (_queue("1.0"), rate(*ones)),
        (_queue("2.5"), rate((total, 100))),
        (_queue("+Inf"), rate((total, 100))),
        (_queue("0.5", ELSE), rate((total, 0))),
        (_queue("+Inf", ELSE), rate((total, 9999))),
    )


def _count_endings(cluster: str = CLUSTER) -> str:
    return f'holdfast_router_ended_total{{{cluster},cause="died",pod="a"}}'


def _seams(*legs: tuple[int, int, int]) -> tuple[tuple[str, str], ...]:
    """(minutes, seams within three seconds, within five, of a hundred a minute) each."""
    total = 0
    within_3 = []
    within_5 = []
    for minutes, in_three, in_five in legs:
        total += minutes
        within_3.append((minutes, in_three))
        within_5.append((minutes, in_five))
    return (
        (_seam("3.0"), rate(*within_3)),
        (_seam("5.0"), rate(*within_5)),
        (_seam("10.0"), rate((total, 100))),
        (_seam("+Inf"), rate((total, 100))),
        (_seam("3.0", ELSE), rate((total, 0))),
        (_seam("+Inf", ELSE), rate((total, 9999))),
    )


def _seam(bound: str, cluster: str = CLUSTER) -> str:
    return f'holdfast_router_seam_seconds_bucket{{{cluster},le="{bound}",pod="a"}}'


def _overload(
    asked: tuple[tuple[int, int], ...], refused: tuple[tuple[int, int], ...]
) -> tuple[tuple[str, str], ...]:
    total = sum(minutes for minutes, _ in asked)
    return (
        (_requests(), rate(*asked)),
        (_refusals("queue"), rate(*refused)),
        (_refusals("leaving"), rate((total, 90))),
        (_refusals("queue", ELSE), rate((total, 900))),
    )


SERVING: dict[str, tuple[History, ...]] = {
    "HoldfastServingErrorsBurnBudget": (
        # 2 of 103 a minute: sure after most of an hour.
        make_history(
            *_burn(100, (120, 0), (70, 2)),
            at=172,
            fires=FIRES,
            quiet=155,
        ),
        make_history(*_burn(100, (120, 0), (30, 6), (20, 1)), at=165),  # nearly over
        make_history(*_burn(100, (120, 0), (30, 20), (30, 0)), at=153, fires=FIRES),
        make_history(*_burn(100, (120, 0), (30, 20), (30, 0)), at=158),  # over
        make_history(*_burn(100, (240, 1)), at=230),
        # With less traffic, and with more: both windows are of the same minutes above and below the
        # line.
        make_history(*_burn(1000, (120, 0), (70, 2), then=(120, 100)), at=185, fires=FIRES),
        make_history(*_burn(100, (190, 12), then=(150, 1000)), at=153, fires=FIRES),
        make_history(*_burn(1000, (150, 20), (40, 2), then=(150, 100)), at=157, fires=FIRES),
    ),
    "HoldfastServingErrorsBurnSlowly": (
        # 1 of 101 a minute: sure after some hours.
        _slowly(
            100,
            (720, 0),
            (420, 1),
            at=1000,
            fires=FIRES,
            quiet=940,
        ),
        _slowly(
            100,
            (720, 0),
            (180, 3),
            (60, 0),
            at=915,
            fires=FIRES,
        ),
        _slowly(100, (720, 0), (180, 3), (60, 0), at=945),  # over
        _slowly(1000, (720, 0), (180, 20), (60, 4), at=940),  # nearly over
        _slowly(250, (1200, 1), at=1180),
        # With less traffic, and with more: both windows are of the same minutes above and below the
        # line.
        _slowly(
            1000,
            (720, 0),
            (420, 1),
            then=(720, 100),
            at=1110,
            fires=FIRES,
        ),
        _slowly(1000, (1140, 3), then=(900, 100), at=1080),
        _slowly(
            100,
            (1140, 4),
            then=(900, 1000),
            at=910,
            fires=FIRES,
        ),
        _slowly(
            1000,
            (900, 12),
            (240, 1),
            then=(900, 100),
            at=945,
            fires=FIRES,
        ),
    ),
    "HoldfastServingQueueSlow": (
        make_history(
            *_waits((30, 97, 100), (30, 97, 98)),
            at=45,
            fires=FIRES,
            quiet=36,
        ),
        make_history(*_waits((60, 90, 100)), at=50),
        make_history(*_waits((30, 80, 90), (30, 100, 100)), at=33, fires=FIRES),
        make_history(*_waits((30, 80, 90), (30, 100, 100)), at=37),
    ),
    "HoldfastServingSheds": (
        make_history(
            *_overload(((60, 100),), ((20, 0), (40, 8))),
            at=30,
            fires=FIRES,
            quiet=25,
        ),
        make_history(*_overload(((60, 100),), ((20, 0), (40, 4))), at=50),
        make_history(*_overload(((60, 100),), ((30, 60), (30, 0))), at=33, fires=FIRES),
        make_history(*_overload(((60, 100),), ((30, 60), (30, 0))), at=37),
        make_history(*_overload(((30, 100), (30, 1000)), ((60, 40),)), at=33, fires=FIRES),
        make_history(*_overload(((30, 1000), (30, 100)), ((60, 6),)), at=38, fires=FIRES),
    ),
    "HoldfastServingStreamsEnd": risen_series(
        _count_endings(), _count_endings(ELSE), labels(cause="died"), window=10
    ),
    "HoldfastServingStreamsMoveSlowly": (
        make_history(
            *_seams((30, 90, 100), (30, 90, 95)),
            at=40,
            fires=FIRES,
            quiet=37,
        ),
        make_history(*_seams((60, 90, 100)), at=50),
    ),
    "HoldfastServingBaseBelowPromise": (
        make_history(
            (_ready("a"), "1x60"),
            (_ready("b"), "1x20 0x40"),
            (_ready("c", "overflow"), "1x60"),
            at=30,
            fires=FIRES,
            quiet=24,
        ),
        make_history(
            (_ready("a"), "1x60"),
            (_ready("b"), "1x60"),
            (_ready("c", cluster=ELSE), "0x60"),
            at=40,
        ),
        # All gone: their series end, and no other cluster's replicas replace them.
        make_history(
            (_ready("a"), "1x20"),
            (_ready("b"), "1x20"),
            (_ready("c", cluster=ELSE), "1x60"),
            at=35,
            fires=FIRES,
        ),
        make_history((_ready("c", "overflow"), "1x60"), (_ready("c", cluster=ELSE), "1x60"), at=40),
    ),
}
