"""The series that the rule cases are made of, with the labels that Cloud Monitoring gives them."""

from holdfast.vocabulary.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History

CLUSTER = f'cluster_name="{EXAMPLE["cluster"]}"'
OTHER = 'cluster_name="someone-else"'


def ours(metric: str, labels: str = "", cluster: str = CLUSTER) -> str:
    return f"custom_googleapis_com:holdfast_{metric}{{{cluster}{',' if labels else ''}{labels}}}"


def interruptions(
    pool: str,
    reason: str = "Eviction",
    kind: str = PREEMPTION_TYPE,
    cluster: str = CLUSTER,
) -> str:
    return (
        f'{INTERRUPTIONS_METRIC}{{monitored_resource="k8s_node_pool",'
        f'{cluster},node_pool_name="{pool}",interruption_type="{kind}",interruption_reason="{reason}"}}'
    )


Firings = tuple[tuple[tuple[str, str], ...], ...]


def labels(**pairs: str) -> Firings:
    return (tuple(sorted(pairs.items())),)


def here(**pairs: str) -> Firings:
    return labels(cluster_name=EXAMPLE["cluster"], **pairs)


def make_history(
    *series: tuple[str, str],
    at: int,
    fires: Firings = (),
    quiet: int = -1,
    step: int = 1,
) -> History:
    """Makes a history, with times in minutes. At `quiet` nothing may fire yet."""
    return History(
        series=series,
        at_min=at,
        fires=fires,
        quiet_until_min=quiet,
        step_min=step,
    )


def gauge(
    metric: str,
    bad: str,
    good: str,
    *,
    quiet: int,
    at: int,
    end: int,
    other: str = "99999x99",
    fires: Firings = (),
    **own: str,
) -> tuple[History, ...]:
    """Makes a history with `bad` values, which fires at `at` and not yet at `quiet`, and one with
    `good` values, and `other` in another cluster, which does not fire by `end`.
    """
    text = ",".join(f'{name}="{value}"' for name, value in own.items())
    return (
        make_history(
            (ours(metric, text), bad),
            at=at,
            fires=fires or labels(**own),
            quiet=quiet,
        ),
        make_history((ours(metric, text), good), (ours(metric, text, OTHER), other), at=end),
    )


def risen(
    metric: str,
    own: str,
    fires: Firings,
    *,
    most: int = 0,
    window: int = 60,
) -> tuple[History, ...]:
    """A counter that rises by more than `most` within a window of minutes is news."""
    series = (ours(metric, own), ours(metric, own, OTHER))
    return risen_series(*series, fires, limit=most, window=window)


def risen_series(
    counted: str,
    other: str,
    fires: Firings,
    *,
    limit: int = 0,
    window: int = 60,
) -> tuple[History, ...]:
    """Does the same for a series with its full name; `other` is a series of another cluster."""
    news = limit + 1
    w = window
    fewer = (
        make_history((counted, f"_x{w + 10} {limit}x20"), at=w + 12),
        make_history((counted, f"0x{w + 20} {limit * 4 // 5}x90"), at=w + 25),
    )
    return (
        # The first ever, on a series that is born with it.
        make_history(
            (counted, f"_x{w + 10} {news}x{w}"),
            at=w + 10 + w * 4 // 5,
            fires=fires,
            quiet=w + 9,
        ),
        # The exporter restarted, its counter begins again.
        make_history((counted, f"3x{w + 20} _x2 0x3 {news}x5"), at=w + 27, fires=fires),
        make_history((counted, f"0x{w + 20} {news}x{w}"), at=w + 20 + w * 4 // 5, fires=fires),
        # A silence of less than two windows is no birth.
        make_history(
            (counted, f"{news + 3}x{w + 20} _x{w + 1} {news + 3}x60"), at=w + 21 + w * 8 // 5
        ),
        # a window and a half ago
        make_history((counted, f"3x{w + 20} {news + 3}x100"), at=w + 20 + w * 8 // 5),
        # Back after two windows of silence: better one alert too many.
        make_history(
            (counted, f"{news + 3}x15 _x{2 * w} {news + 3}x20"), at=20 + 2 * w, fires=fires
        ),
        make_history((other, f"_x{w + 10} {news}x20"), at=w + 20),
        *(fewer if limit else ()),
    )
