"""How calls of torch are written in full: arguments matched to parameters, defaults filled in, overloads told apart."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.errors import GraphError
from fxplug.ir import ArgsKwargsPair, CallTypes, Node, bind_arguments, normalization, qualified_name
from fxplug.semantics.effects import operator_name
from fxplug.semantics.internals import BOOLEAN_DISPATCHED, OpOverload, OpOverloadPacket, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "ADDING",
    "ADDING_PRODUCTS",
    "in_new_order",
    "normalize_function",
    "normalize_module",
    "normalize_operator",
    "without_aliases",
]

_CODED_AS_INT = (torch.dtype, torch.layout, torch.memory_format)
_ALIASES = {"dim": "axis", "keepdim": "keepdims", "input": "x", "other": "x2"}
"""Names that torch's own functions take besides, as NumPy has them."""


class _Match(NamedTuple):
    """An overload that a call may reach."""

    schema: Any
    bound: dict[str, tuple[Any, Any]]
    pair: ArgsKwargsPair


def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
) -> ArgsKwargsPair | None:
    """Return the arguments of a call of a function in full (see `Node.normalized_arguments`).

    Names are those that `target` takes: an operator overload calls its first argument ``self`` where the function of
    the same name calls it ``input``.

    Args:
        target: A function of torch, an operator, or any function with a signature.
        args: Positional arguments; nodes stand for values that are not known.
        kwargs: Keyword arguments.
        arg_types: Types of the positional arguments, which choose between overloads.
        kwarg_types: Types of the keyword arguments.
        normalize_to_only_use_kwargs: Whether all arguments come by keyword.

    Returns:
        None when the parameters are not known, do not fit, or some can be given by position or stars alone.

    Raises:
        GraphError: Several overloads match, and would give the arguments different meanings.
    """
    hints = CallTypes(tuple(arg_types or ()), kwarg_types)
    return _normalize(target, args, dict(kwargs or {}), hints, only_keywords=normalize_to_only_use_kwargs)


def normalize_module(
    root: nn.Module,
    target: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
) -> ArgsKwargsPair | None:
    """Return the arguments of a call of the submodule at the path `target` in full (see `normalize_function`).

    Raises:
        GraphError: The root has no such submodule.
    """
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise GraphError(
            f"Cannot normalize a call of {target!r}: {error}. Pass the module that the path refers to."
        ) from error
    return _normalize_python(
        module.forward, args, dict(kwargs or {}), only_keywords=normalize_to_only_use_kwargs
    )


def _rule(node: Node, module: Any, hints: CallTypes, only_keywords: bool) -> ArgsKwargsPair | None:  # noqa: FBT001
    if node.op == "call_module":
        function = getattr(module, "forward", module)
        return _normalize_python(function, node.args, node.kwargs, only_keywords=only_keywords)
    return _normalize(node.target, node.args, node.kwargs, hints, only_keywords=only_keywords)


def _normalize(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], hints: CallTypes, *, only_keywords: bool
) -> ArgsKwargsPair | None:
    schemas = _schemas_of(target)
    if schemas is None:
        return _normalize_python(target, args, kwargs, only_keywords=only_keywords)
    named = not isinstance(target, (OpOverload, OpOverloadPacket))
    if named:
        kwargs = _without_aliases(kwargs, schemas)
        moved = in_new_order(str(operator_name(target)), args, kwargs)
        if moved is not None:
            args, kwargs = moved
            hints = CallTypes((), {})  # They stand in the old order; the new one leaves no choice.
    found: list[_Match] = []
    for lenient in (False, True):
        for schema in schemas:
            bound = _bind(schema, args, kwargs, named=named)
            if bound is not None and _fits(schema, bound, hints, named=named, lenient=lenient):
                pair = _in_full(schema, bound, 0 if only_keywords else len(args), named=named)
                found.append(_Match(schema, bound, pair))
        if found:
            break
    return _choose(target, found, hints) if found else None


