"""What is around a program and that it may ask for: modes and settings of torch, flags of modules, kinds of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.semantics.internals import buffers_of, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.ir.guards import StateGuard

__all__ = [
    "ATTRIBUTES",
    "MODES",
    "answer_now",
    "deepest_module",
    "depth_of",
    "holds",
    "is_known",
    "tensor_at",
]

MODES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        torch.are_deterministic_algorithms_enabled,
        torch.get_autocast_dtype,
        torch.get_default_device,
        torch.get_default_dtype,
        torch.get_deterministic_debug_mode,
        torch.get_float32_matmul_precision,
        torch.get_num_threads,
        torch.is_anomaly_enabled,
        torch.is_autocast_cache_enabled,
        torch.is_autocast_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled,
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch.is_warn_always_enabled,
    )
}
"""The functions of torch that tell of modes and settings, by name."""
ATTRIBUTES: dict[str, Callable[[torch.Tensor], Any]] = {
    "device": lambda tensor: tensor.device,
    "dtype": lambda tensor: tensor.dtype,
    "layout": lambda tensor: tensor.layout,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "shape": lambda tensor: tuple(tensor.shape),
    "stride": lambda tensor: tensor.stride(),
}
"""What a weight is asked for, and how."""
_ABSENT: Any = object()


def is_known(guard: StateGuard) -> bool:
    """Return whether what a guard asks can be asked: files may say anything."""
    first, *path, last = guard.steps if len(guard.steps) > 1 else ("", "")
    if first == "torch":
        return not path and last in MODES
    return first == "self" and not guard.arguments and (last == "training" or last in ATTRIBUTES)


def deepest_module(root: nn.Module, path: Sequence[str]) -> nn.Module:
    """Return the module at a path, or where the root has none there the last one on the way."""
    module = root
    for name in path:
        inner = modules_of(module).get(name)
        if inner is None:
            break
        module = inner
    return module


def depth_of(root: nn.Module, path: Sequence[str]) -> int:
    """Return how many steps of a path lead to modules that the root has."""
    module = root
    for depth, name in enumerate(path):
        inner = modules_of(module).get(name)
        if inner is None:
            return depth
        module = inner
    return len(path)


def tensor_at(root: nn.Module, path: Sequence[str]) -> torch.Tensor | None:
    """Return the tensor at a path, None where the root has none there."""
    module: Any = root
    for name in path[:-1]:
        module = modules_of(module).get(name)
        if module is None:
            return None
    for table in (parameters_of(module), buffers_of(module), vars(module)):
        found = table.get(path[-1])
        if isinstance(found, torch.Tensor):
            return found
    return None


def answer_now(guard: StateGuard, root: nn.Module) -> Any:
    """Return what a program with this root would be told now; what was expected, where nothing is there to be asked."""
    steps = guard.steps
    if steps[0] == "torch":
        return MODES[steps[1]](*guard.arguments)
    if steps[-1] == "training":
        # A module that the root does not have can be switched only with what it is in.
        return deepest_module(root, steps[1:-1]).training
    tensor = tensor_at(root, steps[1:-1])
    return guard.expected if tensor is None else ATTRIBUTES[steps[-1]](tensor)


def holds(guard: StateGuard, root: nn.Module) -> bool:
    """Return whether a program with this root would be told the same now."""
    found, expected = answer_now(guard, root), guard.expected
    return found is expected or (type(found) is type(expected) and found == expected)
