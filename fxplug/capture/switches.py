"""What the classes of a program do when they are switched between training and evaluation.

A class may have a ``train`` of its own, as one whose batch norm is never trained. A graph has no place for that code.
So it is run when the program is captured, for both modes, and what it has done is put back: which modules it leaves in
which mode is kept as data.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from fxplug.capture.containers import PLAIN
from fxplug.capture.hazards import scan_of
from fxplug.capture.outside import OutsideState
from fxplug.capture.quiet import quiet
from fxplug.capture.reached import function_behind
from fxplug.capture.state import ModuleStates
from fxplug.errors import TraceError
from fxplug.execute import GraphModule
from fxplug.semantics.internals import LightDispatchMode, modules_below, parameters_of
from fxplug.semantics.random_state import kept_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug.capture.outside import Step
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

    Raises:
        TraceError: A call of ``train()`` or ``eval()`` that should change nothing changes the program.
    """

    def __init__(self, root: nn.Module, entered: list[tuple[str, nn.Module]]) -> None:
        self._root = root
        self._modules = modules_below(root)
        self._functions = [found for _, module in entered for found in _functions_of(module)]
        now = self._after(training=root.training)
        if now.others:
            raise _refusal(root, entered, now.others[0])
        other = self._after(training=not root.training)
        self.is_known = now.flags is not None and other.flags is not None and not other.others
        """Whether both switches do nothing but to switch modules; otherwise the program is the captured one in its
        present mode alone."""
        found = {root.training: now.flags or {path: module.training for path, module in self._modules}}
        found[not root.training] = other.flags if self.is_known and other.flags is not None else {}
        self.overrides: dict[str, tuple[bool, bool]] = {}
        """See `Graph.training_overrides`."""
        for path, _ in self._modules:
            flags = found[True].get(path, True), found[False].get(path, False)
            if flags != (True, False):
                self.overrides[path] = flags

    def _after(self, *, training: bool) -> _Switched:
        """Return what the switch does to the program, and put that back."""
        root = self._root
        switched = self._run(root.train, training)
        if training or switched.flags is None or not _has_own(root, "eval"):
            return switched
        # The one is called where the other is meant.
        again = self._run(root.eval)
        known = again.flags == switched.flags
        return _Switched(again.flags if known else None, switched.others + again.others)

    def _run(self, switch: Callable[..., Any], *args: bool) -> _Switched:
        states, outside = ModuleStates(), OutsideState({id(module) for _, module in self._modules})
        for path, module in self._modules:
            states.remember(module, path)
        for function in self._functions:
            outside.note_function(function, function.__code__, scan_of(function.__code__).names)
        weights = [
            one for _, module in self._modules for one in parameters_of(module).values() if one is not None
        ]
        required = [(weight, weight.requires_grad, weight.grad) for weight in weights]
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
        flags = {path: module.training for path, module in self._modules} if is_done else None
        others = [
            change.path
            for change in states.restore()
            if change.name != "training" and not (change.steps and all(map(_is_equal, change.steps)))
        ]
        others += [str(change.known) for change in outside.restore()]
        for weight, requires_grad, grad in required:
            if weight.requires_grad is not requires_grad:
                weight.requires_grad_(requires_grad)
                others.append("whether its parameters require gradients")
            if weight.grad is not grad:
                weight.grad = grad
                others.append("the gradients of its parameters")
        return _Switched(flags, others)


def _functions_of(module: nn.Module) -> Iterator[FunctionType]:
    for name in ("train", "eval"):
        function = function_behind(getattr(module, name))
        if isinstance(function, FunctionType) and _has_own(module, name):
            yield function


def _is_equal(step: Step) -> bool:
    """Return whether what was assigned is a plain value that is equal to the former one."""
    kind = type(step.former)
    return kind in PLAIN and type(step.found) is kind and step.former == step.found


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