def normalize_operator(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the arguments of a call of an ATen operator on tensors by the names of its schema, defaults filled in.

    Args:
        name: Without library and overload.
        args: Positional arguments; nodes stand for values that are not known.
        kwargs: Keyword arguments; ``input`` stands for ``self``.

    Returns:
        None when there is no such operator, the arguments fit no overload, or several that call them otherwise.
    """
    schemas = _named_schemas(name) or ()
    given = {"self" if key == "input" else key: value for key, value in kwargs.items()}
    for lenient in (False, True):
        found: list[_Match] = []
        for schema in schemas:
            own = dict(kwargs) if any(part.name == "input" for part in schema.arguments) else given
            bound = _bind(schema, args, own, named=False)
            if bound is not None and all(
                _accepts(kind, value, lenient=lenient) for kind, value in bound.values()
            ):
                found.append(_Match(schema, bound, _in_full(schema, bound, 0, named=False)))
        if found:
            names = {tuple(match.bound) for match in found}
            return found[0].pair.kwargs if len(names) == 1 else None
    return None


ADDING = frozenset({"add", "sub"})
"""Operators that took the factor of the second argument before that argument."""
ADDING_PRODUCTS = frozenset({"addbmm", "addmm", "addmv", "addr", "baddbmm", "sspaddmm"})
"""Operators that took factors before what they belong to."""
_WITH_VALUE = frozenset({"addcdiv", "addcmul"})


def in_new_order(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call that has the order which torch deprecates, in the order that it has now.

    ``torch.add(x, 2, y)`` is ``torch.add(x, y, alpha=2)``, and ``torch.addmm(2, x, a, b)`` is
    ``torch.addmm(x, a, b, beta=2)``.

    Args:
        name: Of the operator, with the underscore of its form in place.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        None when the call has the order of today.
    """
    plain, named = name.rstrip("_"), dict(kwargs)
    if len(args) == 3 and plain in ADDING and "alpha" not in named:
        return (args[0], args[2]), {"alpha": args[1], **named}
    if len(args) == 4 and plain in _WITH_VALUE and "value" not in named:
        return (args[0], args[2], args[3]), {"value": args[1], **named}
    if plain in ADDING_PRODUCTS and name == plain and len(args) == 5 and not named.keys() & {"alpha", "beta"}:
        return (args[1], args[3], args[4]), {"beta": args[0], "alpha": args[2], **named}
    if (
        plain in ADDING_PRODUCTS
        and name == plain
        and len(args) == 4
        and isinstance(args[0], (int, float, complex))
    ):
        return args[1:], {"beta": args[0], **named}
    return None


def _choose(target: Any, found: list[_Match], hints: CallTypes) -> ArgsKwargsPair:
    """Return the first match: overloads that give the arguments the same names differ in what they fill in at most."""
    first = found[0]
    for other in () if hints else found[1:]:
        if list(other.bound) != list(first.bound):
            raise GraphError(
                f"Cannot normalize the arguments of {qualified_name(target)}: they fit both {first.schema} and "
                f"{other.schema}. Pass the types of the arguments."
            )
    return first.pair


def _normalize_python(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, only_keywords: bool
) -> ArgsKwargsPair | None:
    dispatched = BOOLEAN_DISPATCHED.get(function) if getattr(type(function), "__hash__", None) else None
    try:
        if dispatched is None:
            signature = inspect.signature(function)
        else:
            signature = inspect.signature(dispatched["if_true"])
            if signature.parameters != inspect.signature(dispatched["if_false"]).parameters:
                return None
    except (TypeError, ValueError):  # Builtins without a text signature.
        return None
    return bind_arguments(signature, args, kwargs, only_keywords=only_keywords)


# -- operators


def _schemas_of(target: Any) -> tuple[Any, ...] | None:
    """Return the schemas of what an operator or a builtin function of torch may stand for, None for any other."""
    if isinstance(target, OpOverload):
        return (schema_of(target),)
    if isinstance(target, OpOverloadPacket):
        # The plain form first: where several fit, it says what is filled in.
        names = sorted(target.overloads(), key=lambda name: name != "default")
        return tuple([schema_of(getattr(target, name)) for name in names])
    if not isinstance(target, types.BuiltinFunctionType):
        return None
    name = operator_name(target)
    return _named_schemas(name) if name is not None else None


@functools.cache
def _named_schemas(name: str) -> tuple[Any, ...] | None:
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    # TorchScript has forms for its own lists, strings and dicts beside those for tensors.
    return tuple(
        [
            schema
            for schema in _schemas_of(packet) or ()
            if any("Tensor" in str(part.type) for part in (*schema.arguments, *schema.returns))
        ]
    )


def _bind(
    schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, named: bool
) -> dict[str, tuple[Any, Any]] | None:
    """Return (type, value) for each argument that is given, by the name of its parameter; None when they do not fit.

    Args:
        schema: Of an operator. Names of its parameters need not be such of Python: some are called ``from``.
        args: Positional arguments.
        kwargs: Keyword arguments.
        named: Whether names are those of the function, which says ``input`` for ``self``.
    """
    bound: dict[str, tuple[Any, Any]] = {}
    rest = dict(kwargs)
    for position, argument in enumerate(schema.arguments):
        name = _name(argument, named=named)
        if position < len(args):
            if argument.kwarg_only or name in rest:
                return None
            bound[name] = argument.type, args[position]
        elif name in rest:
            bound[name] = argument.type, rest.pop(name)
        elif not argument.has_default_value():
            return None
    return None if rest or len(args) > len(schema.arguments) else bound


def _name(argument: Any, *, named: bool) -> str:
    return "input" if named and argument.name == "self" else argument.name


def _in_full(schema: Any, bound: dict[str, tuple[Any, Any]], kept: int, *, named: bool) -> ArgsKwargsPair:
    values = {
        name: bound[name][1] if name in bound else argument.default_value
        for argument in schema.arguments
        for name in (_name(argument, named=named),)
    }
    items = list(values.items())
    return ArgsKwargsPair(tuple([value for _, value in items[:kept]]), dict(items[kept:]))


def without_aliases(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of a function of torch by the names of its operator; NumPy's are taken, too.

    Args:
        name: Of the operator.
        kwargs: Keyword arguments.
    """
    return _without_aliases(dict(kwargs), _named_schemas(name) or ())


def _without_aliases(kwargs: dict[str, Any], schemas: Iterable[Any]) -> dict[str, Any]:
    known = {argument.name for schema in schemas for argument in schema.arguments} | {"input"}
    names = {alias: name for name, alias in _ALIASES.items() if alias not in known}
    return {names.get(name, name): value for name, value in kwargs.items()}


def _fits(
    schema: Any, bound: dict[str, tuple[Any, Any]], hints: CallTypes, *, named: bool, lenient: bool
) -> bool:
    """Return whether a call with these values and types may reach the overload."""
    if not all(_accepts(kind, value, lenient=lenient) for kind, value in bound.values()):
        return False
    names = [_name(argument, named=named) for argument in schema.arguments]
    given = {**dict(zip(names, hints.args, strict=False)), **(hints.kwargs or {})}
    kinds = {_name(argument, named=named): argument.type for argument in schema.arguments}
    return all(name in kinds and _accepts_type(kinds[name], hint) for name, hint in given.items())


def _accepts(kind: Any, value: Any, *, lenient: bool) -> bool:
    """Return whether a parameter of a schema's type takes a value; what a node stands for is not known."""
    if isinstance(value, Node):
        return True
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _accepts(kind.getElementType(), value, lenient=lenient)
    if name == "ListType":
        element = kind.getElementType()
        if isinstance(value, (list, tuple)):
            values = cast("Iterable[Any]", value)
            return all(_accepts(element, part, lenient=lenient) for part in values)
        return element.kind() in {"IntType", "FloatType"} and _accepts(element, value, lenient=lenient)
    if name == "TensorType":
        return isinstance(value, torch.Tensor) or (lenient and isinstance(value, (int, float, complex)))
    expected = _VALUES.get(name)
    return expected is None or isinstance(value, expected)


_VALUES: dict[str, Any] = {
    "NumberType": (int, float, complex),
    "FloatType": (int, float),
    "ComplexType": (int, float, complex),
    "IntType": (int, torch.SymInt, *_CODED_AS_INT),
    "SymIntType": (int, torch.SymInt),
    "BoolType": (bool, torch.SymBool),
    "StringType": str,
    "DeviceObjType": (str, int, torch.device),
    "GeneratorType": torch.Generator,
}
"""What Python values parameters of a schema's type take; a type that is missing takes any."""


def _accepts_type(kind: Any, annotation: Any) -> bool:
    """Return whether a parameter of a schema's type takes values of a Python type."""
    name = kind.kind()
    if annotation is Any or annotation is inspect.Parameter.empty:
        return True
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {typing.Union, types.UnionType}:
        return all(_accepts_type(kind, part) for part in parts)
    if name == "OptionalType":
        return annotation in {None, type(None)} or _accepts_type(kind.getElementType(), annotation)
    if name == "ListType":
        element = kind.getElementType()
        if origin in {list, tuple}:
            return all(part in {..., ()} or _accepts_type(element, part) for part in parts)
        if isinstance(annotation, type) and issubclass(annotation, (list, tuple)):
            return True
        return element.kind() in {"IntType", "FloatType"} and _accepts_type(element, annotation)
    if not isinstance(annotation, type):
        return False
    expected = torch.Tensor if name == "TensorType" else _VALUES.get(name)
    return expected is None or issubclass(annotation, expected)


normalization.register_rule(_rule)
