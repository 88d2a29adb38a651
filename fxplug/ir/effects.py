"""Effects: what running a node does besides computing its value.

The lattice goes from pure (does nothing else) to unknown (may do anything). Whoever removes, merges, moves or
fuses nodes asks `effect_of`. Nothing here knows torch: the answers for its calls are registered by a higher
layer, those of plugins by their hooks. What nobody answers for is unknown, and unknown is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import InvalidArgumentError, did_you_mean

if TYPE_CHECKING:
    from fxplug.ir.node import Node

__all__ = [
    "OUTSIDE",
    "PURE",
    "RANDOM",
    "UNKNOWN",
    "Effect",
    "EffectRegistry",
    "EffectRule",
    "effects",
    "writes",
]

_CALLS = ("call_function", "call_method", "call_module")

ArgumentKey = int | str
"""A position in ``args``, a keyword, or ``"state"`` for parameters and buffers of the called module."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node does besides computing its value; a point in the effect lattice."""

    writes: frozenset[ArgumentKey] = frozenset()
    """Which arguments are changed in place."""
    reads_state: bool = False
    """Whether the result depends on state outside the arguments that another node may write."""
    random: bool = False
    """Whether random numbers are drawn."""
    outside: bool = False
    """Whether something outside the program is touched: output, files, global state."""
    unknown: bool = False
    """Whether nothing is known, so that anything must be expected."""

    @property
    def is_pure(self) -> bool:
        """Whether the node does nothing besides computing its value from its arguments."""
        return not (self.writes or self.reads_state or self.random or self.outside or self.unknown)

    @property
    def must_be_kept(self) -> bool:
        """Whether removing the node would change something even if nobody used its value."""
        return bool(self.writes) or self.random or self.outside or self.unknown

    def join(self, other: Effect) -> Effect:
        """Return the least effect that covers both."""
        return Effect(
            self.writes | other.writes,
            self.reads_state or other.reads_state,
            self.random or other.random,
            self.outside or other.outside,
            self.unknown or other.unknown,
        )


PURE = Effect()
RANDOM = Effect(random=True)
OUTSIDE = Effect(outside=True)
UNKNOWN = Effect(unknown=True)


def writes(*keys: ArgumentKey) -> Effect:
    """Return the effect of changing the named arguments in place."""
    return Effect(writes=frozenset(keys))


EffectRule = Callable[["Node", Any], "Effect | None"]
"""Asked with (node, called module or None); None means no opinion."""
Settles = Callable[["Node"], bool]
"""Asked with a node about which a rule was asked; says whether that was due to its target and the names of its keyword
arguments alone."""


