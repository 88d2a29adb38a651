"""Functions whose parameters and result are nested structures, around graphs whose inputs and outputs are flat."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter as PythonParameter
from typing import TYPE_CHECKING, Any, cast

from fxplug.codegen.generator import CodeGen
from fxplug.errors import CodegenError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fxplug.ir import Argument

__all__ = ["PyTreeCodeGen", "TreeParameter"]


@dataclass(frozen=True)
class TreeParameter:
    """One parameter of the function."""

    name: str
    """Without stars."""
    stars: str = ""
    """``""``, ``"*"`` or ``"**"``."""
    leaves: int | None = None
    """How many inputs of the graph a nested value is taken apart into; None: the value itself is one input."""
    default: Any = PythonParameter.empty
    """``inspect.Parameter.empty`` where there is none."""
    keyword_only: bool = False
    """Whether callers must name it."""

    @property
    def inputs(self) -> int:
        """How many inputs of the graph the parameter stands for."""
        return 1 if self.leaves is None else self.leaves


class PyTreeCodeGen(CodeGen):
    """Generates a function that takes nested parameters apart, and puts its result together.

    What structures there are is not known here: the two functions that are handed over know it. They are kept when the
    graph is copied or pickled, so they have to be picklable for the latter.

    Args:
        parameters: Of the function, in order. The inputs of the graph are in the same order.
        flatten: Called with the values of the nested parameters, returns the inputs that they consist of.
        unflatten: Called with the output of the graph, returns the result of the function.
    """

    def __init__(
        self,
        parameters: Iterable[TreeParameter],
        flatten: Callable[[tuple[Any, ...]], Sequence[Any]],
        unflatten: Callable[[Any], Any] | None = None,
    ) -> None:
        self.parameters = tuple(parameters)
        self.flatten = flatten
        self.unflatten = unflatten
        names = {parameter.name for parameter in self.parameters}
        self._flatten_name = _unlike("_fxp_flatten_inputs", names)
        self._unflatten_name = _unlike("_fxp_unflatten_output", names)

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the ``def`` with the nested parameters, and the statement that takes them apart."""
        inputs = [text for text in free_vars if text != "*"]
        self._check_inputs(inputs)
        given = iter(inputs)
        head: list[str] = []
        parts: list[str] = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in {text[:1] for text in head}:
                head.append("*")
            if parameter.leaves is None:
                head.append(next(given))
            else:
                head.append(self._nested_text(parameter))
                parts += [_bare_name(next(given)) for _ in range(parameter.leaves)]
        text = super().gen_fn_def(head, maybe_return_annotation, expanded_def=expanded_def)
        nested = [parameter.name for parameter in self.parameters if parameter.leaves is not None]
        if not nested:
            return text  # The result alone is put together.
        values = "".join(f"{name}, " for name in nested).rstrip()
        # Without any leaf the structure is checked all the same.
        target = f"{', '.join(parts)}, = " if parts else ""
        return f"{text}\n    {target}{self._flatten_name}(({values}));  {' = '.join(nested)} = None"

    def _check_inputs(self, inputs: list[str]) -> None:
        expected = sum(parameter.inputs for parameter in self.parameters)
        if len(inputs) != expected or any(parameter.name == "self" for parameter in self.parameters):
            raise CodegenError(
                f"Cannot generate code: the nested parameters of the function stand for {expected} inputs and none may "
                f"be named 'self', and the graph has the {len(inputs)} inputs {[*map(_bare_name, inputs)]}. Give "
                "the function those inputs themselves as parameters: graph.set_codegen(fxplug.CodeGen())."
            )

    def _nested_text(self, parameter: TreeParameter) -> str:
        text = parameter.stars + parameter.name
        return text if parameter.default is PythonParameter.empty else f"{text} = {_default_name(parameter)}"

    def generate_output(
        self,
        output_args: Argument,
        *,
        descs: Sequence[str] | None = None,
        repr_fn: Callable[[object], str] | None = None,
    ) -> str:
        """Return the statement that puts the result together and returns it."""
        if self.unflatten is None:
            return super().generate_output(output_args, descs=descs, repr_fn=repr_fn)
        return f"return {self._unflatten_name}({(repr_fn or repr)(output_args)})"

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return the two functions, and the defaults of nested parameters."""
        found: list[tuple[str, Any]] = [(self._flatten_name, self.flatten)]
        if self.unflatten is not None:
            found.append((self._unflatten_name, self.unflatten))
        return found + [
            (_default_name(parameter), parameter.default)
            for parameter in self.parameters
            if parameter.leaves is not None and parameter.default is not PythonParameter.empty
        ]

    def local_names(self) -> Iterable[str]:
        """Return the names of the nested parameters."""
        return [parameter.name for parameter in self.parameters]

    def process_inputs(self, *args: Any) -> Any:
        """Return the inputs of the graph for one value for each parameter, in order; defaults may be left out.

        Raises:
            GraphError: There are too few or too many, or a nested one has another structure.
        """
        values = self._values(list(args))
        nested = [value for parameter, value in values if parameter.leaves is not None]
        leaves = iter(self.flatten(tuple(nested)))
        found: list[Any] = []
        for parameter, value in values:
            if parameter.leaves is not None:
                found += [next(leaves) for _ in range(parameter.leaves)]
            elif parameter.stars == "*":
                found += cast("list[Any]", value)
            else:
                found.append(value)
        return tuple(found)

    def _values(self, given: list[Any]) -> list[tuple[TreeParameter, Any]]:
        values: list[tuple[TreeParameter, Any]] = []
        for parameter in self.parameters:
            if parameter.stars == "*":
                values.append((parameter, tuple(given)))
                given = []
            elif given:
                values.append((parameter, given.pop(0)))
            elif parameter.stars == "**" or parameter.default is not PythonParameter.empty:
                values.append((parameter, {} if parameter.stars else parameter.default))
            else:
                raise GraphError(
                    f"Cannot run the graph: no value was given for the parameter {parameter.name!r}, which has no "
                    "default."
                )
        if given:
            raise GraphError(
                f"Cannot run the graph: {len(given)} values too many were given for the parameters "
                f"{[parameter.name for parameter in self.parameters]}. Pass one value for each."
            )
        return values

    def process_outputs(self, outputs: Any) -> Any:
        """Return the result of the function for the output of the graph."""
        return outputs if self.unflatten is None else self.unflatten(outputs)


def _bare_name(text: str) -> str:
    """Return the name of a parameter that is written as in a signature."""
    return text.lstrip("*").partition(" ")[0]


def _unlike(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _default_name(parameter: TreeParameter) -> str:
    return f"_fxp_default_{parameter.name}"
