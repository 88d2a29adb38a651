"""The states of the random numbers of Python, numpy and torch around a trace."""

from __future__ import annotations

import threading
import warnings

from fxplug.capture.sources import caller_level, place_in_program
from fxplug.errors import TraceError, TraceWarning
from fxplug.semantics.random_sources import RandomSources

__all__ = ["RandomStates", "refuse_draws", "seeding_error"]


class RandomStates:
    """Takes note of the states of Python and numpy when it is made; torch tells of its own draws."""

    def __init__(self) -> None:
        self._sources = RandomSources()

    def restore(self) -> list[str]:
        """Put back what has changed, unless other threads run, which may be those that have drawn.

        Returns:
            Whose random numbers had been drawn or seeded: ``"random"`` (of Python), ``"numpy"``.
        """
        changed = self._sources.changed()
        if changed and threading.active_count() == 1:
            self._sources.restore(changed)
        return changed


def refuse_draws(generators: list[str]) -> None:
    """Refuse a program that has drawn random numbers while it was traced: in the graph they would be constants.

    Args:
        generators: Whose numbers were drawn (see `RandomStates.restore`).

    Raises:
        TraceError: There are such, and no other thread could have drawn them.
    """
    if not generators:
        return
    source = {"random": "Python's random module", "numpy": "numpy.random"}[generators[0]]
    if threading.active_count() > 1:
        warnings.warn(
            f"While tracing, random numbers were drawn from {source}, by the program or by another thread. If it was "
            "the program, they are the same in every call of what was captured.",
            TraceWarning,
            stacklevel=caller_level(),
        )
        return
    raise TraceError(
        f"Cannot trace: the program drew random numbers from {source}, or seeded it. That cannot be recorded, and in "
        "the captured program they would be the same in every call. Draw them with functions of torch (torch.rand, "
        "torch.randint), pass them as inputs, or keep the function that draws them as a call (fxplug.wrap).",
        code="FXP-T053",
    )


def seeding_error(name: str) -> TraceError:
    """Return the error for setting the state of torch's random numbers.

    Args:
        name: Of the function.
    """
    return TraceError(
        f"Cannot trace: torch.{name} is called{place_in_program()}, which sets the random numbers of everybody and "
        "cannot be recorded. Call it before the program, or keep the function that calls it as a call (fxplug.wrap).",
        code="FXP-T053",
    )
