"""Arrays of NumPy that a program holds, and tensors that have their memory: what is done to one, the other has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.kinds import held_value
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from torch import nn

    from fxplug.ir import Graph, Node

__all__ = ["shared_memory_refusal"]


def shared_memory_refusal(
    graph: Graph, root: nn.Module, arrays: Iterable[Any], changed: Container[int], written: Container[Node]
) -> TraceError | None:
    """Return the refusal of a program that changes memory which an array and a tensor have in common; None for others.

    The graph has no place for what is done to an array, and what a program reads of one is a constant.

    Args:
        graph: What was recorded.
        root: What its paths refer to.
        arrays: Those that the program holds.
        changed: The ids of those that it has changed.
        written: The nodes whose memory the graph writes to.
    """
    places = [(_bounds_of(array), array) for array in arrays]
    for node in graph.find_nodes(op="get_attr", sort=False) if places else ():
        value = held_value(node, root)
        found = _bounds(value if value is not None else graph.lifted.get(str(node.target)))
        for bounds, array in places:
            is_shared = found is not None and bounds[0] < found[1] and found[0] < bounds[1]
            if is_shared and (id(array) in changed or node in written):
                return TraceError(
                    f"Cannot trace: the program changes an array of NumPy of shape {array.shape} that has the memory "
                    f"of the tensor {str(node.target)!r}, or that tensor, and the graph has no place for the array. "
                    "Make a copy of one of them (torch.tensor), or keep what changes in a buffer alone.",
                    code="FXP-T055",
                )
    return None


def _bounds(tensor: Any) -> tuple[int, int] | None:
    """Return where the memory of a tensor begins and ends, None where it is none that NumPy could have."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    try:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
    except RuntimeError:  # It has no data.
        return None
    return start, start + storage.nbytes()


def _bounds_of(array: Any) -> tuple[int, int]:
    start = end = int(array.__array_interface__["data"][0])
    for count, step in zip(array.shape, array.strides, strict=True):
        distance = (count - 1) * step if count else 0
        start, end = start + min(distance, 0), end + max(distance, 0)
    return start, end + (array.itemsize if array.size else 0)
