"""Parameters stay the objects that they are, so that an optimizer trains what comes out of a pipeline, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from fxplug.errors import PassError
from fxplug.semantics.internals import memory_of, parameters_of, storage_of
from fxplug.semantics.storages import is_elsewhere

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from fxplug.passes.tensor_table import TensorTable
    from fxplug.semantics.storages import StorageJournal

__all__ = ["keep_parameters"]

_SHOWN = 3


def keep_parameters(
    module: nn.Module, before: TensorTable, after: TensorTable, journal: StorageJournal, title: str
) -> None:
    """Put back the parameters for which a pass put others of the same kind, with the values of these.

    Gradients, ``requires_grad`` and ties are those of the old objects, the values those that the pass left. A parameter
    that has another path now is the same object anyway.

    Args:
        module: As the pass left it.
        before: What it held before.
        after: What it holds now.
        journal: Keeps what is written over, so that it can be undone.
        title: Names the pass in messages.

    Raises:
        PassError: A parameter is gone, or is one of another kind; the record of the pass does not say that it may be.
    """
    plan = _Plan(before.parameters, after.parameters)
    for group in _groups(before.parameters):
        plan.add(group)
    _refuse_merged(plan)
    if plan.problems:
        more = len(plan.problems) - _SHOWN
        listed = "; ".join(plan.problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise PassError(
            f"Pass {title} does not keep the parameters: {listed}. An optimizer that was made before would not train "
            "what is there now. Write values in place, or declare it: PassRecord(replaces_parameters=True).",
            code="FXP-P023",
        )
    if plan.exchanges:
        fresh = _fresh_tensors(before, after, plan)
        with journal, torch.no_grad():
            _take_values(plan.exchanges, fresh)
        _put_back(module, {id(exchange.new): exchange.old for exchange in plan.exchanges})


@dataclass
class _Exchange:
    path: str
    old: torch.Tensor
    new: torch.Tensor


class _Plan:
    """What became of the parameters, and what has to be done about it."""

    def __init__(self, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> None:
        self.exchanges: list[_Exchange] = []
        self.problems: list[str] = []
        self._before, self._after = before, after
        self._known = {id(parameter) for parameter in before.values()}
        self._present = {id(parameter) for parameter in after.values()}

    def add(self, paths: Sequence[str]) -> None:
        """Find out what became of the parameter that had `paths`."""
        old, after = self._before[paths[0]], self._after
        fresh = {
            id(now): (path, now)
            for path in paths
            if (now := after.get(path)) is not None and id(now) not in self._known
        }
        if id(old) in self._present:
            tied = next((path for path in paths if after.get(path) is old), None)
            if fresh and tied is not None:
                path = next(iter(fresh.values()))[0]
                self.problems.append(f"{path!r}, which was tied to {tied!r}, is a parameter of its own")
        elif not fresh:
            self.problems.append(f"{paths[0]!r} ({_kind_text(old)}) is gone")
        elif len(fresh) > 1:
            listed = " and ".join(repr(path) for path, _ in fresh.values())
            self.problems.append(f"{listed}, which were tied, are parameters of their own")
        else:
            path, new = next(iter(fresh.values()))
            if _kind(old) == _kind(new):
                self.exchanges.append(_Exchange(path, old, new))
            else:
                self.problems.append(f"{path!r} was {_kind_text(old)} and is {_kind_text(new)}")


def _groups(parameters: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the paths of each parameter, one list for each object."""
    groups: dict[int, list[str]] = {}
    for path, parameter in parameters.items():
        groups.setdefault(id(parameter), []).append(path)
    return list(groups.values())


def _refuse_merged(plan: _Plan) -> None:
    """Note as a problem that one parameter stands where there were several."""
    first: dict[int, _Exchange] = {}
    for exchange in plan.exchanges:
        other = first.setdefault(id(exchange.new), exchange)
        if other is not exchange:
            plan.problems.append(f"{exchange.path!r} and {other.path!r} were two parameters and are one")


def _kind(parameter: torch.Tensor) -> tuple[Any, ...]:
    if is_lazy(parameter):
        return (type(parameter),)
    return type(parameter), parameter.dtype, parameter.shape, parameter.device, parameter.layout


def _kind_text(parameter: torch.Tensor) -> str:
    if is_lazy(parameter):
        return "of no size yet"
    text = f"{str(parameter.dtype).removeprefix('torch.')}{list(parameter.shape)}"
    if parameter.device.type != "cpu":
        text += f" on {parameter.device}"
    kind = type(parameter)
    return text if kind is torch.nn.Parameter else f"{text} of class {kind.__name__}"


def _fresh_tensors(before: TensorTable, after: TensorTable, plan: _Plan) -> list[torch.Tensor]:
    """Return the tensors that a pass added, but for the parameters that old ones take the place of."""
    known = {id(tensor) for tensor in before.tensors.values()}
    known |= {id(exchange.new) for exchange in plan.exchanges}
    return [tensor for tensor in after.tensors.values() if id(tensor) not in known]


def _take_values(exchanges: Sequence[_Exchange], fresh: Sequence[torch.Tensor]) -> None:
    """Let each old parameter hold the values of the new one, in its own memory, where views of it may be.

    Where something that the pass added lies in that memory, the old parameter gets the memory of the new one instead:
    what was added keeps the values that the pass gave it.
    """
    moved = [
        exchange
        for exchange in exchanges
        if not is_lazy(exchange.old) and is_elsewhere(exchange.new, exchange.old.detach())
    ]
    olds = {key for exchange in moved for key in _memory(exchange.old)}
    taken = {key for tensor in fresh if not is_lazy(tensor) for key in _memory(tensor)}
    # All values are looked up before the first is written: a new parameter may lie in the memory of any old one.
    values = [
        exchange.new.detach() if olds.isdisjoint(_memory(exchange.new)) else exchange.new.detach().clone()
        for exchange in moved
    ]
    for exchange, value in zip(moved, values, strict=True):
        if taken.isdisjoint(_memory(exchange.old)):
            exchange.old.copy_(value)
        else:
            exchange.old.data = value


def _memory(tensor: torch.Tensor) -> set[Any]:
    return {storage_of(plain) for plain in memory_of(tensor)}


def _put_back(module: nn.Module, olds: Mapping[int, torch.Tensor]) -> None:
    for part in module.modules():
        table = parameters_of(part)
        for name, parameter in table.items():
            if id(parameter) in olds:
                table[name] = olds[id(parameter)]
