"""How what a model takes and gives is arranged in the arguments and the result of the program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from fxplug.lower import read_results, results_data

__all__ = ["Layout"]

_VERSION = 1


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
                "results": results_data(self.results),
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
            results = read_results(data["results"], len(dtypes))
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
