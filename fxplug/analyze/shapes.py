"""Shapes and dtypes of every value, found by running the graph on example inputs."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.analyze.isolation import forked_random_state
from fxplug.execute import GraphModule, Interpreter
from fxplug.execute.guards import check_guards
from fxplug.execute.shadow import with_other_tensors
from fxplug.ir import Node, iterate_leaves, map_aggregate
from fxplug.semantics.internals import without_data
from fxplug.semantics.symbols import SymbolicSizes, is_symbolic, lies_as, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["ShapeProp", "TensorMetadata", "described_copy", "propagate_shapes", "shape_text"]


class TensorMetadata(NamedTuple):
    """What is known of a tensor without its values."""

    shape: torch.Size
    """Sizes."""
    dtype: torch.dtype
    """Element type."""
    requires_grad: bool
    """Whether gradients flow into it."""
    stride: tuple[int, ...]
    """Steps between elements, in elements."""
    memory_format: torch.memory_format | None
    """The dense format it has, None for another layout."""
    is_quantized: bool
    """Whether it holds torch's quantized type."""
    qparams: dict[str, Any]
    """Scale and zero point of a quantized tensor."""

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorMetadata:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Open sizes belong to a process; what is left of them is their text.
        sizes, strides = (
            tuple([size_text(size) if is_symbolic(size) else size for size in part])
            for part in (self.shape, self.stride)
        )
        is_open = any(isinstance(size, str) for size in (*sizes, *strides))
        shape = sizes if is_open else self.shape
        return TensorMetadata, (shape, self.dtype, self.requires_grad, strides, *self[4:])


