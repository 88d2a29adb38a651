"""What the classes of a program do when they are switched between training and evaluation.

A class may have a ``train`` of its own, as one whose batch norm is never trained. A graph has no place for that code.
So it is run when the program is captured, for both modes, on a copy of the modules that shares their weights: which
modules it leaves in which mode is kept as data. What it does beside that is put back.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from fxplug.capture.containers import PLAIN
from fxplug.capture.hazards import scan_of
from fxplug.capture.outside import OutsideState
from fxplug.capture.quiet import quiet
from fxplug.capture.settings import Settings
from fxplug.capture.state import ModuleStates
from fxplug.capture.unheard import functions_behind
from fxplug.capture.writes import with_inner
from fxplug.errors import TraceError
from fxplug.execute import GraphModule
from fxplug.semantics.internals import LightDispatchMode, buffers_of, modules_below, parameters_of
from fxplug.semantics.random_sources import RandomSources
from fxplug.semantics.random_state import kept_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    from fxplug.capture.outside import Step
    from fxplug.capture.state import ModuleChange
    from fxplug.ir import Graph

__all__ = ["Switches", "entered_switches"]


def entered_switches(modules: Sequence[nn.Module], graph: Graph) -> list[tuple[str, nn.Module]]:
    """Return the modules that say what it means to be switched, and their paths, but those that stay calls.

    Args:
        modules: What was traced, and the modules below it.
        graph: What was recorded.
    """
    # A model has hundreds of modules, and few classes.
    kinds = {kind for kind in set(map(type, modules)) if kind.train is not nn.Module.train}
    root = modules[0]
    is_usual = not kinds and not [module for module in modules if "train" in module.__dict__]
    if is_usual and not _has_own(root, "eval"):
        return []
    own = [(path, module) for path, module in modules_below(root) if _switches_itself(module)]
    kept = {str(node.target) for node in graph.find_nodes(op="call_module")}
    return [(path, module) for path, module in own or [("", root)] if kept.isdisjoint(_on_the_way(path))]


def _switches_itself(module: nn.Module) -> bool:
    if not _has_own(module, "train"):
        return False
    if isinstance(module, GraphModule) and type(module).train is GraphModule.train:
        return bool(module.graph.training_overrides)
    return True


def _has_own(module: nn.Module, name: str) -> bool:
    return getattr(type(module), name) is not getattr(nn.Module, name) or name in module.__dict__


def _on_the_way(path: str) -> Iterator[str]:
    names = path.split(".")
    return (".".join(names[:length]) for length in range(1, len(names) + 1))


class _Unknown(Exception):  # noqa: N818 - it tells of no error
    """A call of ``train`` does something of which nobody can say what it means."""


class _NoOperators(LightDispatchMode):
    """Lets no operator run: a switch that merges weights must not do so in the middle of a capture."""

    has_met_one = False

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse an operator."""
        self.has_met_one = True
        raise _Unknown


class _Switched(NamedTuple):
    """What a switch has done."""

    flags: dict[str, bool] | None
    """Path of a module -> whether it is trained then; None where the switch could not be run to its end."""
    others: list[str]
    """What else is not as it was."""


class Switches:
    """What happens to the modules of a program when it is switched.

    Args:
        root: The program. It is as it was afterwards.
        entered: Its modules that have a ``train`` of their own and are no calls of the captured program, with paths.
        codes: The functions that the program runs: what they do not read may change.

    Raises:
        TraceError: A call of ``train()`` or ``eval()`` that should change nothing changes the program.
    """

    def __init__(
        self, root: nn.Module, entered: list[tuple[str, nn.Module]], codes: Iterable[CodeType]
    ) -> None:
        self._root = root
        self._copy = _copy_of(root)
        self._read = {name for code in codes for part in with_inner(code) for name in part.co_names}
        switching = [
            one
            for _, module in entered
            for one in (module.train, module.eval, *vars(module).values())
            if isinstance(one, (FunctionType, MethodType))
        ]
        self._functions = {one.__code__: one for switch in switching for one in functions_behind(switch)}
        now = self._after(training=root.training)
        if now.others:
            raise _refusal(root, entered, now.others[0])
        other = self._after(training=not root.training)
        self.is_known = now.flags is not None and other.flags is not None and not other.others
        """Whether both switches do nothing but to switch modules; otherwise the program is the captured one in its
        present mode alone."""
        flags_now = {path: module.training for path, module in modules_below(root)}
        found = {root.training: now.flags or flags_now}
        found[not root.training] = other.flags if self.is_known and other.flags is not None else {}
        self.overrides: dict[str, tuple[bool, bool]] = {}
        """See `Graph.training_overrides`."""
        for path in flags_now:
            flags = found[True].get(path, True), found[False].get(path, False)
            if flags != (True, False):
                self.overrides[path] = flags

    def _after(self, *, training: bool) -> _Switched:
        """Return what the switch does to the program."""
        copied = self._copy
        if copied is None:
            return _Switched(None, [])
        switched = self._run(copied, copied.train, training)
        if training or switched.flags is None or not _has_own(copied, "eval"):
            return switched
        # The one is called where the other is meant.
        again = self._run(copied, copied.eval)
        known = again.flags == switched.flags
        return _Switched(again.flags if known else None, switched.others + again.others)

    def _run(self, copied: nn.Module, switch: Callable[..., Any], *args: bool) -> _Switched:
        """Switch the copy, and put back what that does to it, and to what it has in common with others."""
        modules, states, around = modules_below(copied), ModuleStates(), _Around(self._root, self._functions)
        for path, module in modules:
            states.remember(module, path)
        operators = _NoOperators()
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(kept_random_state())
            stack.enter_context(operators)
            try:
                switch(*args)
                is_done = not operators.has_met_one
            except Exception:
                is_done = False
        flags = {path: module.training for path, module in modules} if is_done else None
        others = [change.path for change in states.restore() if self._matters(change)]
        others += around.restore()
        return _Switched(flags, others)

    def _matters(self, change: ModuleChange) -> bool:
        """Return whether the program may do something else after a change in one of its modules."""
        if change.name == "training" or (change.steps and all(map(_is_equal, change.steps))):
            return False
        return (
            change.how in {"hooks", "state"}
            or change.name == "forward"
            or change.name in self._read
            or not self._read.isdisjoint(_DYNAMIC)
        )


