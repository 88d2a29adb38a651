"""Modules that only stand around another one, such as ``DataParallel`` and what ``torch.compile`` returns."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fxplug.semantics.internals import has_hooks

__all__ = ["inner_module", "is_wrapper"]

_PARALLEL = (nn.DataParallel, DistributedDataParallel)


def is_wrapper(kind: type) -> bool:
    """Return whether instances of a class are wrappers whose inside is captured in their place."""
    return issubclass(kind, _PARALLEL) or _is_compiled(kind)


def inner_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper, None for what is no wrapper, or has hooks that would be lost."""
    if isinstance(module, _PARALLEL):
        # An instance-level forward stands in front of what the wrapper does.
        inner: Any = None if "forward" in vars(module) else module.module
    elif _is_compiled(type(module)):
        inner = getattr(module, "_orig_mod", None)
    else:
        return None
    return inner if isinstance(inner, nn.Module) and not has_hooks(module) else None


def _is_compiled(kind: type) -> bool:
    # Who has a compiled module has imported Dynamo; importing it takes a second.
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    optimized: Any = getattr(frames, "OptimizedModule", None)
    return isinstance(optimized, type) and issubclass(kind, optimized)
