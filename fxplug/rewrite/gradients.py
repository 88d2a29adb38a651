"""What a program says of gradients, of which no operator is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from fxplug.errors import DecompositionError
from fxplug.semantics.internals import OpOverload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug.ir import Node

__all__ = [
    "GradientsInside",
    "HasGradient",
    "is_detached_in_place",
    "marked_tensor",
    "python_gradient",
    "python_gradients",
    "viewed",
    "written_behind_detach",
]


class HasGradient(torch.autograd.Function):
    """Lets a tensor have a gradient, though it is no leaf: it may be written to."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself, as one that was written to."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Nobody asks for the gradient."""
        raise NotImplementedError


_OWN_GRADIENT: Any = HasGradient.apply(torch.zeros(()), torch.zeros((), requires_grad=True)).grad_fn.__class__


def _name(node: Node) -> str:
    """Return the name of what a node calls; empty where it calls a module, or nothing."""
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", ""))
    return str(node.target) if node.op == "call_method" else ""


def is_detached_in_place(node: Node) -> bool:
    """Return whether a call cuts off its tensor from its gradient in place."""
    return _name(node).partition(".")[0] == "detach_" and bool(node.all_input_nodes)


def marked_tensor(node: Node) -> Node | None:
    """Return what a call makes to have a gradient, or none: one of its arguments, or itself; None where it does not."""
    name = _name(node).partition(".")[0]
    sets = name == "requires_grad_" or (node.target is setattr and node.args[1:2] == ("requires_grad",))
    if sets:
        return next(iter(node.all_input_nodes), None)
    return node if node.op == "call_function" and node.kwargs.get("requires_grad") is True else None


class GradientsInside(TorchFunctionMode):
    """Refuses what says of a tensor whether it has a gradient, inside of calls of which only operators are heard."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a call.

        Raises:
            DecompositionError: It is such a one.
        """
        given = kwargs or {}
        if func in _SAYS_OF_GRADIENT or given.get("requires_grad") is True:
            name = func.__name__ if func in _METHODS else "requires_grad"
            raise DecompositionError(
                f"inside of it, {name} says whether a tensor has a gradient, of which no operator is heard. Capture it "
                "with what lies in it; or, if you need no gradients, call decompose inside torch.no_grad(): the result "
                "then computes none"
            )
        return func(*args, **given)


_REQUIRES_GRAD: Any = torch.Tensor.requires_grad
_METHODS = frozenset({torch.Tensor.detach_, torch.detach_, torch.Tensor.requires_grad_})
_SAYS_OF_GRADIENT = _METHODS | {_REQUIRES_GRAD.__set__}


def python_gradient(name: str) -> DecompositionError:
    """Return what to raise where a gradient is Python code."""
    return DecompositionError(
        f"the gradient of {name!r} is Python code of its own, of which nothing would be left. If you need no "
        "gradients, call decompose inside torch.no_grad(): the result then computes none"
    )


def written_behind_detach() -> DecompositionError:
    """Return what to raise where a value with a gradient is written to what was cut off from its own."""
    return DecompositionError(
        "it writes values with a gradient to a tensor that was cut off from one, which would be lost. Write to a copy, "
        "x.detach().clone(); or, if you need no gradients, call decompose inside torch.no_grad(): the result then "
        "computes none"
    )


def viewed(node: Node) -> Node:
    """Return what a value is a view of, whichever views lie between; itself where it is none, or made by ``detach``."""
    while isinstance(node.target, OpOverload) and node.target.is_view:
        source = next(iter(node.all_input_nodes), None)
        if source is None or node.target is torch.ops.aten.detach.default:
            break
        node = source
    return node


def python_gradients(values: Sequence[Any]) -> list[str]:
    """Return the names of the gradients that are computed by Python code, of which operators know nothing."""
    pending = [value.grad_fn for value in values if isinstance(value, torch.Tensor)]
    seen: set[Any] = set()
    found: list[str] = []
    while pending:
        function = pending.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if isinstance(function, torch.autograd.function.BackwardCFunction) and not isinstance(
            function, _OWN_GRADIENT
        ):
            found.append(type(function).__name__.removesuffix("Backward"))
        pending += [following for following, _ in function.next_functions]
    return found
