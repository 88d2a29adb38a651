"""Mixed precision: products are computed in 16 bits, everything else in 32."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from fxplug.analyze import TensorMetadata
from fxplug.errors import ConfigError
from fxplug.execute import set_path
from fxplug.ir import Node, effects, map_arg
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.derivations import recipe_of
from fxplug.passes.sharing import (
    drop_unread,
    free_attribute,
    free_path,
    is_customised,
    is_shared,
    is_written,
)
from fxplug.passes.tensor_table import TensorTable
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.writes import WrittenMemory
from fxplug.semantics.canonical import canonical_name
from fxplug.semantics.internals import parameters_of, persists

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.execute import GraphModule
    from fxplug.ir import Region

__all__ = ["MixedPrecision", "MixedPrecisionOptions"]

Precision = Literal["bfloat16", "float16"]
_KINDS: dict[str, frozenset[str]] = {
    "conv": frozenset(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)),
    "linear": frozenset({"linear"}),
    "matmul": frozenset({"addmm", "baddbmm", "bmm", "matmul", "mm"}),
    "attention": frozenset({"scaled_dot_product_attention"}),
}
"""What can be named -> the operators."""
_MODULES: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), "conv"),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "conv"),
}
_ALL = tuple(_KINDS)
_ADDENDS = {"scaled_dot_product_attention": (3, "attn_mask"), "addmm": (0, "input"), "baddbmm": (0, "input")}
"""Operator -> place and name of what it adds to products: where that is a mask, it may hold the lowest float32."""


@dataclass(frozen=True)
class MixedPrecisionOptions:
    """Options of ``mixed-precision``.

    Raises:
        ConfigError: A kind of operator is not known.
    """

    dtype: Precision = "bfloat16"
    """In which products are computed. float16 has more digits, and overflows beyond 65504."""
    operators: tuple[str, ...] = _ALL
    """Which are computed so: of ``"conv"``, ``"linear"``, ``"matmul"`` and ``"attention"``."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.operators if name not in _KINDS]
        if unknown or self.dtype not in {"bfloat16", "float16"}:
            what = f"operators={unknown[0]!r}" if unknown else f"dtype={self.dtype!r}"
            raise ConfigError(
                f"Cannot mix precisions with {what}: the dtypes are bfloat16 and float16, the kinds of operators "
                f"{', '.join(_KINDS)}. Name these."
            )


