"""The symbolic tracer: runs a program with proxies and records what it does."""

from __future__ import annotations

import inspect
import math
import operator
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.inputs import Input, annotations_of, call_with, inputs_of, name_of
from fxplug.capture.interception import active_interceptor, intercept, original_call
from fxplug.capture.policy import TraceContext, TraceEvent, TracePolicy
from fxplug.capture.proxy import Attribute, Proxy, no_condition, no_iteration
from fxplug.capture.sources import Place, user_line
from fxplug.capture.state import ModuleStates, assignment_error, updates_in_place
from fxplug.errors import TraceError
from fxplug.ir import Argument, Graph, ModuleScope, Node
from fxplug.ir.collector import paused_collection
from fxplug.semantics.internals import (
    HigherOrderOperator,
    OpOverload,
    assert_function,
    buffers_of,
    has_backward_hooks,
    has_forward_hooks,
    parameters_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Tracer"]

_DIRECT = frozenset({int, float, bool, str, type(None), complex, bytes, type(Ellipsis)})
_CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    OpOverload,
    HigherOrderOperator,
    range,
)


class Tracer:
    """Captures a module or function as a graph.

    Subclasses may override `is_leaf_module`, `call_module`, `create_arg`, `create_proxy`, `getattr`,
    `to_bool`, `iter` and `keys`, as in torch.fx; a `policy` customises a trace without a subclass, and
    several can be combined.

    Args:
        autowrap_modules: Python modules whose functions stay calls. Kept for torch.fx's signature.
        autowrap_functions: Functions that stay calls. Kept for torch.fx's signature.
        param_shapes_constant: Whether shapes of parameters are read as constants.
        policy: Answers of others to the tracer's questions.
    """

    def __init__(
        self,
        autowrap_modules: tuple[Any, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
        *,
        policy: TracePolicy | None = None,
    ) -> None:
        self.autowrap_modules = autowrap_modules
        self.autowrap_functions = autowrap_functions
        self.param_shapes_constant = param_shapes_constant
        self.policy = policy if policy is not None else TracePolicy()
        self.root: nn.Module = nn.Module()
        """What the graph's paths refer to; an empty module when a function is traced."""
        self.graph: Graph = Graph()
        """The graph that is being recorded."""
        self.context = TraceContext(None)
        """Handed to the policy."""
        # A subclass with its own create_arg hears of every argument; otherwise proxies are unwrapped on the spot.
        self._converts_plainly = type(self).create_arg is Tracer.create_arg
        self._reset()

    def _reset(self) -> None:
        self._paths: dict[int, str] = {}
        self._tensor_paths: dict[int, str] | None = None
        self._attribute_proxies: dict[str, Proxy] = {}
        self._kept_alive: list[Any] = []
        self._place = Place(_TRACE_CODE, None, None)
        self._states = ModuleStates()
        self._ended = False
        self._refusals: list[TraceError] = []

    # -- the trace

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: Mapping[str, Any] | None = None
    ) -> Graph:
        """Run `root` with proxies and return what it does.

        Args:
            root: A module, whose forward is traced, or a function.
            concrete_args: Parameter name -> value to be used instead of a proxy. The parameter stays in the
                signature.

        Returns:
            The graph; its paths refer to `root` (see `Tracer.root`).

        Raises:
            TraceError: Something the program asks cannot be answered without inputs. The message shows its
                line.
        """
        self._reset()
        self.context = TraceContext(root)
        self.graph = Graph(tracer_cls=type(self))
        started = time.perf_counter()
        policy = self.policy
        if policy.trace_started is not None:
            policy.trace_started(TraceEvent(self.context))
        try:
            graph = self._trace(root, dict(concrete_args or {}))
        except BaseException as error:
            self._finish(started, None, error)
            raise
        finally:
            # Neither frames nor proxies outlive the trace: both would keep the user's objects alive.
            self._place = Place(_TRACE_CODE, None, None)
            self._attribute_proxies = {}
            self._ended = True
        self._finish(started, graph, None)
        return graph

    def _finish(self, started: float, graph: Graph | None, error: BaseException | None) -> None:
        if self.policy.trace_finished is not None:
            seconds = time.perf_counter() - started
            self.policy.trace_finished(TraceEvent(self.context, graph, error, seconds))

    def _trace(self, root: nn.Module | Callable[..., Any], concrete: dict[str, Any]) -> Graph:
        if isinstance(root, nn.Module):
            if _has_own_call(type(root)):
                raise TraceError(
                    f"Cannot trace {type(root).__name__}: it has a __call__ of its own, around the forward that would "
                    "be traced. Trace a module or function that calls it.",
                    code="FXP-T010",
                )
            self.root = root
            function: Callable[..., Any] = root.forward
            for name, module in root.named_modules():
                self._paths.setdefault(id(module), name)
            self._place = Place(_TRACE_CODE, None, ModuleScope("", type(root)))
        elif callable(root):
            self.root = nn.Module()
            function = root
        else:
            raise TraceError(
                f"Cannot trace {root!r}: pass a module or a function, not a {type(root).__name__}."
            )
        inputs = inputs_of(function, concrete)
        values = [self._create_input(entry, concrete) for entry in inputs]
        self.graph.keyword_only = frozenset(entry.name for entry in inputs if entry.keyword_only)
        annotation = annotations_of(function).get("return")
        with intercept(self), paused_collection():
            result = self._run(function, inputs, values)
        try:
            returned = self.create_arg(result)
        except TraceError as error:
            raise TraceError(
                f"Cannot record what {name_of(function)!r} returns: {error.message}", code=error.code
            ) from error
        output = self.create_node("output", "output", (returned,), {}, type_expr=annotation)
        output.origins = ()
        return self.graph

    def _run(self, function: Callable[..., Any], inputs: list[Input], values: list[Any]) -> Any:
        """Run the program with proxies and leave the user's modules as they were."""
        states = self._states = ModuleStates()
        try:
            if isinstance(self.context.root, nn.Module):
                states.remember(self.context.root, "")
                function = self._with_hooks(self.context.root, function, inputs)
            result = call_with(function, inputs, values)
        except BaseException:
            states.restore()
            raise
        states.restore_and_report()
        if self._refusals:
            first = self._refusals[0]
            raise TraceError(
                f"{first.message} (An 'except' of the program caught this error and went on; with the value it would "
                "have taken the other way.)",
                code=first.code,
            ) from first
        return result

    def note_refusal(self, error: TraceError) -> None:
        """Remember an error that was raised because a value is unknown: a program that catches it does not undo it."""
        self._refusals.append(error)

    def _with_hooks(
        self, root: nn.Module, forward: Callable[..., Any], inputs: list[Input]
    ) -> Callable[..., Any]:
        """Return what runs the hooks of the root too, so that their work is part of the graph."""
        _refuse_backward_hooks(root, "the root")
        if not has_forward_hooks(root):
            return forward
        if any(entry.stars for entry in inputs):
            raise TraceError(
                "Cannot trace a root that has forward hooks and takes a variable number of arguments: hooks receive "
                "them one by one. Remove the hooks, or wrap the module in one with fixed parameters.",
                code="FXP-T010",
            )
        return partial(original_call, root)

    def _create_input(self, entry: Input, concrete: Mapping[str, Any]) -> Any:
        default: tuple[Any, ...] = ()
        if isinstance(entry.default, torch.Tensor):
            raise TraceError(
                f"Cannot trace a function whose parameter {entry.name!r} has a tensor as its default: a default is "
                "shared by all calls. Use None, and make the tensor in the function, or make it a buffer.",
                code="FXP-T012",
            )
        if entry.default is not inspect.Parameter.empty:
            default = (self.create_arg(entry.default),)
        proxy = self.create_proxy("placeholder", entry.target, default, {}, type_expr=entry.annotation)
        proxy.node.origins = ()
        if entry.name not in concrete:
            return proxy
        self._fix_input(entry.name, proxy, concrete[entry.name])
        return concrete[entry.name]

    def _fix_input(self, name: str, proxy: Proxy, value: Any) -> None:
        """Record that a parameter has the value it was traced with: any other one is an error when the graph runs."""
        if not isinstance(value, (bool, int, float, str, bytes, type(None))):
            raise TraceError(
                f"Cannot fix the parameter {name!r} to a {type(value).__name__}: concrete_args takes numbers, strings, "
                "booleans and None. Bind other values with functools.partial or in a wrapping function."
            )
        compare = operator.is_ if value is None else operator.eq
        same = self.create_proxy("call_function", compare, (proxy, value), {})
        message = f"{name} was fixed to {value!r} when the program was traced"
        self.create_proxy("call_function", assert_function, (same, message), {})

    # -- nodes and proxies

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Record one node; its arguments must be arguments of the graph already (see `create_arg`)."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        origin = self._place.origin()
        if origin is not None:
            node.origins = (origin,)
        hook = self.policy.node_created
        if hook is not None:
            notes = hook(node, self.context)
            if notes:
                node.meta.update(notes)
        return node

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Record one node from arguments that may hold proxies, and return the proxy that stands for it.

        Raises:
            TraceError: The trace is over.
        """
        if self._ended:
            raise TraceError(
                f"Cannot record {kind} {target!r}: the trace is over, and a value that was traced is used behind it. "
                "Look for a traced value that the program keeps in a list, an attribute or a global.",
                code="FXP-T011",
            )
        create_arg = self.create_arg
        if self._converts_plainly:
            node_args = tuple(
                [
                    value.node
                    if value.__class__ is Proxy
                    else value
                    if value.__class__ in _DIRECT
                    else create_arg(value)
                    for value in args
                ]
            )
        else:
            node_args = tuple([create_arg(value) for value in args])
        node_kwargs = {key: create_arg(value) for key, value in kwargs.items()} if kwargs else {}
        node = self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        return proxy_factory_fn(node) if proxy_factory_fn is not None else self.proxy(node)

    def proxy(self, node: Node) -> Proxy:
        """Return a new proxy that stands for `node`."""
        mixins = self.policy.proxy_mixins
        if mixins is None:
            return Proxy(node, self)
        return _mixed_proxy_class(mixins(node, "unknown", self.context))(node, self)

    def create_arg(self, a: Any) -> Argument:
        """Turn a value of the program into an argument of the graph.

        Proxies become their nodes, tensors and parameters become reads of the root, containers are converted
        element by element, plain values stay what they are.

        Raises:
            TraceError: The value is of a kind that no graph can hold.
        """
        kind = type(a)
        if kind is Proxy:
            return a.node
        if kind in _DIRECT:
            return a
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, torch.Tensor):
            return self._lift_tensor(a)
        if isinstance(a, nn.Module):
            return self.create_node("get_attr", self.path_of_module(a), (), {})
        converted = self._convert_container(a)
        if converted is not NotImplemented:
            return converted
        if callable(a) or isinstance(a, _CONSTANTS):
            return a
        return self._foreign_argument(a)

    def _convert_container(self, a: Any) -> Argument:
        if isinstance(a, tuple):
            elements = [self.create_arg(element) for element in a]
            if type(a) is tuple or not hasattr(a, "_fields"):
                return tuple(elements)
            return type(a)(*elements)
        if isinstance(a, list):
            return [self.create_arg(element) for element in a]
        if isinstance(a, dict):
            for key in a:
                if isinstance(key, Proxy):
                    raise TraceError(
                        f"Cannot record a dict: its key {key!r} is a traced value. Use plain keys."
                    )
            return {key: self.create_arg(element) for key, element in a.items()}
        if isinstance(a, slice):
            return slice(self.create_arg(a.start), self.create_arg(a.stop), self.create_arg(a.step))
        return NotImplemented

    def _foreign_argument(self, a: Any) -> Argument:
        hook = self.policy.create_argument
        answer = hook(a, self.context) if hook is not None else None
        if answer is not None and type(answer) is not type(a):
            return self.create_arg(answer)
        if isinstance(a, (int, float, str, bytes, complex)) or type(a).__module__ == "enum" or _is_enum(a):
            return a  # A subclass with its own meaning; code generation binds the object itself.
        # Behind the forward no line of it is on the stack any more: what is refused then is its result.
        where = f"as an argument at {user_line()}" if self._states.is_watching else "as a result"
        raise TraceError(
            f"Cannot record a value of type {type(a).__module__}.{type(a).__qualname__} {where}. Convert it to "
            "tensors and plain values, or teach fxplug the type with the hook fxplug_create_argument.",
            code="FXP-T006",
        )

    def _lift_tensor(self, tensor: torch.Tensor) -> Node:
        if self._tensor_paths is None:
            self._tensor_paths = {
                id(value): f"{prefix}.{name}" if prefix else name
                for prefix, module, name, value in _tensors_of(self.root)
                if self._states.held_before(module, name, value)
            }
        path = self._tensor_paths.get(id(tensor))
        if path is None:
            index = len(self.graph.lifted)
            path = f"_tensor_constant{index}"
            while path in self.graph.lifted or hasattr(self.root, path):
                index += 1
                path = f"_tensor_constant{index}"
            self.graph.lifted[path] = tensor
            self._tensor_paths[id(tensor)] = path
        return self.create_node("get_attr", path, (), {})

    # -- modules

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays one node: by default the classes that torch.nn ships, except containers."""
        name = type(m).__module__
        return name.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(m, nn.Sequential)

    def path_of_module(self, mod: nn.Module) -> str:
        """Return the dotted path of a module below the root.

        Raises:
            TraceError: It is no submodule of the root.
        """
        path = self._paths.get(id(mod))
        if path is None:
            raise TraceError(
                f"Cannot trace a call of {type(mod).__name__} at {user_line()}: the module is not "
                "registered below the root. Assign it to an attribute, or put it into a "
                "torch.nn.ModuleList or ModuleDict.",
                code="FXP-T007",
            )
        return path

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what stands for a call of module `m`: a new node for a leaf, else what its forward returns."""
        path = self.path_of_module(m)
        if self._is_leaf(m, path):
            place = self._place
            former = place.scope
            place.scope = ModuleScope(path, type(m), former)
            try:
                return self.create_proxy("call_module", path, args, kwargs)
            finally:
                place.scope = former
        return self.enter_module(path, m, forward, args, kwargs)

    def enter_module(
        self,
        path: str,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the forward of module `m` at `path`, so that what it does is recorded."""
        former = self._place
        _refuse_backward_hooks(m, f"module {path!r}")
        self._states.remember(m, path)
        # What lies between this call and the module that is being left is described once, for all nodes inside.
        self._place = Place(_ENTER_CODE, former.origin(), ModuleScope(path, type(m), former.scope))
        try:
            return forward(*args, **kwargs)
        finally:
            self._place = former

    def _is_leaf(self, module: nn.Module, path: str) -> bool:
        ask = self.policy.is_leaf_module
        answer = ask(module, path, self.context) if ask is not None else None
        return self.is_leaf_module(module, path) if answer is None else answer

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a module (see `fxplug.capture.interception`)."""
        unwrap = self.policy.unwrap_module
        inner = unwrap(module) if unwrap is not None else None
        if inner is not None and inner is not module:
            return self.on_module_call(inner, args, kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return original_call(module, *args, **kwargs)

        return self.call_module(module, forward, args, kwargs)

    def on_module_attribute(self, module: nn.Module, name: str, value: torch.Tensor) -> Any:
        """Hear that a parameter or buffer was read (see `fxplug.capture.interception`)."""
        path = self._paths.get(id(module))
        if path is None:
            return value
        return self.getattr(f"{path}.{name}" if path else name, value, self._attribute_proxies)

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned (see `fxplug.capture.interception`)."""
        prefix = self._paths.get(id(module))
        if prefix is None:
            return False  # A module that the program makes for itself.
        path = f"{prefix}.{name}" if prefix else name
        if name in parameters_of(module) or name in buffers_of(module):
            if not (isinstance(value, Proxy) and updates_in_place(value.node, path)):
                raise assignment_error(path)
            # The update is in the graph; from now on this trace reads its result.
            self._attribute_proxies[path] = value
            return True
        self._states.remember(module, prefix)
        return False

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return what stands for a parameter or buffer of the root at path `attr`: one proxy per path."""
        if not isinstance(attr_val, torch.Tensor):
            return attr_val
        proxy = parameter_proxy_cache.get(attr)
        if proxy is None:
            proxy = parameter_proxy_cache[attr] = self.create_proxy("get_attr", attr, (), {})
        return proxy

    # -- questions that need a value

    def to_bool(self, obj: Proxy) -> bool:
        """Answer whether a value is true. By default: it is not known."""
        raise no_condition(obj)

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Answer a request to iterate. By default: it is not known how many elements there are."""
        raise no_iteration(obj)

    def keys(self, obj: Proxy) -> Any:
        """Answer a request for keys by recording it."""
        return Attribute(obj, "keys")()


