"""Values of a state are restored with their type; any other value is refused with a fix."""

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
from holdfast.checkpoint.format.dtypes import ITEM_BYTES, dtype_of, item_bytes
from holdfast.checkpoint.format.validation import MAX_DEPTH, check_values
from holdfast.checkpoint.state import capture, decode
from holdfast.support.errors import InputError

Point = namedtuple("Point", "x y")


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


def nest(depth: int) -> list[Any]:
    return [nest(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        nest(MAX_DEPTH - 4),
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
def test_value_is_restored_with_its_type(value: Any) -> None:
    captured = capture({"v": {"of": value}})
    encoded = json.dumps(captured.skeleton["v"], allow_nan=False)
    skeleton = json.loads(encoded)
    # A manifest with other values could not be read.
    check_values({"v": skeleton})
    restored = decode(skeleton, lambda _: pytest.fail())["of"]
    assert type(restored) is type(value)
    assert repr(restored) == repr(value)
    if isinstance(value, defaultdict):
        assert restored.default_factory is value.default_factory


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
        # Tensors without memory of their own.
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
def test_value_that_would_change_its_type_is_refused_with_a_fix(
    make: Callable[[], Any], fix: str
) -> None:
    with pytest.raises(InputError, match=fix) as error:
        capture({"v": {"of": make()}})
    assert "v/of" in error.value.what


def test_recursive_or_too_deep_value_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, nest(MAX_DEPTH)):
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
def test_entry_that_cannot_change_is_refused_with_a_fix(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r'progress = \{"best": .*progress\["best"\] = '):
        Checkpointer(
            tmp_path,
            {
                "w": torch.ones(1),
                "best": value,
            },
        )


@pytest.mark.process
def test_dicts_and_lists_are_filled_in_place(tmp_path: Path) -> None:
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
    counter = progress["by"]
    items = progress["deep"]["seen"]
    with Checkpointer(
        tmp_path,
        {"progress": progress, "history": history},
        run="r",
    ):
        assert (progress, history) == saved
        assert progress["by"] is counter
        assert progress["deep"]["seen"] is items


@pytest.mark.parametrize("wrong", [None, b"/tmp/x", ""])
def test_url_that_is_neither_text_nor_path_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="URL"):
        Checkpointer(wrong, {"w": torch.ones(1)})


@pytest.mark.process
def test_thread_is_refused_unless_the_main_thread_handles_signals(tmp_path: Path) -> None:
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


def test_refused_start_restores_the_signal_handlers(tmp_path: Path) -> None:
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


def test_dtype_table_agrees_with_pytorch() -> None:
    """An uploader uses the table: PyTorch would cost each start seconds and half a gigabyte."""
    for name, size in ITEM_BYTES.items():
        dtype = dtype_of(name)
        assert dtype
        assert dtype.itemsize == size
    assert item_bytes("bits8") == 1
    assert item_bytes("nonsense") is None
    assert item_bytes("torch") is None
