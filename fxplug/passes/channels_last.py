"""Channels last: convolutions compute with the channels of each pixel side by side in memory."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.analyze import TensorMetadata
from fxplug.execute import set_path
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.derivations import recipe_of
from fxplug.passes.sharing import free_path, is_customised, is_shared, is_written
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.writes import WrittenMemory
from fxplug.semantics.canonical import canonical_name
from fxplug.semantics.internals import parameters_of

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["ChannelsLast"]

_FORMATS: dict[type[nn.Module], tuple[int, torch.memory_format]] = {
    **dict.fromkeys((nn.Conv2d, nn.ConvTranspose2d), (4, torch.channels_last)),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose3d), (5, torch.channels_last_3d)),
}
"""Convolutions -> how many dimensions their input and weight have, and the format."""
_KEEPING = (
    *(nn.BatchNorm2d, nn.BatchNorm3d, nn.Identity, nn.Dropout, nn.Dropout2d, nn.Dropout3d),
    *(nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.ELU,
        nn.LeakyReLU,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.Mish,
        nn.Sigmoid,
    ),
    *(nn.Tanh, nn.Upsample),
)
"""Modules that take any format, and give the one that they are given."""
_KEEPING_NAMES = frozenset(
    [
        "add",
        "add_",
        "clamp",
        "clamp_",
        "div",
        "elu",
        "gelu",
        "hardsigmoid",
        "hardswish",
        "leaky_relu",
        "mish",
        "mul",
        "mul_",
        "relu",
        "relu6",
        "relu_",
        "sigmoid",
        "silu",
        "sub",
        "tanh",
    ]
)


class ChannelsLast(Pass):
    """Gives the weights of 2-D and 3-D convolutions, and what these compute with, the format ``channels_last``.

    Shapes and values are what they were. Activations, pooling, batch norms and sums keep the format; any other call,
    and the caller, is given a contiguous tensor, as before. How many dimensions inputs have is known from the example
    inputs; without them, nothing is done.

    A convolution stays as it is if it has hooks, or weights that the program writes. Where something may be written
    that is looked at in both formats, everything stays.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Convert all convolutions, or none."""
        chosen = _chosen(module, context)

        def needs_format(node: Node) -> bool:
            return not _has_format(module, node, chosen[node][1])

        usual = _in_usual_order(module, context) if chosen else set[Node]()
        plan = _Plan(module, chosen, usual)
        reason = plan.reason()
        if not reason:
            chosen = {node: found for node, found in chosen.items() if context.allows(node, "convert")}
            plan = _Plan(module, chosen, usual)
            reason = plan.reason()
        if reason or not any(map(needs_format, chosen)):
            text = f"nothing to convert; {reason}" if reason else "nothing to convert"
            return PassResult(modified=False, summary=text, details={"converted": 0, "copies": 0})
        weights: dict[str, str] = {}
        for node, (_, memory_format) in chosen.items():
            path = str(node.target)
            if path in weights or needs_format(node):
                if path not in weights:
                    weights[path] = _convert(module, context, path, memory_format, chosen)
                node.target = weights[path]
        copies = plan.insert_copies()
        module.delete_all_unused_submodules()
        count = len(chosen)
        text = f"converted {count} convolution{'s' if count != 1 else ''}, with {copies} changes of format"
        return PassResult(modified=True, summary=text, details={"converted": count, "copies": copies})


def _chosen(module: GraphModule, context: PassContext) -> dict[Node, tuple[int, torch.memory_format]]:
    """Return the calls of convolutions that can be converted."""
    if context.module is not module or context.example_inputs is None:
        return {}
    shapes = context.analysis("shapes")
    found: dict[Node, tuple[int, torch.memory_format]] = {}
    for node in module.graph.find_nodes(op="call_module"):
        called: Any = value_at(module, str(node.target))
        rank, memory_format = _FORMATS.get(type(called), (0, torch.contiguous_format))
        given = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if (
            not rank
            or not isinstance(given, Node)
            or is_customised(called)
            or is_written(module, str(node.target))
        ):
            continue
        metadata, result = shapes[given], shapes[node]
        is_batch = isinstance(metadata, TensorMetadata) and len(metadata.shape) == rank
        # What has another format already, as inputs give it, would not have it any more behind the copies.
        if is_batch and result.memory_format is torch.contiguous_format:
            found[node] = rank, memory_format
    return found


def _in_usual_order(module: GraphModule, context: PassContext) -> set[Node]:
    """Return the nodes whose value is contiguous; with an odd operand, a sum is as that one."""
    shapes = context.analysis("shapes")
    known = {node: shapes[node] for node in module.graph.nodes}
    return {
        node
        for node, value in known.items()
        if isinstance(value, TensorMetadata) and value.memory_format is torch.contiguous_format
    }


def _has_format(module: GraphModule, node: Node, memory_format: torch.memory_format) -> bool:
    """Return whether the weight of a convolution needs no change: with a kernel of one element, both are the same."""
    return value_at(module, str(node.target)).weight.is_contiguous(memory_format=memory_format)


def _convert(
    module: GraphModule,
    context: PassContext,
    path: str,
    memory_format: torch.memory_format,
    chosen: dict[Node, Any],
) -> str:
    called: Any = value_at(module, path)
    other = copy.copy(called)
    vars(other)["_parameters"] = dict(parameters_of(called))
    weight = called.weight.detach().contiguous(memory_format=memory_format)
    other.weight = nn.Parameter(weight, requires_grad=called.weight.requires_grad)

    def to_format(tensor: Any) -> Any:
        return tensor.contiguous(memory_format=memory_format)

    context.derive(other.weight, [called.weight], recipe_of(to_format, 1))
    calls = module.graph.find_nodes(op="call_module", target=path, sort=False)
    if is_shared(module, path) or any(node not in chosen for node in calls):
        path = free_path(module, f"{path}_channels_last")
    set_path(module, path, other)
    return path


class _Plan:
    """Which values will have the format, and where another one is needed; made before anything is changed."""

    def __init__(
        self, module: GraphModule, chosen: dict[Node, tuple[int, torch.memory_format]], usual: set[Node]
    ) -> None:
        self._module, self._graph = module, module.graph
        self._copies: list[tuple[Node, Node, torch.memory_format]] = []
        formats: dict[Node, torch.memory_format] = {}
        for node in self._graph.nodes:
            if node in chosen:
                formats[node] = chosen[node][1]
                given: Any = node.args[0]
                if formats.get(given) is not formats[node]:
                    self._copies.append((node, given, formats[node]))
                continue
            given_formats = [formats[used] for used in node.all_input_nodes if used in formats]
            if given_formats and node in usual and self._keeps_format(node):
                formats[node] = given_formats[0]
                continue
            self._copies += [
                (node, used, torch.contiguous_format) for used in node.all_input_nodes if used in formats
            ]

    def _keeps_format(self, node: Node) -> bool:
        if node.op == "call_module":
            called: Any = value_at(self._module, str(node.target))
            is_plain = type(called) in _KEEPING and not is_customised(called)
            if effects.effect_of(node, self._module).random:
                return False  # Which number is drawn for which element depends on the format.
            return is_plain and not getattr(called, "return_indices", False)
        return canonical_name(node.op, node.target) in _KEEPING_NAMES and node.kwargs.get("out") is None

    def reason(self) -> str:
        """Return why a copy must not take the place of a value, empty when all may."""
        noisy = [node for node in self._graph.nodes if effects.effect_of(node, self._module).must_be_kept]
        written = WrittenMemory(self._graph, self._module, noisy)
        self._is_written = {used: written.holds(used, ()) for _, used, _ in self._copies}
        for node, used, _ in self._copies:
            effect = effects.effect_of(node, self._module)
            if node.op != "output" and (effect.writes - {"state"} or effect.unknown):
                return f"{node.name!r} may write {used.name!r}, or hold it"
            if self._is_written[used] and node.op != "output" and may_return_argument(node, self._module):
                return f"{used.name!r} is written, and {node.name!r} may be a view of it"
        return ""

    def insert_copies(self) -> int:
        """Convert values where they are needed in another format; return how often."""
        known: dict[Any, Node] = {}
        count = 0
        for node, used, memory_format in self._copies:
            key = used, memory_format, node.region
            found = None if self._is_written[used] else known.get(key)
            if found is None:
                with self._graph.inserting_before(node):
                    found = self._graph.call_method("contiguous", (used,), {"memory_format": memory_format})
                found.region, found.origins = node.region, node.origins or used.origins
                known[key] = found
                count += 1
            node.replace_input_with(used, found)
        return count