class EffectRegistry:
    """Answers what a node does, from entries for targets and from rules for families of targets."""

    def __init__(self) -> None:
        self._targets: dict[Hashable, Effect | EffectRule] = {}
        self._rules: dict[str, list[tuple[EffectRule, Settles | None]]] = {op: [] for op in _CALLS}
        self._settled: dict[Hashable, Effect] = {}
        """Opcode, target and names of keyword arguments -> effect of all calls that have them in common."""

    def register_target(self, target: Hashable, effect: Effect | EffectRule) -> None:
        """State the effect of calls to `target`.

        Args:
            target: A callable for ``call_function``, a method name for ``call_method``, a module class for
                ``call_module`` nodes.
            effect: The effect, or a rule asked for each node.
        """
        self._targets[target] = effect
        self._settled = {}  # Another one: who asks in another thread may be about to keep what was said before.

    def unregister_target(self, target: Hashable) -> None:
        """Forget what was stated about `target`."""
        self._targets.pop(target, None)
        self._settled = {}

    def target_entry(self, target: Hashable) -> Effect | EffectRule | None:
        """Return what was stated about `target`, None when nothing was."""
        return self._targets.get(target)

    def target_entries(self) -> dict[Hashable, Effect | EffectRule]:
        """Return target -> what is registered for it."""
        return dict(self._targets)

    def register_rule(self, rule: EffectRule, *ops: str, settles: Settles | None = None) -> None:
        """Add a rule for targets without an entry; the rule added last is asked first.

        Args:
            rule: The rule.
            ops: The opcodes of the calls about which it may have an opinion; by default all three. It is not asked
                about others.
            settles: Asked with a call of a function or method about which the rule was asked: whether the rule says
                the same, an effect or that it has no opinion, of every call of the target that has keyword arguments of
                the same names. It is not asked again about them, and the target is kept alive. By default the rule is
                asked about each call.

        Raises:
            InvalidArgumentError: One of them is no opcode of a call.
        """
        for op in ops:
            if op not in self._rules:
                raise InvalidArgumentError(
                    f"Cannot register a rule about effects for {op!r}. {did_you_mean(op, _CALLS)}"
                )
        for op in ops or _CALLS:
            self._rules[op].insert(0, (rule, settles))
        self._settled = {}

    def unregister_rule(self, rule: EffectRule) -> None:
        """Ask a rule no more; nothing happens if it is not registered."""
        for rules in self._rules.values():
            rules[:] = [entry for entry in rules if entry[0] is not rule]
        self._settled = {}

    def rules_of(self, op: str) -> tuple[EffectRule, ...]:
        """Return the rules about calls with an opcode, in the order in which they are asked."""
        return tuple([rule for rule, _ in self._rules[op]])

    def effect_of(self, node: Node, root: object | None = None) -> Effect:
        """Return the effect of running `node`.

        Args:
            node: Any node.
            root: The module that the graph refers to; needed to know what a ``call_module`` node does. When
                it is not given, the graph's owning module is asked.

        Returns:
            The effect; `UNKNOWN` where nothing is known.
        """
        kwargs = node.kwargs
        # Before anything is asked: what is registered meanwhile is not to be hidden by what was said before.
        settled = self._settled
        try:
            key = (node.op, node.target, *kwargs) if kwargs else (node.op, node.target)
            known = settled.get(key)
        except TypeError:  # An unhashable callable.
            return self._ask_rules(node, None) or UNKNOWN
        return known or self._effect_of_other(node, root, key, settled)

    def is_settled(self, op: str, target: Hashable) -> bool:
        """Return whether a call without keyword arguments was found to have the effect of all calls of its target.

        Args:
            op: Of the call.
            target: Of the call.
        """
        try:
            return (op, target) in self._settled
        except TypeError:  # An unhashable callable.
            return False

    def settled_targets(self) -> Mapping[Hashable, Effect]:
        """Return what was found so far of calls of targets: another object when somebody says anything of any."""
        return self._settled

    def _effect_of_other(
        self, node: Node, root: object | None, key: Hashable, settled: dict[Hashable, Effect]
    ) -> Effect:
        """Return the effect of a node about which nothing is settled; keep it if it is that of all calls like it."""
        op = node.op
        if op in {"placeholder", "get_attr"}:
            return PURE
        if op == "output":
            return OUTSIDE
        if op == "call_module":
            # Rules first: what a module does is also a matter of its hooks and of the modules inside it.
            return self.effect_of_module(node, _find_module(node, root))
        entry = self._targets.get(node.target)
        if isinstance(entry, Effect):
            settled[key] = entry
            return entry
        is_settled = entry is None
        if entry is not None and (answer := entry(node, None)) is not None:
            return answer
        for rule, settles in self._rules.get(node.op, ()):
            answer = rule(node, None)
            is_settled = is_settled and settles is not None and settles(node)
            if answer is not None:
                if is_settled:
                    settled[key] = answer = PURE if answer.is_pure else answer
                return answer
        return UNKNOWN

    def effect_of_module(self, node: Node, module: object) -> Effect:
        """Return the effect of a ``call_module`` node, for those who have the module at hand.

        Args:
            node: The call.
            module: What it calls; None if there is nothing at its path.
        """
        return self._ask_rules(node, module) or self._ask_entry(node, type(module), module) or UNKNOWN

    def target_decides(self, node: Node, root: object | None = None) -> bool:
        """Return whether the effect of `node` is what was stated about its target, and not what a rule says.

        Args:
            node: Any node.
            root: As for `effect_of`.
        """
        if node.op == "call_module":
            module = _find_module(node, root)
            is_free = self._ask_rules(node, module) is None
            return is_free and self._ask_entry(node, type(module), module) is not None
        return node.op.startswith("call_") and self._ask_entry(node, node.target, None) is not None

    def _ask_entry(self, node: Node, key: Any, module: Any) -> Effect | None:
        try:
            entry = self._targets.get(key)
        except TypeError:  # An unhashable callable.
            return None
        return entry(node, module) if callable(entry) else entry

    def _ask_rules(self, node: Node, module: Any) -> Effect | None:
        for rule, _ in self._rules.get(node.op, ()):
            answer = rule(node, module)
            if answer is not None:
                return answer
        return None


def _find_module(node: Node, root: object | None) -> object | None:
    holder: Any = root if root is not None else getattr(node.graph, "owning_module", None)
    for name in str(node.target).split("."):
        if holder is None:
            return None
        holder = getattr(holder, name, None)
    return holder


effects = EffectRegistry()
"""The registry that every pass asks."""
