"""What a compiled program returns: a pattern of results, filled at each call, and kept in files as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Slot", "fill_results", "read_results", "results_data"]


@dataclass(frozen=True)
class Slot:
    """Stands for a result of an engine in what a program returns."""

    number: int


def fill_results(results: Any, made: Sequence[Any]) -> Any:
    """Return what a program returns, with what an engine computed in the places of slots.

    Args:
        results: Slots and plain values in tuples, lists and dicts.
        made: The results of the engine by their numbers.
    """
    if isinstance(results, Slot):
        return made[results.number]
    if isinstance(results, (tuple, list)):
        items = cast("Sequence[Any]", results)
        parts = [fill_results(part, made) for part in items]
        kind: Any = type(items)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if isinstance(results, dict):
        return {name: fill_results(part, made) for name, part in cast("dict[Any, Any]", results).items()}
    return results


def results_data(results: Any) -> Any:
    """Return a pattern of results as JSON has it; `read_results` reads it.

    Raises:
        TypeError: It holds something that cannot be written down.
    """
    kind = type(results)
    if kind is Slot:
        return {"slot": results.number}
    if kind in {tuple, list}:
        return {kind.__name__: list(map(results_data, results))}
    if issubclass(kind, tuple) and kind.__module__ == "torch.return_types":
        return {"return_type": [kind.__name__, *map(results_data, results)]}
    if kind is dict and all(type(key) is str for key in results):
        return {"dict": [[key, results_data(part)] for key, part in results.items()]}
    if results is None or kind in {bool, int, float, str}:
        return {"value": results}
    raise TypeError(f"a {kind.__name__} cannot be written down")


def read_results(data: Any, count: int) -> Any:
    """Return the pattern that `results_data` wrote. Nothing of it is executed.

    Args:
        data: From a file.
        count: How many results the engine has.

    Raises:
        ValueError: It is something else.
        TypeError: As above.
        LookupError: As above.
        AttributeError: As above.
    """
    ((kind, content),) = cast("dict[str, Any]", data).items()
    if kind == "slot":
        if type(content) is not int or not 0 <= content < count:
            raise ValueError("there is no such result")
        return Slot(content)
    if kind == "dict":
        return {key: read_results(part, count) for key, part in content}
    if kind in {"tuple", "list"}:
        parts = [read_results(part, count) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "return_type":
        made: Any = vars(torch.return_types).get(content[0])
        if not isinstance(made, type):
            raise ValueError("there is no such named tuple")
        return cast("Any", made)([read_results(part, count) for part in content[1:]])
    if kind != "value":
        raise ValueError(f"{kind!r} is nothing that is written down")
    return content
