"""Inputs of which a program asks, and which have a default: it is traced with that, and checks it when it runs."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, cast

from fxplug.capture.caught import forget_frames
from fxplug.capture.concrete import is_checked
from fxplug.errors import FxplugError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fxplug.capture.inputs import Input
    from fxplug.ir import Graph, Node

__all__ = ["Defaults", "trace_with_defaults"]


class Defaults:
    """What a trace knows of the defaults of its inputs, and of the questions of the program.

    Args:
        examples: Positional and named inputs of one call, where the program is traced for such calls.
    """

    def __init__(self, examples: tuple[Sequence[Any], Mapping[str, Any]] = ((), {})) -> None:
        self._examples = examples
        self._inputs: Sequence[Input] = ()
        self._given: Collection[str] = ()
        self._questions: list[tuple[TraceError, Node, str]] = []
        self.taken: dict[str, Any] = {}
        """Name of an input -> its default, of those that the program is traced with."""
        self.places: dict[str, str] = {}
        """Name of such an input -> where the program asks about it."""
        self._needed: set[str] = set()

    def note_inputs(self, inputs: Sequence[Input], given: Collection[str]) -> None:
        """Hear of the inputs of the program, and of the names of those of which the caller has said something."""
        self._inputs, self._given = inputs, given

    def note_question(self, error: TraceError, node: Node, place: str) -> None:
        """Hear of an error that says that the program asks, at some place, about the value of a node."""
        self._questions.append((error, node, place))

    def forget(self) -> None:
        """Let go of what was traced."""
        self._inputs, self._questions = (), []

    def take(self, error: TraceError) -> bool:
        """Take the defaults of the inputs on which alone the answer to a question hangs.

        Args:
            error: By which it was refused.

        Returns:
            Whether there are any: nothing else takes part in the answer, and no input that has no default, or that the
            caller gives.
        """
        for noted, node, place in self._questions:
            if noted is error or noted is error.__cause__:
                names, known = _inputs_behind(node), self._by_name()
                if names <= known.keys():
                    self.taken.update({name: known[name] for name in names})
                    self.places.update(dict.fromkeys(names, place))
                    return bool(names)
        return False

    def present(self) -> set[str]:
        """Return the names of the inputs that may be left out, but not in the calls for which the program is traced."""
        values = self._values()
        optional = {entry.name for entry in self._inputs if entry.default is not inspect.Parameter.empty}
        return {name for name in optional & values.keys() if values[name] is not None} | self._needed

    def give_up(self) -> bool:
        """Hear that the program fails with the defaults that were taken: one that is None may not be left out.

        Returns:
            Whether the program is to be traced once more, with the first such input as one that is given.
        """
        for entry in self._inputs:
            if entry.name in self.taken and entry.default is None:
                self._needed.add(entry.name)
                self.taken.clear()
                self.places.clear()
                return True
        return False

    def _values(self) -> dict[str, Any]:
        positional, named = self._examples
        places = [entry.name for entry in self._inputs if not (entry.stars or entry.keyword_only)]
        return {**dict(zip(places, positional, strict=False)), **named}

    def _by_name(self) -> dict[str, Any]:
        """Return the inputs that may be taken to be their defaults."""
        said, values = {*self._given, *self.taken, *self._needed}, self._values()
        return {
            entry.name: entry.default
            for entry in self._inputs
            if not entry.stars
            and entry.name not in said
            and is_checked(entry.default)
            and values.get(entry.name, entry.default) is entry.default
        }


def _inputs_behind(node: Node) -> set[str]:
    """Return the names of the inputs from which the value of a node is made; nothing where more takes part in it."""
    found: set[str] = set()
    waiting, seen = [node], {node}
    while waiting:
        current = waiting.pop()
        used = current.all_input_nodes
        if current.op == "placeholder":
            found.add(str(current.target))
        elif not used or current.op == "call_module":
            return set()
        further = [one for one in used if one not in seen]
        seen.update(further)
        waiting += further
    return found


def trace_with_defaults(
    defaults: Defaults, problems: list[TraceError] | None, trace: Callable[[], Graph]
) -> Graph:
    """Trace a program, again for as long as it asks about further inputs that have defaults.

    Args:
        defaults: Those that the trace takes; what it asks about is put there.
        problems: Where a trace that goes on behind its questions keeps them.
        trace: Traces the program once.

    Raises:
        TraceError: The program asks something else. Where it fails with a default, and not because an input is None
            that can not be, this is the error that says that the input is asked about.
    """
    first: TraceError | None = None
    answered: list[TraceError] = []
    handled = sys.exc_info()[1]
    problems = [] if problems is None else problems
    before = len(problems)
    while True:
        graph: Graph | None = None
        raised: Exception | None = None
        try:
            graph = trace()
        except Exception as error:
            raised = error
        if raised is not None and not isinstance(raised, FxplugError) and first is not None:
            if defaults.give_up():
                continue
            raise first from raised
        asked = [*problems[before:], *([raised] if isinstance(raised, TraceError) else [])]
        decided = [error for error in asked if defaults.take(error)]
        if decided:
            first = first or decided[0]
            answered += decided
            del problems[before:]
        elif raised is not None:
            raise raised
        else:
            for error in answered:
                forget_frames(error, handled)
            return cast("Graph", graph)