class ShapeProp(Interpreter):
    """Runs a graph and notes metadata of each value in ``meta["tensor_meta"]``, its type in ``meta["type"]``.

    Where nothing is computed, the value itself, a tensor without data, is noted in ``meta["val"]``.

    Args:
        gm: The module; its nodes get the notes.
        fake_mode: A ``FakeTensorMode`` in which a copy of the module runs, so that nothing is computed. Where the
            inputs are fake tensors already, theirs is taken.
    """

    def __init__(self, gm: GraphModule, fake_mode: Any = None) -> None:
        super().__init__(gm)
        self.real_module = gm
        """The module whose nodes get the notes."""
        self.fake_mode = fake_mode
        """The mode in which the module runs; None where it runs as it is."""
        if fake_mode is not None:
            self.module = _in_mode(gm, fake_mode)

    def run_node(self, n: Node) -> Any:
        """Run one node and note what its value is like."""
        value = self._value_of(n)
        tensors: list[torch.Tensor] = []
        environment: Any = getattr(self.fake_mode, "shape_env", None)

        def describe(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensors.append(leaf)
            return _metadata(leaf)

        # What is asked here is no matter of the program.
        with nullcontext() if environment is None else environment.suppress_guards():
            described = map_aggregate(value, describe)
        n.meta.pop("tensor_meta", None)
        n.meta.pop("val", None)
        if tensors:
            n.meta["tensor_meta"] = described
        if self.fake_mode is not None:
            n.meta["val"] = map_aggregate(value, _apart, frozen=False)
        n.meta["type"] = type(value)
        return value

    def _value_of(self, node: Node) -> Any:
        if self.fake_mode is None:
            return super().run_node(node)
        with self.fake_mode:
            return super().run_node(node)

    def propagate(self, *args: Any) -> Any:
        """Run the graph on `args` and return the result."""
        if self.fake_mode is None:
            self.fake_mode = next(
                (leaf.fake_mode for leaf in iterate_leaves(args) if hasattr(leaf, "fake_mode")), None
            )
            if self.fake_mode is not None:
                self.module = _in_mode(self.real_module, self.fake_mode)
        if self.fake_mode is None:
            return self.run(*args)
        return self.run(*[_fake(value, self.fake_mode) for value in args])


def _in_mode(module: GraphModule, mode: Any) -> GraphModule:
    """Return a copy of `module` that holds fake tensors; no values are copied."""
    return with_other_tensors(
        module,
        lambda tensor: mode.from_tensor(tensor if tensor.is_leaf else tensor.detach(), static_shapes=True),
    )


def _apart(leaf: Any) -> Any:
    """Return a value without its history; what is written to it later is not seen."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _fake(value: Any, mode: Any) -> Any:
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _metadata(tensor: torch.Tensor) -> TensorMetadata:
    found: torch.memory_format | None = None
    for candidate in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if lies_as(tensor, candidate):
            found = candidate
            break
    qparams: dict[str, Any] = {}
    if tensor.is_quantized and tensor.qscheme() in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
        qparams = {
            "qscheme": tensor.qscheme(),
            "scale": tensor.q_scale(),
            "zero_point": tensor.q_zero_point(),
        }
    return TensorMetadata(
        tensor.shape, tensor.dtype, tensor.requires_grad, tensor.stride(), found, tensor.is_quantized, qparams
    )


def shape_text(node: Node) -> str:
    """Return dtype and sizes of a node's value for people, e.g. ``"float32[1, 64, 56, 56]"``; empty when not known."""
    return ", ".join(
        f"{str(part.dtype).removeprefix('torch.')}[{', '.join(map(size_text, part.shape))}]"
        for part in _parts(node.meta.get("tensor_meta"))
    )


def _parts(value: Any) -> Iterator[TensorMetadata]:
    if isinstance(value, TensorMetadata):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _parts(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from _parts(element)


def propagate_shapes(
    module: GraphModule, *args: Any, dynamic: Mapping[int | str, Mapping[int, str]] | None = None
) -> Any:
    """Note the metadata of every value of `module` for the inputs `args`; return the result of the run.

    Args:
        module: Its nodes get the notes.
        *args: Its inputs.
        dynamic: Position or name of an input -> dimension -> a name. Sizes with a name stay open, and so do those that
            are computed from them; nothing is computed then, and the result has no data.

    Raises:
        InvalidArgumentError: `dynamic` names what is not there.
        AnalysisError: The program works for one value of a size that is to stay open.
    """
    if not dynamic:
        return ShapeProp(module).propagate(*args)
    sizes, values = _open_inputs(module, args, dynamic)
    return _OpenShapeProp(module, sizes).run(*values, enable_io_processing=False)


def _open_inputs(
    module: GraphModule, args: tuple[Any, ...], dynamic: Mapping[int | str, Mapping[int, str]]
) -> tuple[SymbolicSizes, list[Any]]:
    """Return the open sizes, and the inputs of the graph without data."""
    check_guards(module, args)
    placeholders = [str(node.target).lstrip("*") for node in module.graph.find_nodes(op="placeholder")]
    inputs = module.graph.process_inputs(*args)
    sizes = SymbolicSizes(dynamic, placeholders, inputs)
    return sizes, [
        map_aggregate(value, lambda leaf, at=position: sizes.converted(at, leaf), frozen=False)
        for position, value in enumerate(inputs)
    ]


class _OpenShapeProp(ShapeProp):
    """Notes shapes in which some sizes are open."""

    def __init__(self, module: GraphModule, sizes: SymbolicSizes) -> None:
        super().__init__(module, sizes.mode)
        self._sizes = sizes

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._sizes.check_open(f"node {n.name!r}")
        return value


@forked_random_state()  # A program may seed, and its hooks draw, also where nothing is computed.
def described_copy(
    module: GraphModule,
    *args: Any,
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
    interpreter: Callable[[GraphModule], Interpreter] = ShapeProp,
) -> GraphModule:
    """Return a copy of `module` whose nodes have the metadata of their values; the module itself is left alone.

    Nothing is computed where torch can tell the shapes without data; a program that asks for values is run once, on
    copies of its parameters, buffers and inputs.

    Args:
        module: Not changed.
        *args: Its inputs.
        interpreter: What runs the copy and makes the notes.
        dynamic: As for `propagate_shapes`.
    """
    if dynamic and interpreter is not ShapeProp:
        sizes, values = _open_inputs(module, args, dynamic)
        shadow = _in_mode(module, sizes.mode)
        with sizes.mode, torch.no_grad():
            interpreter(shadow).run(*values, enable_io_processing=False)
        sizes.check_open("the program")
        return shadow
    if dynamic:
        shadow = copy.copy(module)
        shadow.graph = copy.deepcopy(module.graph)
        with torch.no_grad():
            propagate_shapes(shadow, *args, dynamic=dynamic)
        return shadow
    mode, inputs = without_data(args)
    shadow = _in_mode(module, mode)
    try:
        with mode, torch.no_grad():
            interpreter(shadow).run(*inputs)
    except Exception:  # Whatever it is: running the program tells, or raises the error that the user knows.
        shadow = copy.deepcopy(module)
        with torch.no_grad():
            interpreter(shadow).run(*copy.deepcopy(args))
    return shadow
