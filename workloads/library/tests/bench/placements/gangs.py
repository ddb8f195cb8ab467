"""Elastic gangs: the simulator against the closed form, and recordings against a rigid gang."""

import math
import operator
from dataclasses import replace

import numpy as np

from holdfast.place import elastic, policies, scenarios
from holdfast.place.elastic import Counts, Gang
from holdfast.place.preemption_rate import gang_lives
from holdfast.place.simulation import simulate
from holdfast.place.simulation_arrays import Floats, Ints, Paths, make_runs

RESTART_H = 6 / 60
LOST_H = 2 / 60
# By nodes: useful hours of an elastic gang over those of a rigid one on 13 zones, and the billed
# hours for a useful hour in the median zone, rigid and elastic.
PUBLISHED = {
    2: (1.03, 1.06, 1.03),
    4: (1.05, 1.09, 1.03),
    8: (1.17, 1.18, 1.04),
    16: (1.30, 1.61, 1.06),
}


def apart(nodes: int, node_churn: float, together: int, wait_h: float) -> float:
    """Returns the relative difference of an elastic gang's useful share to the closed form."""
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
    counts = elastic.draw_counts(
        rng,
        np.full(runs, node_churn),
        units=units,
        nodes=nodes,
        first_h=np.zeros((runs, units)),
        waits_h=waits,
        settled=True,
    )
    # Once the first group has run out of spells, no more nodes are lost.
    horizon = float(counts.edges_h[:, -1].min()) * 0.8
    useful_h, _ = watch(gang, clip(counts, horizon))
    useful = float(useful_h.mean()) / horizon
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
    """Returns the same difference for a gang that stops whole, under the simulator of jobs."""
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
    waits = rng.exponential(wait_h, spans.shape)
    both = np.stack([spans, waits], axis=2).reshape(runs, -1)
    work_h = spells / 4 / (nodes * node_churn)
    paths = Paths(edges_h=both.cumsum(axis=1), starts_up=np.ones(runs, bool))
    jobs = make_runs(runs, work_h=work_h, restart_h=restart_h)
    finish_h = simulate(jobs, paths, policies.WAIT).finish_h
    events = nodes * node_churn
    # The useful share of the time of a gang that stops whole at each event.
    closed = (1.0 - events * restart_h) / (1.0 + events * wait_h)
    return work_h / float((finish_h - restart_h).mean()) / closed - 1


def clip(counts: Counts, hours: float) -> Counts:
    """Keeps the changes before `hours`; afterwards nothing changes."""
    return replace(counts, edges_h=np.minimum(counts.edges_h, hours))


def watch(gang: Gang, counts: Counts) -> tuple[Floats, Floats]:
    """Returns useful and billed hours of all nodes until the last change, for endless work."""
    state = elastic.begin(len(counts.edges_h))
    for before, count, end in elastic.stretches(counts):
        elastic.step(gang, state, before, count, end, math.inf)
    return state.done, state.node_h / gang.nodes


def elastic_goodput(gang: Gang, *, units: int, node_churn: float, wait_h: float) -> float:
    """Returns the useful share of all nodes' time of a gang that continues without lost groups.

    Its work is evenly divided. A lost group is missing until its replacement has come and
    restarted; the other groups pause at each shrink and grow.
    """
    available = 1.0 / (1.0 + node_churn * wait_h)
    losses = units * node_churn * available
    pause_h = available * (gang.shrink_h + gang.grow_h)
    return available - losses * (gang.restart_h / units + pause_h)


def make_counts(counts: Ints, gap_h: float, nodes: int) -> Counts:
    """Makes one run of a recording; after its end nothing changes."""
    usable = np.minimum(counts, nodes)
    changes = np.flatnonzero(np.diff(usable)) + 1
    edges_h = np.append(changes * gap_h, len(counts) * gap_h)
    count = np.concatenate([usable[:1], usable[changes], usable[-1:]])
    return Counts(edges_h=edges_h[None, :], count=count[None, :])


def replay(counts: Ints, gap_h: float, nodes: int) -> tuple[Floats, Floats]:
    """Returns useful and billed hours of a recording.

    The first entries are those of a rigid gang that holds its nodes, the second those of an elastic
    gang that runs on half of its nodes or more.
    """
    recording = make_counts(counts, gap_h, nodes)
    gang = Gang(
        nodes=nodes,
        least=nodes,
        shards=6 * nodes,
        restart_h=RESTART_H,
        interval_h=2 * LOST_H,
        join_h=0.0,
    )
    rigid_useful, rigid_billed = watch(replace(gang, hold_h=math.inf), recording)
    elastic_gang = replace(gang, least=max(nodes // 2, 1))
    useful, billed = watch(elastic_gang, recording)
    return np.array([rigid_useful[0], useful[0]]), np.array([rigid_billed[0], billed[0]])


def zones_table() -> dict[int, tuple[float, float, float]]:
    """Returns the columns of PUBLISHED by nodes, from all recorded H100 zones."""
    table: dict[int, tuple[float, float, float]] = {}
    for nodes in PUBLISHED:
        total_useful = np.zeros(2)
        ratios: list[Floats] = []
        for counts in scenarios.record().values():
            useful, billed = replay(counts, 1 / 6, nodes)
            total_useful += useful
            # A zone without any useful hour counts as well.
            ratio = np.full(2, np.inf)
            np.divide(billed, useful, out=ratio, where=useful > 0)
            ratios.append(ratio)
        gain = float(total_useful[1] / total_useful[0])
        rigid_ratio, elastic_ratio = map(float, np.median(ratios, axis=0))
        table[nodes] = (gain, rigid_ratio, elastic_ratio)
        print(
            f"  {nodes:2} nodes: useful {gain:.2f} times; billed {rigid_ratio:.2f},"
            f" elastic {elastic_ratio:.2f}"
        )
    return table


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
    worst = 0.0
    for nodes, row in PUBLISHED.items():
        differences = map(operator.sub, table[nodes], row)
        worst = max(worst, *map(abs, differences))
    return {
        "gangs_within_2_percent_of_the_closed_forms": max(map(abs, cases)) <= 0.02,
        "recorded_gangs_within_0.03_of_the_table_measured_before": worst <= 0.03,
    }
