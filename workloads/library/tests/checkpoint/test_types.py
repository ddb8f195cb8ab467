"""What a state may hold comes back as the very type that it was; all else is refused by name, with
what to do.
"""

import enum
import json
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.format.soundness import ITEM_BYTES, MAX_DEPTH, check_values, item_bytes
from holdfast.checkpoint.state import capture, decode
from holdfast.checkpoint.state.tensors import dtype_of
from holdfast.support.errors import InputError

Point = namedtuple("Point", "x y")  # what a stranger's code holds


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        nested(MAX_DEPTH - 4),
        OrderedDict([("b", 1), ("a", 2)]),
        defaultdict(int, {"a": 1}),
        defaultdict(None, {"a": 1}),
        Counter({3: 2, 7: 1}),
        torch.Size([2, 3]),
        b"\x00\xff",
        np.float64(0.1),
        np.float32("nan"),
        np.int64(7),
        np.bool_(True),
        (1, [2, (3, float("-inf"))]),
        {
            1: None,
            "a": True,
            -1: 2**70,
            "": "\x00\ud800",
        },
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_the_type_that_it_was(value: Any) -> None:
    skeleton = json.loads(json.dumps(capture({"v": {"of": value}}).skeleton["v"], allow_nan=False))
    check_values({"v": skeleton})  # or a manifest that holds it could not be read
    found = decode(skeleton, lambda _: pytest.fail())["of"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    if isinstance(value, defaultdict):
        assert found.default_factory is value.default_factory


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: Level.LOW, ".value"),
        (lambda: Point(1, 2), "_asdict"),
        (lambda: Name("n"), "state_dict"),
        (lambda: np.zeros(2), "from_numpy"),
        (lambda: {1, 2}, "sorted"),
        (lambda: defaultdict(lambda: 1), "state_dict"),
        (lambda: UserDict(a=1), "state_dict"),
        (lambda: MappingProxyType({"a": 1}), "state_dict"),
        (lambda: nn.Linear(1, 1), "entry of its own"),
        (
            lambda: {
                1: torch.ones(1),
                "1": torch.ones(1),
            },
            "convert the keys",
        ),
        # tensors without memory of their own
        (lambda: torch.ones(4, dtype=torch.complex64).conj(), "resolve_conj"),
        (lambda: torch.ones(4, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (lambda: torch.ones(1).expand(4), "contiguous"),
        (lambda: torch.arange(6.0).unfold(0, 3, 1), "contiguous"),
        (lambda: torch.zeros(4, dtype=torch.uint8).view(torch.int4), "uint8"),
        (lambda: nn.LazyLinear(2).weight, "one batch"),
        (lambda: torch.eye(2).to_sparse(), "dense"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "dense"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
            "dense",
        ),
        (lambda: torch.empty(2, device="meta"), "dense"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_would_come_back_as_another_value_is_refused_with_the_fix(
    make: Callable[[], Any], fix: str
) -> None:
    with pytest.raises(InputError, match=fix) as error:
        capture({"v": {"of": make()}})
    assert "v/of" in error.value.what


def test_a_value_that_contains_itself_or_is_too_deep_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, nested(MAX_DEPTH)):
        with pytest.raises(InputError, match="contains itself, or is nested too deeply"):
            capture({"v": value})


@pytest.mark.parametrize(
    "value",
    [
        9.0,
        3,
        "x",
        None,
        True,
        (1, 2),
        np.float64(1),
        Level.LOW,
    ],
    ids=repr,
)
def test_an_entry_that_cannot_change_is_refused_with_the_two_lines_that_mend_it(
    tmp_path: Path, value: Any
) -> None:
    with pytest.raises(InputError, match=r'progress = \{"best": .*progress\["best"\] = '):
        Checkpointer(
            tmp_path,
            {
                "w": torch.ones(1),
                "best": value,
            },
        )


@pytest.mark.process
def test_dicts_and_lists_are_filled_in_place_so_that_the_loop_goes_on_with_them(
    tmp_path: Path,
) -> None:
    def fresh() -> tuple[dict[str, Any], list[Any]]:
        return {
            "best": 9.0,
            "by": Counter(),
            "deep": {"seen": []},
        }, []

    progress, history = fresh()
    with Checkpointer(
        tmp_path,
        {"progress": progress, "history": history},
        run="r",
        every=1,
    ) as ckpt:
        progress["best"] = 1.5
        progress["by"]["a"] += 2
        progress["deep"]["seen"].append(4)
        history.extend([1, (2, 3)])
        ckpt.tick(1)
    saved = (progress, history)
    progress, history = fresh()
    by = progress["by"]
    seen = progress["deep"]["seen"]
    with Checkpointer(tmp_path, {"progress": progress, "history": history}, run="r"):
        assert (progress, history) == saved
        assert progress["by"] is by
        assert progress["deep"]["seen"] is seen


@pytest.mark.parametrize("wrong", [None, b"/tmp/x", ""])
def test_a_url_that_is_no_text_and_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="URL"):
        Checkpointer(wrong, {"w": torch.ones(1)})


@pytest.mark.process
def test_a_thread_is_refused_unless_the_main_thread_has_taken_the_signals(tmp_path: Path) -> None:
    from holdfast.runtime import shutdown

    def use() -> None:
        with Checkpointer(
            tmp_path,
            {"w": torch.ones(1)},
            run="r",
            every=1,
        ) as ckpt:
            ckpt.tick(ckpt.step + 1)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(InputError, match="main thread"):
            pool.submit(use).result()
        shutdown.of_process()
        try:
            pool.submit(use).result()
        finally:
            shutdown.of_process().uninstall()
    assert load_tensors(tmp_path)[0] == 1


def test_a_start_that_is_refused_gives_the_signals_back(tmp_path: Path) -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)
    for state in (
        {"lazy": nn.LazyLinear(2)},
        {"conj": torch.ones(2, dtype=torch.complex64).conj()},
    ):
        with (
            pytest.raises(InputError, match="plain memory"),
            Checkpointer(tmp_path, state, run="r"),
        ):
            pytest.fail("training began")
    assert signal.getsignal(signal.SIGTERM) is before


# What an uploader knows of dtypes without PyTorch, whose import would cost each start seconds and
# half a gigabyte.


def test_the_table_agrees_with_pytorch() -> None:
    known = {name: dtype.itemsize for name in ITEM_BYTES if (dtype := dtype_of(name))}
    assert known == ITEM_BYTES
    assert (item_bytes("bits8"), item_bytes("nonsense"), item_bytes("torch")) == (1, None, None)
