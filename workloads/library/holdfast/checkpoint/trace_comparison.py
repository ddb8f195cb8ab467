"""Comparison of the traces of two runs for `verify-exact`: the first difference, its cause, and the
line to add.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

Line = dict[str, Any]
"""One step: digests of the state and of the loop's other variables."""
Trace = Mapping[int, Line]
"""Lines of one rank, by step."""
NamesByKind = defaultdict[str, list[str]]
"""Names of the loop's variables, by kind."""
STREAMS = "__rng__"
SEEDS = {
    "python": "random.seed(0)",
    "numpy": "numpy.random.seed(0)",
    "torch": "torch.manual_seed(0)",
}
DATA = ("loader", "iterator")


def first_difference(
    reference: Trace,
    trace: Trace,
    ignored: set[str],
) -> tuple[int, list[str]] | None:
    """Returns the first step at which keys differ, and these keys, except `ignored` ones."""
    for step in sorted(trace):
        expected = reference[step]["state"]
        actual = trace[step]["state"]
        keys: list[str] = []
        for key, digest in expected.items():
            is_different = digest != actual.get(key)
            if is_different and key not in ignored:
                keys.append(key)
        if keys:
            return step, keys
    return None


def find_streams(trace: Trace) -> set[str]:
    """Returns the keys of the random streams, and of their parts."""
    streams: set[str] = set()
    for line in trace.values():
        for key in line["state"]:
            if key.startswith(STREAMS):
                streams.add(key)
    return streams


def find_unseeded_streams(reference: Trace, trace: Trace) -> set[str]:
    """Returns the keys of random streams that differ between two starts."""
    unseeded: set[str] = set()
    for step, line in trace.items():
        expected = reference[step]["state"]
        for key, digest in line["state"].items():
            is_stream = key.startswith(STREAMS)
            if is_stream and digest != expected.get(key):
                unseeded.add(key)
    return unseeded


def explain_streams(reference: Trace, trace: Trace) -> str:
    """Returns the seeds to add for streams that the training draws from and that differ between
    starts; empty: there is none.
    """
    steps = sorted(trace)
    names: set[str] = set()
    for key in find_unseeded_streams(reference, trace):
        digests = {reference[step]["state"].get(key) for step in steps}
        if len(digests) > 1:
            names.add(key.split("/")[1])
    if not names:
        return ""
    lines = [line for name, line in SEEDS.items() if name in names]
    if not lines:
        return ""
    return f"it draws from a stream that is not seeded; begin with {', '.join(lines)}"


def explain(
    reference: Trace,
    resumed: Trace,
    step: int,
    keys: list[str],
) -> str:
    """Returns the first difference and the line to add, from what else differs at that step."""
    expected = reference[step]["unsaved"]
    actual = resumed[step]["unsaved"]
    different: NamesByKind = defaultdict(list)
    """Variables that differ."""
    data: NamesByKind = defaultdict(list)
    """Loaders and iterators."""
    for name, (kind, value) in sorted(expected.items()):
        if name in actual and actual[name][1] != value:
            different[kind].append(name)
        if kind in DATA:
            data[kind].append(name)
    lead = f"step {step}: {_name_keys(keys)} differs"
    if different["stateful"]:
        name = different["stateful"][0]
        return f'{lead}, and so does {name}, which is not in the state; add "{name}": {name} to it'
    if different["generator"]:
        name = different["generator"][0]
        return (
            f"{lead}, and so does the generator {name}, which no checkpoint holds; draw from torch,"
            " random or numpy.random itself, or give the state an object whose state_dict() returns"
            f" the state of {name}"
        )
    # Plain values are named before tensors that were drawn or computed from them: a counter is a
    # cause, and a tensor is mostly a consequence.
    values = ", ".join(different["value"])
    if values and not data:
        return f"{lead}, and so do {values}, which are not in the state"
    if different["tensor"]:
        names = ", ".join(different["tensor"])
        return _explain_data(f"{lead}, since it saw other data ({names})", data)
    names = ", ".join([*different["value"], *different["measure"]])
    if names:
        return f"{lead}, and so do {names}, which are not in the state"
    if all(key.startswith(STREAMS) for key in keys):
        return (
            f"{lead}: a resumed start draws more or fewer random numbers before its first step than"
            " the whole run did"
        )
    return (
        f"{lead}; no other variable of the loop differs: look for what the step reads elsewhere,"
        " and on three ranks and more make DDP by"
        " holdfast.training.trainer.replicas.replicate(model), or with find_unused_parameters=True"
    )


def _explain_data(lead: str, data: NamesByKind) -> str:
    # The loader, and not an iterator that was made from it: an iterator cannot start again.
    if data["loader"]:
        name = data["loader"][0]
        return f'{lead}; write {name} = track({name}), and add "data": {name}'
    if data["iterator"]:
        name = data["iterator"][0]
        return f'{lead}; write data = track(...) of what {name} iterates over, and add "data": data'
    return (
        f"{lead}; if the loop draws a batch before it is needed, write draw = track(draw, ahead=1)"
        ' for the function that draws it, and add "data": draw'
    )


def _name_keys(keys: list[str]) -> str:
    """Names the first key that is no stream, and counts the others."""
    first = min(keys, key=lambda key: key.startswith(STREAMS))
    if len(keys) == 1:
        return first
    return f"{first} (and {len(keys) - 1} more)"
