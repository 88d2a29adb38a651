"""Calls of torch that stay whole, because what they run is not all that they do.

An ``autograd.Function`` has a backward of its own, ``torch.func`` transforms a function, ``torch.cond`` runs one of
two. Recorded operation by operation they would lose that. What a call is given as a function becomes a constant of the
graph; a function that holds traced values, or modules and their parameters, cannot.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.callforms import written_arguments
from fxplug.capture.closures import held_by, plain_function
from fxplug.capture.proxy import Proxy
from fxplug.capture.shims import traced_value
from fxplug.capture.sources import caller_level, place_in_program
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects
from fxplug.semantics.internals import opaque_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture.sessions import ModuleInterceptor

__all__ = ["OpaqueCall", "OpaqueKeeper", "hear_opaque_call"]


class OpaqueCall:
    """A call that is to be one node.

    Args:
        target: What the node calls.
        args: Of the node.
        kwargs: Of the node.
        functions: What it is given to run.
        run: Makes the call.
        transform: Returns the target for another function; None where a function has to be a constant.
        others: What the target for another function is called with; by default `args`.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        functions: tuple[Any, ...],
        run: Callable[[], Any],
        transform: Callable[[Any], Callable[..., Any]] | None = None,
        others: tuple[Any, ...] | None = None,
    ) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.functions = functions
        self.run = run
        self.transform = transform
        self.others = args if others is None else others
        self.name = ""
        """How messages call it."""


class OpaqueKeeper:
    """A tracer that records such calls as one node."""

    def on_opaque_call(self, call: OpaqueCall) -> Any:
        """Hear of a call that stays whole (see `fxplug.capture.interception`); record it if it has traced values.

        Raises:
            TraceError: A function that it is given holds something that a graph cannot.
        """
        proxy = traced_value(call.args, call.kwargs)
        if proxy is None and not any(isinstance(part, Proxy) for part in held_by(call.functions)):
            return call.run()
        check_functions(call)
        return self.create_proxy("call_function", call.target, call.args, call.kwargs)

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a node."""
        raise NotImplementedError


def check_functions(
    call: OpaqueCall,
    functions: tuple[Any, ...] | None = None,
    is_traced: Callable[[Any], bool] | None = None,
) -> None:
    """Refuse functions that hold traced values, tensors or modules.

    Args:
        call: That is given the functions.
        functions: Those that are looked at; by default all.
        is_traced: Tells what is a traced value besides proxies.

    Raises:
        TraceError: There is one.
    """
    for part in held_by(call.functions if functions is None else functions):
        if isinstance(part, (Proxy, torch.Tensor, nn.Module)) or (is_traced is not None and is_traced(part)):
            found = "a traced value" if isinstance(part, Proxy) else f"a {type(part).__name__}"
            raise TraceError(
                f"Cannot record a call of {call.name}{place_in_program()}: the function that it is given holds "
                f"{found}, by its closure or as a method, and the graph cannot follow it. Pass it as an argument, or "
                "keep the function around this line as a call (fxplug.wrap), or make the enclosing module a leaf.",
                code="FXP-T054",
            )


# -- the calls, as their own functions of torch receive them


def hear_opaque_call(
    interceptor: ModuleInterceptor, kind: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Tell a tracer of a call, in the form in which a program writes it.

    Args:
        interceptor: The tracer.
        kind: Which function of torch is called (see `fxplug.semantics.internals.opaque_functions`).
        original: The function.
        args: Of the call.
        kwargs: Of the call.
    """
    args = tuple(map(plain_function, args))
    run = partial(original, *args, **kwargs)
    if kind == "checkpoint":
        return _checkpoint(interceptor, run, args, kwargs)
    if kind == "cond" and args and isinstance(args[0], (bool, int, float)):
        return run()  # The choice is made.
    if kind == "apply":
        call = OpaqueCall(args[0].apply, args[1:], kwargs, (), run)
    elif kind in _TRANSFORMS:
        call = _TRANSFORMS[kind](run, *args, **kwargs)
    else:
        functions = () if kind == "functional_call" else _functions_in((*args, *kwargs.values()))
        call = OpaqueCall(_FUNCTIONS[kind], args, kwargs, functions, run)
    call.name = kind if kind in _HIGHER_ORDER else f"torch.func.{kind}"
    if kind in _REFUSED:
        return _refuse(call)
    return interceptor.on_opaque_call(call)


