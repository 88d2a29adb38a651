"""Modules that only stand around another one, such as ``DataParallel`` and what ``torch.compile`` returns."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fxplug.semantics.internals import COMPILED_MODULE, has_hooks, is_compiled_class

__all__ = ["inner_module", "is_wrapper"]

_PARALLEL = (nn.DataParallel, DistributedDataParallel)


def is_wrapper(kind: type) -> bool:
    """Return whether instances of a class are wrappers whose inside is captured in their place."""
    return issubclass(kind, _PARALLEL) or is_compiled_class(kind)


def inner_module(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper, None for what is no wrapper, or has hooks that would be lost."""
    if isinstance(module, _PARALLEL):
        # An instance-level forward stands in front of what the wrapper does.
        inner: Any = None if "forward" in vars(module) else module.module
    elif is_compiled_class(type(module)):
        inner = getattr(module, COMPILED_MODULE, None)
    else:
        return None
    return inner if isinstance(inner, nn.Module) and not has_hooks(module) else None
