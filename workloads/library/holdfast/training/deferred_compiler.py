"""Keeps torch.compile's compiler out of a start that compiles nothing.

An eager optimizer, DistributedDataParallel and FSDP2 import torch._dynamo to ask it a few
questions, whose answer without a compiled graph is `nothing to do`. The answers are given here; any
other use imports the real compiler in its place.
"""

# Why it is so: infra/decisions/0089.

import importlib.util
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

NAME = "torch._dynamo"


class _Deferred(ModuleType):
    """Module object that becomes the real one at the first use beyond an eager step's."""

    config: ModuleType
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    eval_frame = SimpleNamespace(OptimizedModule=())
    """What isinstance() compares with: no module is compiled."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Outside of a compiled function it does nothing in the real one too."""

    @staticmethod
    def disable(fn: Any = None, *_: Any, **__: Any) -> Any:
        """Keeps the compiler off `fn`: there is none."""
        return fn

    @staticmethod
    def disable_nested_graph_breaks(fn: Any = None) -> Any:
        """A context, or what it decorates: there is no graph."""
        return nullcontext() if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        # Code that walks over sys.modules (inspect, warnings) asks for such names without using the
        # module.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        with _LOADING:
            if type(self) is _Deferred:
                _become_real(self)
        return getattr(self, name)


_LOADING = threading.RLock()


def defer_compiler(*, settings: bool = False) -> None:
    """Once torch is imported; nothing where the compiler is there already. `settings`: with the
    real ones, which are a module by themselves and which a DTensor asks for when it is made.
    """
    import torch

    if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
        module = _Deferred(NAME)
        module.__spec__ = spec
        sys.modules[NAME] = module
        setattr(torch, NAME.removeprefix("torch."), module)
        if settings and spec.origin:
            module.config = _loaded(f"{NAME}.config", Path(spec.origin).with_name("config.py"))


def _loaded(name: str, file: Path) -> ModuleType:
    """Without the package that it is in."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _become_real(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    # The same object: who has imported it under its name holds it already.
    module.__class__ = ModuleType
    module.__dict__.update(importlib.util.module_from_spec(spec).__dict__)
    spec.loader.exec_module(module)