def _has_own_call(kind: type) -> bool:
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    # torch's own subclasses, such as a torch.fx.GraphModule, only wrap errors.
    return any("__call__" in vars(base) and not base.__module__.startswith("torch.") for base in bases)


def _refuse_backward_hooks(module: nn.Module, what: str) -> None:
    if has_backward_hooks(module):
        raise TraceError(
            f"Cannot trace into {what} ({type(module).__name__}): it has backward hooks, which run on gradients and "
            "cannot be recorded. Remove them, or make the module a leaf.",
            code="FXP-T010",
        )


def _is_enum(value: Any) -> bool:
    return any(base.__module__ == "enum" for base in type(value).__mro__[1:])


def _tensors_of(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Yield (path of the module, module, name, value) of every tensor below `root`, registered or a plain attribute."""
    for prefix, module in reversed(list(root.named_modules())):
        for table in (vars(module), buffers_of(module), parameters_of(module)):
            for name, value in table.items():
                if isinstance(value, torch.Tensor):
                    yield prefix, module, name, value


_proxy_classes: dict[tuple[type, ...], type[Proxy]] = {}


def _mixed_proxy_class(mixins: tuple[type, ...]) -> type[Proxy]:
    if not mixins:
        return Proxy
    known = _proxy_classes.get(mixins)
    if known is None:
        name = "".join(mixin.__name__ for mixin in mixins) + "Proxy"
        known = _proxy_classes[mixins] = type(name, (*mixins, Proxy), {})
    return known


def is_tracing() -> bool:
    """Return whether a trace runs in this thread or task."""
    return active_interceptor() is not None


_TRACE_CODE = Tracer.trace.__code__
_ENTER_CODE = Tracer.enter_module.__code__
