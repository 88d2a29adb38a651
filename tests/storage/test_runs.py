"""Weights are read many at a time where they are small; only those are copied out of what was read."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fxplug

_LARGE = (1 << 16) // 4 + 1
"""So many floats are just too large to be read with others."""


class _Copies(TorchDispatchMode):
    """Notes how many elements each copy of a tensor has."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.clone.default:
            self.sizes.append(result.numel())
        elif func is torch.ops.aten.split_with_sizes_copy.default:
            self.sizes += [part.numel() for part in result]
        return result


@pytest.mark.parametrize(
    ("sizes", "copied"),
    [
        ((3, _LARGE, 5), []),
        ((_LARGE, 3, 5), [3, 5]),
        ((3, 5, _LARGE, _LARGE), [3, 5]),
        ((_LARGE, 3, _LARGE, 5), []),
        ((_LARGE - 2, 3, _LARGE), [_LARGE - 2, 3]),
    ],
)
def test_large_weights_are_never_copied_and_small_ones_have_memory_of_their_own(sizes, copied, tmp_path):
    graph = fxplug.Graph()
    # All sizes are odd, so that they are written in this order.
    weights = {f"weight{place}": torch.full((size,), float(place)) for place, size in enumerate(sizes)}
    graph.output([graph.get_attr(name) for name in weights])
    fxplug.save(fxplug.GraphModule(weights, graph), tmp_path / "file.fxplug")

    with _Copies() as copies:
        loaded = fxplug.load(tmp_path / "file.fxplug")

    assert copies.sizes == copied
    for name, weight in weights.items():
        found = getattr(loaded, name)
        assert torch.equal(found, weight)
        assert found.untyped_storage().nbytes() == weight.numel() * 4
