"""How what a model takes and gives is arranged in the arguments and the result of the program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import torch

__all__ = ["Layout", "Slot"]

_VERSION = 1


@dataclass(frozen=True)
class Slot:
    """Stands for a result of the model."""

    number: int


@dataclass(frozen=True)
class Layout:
    """Inputs and results."""

    inputs: tuple[tuple[int, int | None], ...]
    """For each input of the model: position in the arguments, and in the tuple that is given there, if one is."""
    results: Any
    """What the program returns, with a `Slot` in the place of each tensor."""
    dtypes: tuple[torch.dtype, ...]
    """Of the results."""
    limit: int
    """How far from zero whole numbers may be that go in."""

    def written(self) -> bytes | None:
        """Return it on one line, None where the program returns what cannot be written down."""
        try:
            data = {
                "version": _VERSION,
                "inputs": self.inputs,
                "results": _data(self.results),
                "limit": self.limit,
                "dtypes": [str(dtype).removeprefix("torch.") for dtype in self.dtypes],
            }
            return json.dumps(data).encode("ascii")
        except (TypeError, ValueError):
            return None

    @classmethod
    def read(cls, line: bytes) -> Layout | None:
        """Return what `written` wrote, None for anything else."""
        try:
            data = json.loads(line)
            if data["version"] != _VERSION:
                return None
            dtypes = tuple(getattr(torch, name) for name in data["dtypes"])
            inputs = tuple((position, inner) for position, inner in data["inputs"])
            limit = data["limit"]
            results = _value(data["results"], len(dtypes))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            return None
        are_numbers = all(
            type(position) is int and type(inner) in {int, type(None)} for position, inner in inputs
        )
        if (
            not are_numbers
            or type(limit) is not int
            or not all(isinstance(dtype, torch.dtype) for dtype in dtypes)
        ):
            return None
        return cls(inputs, results, dtypes, limit)


def _data(value: Any) -> Any:
    """Return a result as JSON.

    Raises:
        TypeError: It holds something that cannot be written down.
    """
    kind = type(value)
    if kind is Slot:
        return {"slot": value.number}
    if kind in {tuple, list}:
        return {kind.__name__: list(map(_data, value))}
    if issubclass(kind, tuple) and kind.__module__ == "torch.return_types":
        return {"return_type": [kind.__name__, *map(_data, value)]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": [[key, _data(part)] for key, part in value.items()]}
    if value is None or kind in {bool, int, float, str}:
        return {"value": value}
    raise TypeError(f"a {kind.__name__} cannot be written down")


def _value(data: Any, results: int) -> Any:
    ((kind, content),) = cast("dict[str, Any]", data).items()
    if kind == "slot":
        if type(content) is not int or not 0 <= content < results:
            raise ValueError("there is no such result")
        return Slot(content)
    if kind == "dict":
        return {key: _value(part, results) for key, part in content}
    if kind in {"tuple", "list"}:
        parts = [_value(part, results) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "return_type":
        made: Any = vars(torch.return_types).get(content[0])
        if not isinstance(made, type):
            raise ValueError("there is no such named tuple")
        return made([_value(part, results) for part in content[1:]])
    if kind != "value":
        raise ValueError(f"{kind!r} is nothing that is written down")
    return content
