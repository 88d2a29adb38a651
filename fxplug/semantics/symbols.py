"""Sizes that are not fixed: named dimensions of inputs, and what a program computes from them."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import AnalysisError, InvalidArgumentError
from fxplug.semantics.internals import FakeTensorMode, NamedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.ir import Graph

__all__ = [
    "SymbolicSizes",
    "example_of",
    "expression_of",
    "is_asked_about",
    "is_symbolic",
    "lies_as",
    "size_text",
    "write_expression",
]

_INNER_FIRST = {torch.channels_last: (1, 3, 2, 0), torch.channels_last_3d: (1, 4, 3, 2, 0)}
"""Format -> the dimensions in the order of their strides, the smallest one first."""


class SymbolicSizes:
    """Tensors without data in which sizes that have a name stay open.

    One name stands for one size, wherever it is used. Sizes of 0 and 1 are not among those that it may have: what
    broadcasts does something else.

    Args:
        dynamic: Position or name of an input -> dimension -> the name of its size.
        names: The inputs, in order.
        inputs: What the program is called with.

    Raises:
        InvalidArgumentError: `dynamic` names an input, a dimension or a size that cannot be open.
    """

    def __init__(
        self, dynamic: Mapping[int | str, Mapping[int, str]], names: Sequence[str], inputs: Sequence[Any]
    ) -> None:
        shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
        self._kind = shapes.DimDynamic.DYNAMIC
        self.environment: Any = shapes.ShapeEnv(
            allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.environment)
        """The context in which calls of torch take the tensors."""
        self.sizes: dict[str, Any] = {}
        """Name -> the open size."""
        self.places: dict[str, tuple[int, int]] = {}
        """Name -> the input and the dimension that it is read from."""
        self._examples: dict[str, int] = {}
        self.dynamic = _by_position(dynamic, names, inputs)
        """Position of an input -> dimension -> the name of its size."""
        for position, dimensions in self.dynamic.items():
            for dimension, name in dimensions.items():
                self._add(name, position, dimension, inputs[position])

    def _add(self, name: str, position: int, dimension: int, tensor: torch.Tensor) -> None:
        size = tensor.shape[dimension]
        if size < 2:
            raise InvalidArgumentError(
                f"Cannot leave dimension {dimension} of input {position} open as {name!r}: its size is {size}, and "
                "what holds for 0 and 1 does not hold for others. Give an example in which it is at least 2."
            )
        if self._examples.setdefault(name, size) != size:
            raise InvalidArgumentError(
                f"Cannot leave {name!r} open: it stands for sizes {self._examples[name]} and {size} in the examples. "
                "Use two names, or examples in which they are equal."
            )
        if name not in self.sizes:
            source = NamedSource(name)
            symbol = self.environment.create_symbol(size, source, dynamic_dim=self._kind)
            self.sizes[name] = self.environment.create_symintnode(symbol, hint=size, source=source)
            self.places[name] = (position, dimension)

    def converted(self, position: int, value: Any) -> Any:
        """Return what stands for an input, or for a tensor inside it."""
        if not isinstance(value, torch.Tensor):
            return value
        names = self.dynamic.get(position)
        if not names:
            return self.mode.from_tensor(value, static_shapes=True)
        sizes = [self.sizes[names[at]] if at in names else size for at, size in enumerate(value.shape)]
        with self.mode:
            made = torch.empty_strided(
                sizes, _strides(value, sizes), dtype=value.dtype, device=value.device, layout=value.layout
            )
        return made.requires_grad_(value.requires_grad)

    def check_open(self, where: str = "the program") -> None:
        """Check that every named size is still open.

        Raises:
            AnalysisError: The program only works for one value of it, or for one that depends on another.
        """
        if not self.environment.replacements:
            return
        for name, size in self.sizes.items():
            expression = expression_of(size)
            own = expression.is_Symbol and self._name_of(expression) == name
            if not own:
                raise AnalysisError(
                    f"Cannot leave the size {name!r} open: {where} needs it to be {size_text(size)}. Leave it out of "
                    "dynamic, or change the program so that it takes any size."
                )

    def _name_of(self, symbol: Any) -> str | None:
        return next((source.name for source in self.environment.var_to_sources.get(symbol, ())), None)

    def predicates(self) -> list[Any]:
        """Return what has to hold for the open sizes, besides being 2 or more: comparisons of expressions."""
        expressions = dict.fromkeys(guard.expr for guard in self.environment.guards)
        return [expression for expression in expressions if expression.free_symbols]

    def text_of(self, expression: Any) -> str:
        """Return an expression for people."""
        return _text(expression, self.environment)

    def place_of(self, symbol: Any) -> tuple[int, int]:
        """Return the input and the dimension that a symbol of an expression is read from."""
        return self.places[str(self._name_of(symbol))]


def _by_position(
    dynamic: Mapping[int | str, Mapping[int, str]], names: Sequence[str], inputs: Sequence[Any]
) -> dict[int, dict[int, str]]:
    found: dict[int, dict[int, str]] = {}
    for key, dimensions in dynamic.items():
        if not isinstance(dimensions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"Cannot leave sizes of input {key!r} open: {dimensions!r} says not which. Map dimensions to names, as "
                'in {0: {0: "batch"}}.'
            )
        position = names.index(key) if isinstance(key, str) and key in names else key
        if not isinstance(position, int) or not 0 <= position < len(inputs):
            raise InvalidArgumentError(
                f"Cannot leave sizes of input {key!r} open: there is no such input. There are "
                f"{', '.join(map(repr, names[: len(inputs)])) or 'none'}, and their positions from 0 on."
            )
        tensor = inputs[position]
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"Cannot leave sizes of input {key!r} open: it is a {type(tensor).__name__}, and only tensors have "
                "sizes."
            )
        found[position] = {
            _dimension(dimension, tensor, key): _checked_name(name) for dimension, name in dimensions.items()
        }
    return found


def _dimension(dimension: Any, tensor: torch.Tensor, key: int | str) -> int:
    rank = tensor.dim()
    if not isinstance(dimension, int) or not -rank <= dimension < rank:
        raise InvalidArgumentError(
            f"Cannot leave dimension {dimension!r} of input {key!r} open: it has {rank} dimensions."
        )
    return dimension % rank


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgumentError(
            f"Cannot call a size {name!r}: use a name, as for a variable, such as 'batch'."
        )
    return name


def _strides(tensor: torch.Tensor, sizes: Sequence[Any]) -> list[Any]:
    """Return the strides of a tensor of other sizes whose dimensions lie in memory as those of `tensor` do.

    Raises:
        InvalidArgumentError: There are gaps, or elements that share memory.
    """
    inner = sorted(range(tensor.dim()), key=lambda at: (tensor.stride(at), -at))
    strides: list[Any] = [0] * tensor.dim()
    step: Any = 1
    expected = 1
    for at in inner:
        if tensor.shape[at] != 1 and tensor.stride(at) != expected:
            raise InvalidArgumentError(
                f"Cannot leave sizes of a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())} "
                "open: its elements do not lie side by side. Pass tensor.contiguous()."
            )
        strides[at] = step
        step, expected = step * sizes[at], expected * tensor.shape[at]
    return strides


def lies_as(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """Return whether the elements of a tensor lie in memory as a format says, whatever its open sizes are.

    Not every version of torch knows that of a tensor with open sizes which another one was computed from.
    """
    order = _INNER_FIRST.get(memory_format, tuple(reversed(range(tensor.dim()))))
    if len(order) != tensor.dim():
        return False
    if tensor.is_contiguous(memory_format=memory_format):
        return True
    sizes, strides = tensor.shape, tensor.stride()
    if not any(map(is_symbolic, (*sizes, *strides))):
        return False
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    step: Any = 1
    for at in order:
        size: Any = sizes[at]
        if (is_symbolic(size) or size != 1) and not shapes.statically_known_true(strides[at] == step):
            return False
        step = step * size
    return True


def is_symbolic(value: Any) -> bool:
    """Return whether a number is computed from open sizes."""
    return isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat))


def is_asked_about(size: Any) -> bool:
    """Return whether a program asked something of open sizes, and went on with the answer for the examples."""
    return any(guard.expr.free_symbols for guard in size.node.shape_env.guards)


def expression_of(value: Any) -> Any:
    """Return the expression of a number that is computed from open sizes."""
    return value.node.expr


def example_of(size: Any) -> Any:
    """Return what a number is for the examples, where it may be computed from open sizes."""
    return size.node.hint if is_symbolic(size) else size


def size_text(value: Any) -> str:
    """Return a size for people, with open sizes by their names: ``"batch*4"``."""
    if not is_symbolic(value):
        return str(value)
    return _text(expression_of(value), value.node.shape_env)


def _text(expression: Any, environment: Any) -> str:
    symbol_type: Any = importlib.import_module("sympy").Symbol
    sources: Any = environment.var_to_sources
    names = {
        symbol: symbol_type(sources[symbol][0].name)
        for symbol in expression.free_symbols
        if sources.get(symbol)
    }
    return str(expression.xreplace(names))


def write_expression(expression: Any, graph: Graph, leaf: Callable[[Any], Any], known: dict[Any, Any]) -> Any:
    """Write what computes an expression into a graph.

    Args:
        expression: Of open sizes.
        graph: Gets the calls.
        leaf: Returns the node of an open size.
        known: Expression -> node, of what was written already; gets what is written now.

    Returns:
        A node, or a plain number.

    Raises:
        AnalysisError: It has a part that cannot be written.
    """
    if expression in known:
        return known[expression]
    name = type(expression).__name__
    if expression.is_Symbol:
        made = leaf(expression)
    elif expression.is_Integer:
        return int(expression)
    elif expression.is_Boolean and not expression.args:
        return bool(expression)
    elif expression.is_Float or expression.is_Rational:
        return float(expression)
    elif name in _OPERATORS:
        parts = [write_expression(part, graph, leaf, known) for part in expression.args]
        made = parts[0]
        if len(parts) == 1:
            made = graph.call_function(_OPERATORS[name], (made,))
        for part in parts[1:]:
            made = graph.call_function(_OPERATORS[name], (made, part))
    else:
        raise AnalysisError(
            f"Cannot write the size {expression} into a graph: there is no call for {name}. Leave the sizes that it "
            "depends on out of dynamic."
        )
    known[expression] = made
    return made


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "ToFloat": torch.sym_float,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": operator.not_,
}
"""The class of an expression -> what computes it from its parts, two at a time."""
