"""Putting int8 layers in the place of float ones, as a plan says and with the ranges that were observed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fxplug.ir import Node, map_arg
from fxplug_quant.calls import COMBINING, TABLES, TRANSPOSED, WEIGHTED
from fxplug_quant.edges import (
    AsIntegers,
    AsQuantized,
    Dequantize,
    Int8Add,
    Int8Cat,
    Int8Mul,
    Quantize,
    ReluOfSteps,
)
from fxplug_quant.engine import Geometry
from fxplug_quant.errors import QuantizationError
from fxplug_quant.function_layers import drop_unread_attributes
from fxplug_quant.int4 import WeightInt4Linear
from fxplug_quant.linear import DynamicInt8Linear, WeightInt8Linear, state_of
from fxplug_quant.paths import Kept, free_path
from fxplug_quant.static_layers import Int8Conv, Int8ConvTranspose, Int8Linear
from fxplug_quant.tables import Int8Embedding, Int8EmbeddingBag

if TYPE_CHECKING:
    from torch import nn

    from fxplug import GraphModule
    from fxplug_quant.affine import Affine
    from fxplug_quant.calibration import Prepared
    from fxplug_quant.flow import Fused

__all__ = ["convert", "expect_fresh"]


def convert(prepared: Prepared) -> GraphModule:
    """Return the quantized module: the one that was prepared, which is changed.

    Raises:
        QuantizationError: Calibration is missing, an observer saw nothing to choose a range from, or the module was
            converted already.
    """
    prepared.check()
    expect_fresh(prepared)
    _Converter(prepared).run()
    prepared.module.delete_all_unused_submodules()
    return prepared.module


def expect_fresh(prepared: Prepared) -> None:
    """Check that the prepared module has the nodes that it was prepared with.

    Raises:
        QuantizationError: It was converted, exported or edited since.
    """
    nodes = set(prepared.module.graph.nodes)
    if not nodes.issuperset(prepared.draft.flow.calls):
        raise QuantizationError(
            "Cannot quantize: the module was converted, exported or edited since it was prepared. Prepare the float "
            "model again; what calibration has seen can be kept with state_dict and load_state_dict.",
            code="FXP-Q005",
        )


class _Converter:
    """Converts one module: walks over its nodes in order, and writes those anew that compute with steps."""

    def __init__(self, prepared: Prepared) -> None:
        self._module, self._flow = prepared.module, prepared.draft.flow
        self._graph = self._module.graph
        self._config = prepared.plan.config
        levels = prepared.draft.levels
        self._ranges = {node: observer.affine(levels) for node, observer in prepared.observers.items()}
        modes = {name: entry.mode for name, entry in prepared.plan.calls().items()}
        self._others = {
            node: modes[node.name]
            for node, call in self._flow.calls.items()
            if call.kind in {*WEIGHTED, *TABLES}
            and modes.get(node.name) in {"dynamic-int8", "weight-int8", "weight-int4"}
        }
        self._by_tail = {fused.tail: fused for fused in self._flow.fused}
        self._states: dict[Any, Any] = {}
        self._steps: dict[Node, Node] = {}
        self._floats: dict[Node, Node] = {}
        self._put_paths: set[str] = set()
        self._old: list[Node] = []
        self._reads = [node for node in self._flow.calls if node.op == "get_attr" and node.users]
        self._fresh: dict[Node, Node] = {}
        layers = {fused.layer.node for fused in self._flow.fused}
        self._kept = Kept(self._module, layers | set(self._others))
        self._place = {node: index for index, node in enumerate(self._flow.calls)}
        for fused in self._flow.fused:
            self._place.update(dict.fromkeys(fused.nodes, self._place[fused.tail]))
        for tail, node in self._flow.rectified.items():
            self._place[node] = self._place[tail]

    def run(self) -> None:
        """Convert every node."""
        for node in list(self._flow.calls):
            if node in self._flow.inner:
                self._old.append(node)
            elif node in self._by_tail:
                self._replace(node, self._layer(self._by_tail[node]))
            elif self._flow.has_steps(node):
                self._replace(node, self._on_steps(node))
            elif node in self._flow.activated:
                self._replace(node, self._other_call(self._flow.activated[node], node))
            elif node in self._others and node.op == "call_function":
                self._replace(node, self._other_call(node, node))
            else:
                self._keep(node)
        for node in reversed(self._old):
            name = node.name
            # A graph remembers the names of erased nodes. Rules and plans know values by name, so they go on.
            node.name = f"{name}_replaced"
            self._graph.erase_node(node)
            if node in self._fresh:
                self._fresh[node].name = name
        drop_unread_attributes(self._module, self._reads)

    def _replace(self, node: Node, fresh: Node) -> None:
        fresh.region, fresh.origins = node.region, node.origins
        if self._flow.has_steps(node):
            self._steps[node] = fresh
        else:
            self._floats[node] = fresh
        self._old.append(node)
        self._fresh[node] = fresh

    def _keep(self, node: Node) -> None:
        """Give a node that stays the values that it needs."""
        asks = self._flow.calls[node].kind == "query"

        def use(value: Node) -> Node:
            if asks and value in self._steps:
                return self._steps[value]
            return self._float_of(value, node)

        # Most nodes use nothing that has changed.
        if any(value in self._steps or value in self._floats for value in node.all_input_nodes):
            node.args, node.kwargs = map_arg(node.args, use), map_arg(node.kwargs, use)
        if node in self._others:
            node.target = self._put(str(node.target), self._other_layer(node, "none"))

    # -- values ------------------------------------------------------------------------------------------------

    def _meaning(self, value: Node) -> Affine:
        return self._ranges[self._flow.root(value)]

    def _call(self, before: Node, name: str, layer: nn.Module, *arguments: Any) -> Node:
        """Return a new call of a module that was not there."""
        path = self._put(free_path(self._module, name), layer)
        return self._call_path(before, path, *arguments)

    def _call_path(self, before: Node, path: str, *arguments: Any) -> Node:
        with self._graph.inserting_before(before):
            fresh = self._graph.call_module(path, arguments)
        fresh.region, fresh.origins = before.region, before.origins
        return fresh

    def _float_of(self, value: Node, user: Node) -> Node:
        """Return a value in float32, for `user` and all that come behind it."""
        if value not in self._floats and value in self._steps:
            layer = Dequantize(self._meaning(value))
            self._floats[value] = self._call(user, f"{value.name}_float", layer, self._steps[value])
        return self._floats.get(value, value)

    def _steps_of(self, value: Node, user: Node) -> Node:
        """Return the steps of a value."""
        if value not in self._steps:
            layer = Quantize(self._ranges[value])
            self._steps[value] = self._call(user, f"{value.name}_steps", layer, self._float_of(value, user))
        return self._steps[value]

    def _rounds_itself(self, fused: Fused) -> bool:
        """Return whether a layer is given float32, which it rounds: nobody else needs the steps."""
        value = fused.layer.inputs[0]
        readers = sum(entry.layer.inputs[0] is value for entry in self._flow.fused)
        return not self._flow.has_steps(value) and fused.layer.kind == "linear" and readers == 1

    # -- calls -------------------------------------------------------------------------------------------------

    def _layer(self, fused: Fused) -> Node:
        """Return the call of an int8 layer."""
        tail, value = fused.tail, fused.layer.inputs[0]
        path = self._path_of(fused.layer.node)
        others = [] if fused.other is None else [self._steps_of(fused.other, tail)]
        given = self._float_of(value, tail) if self._rounds_itself(fused) else self._steps_of(value, tail)
        return self._call_path(tail, self._put(path, self._static_layer(fused)), given, *others)

    def _path_of(self, node: Node) -> str:
        """Return where the layer of a call shall stand."""
        return self._flow.calls[node].path or free_path(self._module, node.name)

    def _static_layer(self, fused: Fused) -> nn.Module:
        called = fused.layer.called
        meaning = {
            "input_affine": self._meaning(fused.layer.inputs[0]),
            "output_affine": self._meaning(fused.tail) if self._flow.has_steps(fused.tail) else None,
            "other_affine": None if fused.other is None else self._meaning(fused.other),
        }
        options = {
            **meaning,
            "post": fused.post,
            "takes_steps": not self._rounds_itself(fused),
            "keeps_other": not self._may_overwrite(fused),
            "engine": self._config.engine,
        }
        if fused.layer.kind == "linear":
            return Int8Linear(*self._state_of(called), **options).eval()
        geometry = Geometry(called.stride, called.padding, called.dilation, called.groups)
        if fused.layer.kind in TRANSPOSED:
            geometry = replace(geometry, output_padding=called.output_padding)
            return Int8ConvTranspose(*self._state_of(called), geometry=geometry, **options).eval()
        return Int8Conv(*self._state_of(called), geometry=geometry, **options).eval()

    def _state_of(self, called: Any) -> tuple[Any, ...]:
        """Return the rounded weights of a layer; all calls of it share them."""
        if id(called) not in self._states:
            self._states[id(called)] = state_of(called, per_channel=self._config.per_channel)
        return self._states[id(called)]

    def _may_overwrite(self, fused: Fused) -> bool:
        """Return whether nobody reads the second input of a layer after it, and its memory is nobody else's."""
        other = fused.other
        # A layer that reads what it adds to would read its own output.
        if other is None or other is fused.layer.inputs[0] or self._flow.calls[other].kind == "shape":
            return False
        place = self._place[fused.tail]
        users = [user for user in other.users if user not in fused.nodes]
        return all(self._flow.calls[user].kind != "shape" and self._place[user] < place for user in users)

    def _on_steps(self, node: Node) -> Node:
        """Return the call that computes on steps what a call without weights computes on floats."""
        combining = self._flow.rectified.get(node, node)
        call = self._flow.calls[combining]
        steps = [self._steps_of(value, node) for value in call.inputs]
        if call.kind in COMBINING:
            return self._combined(combining, node, steps)
        meaning = self._meaning(node)
        if call.kind == "relu":
            return self._call(node, f"{node.name}_int8", ReluOfSteps(meaning), *steps)
        if call.kind == "shape":
            return self._copied(node, call.inputs[0], steps[0])
        before = self._call(node, f"{node.name}_quantized", AsQuantized(meaning), *steps)
        pooled = self._copied(node, call.inputs[0], before)
        return self._call(node, f"{node.name}_integers", AsIntegers(), pooled)

    def _combined(self, node: Node, tail: Node, steps: list[Node]) -> Node:
        """Return the call that makes steps of several, at the place of `tail`: the call itself, or a ReLU behind it."""
        call = self._flow.calls[node]
        meanings, output, relu = (
            [self._meaning(value) for value in call.inputs],
            self._meaning(tail),
            tail is not node,
        )
        if call.kind == "cat":
            layer: nn.Module = Int8Cat(meanings, output, relu=relu)
            dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
            return self._call(tail, f"{node.name}_int8", layer, steps, dim)
        kind = Int8Add if call.kind == "add" else Int8Mul
        first, second = meanings
        return self._call(tail, f"{node.name}_int8", kind(first, second, output, relu=relu), *steps)

    def _copied(self, node: Node, value: Node, fresh: Node) -> Node:
        with self._graph.inserting_before(node):
            return self._graph.node_copy(
                node, lambda given: fresh if given is value else self._float_of(given, node)
            )

    def _other_layer(self, node: Node, post: str) -> nn.Module:
        called = self._flow.calls[node].called
        # Calls of one layer can be of two modes, and be followed by different activations.
        key = (id(called), self._others[node], post)
        if key not in self._states:
            self._states[key] = self._made(called, self._flow.calls[node].kind, self._others[node], post)
        return self._states[key]

    def _made(self, called: Any, kind: str, mode: str, post: str) -> nn.Module:
        if kind in TABLES:
            return (Int8Embedding if kind == "embedding" else Int8EmbeddingBag).from_float(called)
        if mode == "dynamic-int8":
            return DynamicInt8Linear.from_float(
                called, engine=self._config.engine, post=post, per_channel=self._config.per_channel
            )
        if mode == "weight-int4":
            return WeightInt4Linear.from_float(called, group_size=self._config.group_size)
        return WeightInt8Linear.from_float(called)

    def _other_call(self, node: Node, tail: Node) -> Node:
        """Return the call of a layer in the place of `tail`: a function, or an activation behind the layer."""
        value = self._float_of(self._flow.calls[node].inputs[0], tail)
        post = "none" if tail is node else self._flow.calls[tail].kind
        return self._call_path(tail, self._put(self._path_of(node), self._other_layer(node, post)), value)

    def _put(self, path: str, layer: nn.Module) -> str:
        """Put a layer at a path, or beside it where something has to stay there; return where it stands."""
        if path in self._put_paths or self._kept.concerns(path):
            path = free_path(self._module, f"{path}_int8")
        self._put_paths.add(path)
        self._module.add_submodule(path, layer.eval())
        return path
