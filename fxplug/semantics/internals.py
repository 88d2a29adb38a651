"""Every private name of torch that fxplug uses, in one place, so that a new torch can be checked against it."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as module_base
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = [
    "BatchNormBase",
    "DropoutBase",
    "HigherOrderOperator",
    "NormBase",
    "OpOverload",
    "OpOverloadPacket",
    "assert_function",
    "buffers_of",
    "has_backward_hooks",
    "has_forward_hooks",
    "has_hooks",
    "modules_of",
    "parameters_of",
    "persists",
    "schema_of",
]

BatchNormBase = _BatchNorm
"""Base of the batch-norm modules."""
NormBase = _NormBase
"""Base of the modules with running statistics."""
DropoutBase = _DropoutNd
"""Base of the dropout modules."""
OpOverload = torch._ops.OpOverload
"""One overload of an operator."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes functions."""
assert_function = torch._assert
"""An assertion that can stand in a graph."""


def schema_of(overload: Any) -> Any:
    """Return the schema of an operator overload."""
    return overload._schema


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether anything runs before or after the module's forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module_base._global_forward_hooks
        or module_base._global_forward_pre_hooks
    )


def has_backward_hooks(module: nn.Module) -> bool:
    """Return whether anything runs around the module's backward."""
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or module_base._global_backward_hooks
        or module_base._global_backward_pre_hooks
    )


def has_hooks(module: nn.Module) -> bool:
    """Return whether anything runs around the module's forward or backward."""
    return has_forward_hooks(module) or has_backward_hooks(module)


def parameters_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of parameters."""
    return module._parameters


def buffers_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of buffers."""
    return module._buffers


def modules_of(module: nn.Module) -> MutableMapping[str, Any]:
    """Return the module's own table of submodules."""
    return module._modules


def persists(module: nn.Module, name: str) -> bool:
    """Return whether the attribute `name` is a buffer that belongs to the module's state dict."""
    return name in module._buffers and name not in module._non_persistent_buffers_set
