"""Calls of torch that stay whole, because what they run is not all that they do.

An ``autograd.Function`` has a backward of its own, ``torch.func`` transforms a function, ``torch.cond`` runs one of
two. Recorded operation by operation they would lose that. What a call is given as a function becomes a constant of the
graph; a function that holds traced values, or modules and their parameters, cannot. On examples it is made again in
each call (see `fxplug.capture.closures`).
"""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.callforms import written_arguments
from fxplug.capture.closures import held_by, plain_function
from fxplug.capture.proxy import Proxy, traced_value
from fxplug.capture.sources import caller_level, place_in_program
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects
from fxplug.semantics.internals import flatten_tree, opaque_functions, unflatten_tree, without_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture.sessions import ModuleInterceptor

__all__ = [
    "COMPILED",
    "OpaqueCall",
    "OpaqueKeeper",
    "check_functions",
    "hear_opaque_call",
    "is_no_module",
    "with_functions",
]


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
        self.runs_later = False
        """Whether a function may run again when the call is over."""
        self.kinds: tuple[type, ...] = ()
        """Classes that it runs and that the program has made."""
        self.is_compound = False
        """Whether the target makes other such calls, which another trace would hear of."""
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
        if proxy is None and not any(
            isinstance(part, Proxy) for part in held_by((*call.functions, *call.kinds))
        ):
            return call.run()
        check_functions(call, call.kinds)
        check_functions(call)
        return self.create_proxy("call_function", call.target, call.args, call.kwargs)

    def must_stay_whole(self, call: OpaqueCall) -> bool:
        """Return whether the function of a checkpoint is to be made again in each call, and can be."""
        return False

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
            holder = (
                "the class" if call.kinds and functions is call.kinds else "the function that it is given"
            )
            raise TraceError(
                f"Cannot record a call of {call.name}{place_in_program()}: {holder} holds "
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
    if kind in COMPILED:
        original = without_compiling(original)
    given = args
    args = tuple(map(plain_function, args))
    run = partial(original, *args, **kwargs)
    if kind == "checkpoint":
        return _checkpoint(interceptor, run, args, kwargs)
    if kind == "cond" and args and isinstance(args[0], (bool, int, float)):
        return run()  # The choice is made.
    if kind == "apply":
        call = _apply(run, *args, **kwargs)
    elif kind in _TRANSFORMS:
        call = _TRANSFORMS[kind](run, *args, **kwargs)
        # What a call of the program has given is found in the graph.
        known = {id(plain): value for plain, value in zip(args, given, strict=True)}
        call.functions = tuple([known.get(id(function), function) for function in call.functions])
    elif kind in COMPILED:
        args, kwargs = _by_position(kind, args, kwargs)
        call = with_functions(run, _FUNCTIONS[kind], args, kwargs)
        if kind == "cond":
            _flatten(call, original, args, kwargs)
    else:
        call = OpaqueCall(_FUNCTIONS[kind], args, kwargs, (), run)
    call.name = call.name or (kind if kind in COMPILED else f"torch.func.{kind}")
    if kind in _REFUSED:
        return _refuse(call)
    return interceptor.on_opaque_call(call)


def _flatten(call: OpaqueCall, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let a call of ``torch.cond`` have nothing but tensors as operands: it needs that where nothing compiles it."""
    operands = kwargs["operands"] if "operands" in kwargs else args[3] if len(args) > 3 else ()
    if all(isinstance(value, (torch.Tensor, Proxy)) for value in operands):
        return
    call.run = partial(_run_flat, original, *args, **kwargs)
    if call.transform is not None:
        call.transform = partial(_calling, partial(_run_flat, _FUNCTIONS["cond"]), (1, 2))


def _run_flat(run: Callable[..., Any], choice: Any, one: Any, other: Any, operands: Any = ()) -> Any:
    leaves, structure = flatten_tree(operands)

    def flat(function: Any) -> Callable[..., Any]:
        return lambda *values: function(*unflatten_tree([*values], structure))

    return run(choice, flat(one), flat(other), tuple(leaves))


def with_functions(
    run: Callable[[], Any],
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_meant: Callable[[Any], bool] = callable,
) -> OpaqueCall:
    """Return a call that is given functions among its arguments, all of which are made again together.

    Args:
        run: Makes the call.
        target: What is called.
        args: Of the call.
        kwargs: Of the call.
        is_meant: Tells which of what can be called is one of the functions.
    """
    places = tuple([place for place, value in enumerate(args) if _is_function(value) and is_meant(value)])
    if not places:
        return OpaqueCall(target, args, kwargs, (), run)
    functions = tuple([args[place] for place in places])
    others = tuple([value for place, value in enumerate(args) if place not in places])
    transform = partial(_calling, target, places)
    return OpaqueCall(target, args, kwargs, (functions,), run, transform, others)


def is_no_module(value: Any) -> bool:
    """Return whether a value is anything but a module."""
    return not isinstance(value, nn.Module)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (Proxy, torch.Tensor, type))


def _calling(target: Any, places: tuple[int, ...], functions: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the target for functions that are its arguments at some places."""

    def call(*others: Any, **kwargs: Any) -> Any:
        args = list(others)
        for place, function in zip(places, functions, strict=True):
            args.insert(place, function)
        return target(*args, **kwargs)

    return call


def _by_position(
    kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with functions that are given by name among those by position."""
    if not any(map(_is_function, kwargs.values())):
        return args, kwargs
    try:
        bound = _SIGNATURES[kind].bind(*args, **kwargs)
    except TypeError:  # The call raises it, too.
        return args, kwargs
    return bound.args, bound.kwargs


def _apply(run: Callable[[], Any], kind: type, *args: Any, **kwargs: Any) -> OpaqueCall:
    """Return a call of an ``autograd.Function``, which may keep what it is given for its backward."""
    target = cast("Any", kind).apply
    # Modules are arguments like tensors.
    call = with_functions(run, target, args, kwargs, is_no_module)
    call.name = f"{kind.__name__}.apply"
    call.runs_later = True
    call.kinds = tuple([base for base in kind.__mro__ if "<locals>" in base.__qualname__])
    return call


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
    "linearize": partial(_with_primals, "linearize"),
}
_FUNCTIONS = opaque_functions()
_REFUSED = frozenset({"jacrev", "jacfwd"})
COMPILED = frozenset({"associative_scan", "cond", "map", "scan", "while_loop"})
"""Kinds of calls that torch compiles before it makes them."""
_SIGNATURES = {kind: inspect.signature(_FUNCTIONS[kind]) for kind in COMPILED & _FUNCTIONS.keys()}
"""Of the functions as torch has them: while a trace runs, their code is another one."""


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

    That changes no value and no gradient, but saves no memory. Where it would change some, the function is made again.
    """
    if interceptor.paused:
        return run()
    function = args[0]
    target = _FUNCTIONS["checkpoint"]
    transform = partial(partial, target)
    call = OpaqueCall(target, args, kwargs, (function,), run, transform, args[1:])
    held = held_by((function,))
    is_whole = isinstance(function, nn.Module) or not any(
        isinstance(part, (Proxy, torch.Tensor, nn.Module)) for part in held
    )
    if is_whole and interceptor.knows_module(function):
        call.functions, call.transform = (), None
        return interceptor.on_opaque_call(call)
    call.name = "torch.utils.checkpoint"
    if kwargs.get("use_reentrant") is not False and not _requires_gradients(args[1:]):
        # That form gives gradients only where an input has some.
        call.name = "checkpoint with use_reentrant"
        return interceptor.on_opaque_call(call)
    if interceptor.must_stay_whole(call):
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
    draws_anew = kwargs.get("preserve_rng_state", True) is not True
    if torch.is_grad_enabled():
        _refuse_writes(interceptor, set(recorded), draws_anew=draws_anew)
    _keep_modes(interceptor, set(recorded), draws_anew=draws_anew)
    return result


def _refuse_writes(interceptor: ModuleInterceptor, before: set[Node], *, draws_anew: bool) -> None:
    """Refuse a checkpointed function that writes to what it has not made: it runs a second time for the gradients.

    Args:
        interceptor: Who traces.
        before: The nodes that were recorded before the function ran.
        draws_anew: Whether the function draws other random numbers when it runs again.

    Raises:
        TraceError: The function was recorded operation by operation, and writes to such.
    """
    root = interceptor.root
    for node in interceptor.graph.nodes.listed():
        if node in before or node.op == "output":
            continue
        effect = effects.effect_of(node, root)
        if draws_anew and effect.random:
            raise _noted(interceptor, _draws_anew(node))
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
        raise _noted(interceptor, error)


def _noted(interceptor: ModuleInterceptor, error: TraceError) -> TraceError:
    interceptor.note_refusal(error)
    return error


def _draws_anew(node: Node) -> TraceError:
    return TraceError(
        f"Cannot record a call of torch.utils.checkpoint{place_in_program()}: its function holds modules or traced "
        f"values, and would be recorded operation by operation. But {node.format_node()} draws random numbers, and "
        "with preserve_rng_state=False torch draws others where gradients are computed. Leave that argument out, or "
        "give checkpoint a module instead (checkpoint(self.block, x)), which stays one call.",
        code="FXP-T054",
    )


def _keep_modes(interceptor: ModuleInterceptor, before: set[Node], *, draws_anew: bool) -> None:
    """Let the layers of a checkpointed function that have something to write to in training stay in eval mode.

    Where they are not, the function was not refused because it runs once, without gradients: so it has to stay.

    Args:
        interceptor: Who traces.
        before: The nodes that were recorded before the function ran.
        draws_anew: Whether the function draws other random numbers when it runs again.
    """
    for node in interceptor.graph.nodes.listed():
        if node.op == "call_module" and node not in before:
            module = interceptor.root.get_submodule(node.target)
            if not draws_anew and not any(True for _ in module.buffers()):
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
