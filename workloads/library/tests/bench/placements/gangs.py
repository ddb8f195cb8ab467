"""Elastic gangs: the simulator against the closed form, and recorded counts of nodes replayed
beside a rigid gang.
"""

import math
from dataclasses import replace

import numpy as np

from holdfast.place import elastic, policies, scenarios
from holdfast.place.elastic import Counts, Gang
from holdfast.place.preemption_rate import gang_lives
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Floats, Ints, Paths, runs_of

RESTART_H = 6 / 60
LOST_H = 2 / 60
# Useful hours, elastic over rigid, on 13 zones; and billed hours for a useful one of the median
# zone, rigid and elastic.
PUBLISHED = {
    2: (1.03, 1.06, 1.03),
    4: (1.05, 1.09, 1.03),
    8: (1.17, 1.18, 1.04),
    16: (1.30, 1.61, 1.06),
}


def apart(nodes: int, node_churn: float, together: int, wait_h: float) -> float:
    """Relative, of the useful share of an elastic gang."""
    rng = np.random.default_rng(nodes)
    runs = 40
    spells = 60
    units = nodes // together
    gang = Gang(
        nodes=nodes,
        least=1,
        shards=math.lcm(*range(1, nodes + 1)),
        restart_h=0.05,
    )
    waits = rng.exponential(wait_h, (runs, units, spells))
    counts = elastic.drawn(
        rng,
        np.full(runs, node_churn),
        units=units,
        nodes=nodes,
        first_h=np.zeros((runs, units)),
        waits_h=waits,
        settled=True,
    )
    # Beyond the first group that ran out of spells nobody is lost any more.
    horizon = float(counts.edges_h[:, -1].min()) * 0.8
    useful = float(watch(gang, cut(counts, horizon))[0].mean()) / horizon
    closed = elastic_goodput(
        gang,
        units=units,
        node_churn=node_churn,
        wait_h=wait_h,
    )
    return useful / closed - 1


def rigid_apart(
    nodes: int,
    node_churn: float,
    wait_h: float,
    restart_h: float = 0.05,
) -> float:
    """The same of the gang that stops whole, under the simulator of jobs."""
    rng = np.random.default_rng(nodes)
    runs = 400
    spells = 200
    spans = gang_lives(
        rng,
        np.full(runs, node_churn),
        units=nodes,
        per_path=spells,
        settled=True,
    )
    spans[:, 0] += restart_h  # each path begins with a machine that is there
    both = np.stack([spans, rng.exponential(wait_h, spans.shape)], axis=2).reshape(runs, -1)
    work_h = spells / 4 / (nodes * node_churn)
    paths = Paths(edges_h=both.cumsum(axis=1), starts_up=np.ones(runs, bool))
    finish = simulate(
        runs_of(runs, work_h=work_h, restart_h=restart_h), paths, policies.WAIT
    ).finish_h
    events = nodes * node_churn
    # The useful share of the time of a gang that stops whole at each event.
    closed = (1.0 - events * restart_h) / (1.0 + events * wait_h)
    return work_h / float((finish - restart_h).mean()) / closed - 1


def cut(counts: Counts, hours: float) -> Counts:
    """Only what is before; afterwards nothing changes."""
    return replace(counts, edges_h=np.minimum(counts.edges_h, hours))


def watch(gang: Gang, counts: Counts) -> tuple[Floats, Floats]:
    """Useful and billed hours, of all nodes, until the last change: for work that has no end."""
    state = elastic.begin(len(counts.edges_h))
    for before, count, end in elastic.stretches(counts):
        elastic.step(gang, state, before, count, end, math.inf)
    return state.done, state.node_h / gang.nodes


def elastic_goodput(gang: Gang, *, units: int, node_churn: float, wait_h: float) -> float:
    """Useful share of all nodes' time of a gang that goes on without the lost groups, its work
    evenly divided.

    Missing are lost groups until replacements came, and their restart; the others pause at each
    shrink and grow.
    """
    there = 1.0 / (1.0 + node_churn * wait_h)
    losses = units * node_churn * there
    return there - losses * (gang.restart_h / units + there * (gang.shrink_h + gang.grow_h))


def counted(counts: Ints, gap_h: float, nodes: int) -> Counts:
    """A recording as one run; at its end nothing more changes."""
    there = np.minimum(counts, nodes)
    at = np.flatnonzero(np.diff(there)) + 1
    edges = np.append(at * gap_h, len(counts) * gap_h)
    return Counts(
        edges_h=edges[None, :], count=np.concatenate([there[:1], there[at], there[-1:]])[None, :]
    )


def replay(counts: Ints, gap_h: float, nodes: int) -> tuple[Floats, Floats]:
    """Useful and billed hours of a recording: of a rigid gang that holds its nodes, and of an
    elastic one from half.
    """
    one = counted(counts, gap_h, nodes)
    gang = Gang(
        nodes=nodes,
        least=nodes,
        shards=6 * nodes,
        restart_h=RESTART_H,
        interval_h=2 * LOST_H,
        join_h=0.0,
    )
    rigid = watch(replace(gang, hold_h=math.inf), one)
    grown = watch(replace(gang, least=max(nodes // 2, 1)), one)
    return np.array([rigid[0][0], grown[0][0]]), np.array([rigid[1][0], grown[1][0]])


def zones_table() -> dict[int, tuple[float, float, float]]:
    """By nodes: useful hours elastic over rigid on all recorded H100 zones; billed for a useful
    hour, median zone.
    """
    found: dict[int, tuple[float, float, float]] = {}
    for nodes in PUBLISHED:
        each = [replay(counts, 1 / 6, nodes) for counts in scenarios.record().values()]
        useful = np.sum([u for u, _ in each], axis=0)
        # A zone in which nothing was ever done is a zone all the same.
        ratios = [
            np.divide(
                b,
                u,
                out=np.full(2, np.inf),
                where=u > 0,
            )
            for u, b in each
        ]
        billed = np.median(ratios, axis=0)
        found[nodes] = (float(useful[1] / useful[0]), float(billed[0]), float(billed[1]))
        print(
            f"  {nodes:2} nodes: useful {found[nodes][0]:.2f} times; billed {billed[0]:.2f},"
            f" elastic {billed[1]:.2f}"
        )
    return found


def goals() -> dict[str, bool]:
    cases = [
        apart(8, 0.1, 1, 0.25),
        apart(8, 0.1, 2, 0.25),
        apart(16, 0.2, 1, 0.5),
        rigid_apart(8, 0.1, 0.25),
    ]
    print(f"\ngangs, simulator against the closed forms: at most {max(map(abs, cases)):.2%} apart")
    print("gangs on the recorded H100 zones, elastic from half of the nodes against rigid")
    table = zones_table()
    near = (
        abs(a - b) <= 0.03
        for nodes, row in PUBLISHED.items()
        for a, b in zip(table[nodes], row, strict=True)
    )
    return {
        "gangs_within_2_percent_of_the_closed_forms": max(map(abs, cases)) <= 0.02,
        "recorded_gangs_within_0.03_of_the_table_measured_before": all(near),
    }
