"""What a program asks besides its inputs while it is traced: flags of modules, modes of torch, kinds of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.reached import asks_for_training, flags_read_by
from fxplug.capture.sources import user_line
from fxplug.execute import GraphModule
from fxplug.ir.guards import StateGuard
from fxplug.semantics.internals import hooks_around_forward, modules_of
from fxplug.semantics.surroundings import ATTRIBUTES, holds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.capture.regions import RegionStack
    from fxplug.capture.state import ModuleChange

__all__ = ["Surroundings"]


class Surroundings:
    """Collects what the program was told, as guards.

    Args:
        regions: The contexts of torch that the program enters.
    """

    def __init__(self, regions: RegionStack) -> None:
        self._regions = regions
        self._guards: dict[tuple[str, tuple[Any, ...]], StateGuard] = {}
        self._switched: set[str] = set()
        self.asks_for_training = False
        """Whether a module has asked for its flag, or that of another one."""

    def note_switch(self, path: str) -> None:
        """Hear that the program itself switches the module at a path."""
        self._switched.add(path)

    def is_recorded(self, change: ModuleChange) -> bool:
        """Return whether a change is one of those that the captured program makes, too."""
        return change.name == "training" and change.path.rpartition(".")[0] in self._switched

    def note_flags(self, path: str, module: nn.Module) -> None:
        """Hear that the forward of a module below the root is about to run.

        Args:
            path: Where the root has it.
            module: The module.
        """
        for flag in flags_read_by(module):
            self.note_flag_at(flag, path, module)
        if any(map(asks_for_training, hooks_around_forward(module))):
            self.note_flag_at("", path, module)
        if isinstance(module, GraphModule):
            for guard in module.graph.state_guards:
                self._add(guard.below(path))

    def note_outside(self, module: nn.Module) -> None:
        """Hear that the forward of a module is about to run that the root does not have: its flags are constants."""
        for guard in module.graph.state_guards if isinstance(module, GraphModule) else ():
            if guard.steps[0] != "self":
                self._add(guard)

    def note_flag_at(self, flag: str | None, path: str, module: nn.Module) -> None:
        """Hear that a flag may have been read: of which modules below the one at a path, as `flags_read_by` says it."""
        for inner, asked in _modules_asked(module, flag):
            self.asks_for_training = True
            self._note_flag(f"{path}.{inner}".strip("."), asked)

    def note_same_flag(self, path: str, module: nn.Module) -> None:
        """Hear that the program switches the module at a path to what it is, which it need not be in another call."""
        if path:
            self._note_flag(path, module)
        else:
            self.asks_for_training = True

    def _note_flag(self, path: str, module: nn.Module) -> None:
        # The flag of the root is known to the graph itself.
        if path and path not in self._switched:
            self._add(StateGuard(f"self.{path}.training", (), module.training))

    def _add(self, guard: StateGuard) -> None:
        if guard.steps[0] == "self" or not self._is_own(guard.steps[1], guard.arguments):
            self._guards.setdefault((guard.asked, guard.arguments), guard)

    def note_weight(self, path: str, attribute: str, weight: torch.Tensor) -> None:
        """Hear that the program goes on with what it was told about a weight of the root."""
        asked = f"self.{path}.{attribute}"
        if (asked, ()) not in self._guards:
            answer = ATTRIBUTES[attribute](weight)
            self._add(StateGuard(asked, (), answer, *_place_asked()))

    def note_mode(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """Hear that the program has asked torch for a mode.

        Args:
            name: Of the function.
            arguments: Of the call.
            answer: What it has returned.
        """
        name, arguments = _RENAMED.get(name, (name, arguments))
        self._add(StateGuard(f"torch.{name}", arguments, answer, *_place_asked()))

    def _is_own(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Return whether the program itself has set what a function of torch tells of."""
        regions = self._regions
        if name == "is_grad_enabled" and regions.standing is not None:
            return True
        kinds = _SET_BY.get(name, ())
        device = arguments[0] if arguments else "cuda"
        return any(
            isinstance(context, kinds) and getattr(context, "device", device) == device
            for context, _ in regions.entered
        )

    def finish(self, root: Any) -> tuple[StateGuard, ...]:
        """Return the guards of a program that has ended.

        What torch does not say any more was set by the program itself meanwhile.

        Args:
            root: The program.
        """
        return tuple(
            [guard for guard in self._guards.values() if guard.steps[0] == "self" or holds(guard, root)]
        )


_RENAMED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "get_autocast_cpu_dtype": ("get_autocast_dtype", ("cpu",)),
    "get_autocast_gpu_dtype": ("get_autocast_dtype", ("cuda",)),
    "is_autocast_cpu_enabled": ("is_autocast_enabled", ("cpu",)),
}
"""What torch wants to be asked instead."""
_SET_BY: dict[str, tuple[type, ...]] = {
    "get_autocast_dtype": (torch.autocast,),
    "is_autocast_enabled": (torch.autocast,),
    "is_grad_enabled": (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode),
    "is_inference_mode_enabled": (torch.inference_mode,),
}
"""Function of torch -> the contexts that say what it answers."""


def _place_asked() -> tuple[str, str]:
    """Return the line of the program that asks, and its text."""
    line = user_line()
    return ("", "") if line is None else (str(line), line.text or "")


def _modules_asked(module: nn.Module, flag: str | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that have a flag, with their paths: the one at a path, or all where that is not known."""
    if flag is None:
        yield from module.named_modules()
        return
    found: nn.Module | None = module
    for name in flag.split(".") if flag else ():
        found = modules_of(found).get(name)
        if not isinstance(found, nn.Module):
            return  # An object of the program.
    yield flag, found
