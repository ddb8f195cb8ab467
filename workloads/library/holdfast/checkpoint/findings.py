"""What `verify-exact` finds: the first thing that differs between two runs of a training, its
cause, and the line to add.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

Line = dict[str, Any]
STREAMS = "__rng__"


def first_difference(
    whole: Mapping[int, Line], other: Mapping[int, Line], but: set[str]
) -> tuple[int, list[str]] | None:
    """Step and keys. `but`: keys that do not count."""
    for step in sorted(other):
        mine = whole[step]["state"]
        theirs = other[step]["state"]
        keys = [key for key in mine if mine[key] != theirs.get(key) and key not in but]
        if keys:
            return step, keys
    return None


def streams_in(whole: Mapping[int, Line]) -> set[str]:
    """Keys of the random streams, and of what belongs to them."""
    return {key for line in whole.values() for key in line["state"] if key.startswith(STREAMS)}


def unseeded_in(whole: Mapping[int, Line], before: Mapping[int, Line]) -> set[str]:
    return {
        key
        for step, line in before.items()
        for key, found in line["state"].items()
        if key.startswith(STREAMS) and found != whole[step]["state"].get(key)
    }


def unseeded(whole: Mapping[int, Line], before: Mapping[int, Line]) -> str:
    """The streams that the training draws from and that begin otherwise at each start; empty where
    there is none.
    """
    steps = sorted(before)
    other = unseeded_in(whole, before)
    drawn = set()
    for key in other:
        if len({whole[step]["state"].get(key) for step in steps}) > 1:
            drawn.add(key.split("/")[1])
    lines = [SEEDS[name] for name in SEEDS if name in drawn]
    if lines:
        return f"it draws from a stream that is not seeded; begin with {', '.join(lines)}"
    return ""


SEEDS = {
    "python": "random.seed(0)",
    "numpy": "numpy.random.seed(0)",
    "torch": "torch.manual_seed(0)",
}


def explain(
    whole: Mapping[int, Line],
    resumed: Mapping[int, Line],
    step: int,
    keys: list[str],
) -> str:
    """The first thing that differs and the line to add, by what else differs at that step."""
    mine = whole[step]["unsaved"]
    theirs = resumed[step]["unsaved"]
    of_kind: defaultdict[str, list[str]] = defaultdict(list)
    for name, (kind, value) in sorted(mine.items()):
        if name in theirs and theirs[name][1] != value:
            of_kind[kind].append(name)
    there = {
        kind: sorted(name for name, found in mine.items() if found[0] == kind) for kind in DATA
    }
    lead = f"step {step}: {_what(keys)} differs"
    names = of_kind["stateful"]
    if names:
        return (
            f'{lead}, and so does {names[0]}, which is not in the state; add "{names[0]}":'
            f" {names[0]} to it"
        )
    names = of_kind["generator"]
    if names:
        return (
            f"{lead}, and so does the generator {names[0]}, which no checkpoint holds; draw from"
            " torch, random or numpy.random itself, or give the state an object whose state_dict()"
            f" returns the state of {names[0]}"
        )
    # Before what was drawn or computed with them: a count is a cause, and a tensor mostly a
    # consequence.
    names = of_kind["value"]
    if names and not any(there.values()):
        return f"{lead}, and so do {', '.join(names)}, which are not in the state"
    names = of_kind["tensor"]
    if names:
        return _of_data(f"{lead}, since it saw other data ({', '.join(names)})", there)
    names = [*of_kind["value"], *of_kind["measure"]]
    if names:
        return f"{lead}, and so do {', '.join(names)}, which are not in the state"
    if all(key.startswith(STREAMS) for key in keys):
        return (
            f"{lead}: a resumed start draws more or fewer random numbers before its first step than"
            " the whole run did"
        )
    return (
        f"{lead}; nothing else that could be seen does: look for what the step reads elsewhere, and"
        " on three ranks and more make DDP by holdfast.training.trainer.replicas.replicate(model), or with"
        " find_unused_parameters=True"
    )


DATA = ("loader", "iterator")


def _of_data(lead: str, there: Mapping[str, list[str]]) -> str:
    # and not the iterator that was made of it, which cannot be begun again
    loaders = there["loader"]
    if loaders:
        return f'{lead}; write {loaders[0]} = track({loaders[0]}), and add "data": {loaders[0]}'
    iterators = there["iterator"]
    if iterators:
        return (
            f'{lead}; write data = track(...) of what {iterators[0]} iterates over, and add "data":'
            " data"
        )
    return (
        f"{lead}; where a loop draws a batch before it is needed, write draw = track(draw, ahead=1)"
        ' for the function that draws it, and add "data": draw'
    )


def _what(keys: list[str]) -> str:
    ordered = sorted(keys, key=lambda key: key.startswith(STREAMS))
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return f"{ordered[0]}{more}"