class MixedPrecision(Pass):
    """Computes products of float32 tensors in bfloat16 or float16: convolutions, linear layers, matmul, attention.

    Weights are converted once, other arguments where they are used, and each result is converted back, so that
    everything else, and what the program returns, stays float32. Between two products nothing is converted.

    Masks that attention adds may hold the lowest number of float32, which a row of the low precision would not survive:
    finite numbers beyond its range become its lowest and largest ones.

    Calls are left alone that are not certain to take float32 alone (for functions, the example inputs tell), that write
    or draw random numbers, that stand inside of autocast, and modules with hooks, or with weights that the program
    writes. A module in training mode is left alone: small updates would get lost in 16 bits.

    Args:
        dtype: See `MixedPrecisionOptions`.
        operators: See `MixedPrecisionOptions`.
    """

    def __init__(self, dtype: Precision = "bfloat16", operators: tuple[str, ...] = _ALL) -> None:
        self._options = MixedPrecisionOptions(dtype, tuple(operators))

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Convert what can be."""
        caster = _Caster(module, context, self._options)
        converted = in_training = 0
        for node in list(module.graph.nodes):
            kind = caster.kind(node)
            if kind is None:
                continue
            if module.training or _trains(module, node):
                in_training += 1
            elif caster.takes_float32(node) and context.allows(node, "convert"):
                caster.convert(node)
                converted += 1
        if converted:
            caster.clean_up()
        text = (
            f"converted {converted} call{'s' if converted != 1 else ''}"
            if converted
            else "nothing to convert"
        )
        if in_training:
            text += f"; {in_training} left alone in training mode (call eval() first)"
        return PassResult(converted > 0, text, {"converted": converted, "in_training": in_training})


def _operator_of(node: Node) -> str | None:
    """Return the name of the operator that a call of a function or method is; None where it is none."""
    name = canonical_name(node.op, node.target)
    if name is None:
        name = getattr(node.target, "__name__", None)
        name = name if getattr(nn.functional, str(name), None) is node.target else None
    return name


def _addend_of(node: Node) -> Any:
    """Return what a call adds to products, None where it adds nothing."""
    if node.op == "call_module":
        return None
    place, name = _ADDENDS.get(_operator_of(node) or "", (0, ""))
    if not name:
        return None
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _trains(module: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and value_at(module, str(node.target)).training


class _Caster:
    """Inserts conversions into one graph."""

    def __init__(self, module: GraphModule, context: PassContext, options: MixedPrecisionOptions) -> None:
        self._module, self._context, self._graph = module, context, module.graph
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._suffix = options.dtype
        self._names = {name: kind for kind in options.operators for name in _KINDS[kind]}
        self._kinds = frozenset(options.operators)
        self._dtypes = self._find_dtypes()
        self._low: dict[tuple[Node, Region, bool], Node] = {}
        self._held: dict[tuple[str, bool], str] = {}
        self._paths: dict[str, str] = {}
        self._unread: list[str] = []
        self._results: list[Node] = []
        noisy = [node for node in self._graph.nodes if effects.effect_of(node, module).must_be_kept]
        written = WrittenMemory(self._graph, module, noisy)
        # A copy of these in another precision is out of date once they are written.
        self._written = {node for node in self._graph.nodes if written.holds(node, ())}

    def _find_dtypes(self) -> dict[Node, torch.dtype | None]:
        """Return the dtypes of tensors; None for what is none, and nothing for what is not known."""
        found: dict[Node, torch.dtype | None] = {}
        tensors = TensorTable(self._module).tensors
        for node in self._graph.find_nodes(op="get_attr"):
            if str(node.target) in tensors:
                found[node] = tensors[str(node.target)].dtype
        if self._context.module is self._module and self._context.example_inputs is not None:
            shapes = self._context.analysis("shapes")
            for node in self._graph.nodes:
                value = shapes[node]
                found[node] = value.dtype if isinstance(value, TensorMetadata) else None
        return found

    # -- what is converted

    def kind(self, node: Node) -> str | None:
        """Return of which kind a call is, None where it is none that is to be converted."""
        if node.op == "call_module":
            kind = _MODULES.get(type(value_at(self._module, str(node.target))))
            return kind if kind in self._kinds else None
        if not node.op.startswith("call_") or node.kwargs.get("out") is not None:
            return None
        name = _operator_of(node)
        return self._names.get(name) if name is not None else None

    def takes_float32(self, node: Node) -> bool:
        """Return whether a call is certain to compute with float32 tensors, and does nothing else."""
        if not effects.effect_of(node, self._module).is_pure:
            return False
        if any(entry.context is torch.autocast for entry in node.region):
            return False
        if node.op == "call_module":
            return self._module_takes_float32(node)
        given = [self._dtypes.get(used, "unknown") for used in node.all_input_nodes]
        floating = [dtype for dtype in given if isinstance(dtype, torch.dtype) and dtype.is_floating_point]
        return "unknown" not in given and set(floating) == {torch.float32}

    def _module_takes_float32(self, node: Node) -> bool:
        path = str(node.target)
        called = value_at(self._module, path)
        is_plain = len(node.args) == 1 and isinstance(node.args[0], Node) and not node.kwargs
        if not is_plain or is_customised(called) or is_written(self._module, path):
            return False
        weights = [value for value in parameters_of(called).values() if value is not None]
        return bool(weights) and all(
            value.dtype is torch.float32 and not value.is_quantized for value in weights
        )

    # -- conversion

    def convert(self, node: Node) -> None:
        """Let a call take and give low precision, and its users get float32."""
        if node.op == "call_module":
            node.target = self._low_module(str(node.target))
        addend = _addend_of(node)
        inputs = {
            used: self._lowered(node, used, bounded=used is addend)
            for used in node.all_input_nodes
            if self._is_wide(node, used)
        }
        node.args = map_arg(node.args, lambda used: inputs.get(used, used))
        node.kwargs = map_arg(node.kwargs, lambda used: inputs.get(used, used))
        users = list(node.users)
        with self._graph.inserting_after(node):
            result = self._graph.call_method("to", (node, torch.float32))
        result.region, result.origins = node.region, node.origins
        for user in users:
            user.replace_input_with(node, result)
        if node in self._written:
            self._written.add(result)
        self._low[result, result.region, False] = self._low[result, result.region, True] = node
        self._dtypes[result], self._dtypes[node] = torch.float32, self._dtype
        self._results.append(result)

    def _is_wide(self, node: Node, used: Node) -> bool:
        return node.op == "call_module" or self._dtypes.get(used) is torch.float32

    def _lowered(self, node: Node, used: Node, *, bounded: bool) -> Node:
        """Return a value in low precision; `bounded`: no finite number in it becomes infinite."""
        known = None if used in self._written else self._low.get((used, node.region, bounded))
        if known is not None:
            return known
        if used.op == "get_attr" and used not in self._written:
            with self._graph.inserting_before(node):
                found = self._graph.get_attr(self._low_tensor(str(used.target), bounded=bounded))
        else:
            with self._graph.inserting_before(node):
                value = self._bounded(node, used) if bounded else used
                found = self._graph.call_method("to", (value, self._dtype))
        found.region, found.origins = node.region, node.origins
        self._dtypes[found] = self._dtype
        self._low[used, node.region, bounded] = found
        return found

    def _bounded(self, node: Node, used: Node) -> Node:
        """Return a value whose finite numbers have been moved into the range of the low precision."""
        limits = torch.finfo(self._dtype)
        infinite = self._graph.call_function(torch.isinf, (used,))
        inside = self._graph.call_function(torch.clamp, (used, limits.min, limits.max))
        found = self._graph.call_function(torch.where, (infinite, used, inside))
        for made in (infinite, inside, found):
            made.region, made.origins = node.region, node.origins
        self._dtypes |= {infinite: torch.bool, inside: torch.float32, found: torch.float32}
        return found

    def _conversion(self, *, bounded: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
        dtype = self._dtype
        limits = torch.finfo(dtype)

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype)

        def convert_bounded(tensor: torch.Tensor) -> torch.Tensor:
            inside = torch.clamp(tensor, limits.min, limits.max)
            return torch.where(torch.isinf(tensor), tensor, inside).to(dtype)

        return convert_bounded if bounded else convert

    def _low_tensor(self, path: str, *, bounded: bool) -> str:
        if (path, bounded) not in self._held:
            value = value_at(self._module, path)
            prefix, _, name = path.rpartition(".")
            holder = value_at(self._module, prefix) if prefix else self._module
            convert = self._conversion(bounded=bounded)
            low = convert(value.detach())
            if isinstance(value, nn.Parameter):
                low = nn.Parameter(low, requires_grad=value.requires_grad)
            found = free_attribute(self._module, f"{path.replace('.', '_')}_{self._suffix}")
            set_path(self._module, found, low, persistent=persists(holder, name))
            self._context.derive(value_at(self._module, found), [value], recipe_of(convert, 1))
            self._held[path, bounded] = found
            self._unread.append(path)
        return self._held[path, bounded]

    def _low_module(self, path: str) -> str:
        if path not in self._paths:
            called: Any = value_at(self._module, path)
            # The weights are converted, so that they need not be copied before.
            low = copy.copy(called)
            vars(low)["_parameters"] = {}
            recipe = recipe_of(self._conversion(), 1)
            for name, value in parameters_of(called).items():
                if value is None:
                    low.register_parameter(name, None)
                    continue
                new = nn.Parameter(value.detach().to(self._dtype), requires_grad=value.requires_grad)
                low.register_parameter(name, new)
                self._context.derive(new, [value], recipe)
            calls = self._graph.find_nodes(op="call_module", target=path, sort=False)
            is_needed = is_shared(self._module, path) or len(calls) > 1
            found = free_path(self._module, f"{path}_{self._suffix}") if is_needed else path
            set_path(self._module, found, low)
            self._paths[path] = found
        return self._paths[path]

    def clean_up(self) -> None:
        """Remove conversions that nobody needs, and weights that nobody reads."""
        for node in self._results:
            if not node.users:
                self._graph.erase_node(node)
        for node in self._graph.find_nodes(op="get_attr"):
            if not node.users and str(node.target) in self._unread:
                self._graph.erase_node(node)
        drop_unread(self._module, self._unread)
        self._module.delete_all_unused_submodules()
