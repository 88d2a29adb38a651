"""Expressing calls by simpler ones, with what plugins know of them, or a whole program by operators of ATen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import forked_random_state
from fxplug.api.capturing import as_args
from fxplug.errors import InvalidArgumentError, did_you_mean
from fxplug.execute import GraphModule
from fxplug.plugins import PluginManager, default_manager
from fxplug.rewrite import DecompositionRecord, aten_decompositions, core_decompositions, decompose_to_aten
from fxplug.rewrite import decompose as decompose_graph
from fxplug.semantics.internals import OpOverload

if TYPE_CHECKING:
    import torch

__all__ = ["decompose"]

TARGETS = ("aten", "core-aten")
"""What a program can be decomposed to."""


def decompose(
    module: GraphModule,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    to: str | None = None,
    table: Mapping[Any, Callable[..., Any]] | None = None,
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
    decompositions: Iterable[DecompositionRecord] | None = None,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Return a module in which calls are expressed by simpler ones, as decompositions say, or by operators of ATen.

    Each decomposition is a Python function with the parameters of the call that it stands for. It is run with
    proxies; what it calls takes the place of the call, keeps its region and its origins, and is looked at again.
    Graph modules inside the module are left as they are, unless `to` is given.

    With `to`, the program then runs on tensors without data, and the operators that are heard are the result: calls of
    ``torch.ops.aten`` overloads, ``getitem``, and reads of the parameters and buffers, under the names that they have.
    Writes in place become new values; inputs, parameters and buffers that are written to get theirs at the end
    (``copy_``). Casts of autocast are in the graph, regions without gradients are kept. The result is for inputs of the
    sizes, dtypes and plain values of the examples; a guard refuses others. Inside ``torch.no_grad()``, a result for
    inference is made, which computes no gradients.

    Args:
        module: Not changed. Parameters and submodules are shared with the result.
        example_inputs: Positional inputs of one call, as a tuple or list, or a single tensor; needed with `to`.
        to: ``"aten"`` for the operators that eager runs, ``"core-aten"`` for those of the core set only, as far as
            there are decompositions.
        table: Operator overload -> a function that computes the same by others, as torch's tables of decompositions
            are. Asked first with ``"core-aten"``.
        dynamic: Position or name of an input -> dimension -> a name. Sizes with a name are not fixed to those of the
            examples; one name stands for one size.
        decompositions: What is expressed how; by default what fxplug and the plugins say (the hook
            ``fxplug_register_decompositions``), where plugins come first. With `to`, they come before it.
        manager: Supplies decompositions; by default the installed plugins.

    Returns:
        A new module. It computes the same, up to rounding, as far as the decompositions do.

    Raises:
        InvalidArgumentError: `module` is no graph module, `decompositions` holds something else than records, or
            arguments do not go together.
        DecompositionError: A decomposition fails, or leads back to itself; or the program cannot be expressed by
            operators of ATen, for example because it asks for values, or would have values of other sizes or dtypes
            then (FXP-R002). The message names the node and its line.

    Example:
        ::

            simpler = fxplug.decompose(fxplug.symbolic_trace(model))
            operators = fxplug.decompose(fxplug.symbolic_trace(model), (images,), to="core-aten")
    """
    if not isinstance(module, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"Cannot decompose a {type(module).__module__}.{type(module).__qualname__}: pass a fxplug.GraphModule, "
            "such as fxplug.symbolic_trace(...) returns."
        )
    _check_arguments(to, example_inputs, table, dynamic)
    if decompositions is None:
        decompositions = (default_manager() if manager is None else manager).decompositions()
    else:
        decompositions = _checked(decompositions)
    simpler = decompose_graph(module, decompositions)
    if to is None:
        return simpler
    core = to == "core-aten"
    known = core_decompositions() if core else aten_decompositions()
    with forked_random_state():  # A program may seed, and its hooks draw, also where nothing is computed.
        return decompose_to_aten(
            simpler, as_args(example_inputs), {**known, **(table or {})}, core=core, dynamic=dynamic
        )


def _check_arguments(to: Any, example_inputs: Any, table: Any, dynamic: Any) -> None:
    """Check that arguments go together.

    Raises:
        InvalidArgumentError: They do not.
    """
    if to is not None and to not in TARGETS:
        raise InvalidArgumentError(
            f"Cannot decompose to {to!r}: the targets are {', '.join(map(repr, TARGETS))}. "
            f"{did_you_mean(str(to), TARGETS)}".rstrip()
        )
    given = {"example_inputs": example_inputs, "table": table, "dynamic": dynamic}
    without = [name for name, value in given.items() if value is not None]
    if to is None and without:
        raise InvalidArgumentError(
            f"Cannot decompose with {' and '.join(without)} alone: say what to decompose to, to='aten' or "
            "to='core-aten'."
        )
    for operator, function in (table or {}).items():
        if not isinstance(operator, OpOverload) or not callable(function):
            raise InvalidArgumentError(
                f"Cannot decompose by the table entry {operator!r}: {function!r}. A table has overloads of operators, "
                "such as torch.ops.aten.silu.default, and functions for them."
            )


def _checked(decompositions: Any) -> list[DecompositionRecord]:
    """Return decompositions as a list.

    Raises:
        InvalidArgumentError: There is something else among them.
    """
    records: list[Any] = list(decompositions) if isinstance(decompositions, Iterable) else [decompositions]
    for record in records:
        if not isinstance(record, DecompositionRecord):
            raise InvalidArgumentError(
                f"Cannot decompose by {record!r}: decompositions holds records only, such as "
                f"fxplug.DecompositionRecord(target, function)."
            )
    return records
