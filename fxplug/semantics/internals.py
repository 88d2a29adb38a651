"""Every private name of torch that fxplug uses, in one place, so that a new torch can be checked against it."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, overrides
from torch._C._dynamo import eval_frame as _dynamo_frames
from torch._jit_internal import boolean_dispatched
from torch.fx import _symbolic_trace
from torch.nn.modules import module as module_base
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from types import CodeType

    from torch.overrides import TorchFunctionMode

__all__ = [
    "BOOLEAN_DISPATCHED",
    "DISABLED_DISPATCH",
    "DYNAMO_INLINE",
    "TORCH_FX_PATCHED",
    "BatchNormBase",
    "DropoutBase",
    "HigherOrderOperator",
    "NormBase",
    "OpOverload",
    "OpOverloadPacket",
    "ScriptMethod",
    "TorchFxTracer",
    "TreeSpec",
    "assert_function",
    "buffers_of",
    "flatten_tree",
    "flatten_tree_with_paths",
    "has_backward_hooks",
    "has_forward_hooks",
    "has_hooks",
    "modules_of",
    "parameters_of",
    "paths_below",
    "persists",
    "remove_mode",
    "root_being_traced",
    "runs_outside_dynamo",
    "schema_of",
    "set_torch_fx_flag",
    "skip_frame",
    "torch_fx_flag",
    "torch_fx_wrapped_functions",
    "torch_fx_wrapped_methods",
    "unflatten_tree",
]

BOOLEAN_DISPATCHED: Mapping[Any, Mapping[str, Any]] = boolean_dispatched
"""Functions of torch.nn.functional that stand for two others, and these."""
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
TreeSpec = _pytree.TreeSpec
"""The structure of a nested value."""
ScriptMethod = torch._C.ScriptMethod
"""A method of a scripted module."""
assert_function = torch._assert
"""An assertion that can stand in a graph."""
TorchFxTracer = _symbolic_trace.Tracer
"""What traces in torch.fx."""
DISABLED_DISPATCH = torch._C._disabled_torch_function_impl
"""What torch finds at an object that does not want to hear of calls."""
DYNAMO_INLINE = "_torchdynamo_inline"
"""Attribute of a function: another one, which Dynamo is to inline in its place."""
TORCH_FX_PATCHED = "_Patcher__fx_already_patched"
"""Attribute of the functions that a running trace of torch.fx has put in the place of others."""


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


def runs_outside_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Dynamo call a function for its result when it meets it, instead of tracing it.

    It is what ``torch.compiler.assume_constant_result`` does, which imports all of Dynamo: a second for everybody.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def paths_below(root: nn.Module) -> dict[int, str]:
    """Return the id of every module from `root` on -> its dotted path; the first one where it has several."""
    paths = {id(root): ""}

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in module._modules.items():
            if child is not None and id(child) not in paths:
                path = paths[id(child)] = prefix + name
                if child._modules:
                    visit(child, f"{path}.")

    visit(root, "")
    return paths


def persists(module: nn.Module, name: str) -> bool:
    """Return whether the attribute `name` is a buffer that belongs to the module's state dict."""
    return name in module._buffers and name not in module._non_persistent_buffers_set


def skip_frame(code: CodeType) -> None:
    """Tell Dynamo not to compile frames of `code`; what they call is compiled as always."""
    strategy, action = _dynamo_frames._FrameExecStrategy, _dynamo_frames._FrameAction
    _dynamo_frames.set_code_exec_strategy(code, strategy(action.SKIP, action.DEFAULT))


def torch_fx_wrapped_functions() -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the globals of its module of every function that was passed to ``torch.fx.wrap``."""
    return [(name, namespace) for (_, name), namespace in list(_symbolic_trace._wrapped_fns_to_patch.items())]


def torch_fx_wrapped_methods() -> list[tuple[type, str]]:
    """Return the class and the name of every method whose calls torch.fx keeps as calls."""
    return list(_symbolic_trace._wrapped_methods_to_patch)


def torch_fx_flag() -> Any:
    """Return the flag by which torch.fx says that it traces."""
    return _symbolic_trace._is_fx_tracing_flag


def set_torch_fx_flag(value: Any) -> None:
    """Set the flag by which torch.fx says that it traces."""
    _symbolic_trace._is_fx_tracing_flag = value


def flatten_tree(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a nested value, and its structure."""
    return _pytree.tree_flatten(value, is_leaf=_is_size)


def flatten_tree_with_paths(value: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the leaves of a nested value, each with the text that selects it, and the structure."""
    leaves, spec = _pytree.tree_flatten_with_path(value, is_leaf=_is_size)
    return [(_pytree.keystr(path), leaf) for path, leaf in leaves], spec


def _is_size(value: Any) -> bool:
    # Whether torch takes sizes apart depends on its version; they come back as plain tuples if it does.
    return isinstance(value, torch.Size)


def unflatten_tree(leaves: list[Any], spec: Any) -> Any:
    """Return the nested value of a structure."""
    return _pytree.tree_unflatten(leaves, spec)


def root_being_traced(kind: type[nn.Module]) -> nn.Module | None:
    """Return the module whose forward somebody looks up on its class, as the tracer of torch.fx does with its root.

    To be called by a descriptor in its ``__get__``: the frame that reads ``type(root).forward`` is the one above it.

    Args:
        kind: The class that is asked.
    """
    root = sys._getframe(2).f_locals.get("root")
    return root if type(root) is kind else None


def remove_mode(mode: TorchFunctionMode) -> None:
    """Take a mode that this thread has entered away, wherever in the stack of modes it is."""
    above: list[Any] = []
    while (top := overrides._get_current_function_mode()) is not None:
        overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)
