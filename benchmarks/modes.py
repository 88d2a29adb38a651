"""How thorough a run is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "SMOKE", "Mode"]


@dataclass(frozen=True)
class Mode:
    """How often things are repeated, and how large they are."""

    name: str
    rounds: int
    """Rounds of everything that takes milliseconds."""
    lengths: tuple[int, ...]
    """Nodes of the long functions, ascending."""
    memory_length: int
    """Nodes of the function whose graph is weighed."""
    import_rounds: int
    """Rounds of fresh interpreters."""
    huge_length: int
    """Nodes of the function that is traced in an interpreter of its own."""
    huge_rounds: int
    """Rounds of that."""
    rewritten_matches: int
    """Places of a graph that are rewritten, in four times as many nodes."""
    judged: bool = False
    """Whether what is measured is held against what the project promises."""

    def rounds_for(self, count: int) -> int:
        """Return how many rounds a function of `count` nodes gets: fewer, at least 3, the longer it takes."""
        return max(3, self.rounds * self.lengths[0] // count)


SMOKE = Mode(
    "smoke",
    rounds=5,
    lengths=(1_000, 10_000),
    memory_length=2_000,
    import_rounds=1,
    huge_length=20_000,
    huge_rounds=1,
    rewritten_matches=400,
)
"""Shows that every benchmark runs; its ratios are rough."""

FULL = Mode(
    "full",
    rounds=25,
    lengths=(1_000, 10_000, 100_000),
    memory_length=10_000,
    import_rounds=5,
    huge_length=1_000_000,
    huge_rounds=3,
    rewritten_matches=4_000,
    judged=True,
)
"""What ratios are quoted from."""
