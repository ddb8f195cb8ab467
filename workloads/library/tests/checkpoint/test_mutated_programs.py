"""A program that was changed between two starts gets the exact state, or its start is refused.

Each trial builds a program from a seed, trains and saves it, changes it as people do, and resumes.
"""

import random
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint import direct

State = dict[str, Any]
TRIALS = 230
SHAPES = ((3,), (3,), (2, 3), (2, 3), (4,))
HOLDERS = ("module", "module", "module", "list", "live object", "copies", "nothing")
CHANGES = (
    "nothing",
    "order of parameters",
    "order of groups",
    "order of both",
    "parameter in another group",
    "parameter left out",
    "compiled module",
    "tied parameters",
    "snapshot of the optimizer",
    "another optimizer",
)


class WithGlobalState(torch.optim.SGD):
    """A custom optimizer with state that belongs to no parameter."""

    def step(self, closure: Any = None) -> None:
        super().step()
        count = self.state["global"].get("count", 0) + 1
        mean = torch.full((2,), float(count), dtype=torch.float64)
        self.state["global"] = {
            "count": count,
            "mean": mean,
            "mode": "warm",
        }
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["note"] = f"seen {count} times"


OPTIMIZERS: State = {
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.1),
    "global": lambda groups: WithGlobalState(groups, lr=0.1, momentum=0.9),
}


