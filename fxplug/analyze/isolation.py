"""Running somebody's model without leaving a mark on it, on its inputs, or on the random state."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import UserDict, UserList, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import nn

from fxplug.capture.attributes import can_be_asked
from fxplug.capture.containers import OWN_TABLES, Containers, copy_of, elements_of, fill, is_unchanged
from fxplug.semantics.deep_copies import deep_copy
from fxplug.semantics.internals import flatten_tree, is_registered
from fxplug.semantics.random_sources import RandomSources
from fxplug.semantics.random_state import kept_random_state
from fxplug.semantics.storages import History, is_elsewhere, write_back

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

__all__ = [
    "SavedState",
    "SavedTensors",
    "copy_inputs",
    "copy_module",
    "copy_values",
    "forked_random_state",
    "holds_itself",
    "tensors_in",
    "tensors_of",
]

ValueT = TypeVar("ValueT")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples, dicts, dataclasses, and objects of which torch knows the parts.

    What holds itself is looked through once.
    """
    for leaf in _leaves_in(value, ()):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def holds_itself(value: Any, _around: tuple[int, ...] = ()) -> bool:
    """Return whether a list, tuple or dict is inside of itself, so that whoever walks through it comes to no end."""
    if not isinstance(value, (dict, list, tuple)):
        return False
    if id(cast("Any", value)) in _around:
        return True
    parts = cast(
        "Iterable[Any]", dict.values(cast("dict[Any, Any]", value)) if isinstance(value, dict) else value
    )
    return any(holds_itself(part, (*_around, id(cast("Any", value)))) for part in parts)


def _leaves_in(value: Any, _around: tuple[int, ...]) -> Iterator[Any]:
    """Yield the tensors and the open sizes in a nested value."""
    if not can_be_asked(value):
        return
    if isinstance(value, _LEAVES):
        yield value
        return
    if id(value) in _around:
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (dict, UserDict)):
        parts = cast("dict[Any, Any]", value).values()
    elif isinstance(value, (list, tuple, deque, UserList)):
        parts = elements_of(value)
    elif is_registered(value):
        parts = flatten_tree(value)[0]
    elif not isinstance(value, type) and dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    for part in parts:
        yield from _leaves_in(part, (*_around, id(value)))


_OPEN_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LEAVES = (torch.Tensor, *_OPEN_SIZES)


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and value of every buffer, and of every tensor that is a plain attribute."""
    yield from module.named_buffers(remove_duplicate=False)
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if issubclass(type(value), torch.Tensor):
                yield (f"{prefix}.{name}" if prefix else name), value


def copy_values(values: ValueT) -> ValueT:
    """Return a deep copy; tensors that are results of a computation are copied without their history."""
    return _copied(values, _copies(tensors_in(values)))


def copy_inputs(inputs: ValueT, leaves: list[torch.Tensor] | None = None) -> ValueT:
    """Return a deep copy of what a program is to be given.

    A result of a computation is one in the copy, too, and has been computed from a leaf of its own: a program may write
    to results that require gradients, and not to leaves that do.

    Args:
        inputs: Values with tensors in them.
        leaves: Receives these leaves.
    """
    copies = _copies(tensors_in(inputs))
    for tensor in tensors_in(inputs):
        if not tensor.is_leaf and (leaf := copies[id(tensor)]).is_leaf and leaf.requires_grad:
            with torch.enable_grad():
                copies[id(tensor)] = leaf.clone()
            if leaves is not None:
                leaves.append(leaf)
    return _copied(inputs, copies)


def _copied(values: ValueT, copies: dict[int, Any]) -> ValueT:
    # Open sizes never change, and hold on to the whole environment that they are known in.
    sizes = {id(leaf): leaf for leaf in _leaves_in(values, ()) if isinstance(leaf, _OPEN_SIZES)}
    return deep_copy(values, {**copies, **sizes})


def copy_module(module: ModuleT) -> ModuleT:
    """Return a deep copy of a module, which shares nothing with it."""
    return copy.deepcopy(module, _copies(value for _, value in tensors_of(module)))


def _copies(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy`, with copies of the tensors that it refuses."""
    return {id(tensor): _copy_of(tensor) for tensor in tensors if not tensor.is_leaf or _is_unusual(tensor)}


def _is_unusual(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) not in _USUAL or tensor.is_nested or tensor.is_quantized or tensor.layout not in _LAYOUTS
    )


