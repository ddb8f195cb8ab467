"""Keeps torch.compile's compiler out of a start that compiles nothing.

An eager optimizer and DistributedDataParallel import torch._dynamo to ask it a few questions, whose answer without a
compiled graph is `nothing to do`. The answers are given here; any other use imports the real compiler in its place.
Importing torch itself imports torch._meta_registrations, which gives operations their shapes without values, for the
compiler and for tensors on the device `meta`: a fifth of the import. It comes with the compiler, or when it is used.
"""

# Why it is so: infra/decisions/0089.

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
META_KERNELS = "torch._meta_registrations"


class _Deferred(ModuleType):
    """Module object that becomes the real one at its first use."""

    def __getattr__(self, name: str) -> Any:
        # Whoever walks over sys.modules (inspect, warnings) asks for such names, and means no use of it.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        with _LOADING:
            # What is compiled is traced with tensors that have no values.
            for wanted in (META_KERNELS, self.__name__):
                if isinstance(module := sys.modules.get(wanted), _Deferred):
                    _become_real(module)
        return getattr(self, name)


class _DeferredCompiler(_Deferred):
    """Answers an eager step by itself."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Outside of a compiled function it does nothing in the real one too."""

    @staticmethod
    def disable(fn: Any = None, *_: Any, **__: Any) -> Any:
        """Keeps the compiler off `fn`: there is none."""
        return fn


_LOADING = threading.RLock()


def defer_meta_kernels() -> None:
    """Before torch is imported; nothing where it is there already.

    For programs that make no tensor on the device `meta`: that alone does not ask for the module.
    """
    if "torch" not in sys.modules:
        sys.modules[META_KERNELS] = _Deferred(META_KERNELS)


def defer_compiler() -> None:
    """Once torch is imported; nothing where the compiler is there already."""
    import torch

    if isinstance(sys.modules.get(META_KERNELS), _Deferred):
        _make_generators_callable()
    if COMPILER not in sys.modules and importlib.util.find_spec(COMPILER) is not None:
        sys.modules[COMPILER] = _DeferredCompiler(COMPILER)
        setattr(torch, COMPILER.removeprefix("torch."), sys.modules[COMPILER])


def _make_generators_callable() -> None:
    """torch.Generator refuses to be called until torch._prims, which the deferred module imports, has done this."""
    make = getattr(sys.modules["torch._C"], "_set_generator_metaclass", None)
    if make is None:
        importlib.import_module("torch._prims")
    else:
        make(importlib.import_module("torch._custom_class_base").CustomClassBaseMeta)


def _become_real(module: ModuleType) -> None:
    import torch

    spec = PathFinder.find_spec(module.__name__, torch.__path__)
    assert spec is not None
    assert spec.loader is not None
    # The same object: who has imported it under its name holds it already.
    module.__class__ = ModuleType
    module.__dict__.update(importlib.util.module_from_spec(spec).__dict__)
    spec.loader.exec_module(module)