class LiveObject:
    """An object of the loop that returns its own tensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> State:
        return {"tensors": dict(self.tensors)}

    def load_state_dict(self, state: State) -> None:
        for name, tensor in state["tensors"].items():
            self.tensors[name].data.copy_(tensor)


class Copies(LiveObject):
    """An object of the loop that returns copies."""

    def state_dict(self) -> State:
        return {"tensors": {name: value.detach().clone() for name, value in self.tensors.items()}}


@dataclass(kw_only=True)
class Program:
    """The parameters of a program by name, their holders, and the groups of its optimizer."""

    shapes: dict[str, tuple[int, ...]]
    holders: dict[str, str]
    groups: list[list[str]]
    optimizer: str
    compiled: bool = False
    snapshot: bool = False
    tied: tuple[str, str] | None = None
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)

    def build(self, seed: int) -> State:
        """Builds the objects with other initial values for each seed, and returns the state."""
        torch.manual_seed(seed)
        self.parameters = {}
        for name, shape in self.shapes.items():
            self.parameters[name] = nn.Parameter(torch.randn(shape))
        if self.tied:
            self.parameters[self.tied[1]] = self.parameters[self.tied[0]]
        groups = []
        for group in self.groups:
            groups.append({"params": [self.parameters[name] for name in group]})
        optimizer = OPTIMIZERS[self.optimizer](groups)
        model = nn.Module()
        for name in self._list_held("module"):
            model.register_parameter(name, self.parameters[name])
        if self.compiled:
            model = torch.compile(model)
        state: State = {
            "optimizer": optimizer.state_dict() if self.snapshot else optimizer,
            "model": model,
            "live": LiveObject(self._list_held("live object")),
            "copies": Copies(self._list_held("copies")),
        }
        state["list"] = {"weights": [*self._list_held("list").values()]}
        return state

    def _list_held(self, holder: str) -> dict[str, nn.Parameter]:
        parameters = {}
        for name in self.shapes:
            if self.holders[name] == holder:
                parameters[name] = self.parameters[name]
        return parameters

    def train(self, state: State) -> None:
        for step in range(2):
            for number, parameter in enumerate(self.parameters.values()):
                parameter.grad = torch.full_like(parameter, number + 1.0 + step)
            state["optimizer"].step()

    def bits(self, state: State) -> State:
        """Returns all values and moments by the name of their parameter."""
        optimizer = state["optimizer"]
        contents: State = {"global": repr(optimizer.state.get("global"))}
        for name, parameter in self.parameters.items():
            if self.holders[name] != "nothing":
                contents[name] = parameter.tolist()
            moments = optimizer.state.get(parameter, {})
            contents[f"{name} moments"] = sorted((key, repr(moments[key])) for key in moments)
        return contents


def make_program(draw: random.Random) -> Program:
    names = []
    for number in range(draw.randint(2, 6)):
        names.append(f"p{number}")
    shapes = {name: draw.choice(SHAPES) for name in names}
    # Most programs have their parameters in one place.
    usual_holder = draw.choice(HOLDERS)
    holders: dict[str, str] = {}
    for name in names:
        holders[name] = draw.choice(HOLDERS) if draw.random() < 0.2 else usual_holder
    cut = draw.randint(1, len(names))
    groups = []
    for group in (names[:cut], names[cut:]):
        if group:
            groups.append(group)
    return Program(
        shapes=shapes,
        holders=holders,
        groups=groups,
        optimizer=draw.choice([*OPTIMIZERS]),
    )


def change_program(
    program: Program,
    change: str,
    draw: random.Random,
) -> Program:
    groups = [[*group] for group in program.groups]
    changed = Program(
        shapes=program.shapes,
        holders=program.holders,
        groups=groups,
        optimizer=program.optimizer,
        compiled=change == "compiled module",
        snapshot=change == "snapshot of the optimizer",
    )
    if change in ("order of parameters", "order of both"):
        for group in groups:
            draw.shuffle(group)
    if change in ("order of groups", "order of both"):
        groups.reverse()
    if change == "parameter in another group" and len(groups) > 1:
        groups[1].append(groups[0].pop())
    if change == "parameter left out":
        groups[0].pop()
    if change == "tied parameters":
        first, second = draw.sample([*program.shapes], 2)
        if program.shapes[first] == program.shapes[second]:
            changed.tied = (first, second)
            for group in groups:
                group[:] = [name for name in group if name != second]
    if change == "another optimizer":
        changed.optimizer = draw.choice([*OPTIMIZERS])
    changed.groups = [group for group in groups if group]
    return changed


def try_change(folder: Path, trial: int) -> tuple[str, str]:
    """Returns the change of a trial and its outcome. Raises AssertionError if a bit differs."""
    draw = random.Random(trial)
    program = make_program(draw)
    change = CHANGES[trial % len(CHANGES)]
    state = program.build(2 * trial)
    try:
        direct.start(state)
    except InputError:
        return change, "refused at the first start"
    program.train(state)
    direct.save(folder, state)
    saved = program.bits(state)
    changed = change_program(program, change, draw)
    if not changed.groups:
        return change, "no optimizer"
    restarted: State = {}
    try:
        restarted = changed.build(2 * trial + 1)
        direct.resume(folder, restarted)
    except InputError as error:
        assert error.fix, error
        assert error.got, error
        assert change != "nothing", error
        return change, "refused"
    assert changed.bits(restarted) == saved, (change, program)
    return change, "exact"


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
def test_changed_program_is_exact_or_refused(tmp_path: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    for trial in range(TRIALS):
        outcomes[try_change(tmp_path / str(trial), trial)] += 1
    assert sum(outcomes.values()) == TRIALS
    # A check that refuses everything would pass too.
    for change in ("nothing", "order of parameters", "order of both", "compiled module"):
        exact = outcomes[change, "exact"]
        assert exact > outcomes[change, "refused"], outcomes
        assert exact >= 10, outcomes


def make_value(draw: random.Random, depth: int = 3) -> Any:
    leaves = (
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.randint(-(10**20), 10**20),
        lambda: draw.choice([0.5, float("inf"), -0.0]),
        lambda: draw.choice(["", "a", "\x00"]),
        lambda: torch.full((draw.randint(0, 3),), draw.random()),
    )
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(leaves)()
    items = []
    for _ in range(draw.randint(0, 3)):
        items.append(make_value(draw, depth - 1))
    named = {}
    for number, item in enumerate(items):
        named[f"k{number}"] = item
    containers = (
        lambda: items,
        lambda: tuple(items),
        lambda: named,
        lambda: OrderedDict(named),
        lambda: defaultdict(list, named),
        lambda: defaultdict(int, named),
    )
    return draw.choice(containers)()


def describe(value: Any) -> Any:
    """Returns a value with all types, in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    kind = type(value).__name__, repr(getattr(value, "default_factory", None))
    if isinstance(value, dict):
        return kind, [(name, describe(item)) for name, item in value.items()]
    if isinstance(value, list | tuple):
        return kind, [describe(item) for item in value]
    return kind, repr(value)


def test_other_containers_are_exact_or_refused(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for trial in range(100):
        draw = random.Random(trial)
        saved = {"entry": {"value": make_value(draw)}}
        fresh = {"entry": {"value": make_value(draw)}}
        direct.save(tmp_path / str(trial), saved)
        try:
            direct.resume(tmp_path / str(trial), fresh)
        except InputError:
            outcomes["refused"] += 1
            continue
        assert describe(fresh) == describe(saved), trial
        outcomes["exact"] += 1
    assert outcomes["exact"] > outcomes["refused"]
