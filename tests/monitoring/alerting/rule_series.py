"""The series that the rule cases are made of, with the labels that Cloud Monitoring gives them."""

from holdfast.contract.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History

CLUSTER = f'cluster_name="{EXAMPLE["cluster"]}"'
OTHER = 'cluster_name="someone-else"'


def ours(metric: str, labels: str = "", cluster: str = CLUSTER) -> str:
    return f"custom_googleapis_com:holdfast_{metric}{{{cluster}{',' if labels else ''}{labels}}}"


def lost(pool: str, reason: str = "Eviction", kind: str = PREEMPTION_TYPE, cluster: str = CLUSTER) -> str:
    return (
        f'{INTERRUPTIONS_METRIC}{{monitored_resource="k8s_node_pool",'
        f'{cluster},node_pool_name="{pool}",interruption_type="{kind}",interruption_reason="{reason}"}}'
    )


Firings = tuple[tuple[tuple[str, str], ...], ...]


def labels(**pairs: str) -> Firings:
    return (tuple(sorted(pairs.items())),)


def here(**pairs: str) -> Firings:
    return labels(cluster_name=EXAMPLE["cluster"], **pairs)


def played(*series: tuple[str, str], at: int, fires: Firings = (), quiet: int = -1, step: int = 1) -> History:
    """Times in minutes. `quiet`: a moment at which nothing may fire yet."""
    return History(series=series, at_min=at, fires=fires, quiet_until_min=quiet, step_min=step)


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
    """A `bad` value fires `at`, not at `quiet`; a `good` one and `other` in another cluster do not until `end`."""
    text = ",".join(f'{name}="{value}"' for name, value in own.items())
    return (
        played((ours(metric, text), bad), at=at, fires=fires or labels(**own), quiet=quiet),
        played((ours(metric, text), good), (ours(metric, text, OTHER), other), at=end),
    )


def risen(metric: str, own: str, fires: Firings) -> tuple[History, ...]:
    """A counter of which any rise within an hour is news."""
    counted, other = ours(metric, own), ours(metric, own, OTHER)
    return (
        # The first ever, on a series that is born with it.
        played((counted, "_x70 1x20"), at=71, fires=fires, quiet=69),
        # The exporter restarted, its counter begins again.
        played((counted, "3x80 _x2 0x3 1x5"), at=87, fires=fires),
        played((counted, "0x80 1x20"), at=85, fires=fires),  # one, exactly
        played((counted, "4x80 _x8 4x60"), at=140),  # old news
        played((counted, "3x80 4x100"), at=175),  # an hour and a half ago
        # Back after two hours of silence: better one alert too many.
        played((counted, "4x15 _x120 4x20"), at=140, fires=fires),
        played((other, "_x70 1x20"), at=80),
    )
