"""What is shown on a terminal, and the words for numbers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fxplug.api import OptimizationEvent
from fxplug.cli.progress import LiveView
from fxplug.cli.wording import node_text, ratio_text, size_text, time_text


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, markup=False, highlight=False)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_terminal_shows_a_line_for_what_runs_and_for_what_has_ended(screen):
    view = LiveView(screen)
    view.title(["models.py:net: Net", "fxplug"])
    view.hear(OptimizationEvent("pass", "started", "fuse-conv-bn"))
    view.hear(OptimizationEvent("pass", "finished", "fuse-conv-bn", "folded 2 batch norms", (9, 7), 0.25))
    view.summary([("nodes", "9 → 7")])
    text = shown(screen)

    assert "models.py:net: Net" in text
    assert "✓" in text
    assert "folded 2 batch norms" in text
    assert "250 ms" in text
    # The line that moves is taken away: cursor up, line erased.
    assert text.index("\x1b[1A\x1b[2K") < text.index("folded 2 batch norms")


def test_measuring_is_drawn_only_when_a_run_has_ended(screen):
    view = LiveView(screen)
    view.hear(OptimizationEvent("measure", "started"))
    before = shown(screen)
    view.hear(OptimizationEvent("measure", "progress", steps=(5, 10)))

    assert "5/10" in shown(screen).removeprefix(before)
    view.stop()


def test_a_failed_stage_is_marked(screen):
    view = LiveView(screen)
    view.hear(OptimizationEvent("trace", "started", "Net"))
    view.hear(OptimizationEvent("trace", "failed", "Net", "TraceError"))

    assert "✗" in shown(screen)


def test_text_in_brackets_is_not_taken_for_markup(screen):
    view = LiveView(screen)
    view.hear(OptimizationEvent("run", "finished", "Net", "float32[1, 3]", seconds=1.0))

    assert "float32[1, 3]" in shown(screen)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (time_text(12.3456), "12.3 s"),
        (time_text(1.5), "1.50 s"),
        (time_text(0.0512), "51.2 ms"),
        (time_text(0.512), "512 ms"),
        (time_text(123.4), "123 s"),
        (time_text(0.0000015), "1.50 µs"),
        (time_text(0.0), "0.00 µs"),
        (size_text(924), "924 B"),
        (size_text(102_138_721), "102.1 MB"),
        (size_text(5_000_000_000_000), "5000.0 GB"),
        (node_text(177, 124), "177 → 124 (-53)"),
        (node_text(3, 3, "->"), "3 -> 3"),
        (ratio_text(1.234), "1.23 times as fast"),
        (ratio_text(0.5), "2.00 times as slow"),
        (ratio_text(1.001), "equally fast"),
    ],
)
def test_numbers_in_words(text, expected):
    assert text == expected