_USUAL = frozenset({torch.Tensor, nn.Parameter})
_LAYOUTS = frozenset({torch.strided, torch.sparse_coo})


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy without history."""
    if tensor.is_leaf and type(tensor) not in _USUAL:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # Not every class says how that is done.
            return copy.deepcopy(tensor)
    copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if type(copied) is type(tensor):
        vars(copied).update(vars(tensor))
    return copied


@contextmanager
def forked_random_state() -> Generator[None]:
    """Give back the random states of PyTorch, Python and NumPy as they were; whatever runs inside starts from them.

    The generators of devices that are in use are among those of PyTorch.
    """
    sources = RandomSources()
    with kept_random_state():
        try:
            yield
        finally:
            sources.restore(sources.changed())


class _Saved(NamedTuple):
    tensor: torch.Tensor
    alias: torch.Tensor
    """Has its memory and shape, also when the tensor has got others (``tensor.data = ...``)."""
    value: torch.Tensor
    requires_grad: bool
    history: History
    gradient: torch.Tensor | None


class SavedTensors:
    """Tensors as they are now, and the way back; they stay the objects that they are.

    Args:
        tensors: Those that are saved.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._saved: dict[int, _Saved] = {}
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Save a tensor, too.

        Args:
            tensor: The tensor.
            value: A copy of it, where there is one.
        """
        if id(tensor) not in self._saved:
            alias = tensor.detach()
            copied = alias.clone() if value is None else value
            gradient = tensor.grad if tensor.is_leaf else None
            self._saved[id(tensor)] = _Saved(
                tensor, alias, copied, tensor.requires_grad, History(tensor), gradient
            )

    def restore(self) -> None:
        """Make them what they were."""
        if not self._saved:
            return
        with torch.no_grad():
            for tensor, alias, value, *_ in self._saved.values():
                if is_elsewhere(tensor, alias):
                    if tensor.is_leaf:
                        tensor.grad = None  # It would have to fit what the tensor is to be.
                    tensor.data = alias
                if not tensor.is_meta and not _is_equal(tensor, value):
                    write_back(tensor, value)
            for tensor, _, _, requires_grad, history, gradient in self._saved.values():
                history.restore()
                if tensor.is_leaf and tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                if tensor.is_leaf and tensor.grad is not gradient:
                    tensor.grad = gradient


class SavedState:
    """A module as it is now, and the way back to it.

    Args:
        module: What is saved, with everything below it.
        buffers_only: Whether parameters and plain attributes are left out. They are what takes memory, and what a
            lowered module may fill at its first call.
        besides: Tensors that are kept elsewhere, or left out by `buffers_only`, and saved with it.
        parts: Modules below it of which all is saved, also with `buffers_only`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        buffers_only: bool = False,
        besides: Iterable[torch.Tensor] = (),
        parts: Iterable[nn.Module] = (),
    ) -> None:
        self.buffers = {name: tensor.detach().clone() for name, tensor in tensors_of(module)}
        """Path -> value of every buffer, and of every tensor that is a plain attribute."""
        self._tensors = SavedTensors(besides)
        for name, tensor in tensors_of(module):
            self._tensors.add(tensor, self.buffers[name])
        self._attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self._contents: list[tuple[Any, list[Any]]] = []
        self._containers = Containers()
        """Of attributes, with the containers in them."""
        kept = parts if buffers_only else (module,)
        self._keep({id(part): part for whole in kept for part in whole.modules()}.values())

    def _keep(self, parts: Collection[nn.Module]) -> None:
        """Save attributes and parameters of modules, but not of those below them."""
        for part in parts:
            attributes = dict(vars(part))
            self._attributes.append((part, attributes))
            self._contents += [
                (value, copy_of(value))
                for value in attributes.values()
                if issubclass(type(value), (dict, list, set))
            ]
            self._containers.remember("", attributes)
        for part in parts:
            for tensor in (*part.parameters(recurse=False), *tensors_in(_own_containers(part))):
                self._tensors.add(tensor)

    def restore(self) -> None:
        """Make the module what it was; objects that it held keep their identity."""
        for container, elements in self._contents:
            # In place: handles of hooks refer to the very dict that holds them.
            if not is_unchanged(container, elements):
                fill(container, elements)
        self._containers.restore(again=True)
        for part, attributes in self._attributes:
            current = vars(part)
            for name in [name for name in current if name not in attributes]:
                del current[name]
            current.update(attributes)
        self._tensors.restore()


def _own_containers(module: nn.Module) -> list[Any]:
    """Return the attributes of a module that may hold tensors, without the tables that every module has."""
    return [
        value
        for name, value in vars(module).items()
        if issubclass(type(value), (dict, list, tuple, deque)) and name not in OWN_TABLES
    ]


def _is_equal(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    try:
        return torch.equal(tensor, value)
    except (NotImplementedError, RuntimeError):  # Those of some layouts are not compared.
        return False
