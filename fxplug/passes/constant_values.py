"""Which values of a graph are the same in every call, and what they are."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fxplug.execute import Interpreter
from fxplug.execute.aliases import memory_of, returned_nodes
from fxplug.ir import Effect, Node, effects, iterate_leaves
from fxplug.passes.sharing import acts_unseen, asks_for_identity, is_customised
from fxplug.passes.tensor_table import TensorTable
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.writes import WrittenMemory
from fxplug.semantics.internals import is_about_missing_data, is_fake, modules_of, storage_of, without_data

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable

    from fxplug.execute import GraphModule
    from fxplug.ir import Region

__all__ = ["ConstantValues", "in_plain_surroundings"]

_REGIONS = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.autocast)
"""Contexts that a value may be computed in once and used outside of; others mark the tensors that are made in them."""
_UNINITIALIZED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_IMMEDIATE = (
    int,
    float,
    complex,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class ConstantValues:
    """The values that depend on nothing but constants, parameters and buffers, and are not written.

    They are computed on the way, and dropped as soon as it is known that nothing but other constants uses them.

    Args:
        module: Not changed.
        limit: A value that takes more bytes is none of them.
        trainable: Whether values may depend on parameters that require gradients.
    """

    def __init__(self, module: GraphModule, limit: int, *, trainable: bool) -> None:
        self._module, self._limit, self._trainable = module, limit, trainable
        self._table = TensorTable(module)
        self._interpreter = Interpreter(module)
        self._interpreter.extra_traceback = False
        self.values: dict[Node, Any] = self._interpreter.env
        """Those of the nodes in `wanted`, and of what they are views or parts of."""
        self.wanted: dict[Node, None] = {}
        """The constants that calls use which are none, in the order of the graph."""
        self.too_large = 0
        """How many calls were left because their value is larger than the limit."""
        self.training = 0
        """How many reads were left because the parameter requires gradients."""
        self.unseen: list[Node] = [
            node
            for node in module.graph.nodes
            if node.op != "output" and acts_unseen(node, self._effect(node))
        ]
        """Calls that may change what others read, and of which it is not known what."""
        self._left: dict[Node, int] = {}
        self._storable: set[Node] = set()
        if not self.unseen:
            self._find()

    def _effect(self, node: Node) -> Effect:
        return effects.effect_of(node, self._module)

    # -- which they are

    def _find(self) -> None:
        graph = self._module.graph
        noisy = [node for node in graph.nodes if self._effect(node).must_be_kept]
        self._written = WrittenMemory(graph, self._module, noisy)
        self._returned = returned_nodes(graph, self._module)
        self._written_memory: set[Hashable] = set()
        for node in graph.nodes:
            if "state" in self._effect(node).writes and node.op == "call_module":
                self._written_memory |= memory_of(value_at(self._module, node.target))
            elif node.op == "get_attr" and (self._written.holds(node, ()) or node in self._returned):
                # What the caller is given, the caller may write.
                self._written_memory |= memory_of(value_at(self._module, node.target, graph.lifted))
        with in_plain_surroundings():
            for node in graph.nodes:
                is_constant = self._read(node) if node.op == "get_attr" else self._compute(node)
                self._left[node] = len(node.users)
                if not is_constant:
                    self._use(node, is_wanted=True)
                elif node.op != "get_attr" and self._find_storable(node):
                    self._storable.add(node)
                    self._use(node, is_wanted=False)
                if not node.users:
                    self._settle(node)
        order = {node: None for node in graph.nodes if node in self.wanted}
        self.wanted = order

    def _use(self, node: Node, *, is_wanted: bool) -> None:
        """Hear that it is known what becomes of a user, and so which of its inputs are needed."""
        for used in node.all_input_nodes:
            if used not in self.values:
                continue
            if is_wanted:
                self.wanted[used] = None
            self._left[used] -= 1
            if not self._left[used]:
                self._settle(used)

    def _settle(self, node: Node) -> None:
        """Hear that it is known of all users of a constant what becomes of them."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one not in self.values:
                continue
            storable, is_wanted = self.is_storable(one), one in self.wanted
            for used in () if storable else one.all_input_nodes:
                # It stays a call, and what it is given is needed.
                if is_wanted:
                    self.wanted[used] = None
                self._left[used] -= 1
                if not self._left[used]:
                    waiting.append(used)
            if not is_wanted:
                del self.values[one]

    def is_storable(self, node: Node) -> bool:
        """Return whether the value of a constant can be held by the module in the place of a call.

        Views are not: they stay views of what they are views of. Numbers and containers are not, either.
        """
        return node in self._storable

    def _find_storable(self, node: Node) -> bool:
        value = self.values[node]
        if type(value) not in _PLAIN:
            return False
        if value.untyped_storage().nbytes() != value.numel() * value.element_size():
            return False
        key = storage_of(value)
        waiting, seen = list(node.all_input_nodes), set[Node]()
        while waiting:
            used = waiting.pop()
            if used in seen:
                continue
            seen.add(used)
            held = self.values[used]
            if isinstance(held, torch.Tensor):
                if storage_of(held) == key:
                    return False
            else:  # A part of several results: what matters is what the call was given that made them.
                waiting += used.all_input_nodes
        return True

    def _read(self, node: Node) -> bool:
        value = self._table.tensors.get(str(node.target))
        if value is None or not self._is_usable(value):
            return False
        if not self._written_memory.isdisjoint(memory_of(value)):
            return False
        if value.requires_grad and not self._trainable:
            self.training += 1
            return False
        self.values[node] = value
        return True

    def _compute(self, node: Node) -> bool:
        if not node.op.startswith("call_") or any(used not in self.values for used in node.all_input_nodes):
            return False
        if node in self._returned or not self._effect(node).is_pure or not _is_fixed(node):
            return False
        if self._written.holds(node, ()) or not _may_leave(node.region):
            return False
        if node.op == "call_module" and not self._is_usable_module(str(node.target)):
            return False
        if any(asks_for_identity(user) for user in node.users):
            return False
        try:
            size = self._size_of(node)
            if size > self._limit:
                self.too_large += 1
                return False
            value = self._run(node)
        except Exception:  # Whatever it is: the program raises it when it is called.
            return False
        if not all(self._is_usable(leaf) for leaf in iterate_leaves(value)):
            return False
        self.values[node] = value
        return True

    def _is_usable_module(self, path: str) -> bool:
        module = value_at(self._module, path)
        if not isinstance(module, torch.nn.Module) or is_customised(module) or modules_of(module):
            return False
        tensors = [*module.parameters(), *module.buffers()]
        if any(tensor.requires_grad for tensor in tensors) and not self._trainable:
            self.training += 1
            return False
        is_written = not self._written_memory.isdisjoint(memory_of(module))
        return not is_written and all(map(self._is_usable, tensors))

    def _is_usable(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return isinstance(value, _IMMEDIATE)
        if type(value) not in _PLAIN or is_fake(value) or value.is_meta or value.is_quantized:
            return False
        return value.layout is torch.strided and not value.is_inference()

    # -- what they are

    def _size_of(self, node: Node) -> int:
        """Return how many bytes the value will take, as far as that can be told without computing it."""
        args, kwargs = self._interpreter.fetch_args_kwargs_from_env(node)
        mode, (args, kwargs) = without_data((args, kwargs))
        try:
            with mode, _inside(node.region):
                value = getattr(self._interpreter, node.op)(node.target, args, kwargs)
        except Exception as error:
            if is_about_missing_data(error):
                return 0
            raise
        tensors = [leaf for leaf in iterate_leaves(value) if isinstance(leaf, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _run(self, node: Node) -> Any:
        args, kwargs = self._interpreter.fetch_args_kwargs_from_env(node)
        with _inside(node.region):
            return getattr(self._interpreter, node.op)(node.target, args, kwargs)


def _is_fixed(node: Node) -> bool:
    """Return whether a call gives the same value each time: memory that nobody has filled does not."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name).partition(".")[0] not in _UNINITIALIZED


def _may_leave(region: Region) -> bool:
    return all(any(entry.context is context for context in _REGIONS) for entry in region)


@contextmanager
def _inside(region: Region) -> Generator[None]:
    with ExitStack() as stack:
        for entry in region:
            stack.enter_context(entry.context(*entry.arguments))
        yield


@contextmanager
def in_plain_surroundings() -> Generator[None]:
    """Compute without gradients, and as a program does that nobody calls inside of autocast or inference mode."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
