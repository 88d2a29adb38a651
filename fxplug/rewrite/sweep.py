"""Patterns with conditions, and many of them in one sweep over a graph."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import InvalidArgumentError, PatternError, did_you_mean
from fxplug.execute import GraphModule
from fxplug.ir.collector import paused_collection
from fxplug.rewrite.edits import Editor, ReplacedPatterns
from fxplug.rewrite.elements import Const
from fxplug.rewrite.matcher import InternalMatch, SubgraphMatcher
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.questions import asked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Graph, Node
    from fxplug.rewrite.search import Search

__all__ = ["Pattern", "Rewriter"]


class Pattern:
    """What to search for in a graph.

    Args:
        program: A function, module, graph or graph module. Its parameters stand for any values; what it returns may be
            used elsewhere. It may call elements (`AnyOf`, `Module`, `Wildcard`).
        keep_used: Whether values inside of it may be used elsewhere, too. What computes them stays.
        ignore_literals: Whether any plain value matches a plain value of the pattern.
        **parameters: For parameters of `program`, what the value must be.

    Raises:
        PatternError: The program cannot be searched for, or has no such parameter.

    Example:
        ::

            Pattern(lambda x, n: torch.pow(x, n), n=Const(lambda n: n in {2, 3}))
    """

    def __init__(
        self,
        program: Callable[..., Any] | Graph | GraphModule,
        /,
        *,
        keep_used: bool = False,
        ignore_literals: bool = False,
        **parameters: Const,
    ) -> None:
        self.template = Template.of(program, "pattern")
        """Its graph."""
        self.matcher = SubgraphMatcher(
            self.template,
            ignore_literals=ignore_literals,
            constraints=dict(self._constraints(parameters)),
            keep_used=keep_used,
        )
        """Finds places that are like it."""

    def _constraints(self, parameters: dict[str, Const]) -> Iterator[tuple[Node, Const]]:
        inputs = {str(node.target): node for node in self.template.inputs}
        for name, constraint in parameters.items():
            if name not in inputs:
                raise PatternError(
                    f"Cannot use the pattern: it has no parameter {name!r}. {did_you_mean(name, list(inputs))}"
                )
            if not isinstance(constraint, Const):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PatternError(
                    f"Cannot use {constraint!r} for the parameter {name!r} of the pattern: pass Const(predicate)."
                )
            yield inputs[name], constraint

    def matches(self, module: GraphModule) -> list[InternalMatch]:
        """Return the places of a module that are like this, in order; those that overlap with an earlier one left out.

        Args:
            module: Not changed.
        """
        return self.matcher.match(module.graph)


@dataclass(frozen=True)
class _Rule:
    pattern: Pattern
    replacement: Any
    condition: Callable[[InternalMatch], bool] | None
    callback: Callable[[InternalMatch], Any] | None


class Rewriter:
    """Replaces many patterns in one sweep.

    The places are looked at in the order of the graph; at each one, the rules are tried in the order in which they were
    added, and the first that fits has it. What a replacement brings is not searched again.

    Example:
        ::

            rewriter = Rewriter()
            rewriter.add(Pattern(lambda x: torch.relu(x) + 0), lambda x: torch.relu(x))
            rewriter.add(Pattern(lambda x, n: x**n, n=Const(lambda n: n == 2)), lambda x, n: x * x)
            rewriter.run(module)
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def add(
        self,
        pattern: Pattern | Callable[..., Any] | Graph | GraphModule,
        replacement: Callable[..., Any] | Graph | GraphModule | None = None,
        *,
        condition: Callable[[InternalMatch], bool] | None = None,
        callback: Callable[[InternalMatch], Any] | None = None,
    ) -> Rewriter:
        """Add a rule.

        Args:
            pattern: What to search for.
            replacement: What to put there: the same parameters in the same order, as many results.
            condition: Called with each match; only those for which it returns True are replaced.
            callback: Called with each match instead, before anything is changed; returns what to put there.

        Returns:
            This rewriter.

        Raises:
            PatternError: There is no replacement, or the pattern cannot be searched for.
        """
        if (replacement is None) is (callback is None):
            raise PatternError(
                "Cannot add the rule: pass either a replacement or a callback that returns one."
            )
        wanted = pattern if isinstance(pattern, Pattern) else Pattern(pattern)
        self._rules.append(_Rule(wanted, replacement, condition, callback))
        return self

    def run(self, module: GraphModule) -> list[ReplacedPatterns]:
        """Replace in a module.

        Args:
            module: Changed in place.

        Returns:
            The places, in order.

        Raises:
            PatternError: A replacement does not fit its pattern. Nothing was changed.
        """
        if not isinstance(module, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"Cannot rewrite a {type(module).__module__}.{type(module).__qualname__}: pass a fxplug.GraphModule, "
                "such as fxplug.symbolic_trace(...) returns."
            )
        with (
            paused_collection()
        ):  # What is known about the places is gone before the collector may look at it.
            return self._replace(module)

    def _replace(self, module: GraphModule) -> list[ReplacedPatterns]:
        editor = Editor(module)
        for rule in self._rules:
            if rule.replacement is not None:
                editor.prepare(rule.pattern.template, rule.replacement)
        claimed: set[Node] = set()
        searches = [rule.pattern.matcher.search(module.graph, claimed=claimed) for rule in self._rules]
        for node, order in self._places(searches):
            if node not in claimed:
                self._plan(node, self._rules[order], searches[order], editor, claimed)
        return editor.apply()

    @staticmethod
    def _places(searches: list[Search]) -> Iterator[tuple[Node, int]]:
        """Yield every node that a rule may begin at, in order of the graph, and of the rules."""
        found = [[(node, order) for node in search.candidates()] for order, search in enumerate(searches)]
        yield from heapq.merge(*found)

    @staticmethod
    def _plan(node: Node, rule: _Rule, search: Search, editor: Editor, claimed: set[Node]) -> None:
        for match in search.matches_at(node):
            if not claimed.isdisjoint(match.members) or (
                rule.condition is not None and not asked("condition", rule.condition, (match,), node)
            ):
                continue
            program = rule.replacement
            if rule.callback is not None:
                program = asked("callback", rule.callback, (match,), node)
            if editor.plan(match, editor.prepare(rule.pattern.template, program)):
                claimed.update(match.members)
                return
