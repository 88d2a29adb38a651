"""Contexts of torch that a program enters while it is traced: every node knows those around it.

The real context is entered, too: Python may ask whether gradients are on, and leaves of other modes run inside.
Contexts of others than torch just run, since nothing says what they do to a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import PLAIN, RegionEntry
from fxplug.semantics.internals import TorchDispatchMode, autocast_arguments, with_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Graph

__all__ = ["CONTEXTS", "RegionKeeper", "RegionStack"]

CONTEXTS: tuple[type, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.inference_mode,
    torch.autocast,
    forward_ad.dual_level,
)
"""The contexts that are kept; what derives from one of them is kept as it."""


def _entry_of(context: Any) -> RegionEntry:
    """Return how a context is entered again."""
    if isinstance(context, torch.autocast):
        return RegionEntry(torch.autocast, autocast_arguments(context))
    if isinstance(context, torch.set_grad_enabled):
        return RegionEntry(torch.set_grad_enabled, (bool(context.mode),))
    if isinstance(context, torch.inference_mode):
        return RegionEntry(torch.inference_mode, () if context.mode is True else (bool(context.mode),))
    if isinstance(context, forward_ad.dual_level):
        return RegionEntry(forward_ad.dual_level)
    return RegionEntry(torch.no_grad if isinstance(context, torch.no_grad) else torch.enable_grad)


class RegionStack:
    """The contexts that are entered at the moment, the outermost one first."""

    def __init__(self) -> None:
        self.entered: list[tuple[Any, RegionEntry]] = []
        """Each context, and how it is entered again."""
        self.grad_mode = torch.is_grad_enabled()
        """Whether gradients were on before the program ran."""
        self.taken: list[tuple[Any, int, TraceError]] = []
        """Modes of the program that take calls upon themselves, the version that the graph had when each was entered,
        and what is to be said if something is recorded inside."""
        self.busy = False
        """Whether a context of torch is being entered or left, which torch does with the help of others."""
        self.statement: tuple[Any, RegionEntry | None] | None = None
        """A ``set_grad_enabled(...)`` that was just made, and may turn out to be a context; what held before."""
        self.standing: RegionEntry | None = None
        """What a ``set_grad_enabled(...)`` that is no context has set, around everything else."""
        self.nested: tuple[Any, int, TraceError] | None = None
        """One that was made inside a context, the version that the graph had then, and what is to be said if it turns
        out to be a statement."""
        self.refusal: TraceError | None = None
        """What is to be said if that is still in effect behind the program."""


class RegionKeeper:
    """A tracer that gives each node the region in which it is made."""

    graph: Graph
    mode: str
    paused: int = 0
    _regions: RegionStack

    def on_context_enter(self, enter: Callable[[Any], Any], context: Any) -> Any:
        """Hear that a context of torch is entered; return what its ``__enter__`` returns."""
        stack = self._regions
        if stack.busy:
            return enter(context)
        self._check_nested(context)
        self._end_statement(context)
        result = self._quietly(enter, context)
        stack.entered.append((context, _entry_of(context)))
        self._set_region()
        return result

    def on_context_exit(self, leave: Callable[..., Any], context: Any, error: tuple[Any, ...]) -> Any:
        """Hear that a context of torch is left; return what its ``__exit__`` returns.

        Raises:
            TraceError: Another one was entered last.
        """
        stack = self._regions
        if stack.busy:
            return leave(context, *error)
        result = self._quietly(leave, context, *error)
        if stack.entered and stack.entered[-1][0] is context:
            stack.entered.pop()
            self._set_region()
        else:
            self.note_refusal(problem := _not_nested(context))
            if error[0] is None:
                raise problem
        self._check_nested(None)
        return result

    def on_grad_mode_made(self, make: Callable[..., None], context: Any, arguments: tuple[Any, ...]) -> None:
        """Hear that a ``set_grad_enabled`` is made, which takes effect at once."""
        stack = self._regions
        if stack.busy:
            make(context, *arguments)
            return
        self._check_nested(context)
        make(context, *arguments)
        stack.statement = (context, stack.standing)
        if stack.entered:
            stack.nested = (context, self.graph.version, _statement(context))
            return
        stack.refusal = _statement(context)
        mode = bool(context.mode)
        stack.standing = None if mode is stack.grad_mode else RegionEntry(torch.set_grad_enabled, (mode,))
        self._set_region()

    def on_grad_mode_decorates(self, decorate: Callable[[Any, Any], Any], context: Any, function: Any) -> Any:
        """Hear that a ``set_grad_enabled`` is used as a decorator, which ends its effect."""
        self._regions.nested = None
        self._end_statement(context)
        return decorate(context, function)

    def on_calls_taken_over(self, mode: Any) -> None:
        """Hear that a mode is entered that takes calls of torch, its operators, or what it saves, upon itself."""
        if self.paused:
            return
        if isinstance(mode, saved_tensors_hooks):
            kind = type(mode)
            if (kind is saved_tensors_hooks or _is_of_program(kind)) and not self._saves_exactly(mode):
                self._take_over(mode)
        elif _is_missed(mode, runs_operators=self.mode != "symbolic"):
            self._take_over(mode)

    def _saves_exactly(self, hooks: Any) -> bool:
        """Return whether what torch saves comes back as it was, as far as a few numbers tell."""
        self.paused += 1
        token = active.set(None)
        try:
            with torch.no_grad(), with_data():
                # Some have all the bits of a float, and some are beyond the range of a half.
                numbers = torch.tensor([[0.5, -1.25, 1 / 3], [0.0, 123456.789, -1e-9]])
                found = hooks.unpack_hook(hooks.pack_hook(numbers.clone()))
                return found.dtype is numbers.dtype and torch.equal(found, numbers)
        except Exception:  # Whatever it is: they may do the same to what is saved.
            return False
        finally:
            active.reset(token)
            self.paused -= 1

    def _take_over(self, mode: Any) -> None:
        """Remember a mode of the program: it does what is not known with calls that it does not hear of."""
        self._regions.taken.append((mode, self.graph.version, _mode_error(mode)))

    def on_calls_given_back(self, mode: Any) -> None:
        """Hear that such a mode is left.

        Raises:
            TraceError: Something was recorded meanwhile.
        """
        taken = self._regions.taken
        for entry in [entry for entry in taken if entry[0] is mode]:
            taken.remove(entry)
            if str(type(mode).__module__).startswith("torch."):
                # It may be a part of another one, which has more to leave: FlopCounterMode has hooks of all modules.
                if self.graph.version != entry[1]:
                    self.refuse_in_the_end(entry[2])
            else:
                self._check_taken(entry)

    def _check_taken(self, entry: tuple[Any, int, TraceError]) -> None:
        _, version, error = entry
        if self.graph.version != version:
            self.note_refusal(error)
            raise error

    def _quietly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        stack = self._regions
        stack.busy = True
        try:
            return function(*arguments)
        finally:
            stack.busy = False

    def _set_region(self) -> None:
        self.settle_computed()
        stack = self._regions
        entries = [entry for _, entry in stack.entered]
        self.graph.current_region = tuple(entries if stack.standing is None else [stack.standing, *entries])

    def _end_statement(self, context: Any) -> None:
        """Hear that `context` is used as a context: what it set when it was made was no statement."""
        stack = self._regions
        if stack.statement is not None and stack.statement[0] is context:
            stack.standing = stack.statement[1]
            stack.statement = None
            stack.refusal = None
            self._set_region()

    def _check_nested(self, context: Any) -> None:
        """Refuse a ``set_grad_enabled`` that is a statement inside of a context, unless it is `context` itself."""
        stack = self._regions
        if stack.nested is None:
            return
        made, version, error = stack.nested
        stack.nested = None
        if made is not context or version != self.graph.version:
            self.note_refusal(error)
            raise error

    def leave_regions(self) -> None:
        """Leave what is still entered when the program has failed, so that whoever runs next finds it as it was."""
        stack = self._regions
        stack.busy = True
        for context, _ in reversed(stack.entered):
            context.__exit__(None, None, None)
        stack.entered.clear()
        if torch.is_grad_enabled() is not stack.grad_mode:
            torch.set_grad_enabled(stack.grad_mode)
        self.graph.current_region = PLAIN

    def check_regions(self) -> None:
        """Refuse a program that has ended in another region than it began in.

        Raises:
            TraceError: It has.
        """
        self._check_nested(None)
        for entry in self._regions.taken:
            self._check_taken(entry)
        entered = self._regions.entered
        if not entered and torch.is_grad_enabled() is not self._regions.grad_mode and self._regions.refusal:
            raise self._regions.refusal
        if entered:
            raise TraceError(
                f"Cannot trace: the program has entered {_name(entered[-1][0])} and does not leave it. Use it in a "
                "'with' statement.",
                code="FXP-T050",
            )

    def note_refusal(self, error: TraceError) -> None:
        """Remember an error that a program must not swallow."""

    def refuse_in_the_end(self, error: TraceError) -> None:
        """Remember an error that is to be raised when the program has ended."""

    def settle_computed(self) -> None:
        """Record what was read, and would be read differently in another region (see `fxplug.capture.late`)."""


_WITH_MODES = frozenset({"fxplug", "torch"})
"""Whose modes leave results as they are."""
_COUNTING = "torch.utils.flop_counter"
"""Where torch has the mode that counts what operators do; it is not imported for that."""


def _is_missed(mode: Any, *, runs_operators: bool) -> bool:
    """Return whether the captured program does without a mode that the program enters, and is another one then."""
    kind = type(mode)
    if str(kind.__module__).partition(".")[0] not in _WITH_MODES:
        return True
    if kind.__module__ == _COUNTING:
        return True  # What it has counted would be a constant, whatever is computed.
    return isinstance(mode, TorchDispatchMode) and not runs_operators


def _is_of_program(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] not in _WITH_MODES


def _mode_error(mode: Any) -> TraceError:
    """Return the error for a mode of the program that takes calls of torch, or its operators, upon itself."""
    if isinstance(mode, saved_tensors_hooks):
        return TraceError(
            f"Cannot trace: the program enters {type(mode).__qualname__}{place_in_program()}, whose functions change "
            "what torch saves for gradients, and the captured program would compute other ones. Make the enclosing "
            "module a leaf, or enter it around the captured program.",
            code="FXP-T050",
        )
    taken, remedy = "operators", "Make"
    if isinstance(mode, TorchFunctionMode):
        taken, remedy = "calls of torch", "Give example inputs (fxplug.trace), make"
    return TraceError(
        f"Cannot trace: the program enters {type(mode).__qualname__}, a mode that takes {taken} upon itself"
        f"{place_in_program()}, and does not hear of what is only recorded. {remedy} the enclosing module a leaf, or "
        "enter the mode around the captured program.",
        code="FXP-T050",
    )


def _name(context: Any) -> str:
    return f"torch.{_entry_of(context).context.__name__}"


def _not_nested(context: Any) -> TraceError:
    return TraceError(
        f"Cannot trace: {_name(context)} is left{place_in_program()}, but it is not what was entered last while "
        "tracing. Use it in a 'with' statement inside the program.",
        code="FXP-T050",
    )


def _statement(context: Any) -> TraceError:
    return TraceError(
        f"Cannot trace: set_grad_enabled({bool(context.mode)}) is called as a statement{place_in_program()}, so that "
        "it stays in effect behind the program, too. Use it as a context: 'with torch.set_grad_enabled(...):'.",
        code="FXP-T050",
    )
