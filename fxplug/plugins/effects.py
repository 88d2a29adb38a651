"""Putting what plugins say about effects into the registry that every pass asks, and taking it out again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fxplug.ir.effects import Effect, effects

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from fxplug.ir import Node
    from fxplug.ir.effects import EffectRule
    from fxplug.plugins.records import EffectRecord

__all__ = ["apply_effects", "holds_effect"]


def apply_effects(records: Sequence[EffectRecord]) -> Callable[[], None]:
    """Enter records into the process-wide registry of effects.

    Args:
        records: Those that concern the same target are joined.

    Returns:
        A function that restores what the registry held before.
    """
    by_target: dict[Hashable, list[Effect | EffectRule]] = {}
    for record in records:
        by_target.setdefault(record.target, []).append(record.effect)
    former = {target: effects.target_entry(target) for target in by_target}
    for target, stated in by_target.items():
        effects.register_target(target, stated[0] if len(stated) == 1 else partial(_join, tuple(stated)))

    def undo() -> None:
        for target, entry in former.items():
            if entry is None:
                effects.unregister_target(target)
            else:
                effects.register_target(target, entry)

    return undo


def holds_effect(record: EffectRecord) -> bool:
    """Return whether what a record says is in the registry, by itself or joined with what others say."""
    entry = effects.target_entry(record.target)
    joined = entry.args[0] if isinstance(entry, partial) and entry.func is _join else (entry,)
    return any(stated is record.effect for stated in joined)


def _join(stated: tuple[Effect | EffectRule, ...], node: Node, module: Any) -> Effect | None:
    answers = [entry(node, module) if callable(entry) else entry for entry in stated]
    known = [answer for answer in answers if answer is not None]
    if not known:
        return None
    joined = known[0]
    for answer in known[1:]:
        joined = joined.join(answer)
    return joined
