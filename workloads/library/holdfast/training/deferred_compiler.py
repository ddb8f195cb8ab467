"""Keeps torch.compile's compiler out of a start that compiles nothing.

An eager optimizer, DistributedDataParallel and FSDP2 import torch._dynamo for a few calls that do
nothing without a compiled graph. A stand-in module provides those; any other use imports the real
compiler in its place.
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
    """Stand-in module that becomes the real one at the first use beyond those of an eager step."""

    config: ModuleType
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    eval_frame = SimpleNamespace(OptimizedModule=())
    """The empty tuple makes isinstance() return False: no module is compiled."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Does nothing, as the real one does outside of a compiled function."""

    @staticmethod
    def disable(fn: Any = None, *_: Any, **__: Any) -> Any:
        """Returns `fn`, which nothing will compile."""
        return fn

    @staticmethod
    def disable_nested_graph_breaks(fn: Any = None) -> Any:
        """Returns a context manager that does nothing, or the decorated function."""
        return nullcontext() if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        # Code that walks over sys.modules (inspect, warnings) asks for such names without using the
        # module.
        is_special = name.startswith("__") and name != "__path__"
        if is_special:
            raise AttributeError(name)
        with _LOADING:
            if type(self) is _Deferred:
                _become_real(self)
        return getattr(self, name)


_LOADING = threading.RLock()


def defer_compiler(*, settings: bool = False) -> None:
    """Installs the stand-in, unless the compiler is imported already. Call after importing torch.

    `settings` loads the compiler's real settings too: they are a module of their own, which a
    DTensor reads when it is created.
    """
    import torch

    if NAME in sys.modules:
        return
    spec = importlib.util.find_spec(NAME)
    if spec is None:
        return
    module = _Deferred(NAME)
    module.__spec__ = spec
    sys.modules[NAME] = module
    setattr(torch, NAME.removeprefix("torch."), module)
    if settings and spec.origin:
        config_file = Path(spec.origin).with_name("config.py")
        module.config = _load_module(f"{NAME}.config", config_file)


def _load_module(name: str, file: Path) -> ModuleType:
    """Imports a module without the package that contains it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _become_real(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    real_module = importlib.util.module_from_spec(spec)
    # The same object stays: importers already hold a reference to it.
    module.__class__ = ModuleType
    module.__dict__.update(real_module.__dict__)
    spec.loader.exec_module(module)