def _functions_in(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([value for value in args if callable(value) and not isinstance(value, Proxy)])


def _vmap(
    run: Callable[[], Any],
    func: Any,
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
    *args: Any,
    **kwargs: Any,
) -> OpaqueCall:
    transform = partial(
        torch.func.vmap, in_dims=in_dims, out_dims=out_dims, randomness=randomness, chunk_size=chunk_size
    )
    return OpaqueCall(_named("vmap", transform(func)), args, kwargs, (func,), run, transform)


def _grad(
    run: Callable[[], Any],
    func: Any,
    argnums: Any,
    has_aux: Any,
    args: Any,
    kwargs: Any,
) -> OpaqueCall:
    transform = partial(torch.func.grad, argnums=argnums, has_aux=has_aux)
    return OpaqueCall(_named("grad", transform(func)), args, kwargs, (func,), run, transform)


def _grad_and_value(
    run: Callable[[], Any],
    func: Any,
    argnums: Any,
    has_aux: Any,
    args: Any,
    kwargs: Any,
) -> OpaqueCall:
    transform = partial(torch.func.grad_and_value, argnums=argnums, has_aux=has_aux)
    return OpaqueCall(_named("grad_and_value", transform(func)), args, kwargs, (func,), run, transform)


def _with_primals(kind: str, run: Callable[[], Any], func: Any, *args: Any, **kwargs: Any) -> OpaqueCall:
    """Return a call of ``torch.func.vjp`` or ``jvp``, which is given the function beside its arguments."""
    target = _FUNCTIONS[kind]
    transform = partial(partial, target)
    return OpaqueCall(target, (func, *args), kwargs, (func,), run, transform, args)


def _named(transform: str, target: Any) -> Any:
    """Name a transformed function so that nobody takes it for the function itself."""
    target.__name__ = f"{transform}_{target.__name__.strip('<>')}"
    target.__qualname__ = f"{transform}.<locals>.{target.__name__}"
    target.__module__ = __name__
    return target


_TRANSFORMS: dict[str, Callable[..., OpaqueCall]] = {
    "vmap": _vmap,
    "grad": _grad,
    "grad_and_value": _grad_and_value,
    "vjp": partial(_with_primals, "vjp"),
    "jvp": partial(_with_primals, "jvp"),
}
_FUNCTIONS = opaque_functions()
_REFUSED = frozenset({"jacrev", "jacfwd"})
_HIGHER_ORDER = frozenset({"cond", "while_loop", "scan"})


def _refuse(call: OpaqueCall) -> Any:
    """Refuse what torch makes of several transforms; it is heard of only in the middle."""
    if traced_value(call.args, call.kwargs) is None:
        return call.run()
    raise TraceError(
        f"Cannot record a call of {call.name} or what calls it{place_in_program()}, which is made of several "
        "transforms. Keep the function around this line as a call (fxplug.wrap), or make the enclosing module a leaf.",
        code="FXP-T054",
    )


_OPTIONS = frozenset(
    {"use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state"}
)


def _requires_gradients(args: tuple[Any, ...]) -> bool:
    """Return whether one of the arguments is known to require a gradient; of a proxy that is not known."""
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)


def _checkpoint(
    interceptor: ModuleInterceptor, run: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Keep a checkpointed function that is a constant; run another one as if it were not checkpointed.

    That changes no value and no gradient, but saves no memory.
    """
    function = args[0]
    call = OpaqueCall(_FUNCTIONS["checkpoint"], args, kwargs, (function,), run)
    held = held_by((function,))
    is_whole = isinstance(function, nn.Module) or not any(
        isinstance(part, (Proxy, torch.Tensor, nn.Module)) for part in held
    )
    if is_whole and interceptor.knows_module(function):
        call.functions = ()
        return interceptor.on_opaque_call(call)
    if kwargs.get("use_reentrant") is not False and not _requires_gradients(args[1:]):
        # That form gives gradients only where an input has some.
        call.name = "checkpoint with use_reentrant"
        return interceptor.on_opaque_call(call)
    warnings.warn(
        f"The function that torch.utils.checkpoint is given{place_in_program()} holds modules or traced values: it is "
        "recorded operation by operation, with the same values and gradients, but without saving memory.",
        TraceWarning,
        stacklevel=caller_level(),
    )
    recorded = interceptor.graph.nodes.listed()
    given = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    result = function(*args[1:], **given)
    if torch.is_grad_enabled():
        _refuse_writes(interceptor, set(recorded))
    _keep_modes(interceptor, set(recorded))
    return result


def _refuse_writes(interceptor: ModuleInterceptor, before: set[Node]) -> None:
    """Refuse a checkpointed function that writes to what it has not made: it runs a second time for the gradients.

    Args:
        interceptor: Who traces.
        before: The nodes that were recorded before the function ran.

    Raises:
        TraceError: The function was recorded operation by operation, and writes to such.
    """
    root = interceptor.root
    for node in interceptor.graph.nodes.listed():
        if node in before or node.op == "output":
            continue
        effect = effects.effect_of(node, root)
        if not effect.writes:
            continue
        written = iterate_parts(tuple(written_arguments(effect, node.args, node.kwargs)))
        if "state" not in effect.writes and all(
            _is_made_since(part, before, root) for part in written if isinstance(part, Node)
        ):
            continue
        error = TraceError(
            f"Cannot record a call of torch.utils.checkpoint{place_in_program()}: its function holds modules or traced "
            f"values, and would be recorded operation by operation. But {node.format_node()} writes to something that "
            "the function has not made, such as the statistics of a batch norm, and torch does so a second time where "
            "gradients are computed. Give checkpoint a module instead (checkpoint(self.block, x)), which stays one "
            "call, or call eval() before.",
            code="FXP-T054",
        )
        interceptor.note_refusal(error)
        raise error


def _keep_modes(interceptor: ModuleInterceptor, before: set[Node]) -> None:
    """Let the layers of a checkpointed function that have something to write to in training stay in eval mode.

    Where they are not, the function was not refused because it runs once, without gradients: so it has to stay.

    Args:
        interceptor: Who traces.
        before: The nodes that were recorded before the function ran.
    """
    for node in interceptor.graph.nodes.listed():
        if node.op == "call_module" and node not in before:
            module = interceptor.root.get_submodule(node.target)
            if not any(True for _ in module.buffers()):
                continue
            if not module.training:
                interceptor.on_mode_kept(node.target, module)
            elif not torch.is_grad_enabled():
                interceptor.on_mode_asked("is_grad_enabled", (), answer=False)


def _is_made_since(node: Node, before: set[Node], root: Any) -> bool:
    """Return whether the memory of a value is that of calls which were not recorded before."""
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if one in before or one.op in {"get_attr", "placeholder"}:
            return False
        if may_return_argument(one, root):
            found = [used for used in one.all_input_nodes if used not in seen]
            seen.update(found)
            pending += found
    return True
