"""Listening to what plugins answer, for those who want to know who decided what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins.policy import Implementations
    from fxplug.plugins.registration import Implementation

__all__ = ["AnswerLog", "HookAnswer"]


@dataclass(frozen=True)
class HookAnswer:
    """What one plugin answered to one question."""

    hook: str
    plugin: str
    provider: str
    """Distribution and version."""
    arguments: tuple[Any, ...]
    answer: Any
    """None for no opinion."""


class AnswerLog:
    """Keeps every answer, in the order in which the questions were asked."""

    def __init__(self) -> None:
        self.answers: list[HookAnswer] = []

    def listening(self, implementations: Implementations) -> Implementations:
        """Return implementations that answer as those given do, and whose answers are kept."""

        def listened_to(hook: str) -> Sequence[Implementation]:
            return [self._listen(implementation) for implementation in implementations(hook)]

        return listened_to

    def about(self, hook: str, subject: object) -> list[HookAnswer]:
        """Return the answers to a hook whose first argument was `subject`."""
        return [
            entry
            for entry in self.answers
            if entry.hook == hook and entry.arguments and entry.arguments[0] is subject
        ]

    def of_hook(self, hook: str) -> list[HookAnswer]:
        """Return the answers to a hook."""
        return [entry for entry in self.answers if entry.hook == hook]

    def _listen(self, implementation: Implementation) -> Implementation:
        function = implementation.function

        def ask(*arguments: Any) -> Any:
            answer = function(*arguments)
            if implementation.hook == "fxplug_leaf_functions" and answer is not None:
                answer = list(answer)  # What can be read once only has to last for both.
            self.answers.append(
                HookAnswer(
                    implementation.hook, implementation.plugin, implementation.provider, arguments, answer
                )
            )
            return answer

        return replace(implementation, function=ask, short=None)
