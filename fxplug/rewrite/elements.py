"""What a pattern may call besides real functions: one of several calls, modules by class, anything at all."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture import Proxy
from fxplug.errors import PatternError
from fxplug.ir import iterate_leaves
from fxplug.rewrite.calls import pairs_by_name, value_at
from fxplug.rewrite.questions import asked
from fxplug.rewrite.values import nodes_in, same_value
from fxplug.semantics.canonical import canonical_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Node
    from fxplug.rewrite.spellings import Spellings

__all__ = ["AnyOf", "Const", "Element", "Module", "Wildcard"]

Pairs = list[tuple[Any, Any]]


class Element:
    """Something that a pattern calls and that stands for calls of more than one kind.

    Called with traced values it becomes a node of the pattern; elsewhere it cannot be called.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Become a node of the pattern that is traced."""
        for value in iterate_leaves((args, kwargs)):
            if isinstance(value, Proxy):
                return value.tracer.create_proxy("call_function", self, args, kwargs)
        raise PatternError(
            f"Cannot call {self!r} outside of a pattern: it stands for calls and makes none. Call it in the function "
            "that is given to fxplug.rewrite.Pattern, with at least one value of the pattern."
        )

    def pairs(self, wanted: Node, node: Node, spellings: Spellings) -> Pairs | None:
        """Return the arguments of a node of the pattern and of one of the graph in pairs, None if it is no such call.

        Args:
            wanted: The node of the pattern, which calls this.
            node: The node of the graph.
            spellings: Those of the graph.
        """
        raise NotImplementedError


class AnyOf(Element):
    """Stands for a call of one of several functions, methods or modules, with the same arguments.

    Args:
        *alternatives: Functions, names of methods, classes of modules, and other elements.

    Raises:
        PatternError: There is none, or one is something else.

    Example:
        ::

            activation = AnyOf(torch.relu, F.gelu, nn.SiLU)
            pattern = Pattern(lambda x, w: activation(torch.matmul(x, w)))
    """

    def __init__(self, *alternatives: Callable[..., Any] | str | type[nn.Module]) -> None:
        if not alternatives:
            raise PatternError("Cannot make AnyOf(): name at least one function, method or class of modules.")
        self.alternatives = tuple(map(_as_alternative, alternatives))
        """As they were given; classes of modules as `Module`."""

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(_name_of, self.alternatives))})"

    def pairs(self, wanted: Node, node: Node, spellings: Spellings) -> Pairs | None:
        """Return those of the first alternative that the node is a call of."""
        for alternative in self.alternatives:
            if isinstance(alternative, Element):
                found = alternative.pairs(wanted, node, spellings)
            else:
                found = _pairs_of_call(alternative, wanted, node, spellings)
            if found is not None:
                return found
        return None


class Module(Element):
    """Stands for the call of a submodule by its class, whatever its path is.

    Args:
        kind: The class; instances of classes that derive from it count too.
        **attributes: What attributes of the module must be.

    Example:
        ::

            pattern = Pattern(lambda x: Module(nn.BatchNorm2d)(Module(nn.Conv2d, groups=1)(x)))
    """

    def __init__(self, kind: type[nn.Module], /, **attributes: Any) -> None:
        is_class = isinstance(kind, type) and issubclass(kind, nn.Module)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_class:
            raise PatternError(
                f"Cannot make Module({kind!r}): pass a class of modules, such as torch.nn.Linear."
            )
        self.kind = kind
        """The class."""
        self.attributes = attributes
        """Attribute -> what it must be."""

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.attributes.items())
        return f"Module({self.kind.__name__}{settings})"

    def pairs(self, wanted: Node, node: Node, spellings: Spellings) -> Pairs | None:
        """Return those of a call of such a module."""
        module = value_at(spellings.root, node.target) if node.op == "call_module" else None
        if not isinstance(module, self.kind) or spellings.is_patched(node.target):
            return None
        for name, value in self.attributes.items():
            if not hasattr(module, name) or not same_value(getattr(module, name), value):
                return None
        same = _same_places(wanted, node)
        return _bound_pairs(module, wanted, node) if same is None else same


class Wildcard(Element):
    """Stands for any one call that is given the same nodes, in their order, and whatever else.

    Example:
        ::

            pattern = Pattern(lambda x: torch.relu(Wildcard()(x)))
    """

    def __repr__(self) -> str:
        return "Wildcard()"

    def pairs(self, wanted: Node, node: Node, spellings: Spellings) -> Pairs | None:
        """Return the nodes that both use."""
        ours, theirs = wanted.all_input_nodes, node.all_input_nodes
        if node.op in {"placeholder", "get_attr", "output"} or len(ours) != len(theirs):
            return None
        if node.op == "call_module" and spellings.is_patched(node.target):
            return None
        return list(zip(ours, theirs, strict=True))


class Const:
    """Says that a parameter of a pattern stands for a plain value, and not for a node.

    Args:
        predicate: Called with the value; True if it will do. By default every value will.

    Example:
        ::

            Pattern(lambda x, n: torch.pow(x, n), n=Const(lambda n: n in {2, 3}))
    """

    def __init__(self, predicate: Callable[[Any], bool] | None = None) -> None:
        self.predicate = predicate
        """Asked about the value."""

    def accepts(self, value: Any, node: Node | None = None) -> bool:
        """Return whether a value that a parameter would stand for is plain and will do.

        Args:
            value: Of a graph.
            node: The one at which the match begins, for messages.

        Raises:
            PatternError: The predicate failed.
        """
        if nodes_in(value):
            return False
        return self.predicate is None or asked("predicate", self.predicate, (value,), node)

    def __repr__(self) -> str:
        return "Const()" if self.predicate is None else f"Const({_name_of(self.predicate)})"


def _as_alternative(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, nn.Module):
        return Module(value)
    if isinstance(value, (str, Element)) or callable(value):
        return value
    raise PatternError(
        f"Cannot use {value!r} in AnyOf: pass functions, names of methods, classes of modules, or elements of patterns."
    )


def _name_of(value: Any) -> str:
    return str(getattr(value, "__name__", None) or repr(value))


def _pairs_of_call(callee: Any, wanted: Node, node: Node, spellings: Spellings) -> Pairs | None:
    op = "call_method" if isinstance(callee, str) else "call_function"
    if node.op == op and node.target == callee:
        same = _same_places(wanted, node)
        if same is not None:
            return same
    ours, theirs = canonical_form(op, callee, wanted.args, wanted.kwargs), spellings.call(node)
    if (
        ours is None
        or theirs is None
        or ours.name != theirs.name
        or ours.arguments.keys() != theirs.arguments.keys()
    ):
        return None
    return pairs_by_name(ours.arguments, theirs.arguments, ours.given)


def _bound_pairs(module: nn.Module, wanted: Node, node: Node) -> Pairs | None:
    """Return the arguments of two calls of a module by its parameters, however they were passed."""
    try:
        signature = inspect.signature(module.forward)
        ours = signature.bind(*wanted.args, **wanted.kwargs)
        theirs = signature.bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return None
    given = set(ours.arguments)
    ours.apply_defaults()
    theirs.apply_defaults()
    return pairs_by_name(ours.arguments, theirs.arguments, given)


def _same_places(wanted: Node, node: Node) -> Pairs | None:
    if len(wanted.args) != len(node.args) or wanted.kwargs.keys() != node.kwargs.keys():
        return None
    pairs = list(zip(wanted.args, node.args, strict=True))
    return [*pairs, *((value, node.kwargs[name]) for name, value in wanted.kwargs.items())]
