"""Keeps torch.compile's compiler out of a start that compiles nothing.

An eager optimizer and DistributedDataParallel import torch._dynamo to ask it a few questions, whose answer without a
compiled graph is `nothing to do`. The answers are given here; any other use imports the real compiler in its place.
"""

# Why it is so: infra/decisions/0089.

import importlib.util
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

NAME = "torch._dynamo"


class _Deferred(ModuleType):
    """Module object that becomes the real one at the first use beyond an eager step's."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Outside of a compiled function it does nothing in the real one too."""

    @staticmethod
    def disable(fn: Any = None, *_: Any, **__: Any) -> Any:
        """Keeps the compiler off `fn`: there is none."""
        return fn

    def __getattr__(self, name: str) -> Any:
        # Code that walks over sys.modules (inspect, warnings) asks for such names without using the module.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        with _LOADING:
            if type(self) is _Deferred:
                _become_real(self)
        return getattr(self, name)


_LOADING = threading.RLock()


def defer_compiler() -> None:
    """Once torch is imported; nothing where the compiler is there already."""
    import torch

    if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
        module = _Deferred(NAME)
        module.__spec__ = spec
        sys.modules[NAME] = module
        setattr(torch, NAME.removeprefix("torch."), module)


def _become_real(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    # The same object: who has imported it under its name holds it already.
    module.__class__ = ModuleType
    module.__dict__.update(importlib.util.module_from_spec(spec).__dict__)
    spec.loader.exec_module(module)