class _Around:
    """What a switch may change besides the copy that is switched.

    Args:
        root: What the copy was made of.
        functions: Those that the switch may call, by their code.
    """

    def __init__(self, root: nn.Module, functions: Mapping[CodeType, FunctionType]) -> None:
        modules = [module for _, module in modules_below(root)]
        self._flags = [(module, module.training) for module in modules]
        self._weights = [
            (weight, weight.requires_grad, weight.grad)
            for module in modules
            for weight in parameters_of(module).values()
            if weight is not None
        ]
        self._gradients = torch.is_grad_enabled()
        self._sources, self._settings, self._outside = RandomSources(), Settings(), OutsideState(set())
        for code, function in functions.items():
            self._settings.note_code(code, None)
            self._outside.note_function(function, code, scan_of(code).names)

    def restore(self) -> list[str]:
        """Put back what is not as it was, and return what that is."""
        drawn = self._sources.changed()
        self._sources.restore(drawn)
        others = [str(change.known) for change in self._outside.restore()]
        others += [f"a setting of the process ({what})" for what in self._settings.restore()]
        others += [f"random numbers ({name})" for name in drawn]
        if torch.is_grad_enabled() is not self._gradients:
            torch.set_grad_enabled(self._gradients)
            others.append("whether gradients are computed")
        for module, training in self._flags:
            if module.training is not training:  # By a function that has closed over it.
                module.training = training
                others.append("modules that its functions hold")
        for weight, requires_grad, grad in self._weights:
            if weight.requires_grad is not requires_grad:
                weight.requires_grad_(requires_grad)
                others.append("whether its parameters require gradients")
            if weight.grad is not grad:
                weight.grad = grad
                others.append("the gradients of its parameters")
        return others


def _copy_of(root: nn.Module) -> nn.Module | None:
    """Return a copy of modules with the very weights and buffers; None of one that cannot be copied."""
    known: dict[int, Any] = {}
    for _, module in modules_below(root):
        for table in (parameters_of(module), buffers_of(module), vars(module)):
            known.update((id(value), value) for value in table.values() if isinstance(value, torch.Tensor))
    try:
        return copy.deepcopy(root, known)
    except Exception:  # Whatever the objects in it raise.
        return None


def _is_equal(step: Step) -> bool:
    """Return whether what was assigned is as good as what was there: equal plain values, or nothing in both."""
    former, found = step.former, step.found
    kind = type(former)
    if type(found) is not kind:
        return False
    if kind in _CONTAINERS:
        return not former and not found
    return (kind in PLAIN or kind is MethodType) and former == found


_CONTAINERS = frozenset({dict, list, set, OrderedDict, defaultdict, deque})
_DYNAMIC = frozenset({"__dict__", "getattr", "vars"})
"""What code uses that reads attributes by other than their names."""


def _refusal(root: nn.Module, entered: list[tuple[str, nn.Module]], what: str) -> TraceError:
    path, module = entered[0]
    at = f", at {path!r}," if path else ""
    call = "train()" if root.training else "eval()"
    return TraceError(
        f"Cannot trace {type(root).__name__}: {call} of it changes {what}, though it is in that mode already. The "
        f"class {type(module).__name__}{at} has a {'train' if _has_own(module, 'train') else 'eval'} of its own, and "
        f"what it does besides switching modules cannot be recorded. Call {call} before the program is captured.",
        code="FXP-T052",
    )
