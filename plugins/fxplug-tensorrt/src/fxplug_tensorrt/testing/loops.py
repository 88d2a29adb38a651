"""Loops of a network, computed step by step. Part of the test tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Compute = Callable[[Any, dict[str, torch.Tensor]], None]

__all__ = ["Loop", "find_loops", "kind_of", "made_by", "taken_by"]

_KINDS = {
    "RECURRENCE": "IRecurrenceLayer",
    "ITERATOR": "IIteratorLayer",
    "TRIP_LIMIT": "ITripLimitLayer",
    "LOOP_OUTPUT": "ILoopOutputLayer",
}


def kind_of(trt: Any, layer: Any) -> str:
    """Return the kind of a layer, also once it was given the class of its kind, which may have a type of its own."""
    return trt.ILayer.type.__get__(layer).name


def taken_by(layer: Any) -> list[str]:
    """Return the names of the tensors that a layer takes."""
    found = [layer.get_input(number) for number in range(layer.num_inputs)]
    return [tensor.name for tensor in found if tensor is not None]


def made_by(layer: Any) -> list[str]:
    """Return the names of the tensors that a layer computes."""
    return [layer.get_output(number).name for number in range(layer.num_outputs)]


def find_loops(trt: Any, layers: Sequence[Any]) -> list[Loop]:
    """Return the loops of a network.

    Args:
        trt: The package of TensorRT.
        layers: All layers of the network.
    """
    found: dict[str, list[Any]] = {}
    for layer in layers:
        if (kind := kind_of(trt, layer)) in _KINDS:
            layer.__class__ = getattr(trt, _KINDS[kind])
            found.setdefault(layer.loop.name, []).append(layer)
    return [Loop(trt, edge, layers) for edge in found.values()]


class Loop:
    """A loop: the layers of its edge, and those in its body, which depend on what differs from step to step.

    Args:
        trt: The package of TensorRT.
        edge: What TensorRT calls the boundary of the loop.
        layers: All layers of the network, those of the edge among them.
    """

    def __init__(self, trt: Any, edge: Sequence[Any], layers: Sequence[Any]) -> None:
        self.name = edge[0].loop.name
        self._edge = {kind: [layer for layer in edge if kind_of(trt, layer) == kind] for kind in _KINDS}
        varying = {
            name
            for kind in ("RECURRENCE", "ITERATOR")
            for layer in self._edge[kind]
            for name in made_by(layer)
        }
        names = {layer.name for layer in edge}
        self._body: list[Any] = []
        waiting = [layer for layer in layers if layer.name not in names]
        while found := [layer for layer in waiting if varying.intersection(taken_by(layer))]:
            self._body += found
            varying.update(name for layer in found for name in made_by(layer))
            waiting = [layer for layer in waiting if layer not in found]
        self.members = names | {layer.name for layer in self._body}
        """The names of its layers."""
        self.needs = {name for layer in [*edge, *self._body] for name in taken_by(layer)} - varying
        """The tensors that have to be known before."""

    def compute(self, known: dict[str, torch.Tensor], compute: Compute) -> None:
        """Add what the loop gives.

        Args:
            known: Name of a tensor -> its value; what the loop gives is added.
            compute: Computes a layer of the body, and adds what it makes.
        """
        (limit,) = self._edge["TRIP_LIMIT"]
        if limit.kind.name != "COUNT":
            raise NotImplementedError("it runs while a condition holds")
        count = int(known[limit.get_input(0).name])
        state = {layer.name: known[layer.get_input(0).name] for layer in self._edge["RECURRENCE"]}
        kept: dict[str, list[torch.Tensor]] = {layer.name: [] for layer in self._edge["LOOP_OUTPUT"]}
        for step in range(count):
            here = dict(known)
            for layer in self._edge["RECURRENCE"]:
                here[layer.get_output(0).name] = state[layer.name]
            for layer in self._edge["ITERATOR"]:
                place = count - 1 - step if layer.reverse else step
                here[layer.get_output(0).name] = known[layer.get_input(0).name].select(layer.axis, place)
            _in_order(self._body, here, compute)
            for layer in self._edge["RECURRENCE"]:
                state[layer.name] = here[layer.get_input(1).name]
            for layer in self._edge["LOOP_OUTPUT"]:
                kept[layer.name].append(here[layer.get_input(0).name])
        for layer in self._edge["LOOP_OUTPUT"]:
            known[layer.get_output(0).name] = self._given(layer, kept[layer.name], state)

    def _given(self, layer: Any, kept: list[torch.Tensor], state: dict[str, torch.Tensor]) -> torch.Tensor:
        if layer.kind.name == "LAST_VALUE":  # Of a recurrence, after the last step.
            (source,) = [entry for entry in self._edge["RECURRENCE"] if made_by(entry) == taken_by(layer)[:1]]
            return state[source.name]
        parts = kept[::-1] if layer.kind.name == "REVERSE" else kept
        return torch.stack(parts, layer.axis)


def _in_order(layers: Iterable[Any], known: dict[str, torch.Tensor], compute: Compute) -> None:
    waiting = list(layers)
    while waiting:
        ready = [layer for layer in waiting if all(name in known for name in taken_by(layer))]
        if not ready:
            raise AssertionError(f"layers wait for one another: {[layer.name for layer in waiting]}")
        for layer in ready:
            compute(layer, known)
        waiting = [layer for layer in waiting if layer not in ready]
