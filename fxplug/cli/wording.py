"""Numbers in the words of a report, and messages in those of the command line."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fxplug.api import Check, Latency, OptimizationResult
    from fxplug.passes import NodeChanges

__all__ = [
    "bytes_text",
    "capture_text",
    "change_text",
    "error_text",
    "for_command_line",
    "latency_text",
    "node_text",
    "ratio_text",
    "size_text",
    "time_text",
    "tolerance_text",
]


def time_text(seconds: float) -> str:
    """Return a duration with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            digits = max(0, 2 - math.floor(math.log10(max(seconds * factor, 1e-9))))
            return f"{seconds * factor:.{min(digits, 2)}f} {unit}"
    raise AssertionError  # The last unit takes what is left.


def size_text(size: int) -> str:
    """Return a number of bytes."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError  # The last unit takes what is left.


def node_text(before: int, after: int, arrow: str = "→") -> str:
    """Return how the number of nodes changed."""
    change = after - before
    return f"{before} {arrow} {after}" + (f" ({change:+d})" if change else "")


def capture_text(result: OptimizationResult) -> str:
    """Return how a model was captured, how many guards its calls check, and which sizes a backend takes."""
    restriction = result.restriction
    how = {
        "symbolic": "symbolically" if restriction else "symbolically, for inputs of all sizes",
        "shape": "in shape mode, for inputs like the examples",
        "value": "in value mode, for inputs like the examples",
    }.get(result.mode, "as the graph module that was given")
    count = len(result.guards)
    guards = "no guard" if not count else "1 guard" if count == 1 else f"{count} guards"
    return "; ".join(filter(None, (how, guards, restriction)))


def change_text(changes: NodeChanges) -> str:
    """Return how many nodes were made, erased and edited."""
    counts = ((changes.made, "made"), (changes.erased, "erased"), (changes.edited, "edited"))
    return ", ".join(f"{count} {verb}" for count, verb in counts if count)


def bytes_text(before: int, after: int, arrow: str = "→") -> str:
    """Return how the memory of weights changed."""
    return size_text(after) if before == after else f"{size_text(before)} {arrow} {size_text(after)}"


def ratio_text(ratio: float) -> str:
    """Return what a ratio of times means."""
    if abs(ratio - 1) < 0.005:
        return "equally fast"
    return f"{ratio:.2f} times as fast" if ratio > 1 else f"{1 / ratio:.2f} times as slow"


def latency_text(latency: Latency, arrow: str = "→") -> str:
    """Return latency before and after with how much it varies, their ratio, and how they were measured."""
    before = f"{time_text(latency.before)} ±{latency.before_spread:.0%}"
    after = f"{time_text(latency.after)} ±{latency.after_spread:.0%}"
    return f"{before} {arrow} {after}, {ratio_text(latency.ratio)} (medians of {latency.runs} runs each, in turns)"


def for_command_line(text: str) -> str:
    """Return a message that names arguments of functions as one that names the options for them."""
    for pattern, option in _OPTIONS:
        text = pattern.sub(option, text)
    return text


_OPTIONS = [
    (re.compile(pattern), option)
    for pattern, option in (
        (r"(?:load\(\.\.\., )?allow=\['([^']*)'\]\)?", r"--allow \1"),
        (r"\bname it in allow=", "name it with --allow"),
        (r"(?:^|(?<=: ))allow (holds|names)\b", r"--allow \1"),
        (r"\bfxplug\.trace\(root, example_inputs\)", "--example or --example-from"),
        (r"\bPass example_inputs\b", "Pass --example"),
        (r"\bmode='(\w+)'", r"--mode \1"),
        (r"\(mode '(\w+)'\)", r"(--mode \1)"),
        (r"\bpass overwrite=True\b", "pass --overwrite"),
        (r"\bclass_name='(\w+)'", r"--class-name \1"),
        (r"\bfxplug\.cost\(module, inputs\)", "fxplug cost"),
        (r"\(rtol, atol\)", "(--rtol, --atol)"),
        (
            r"\bpass on_guard_failure='recapture' or 'eager' to fxplug\.trace",
            "set on_guard_failure to 'recapture' or 'eager' under [tool.fxplug.trace]",
        ),
    )
]
"""How functions call what commands have options for."""


def error_text(check: Check) -> str:
    """Return the largest error of a check, and how much of it had nothing to compare."""
    if not check.elements:
        return "nothing was compared: no value has elements and data"
    empty = sum(not entry.elements for entry in check.comparisons)
    left = f"; {empty} of {len(check.comparisons)} values have nothing to compare" if empty else ""
    if check.max_abs_error == 0:
        return f"0 (equal to eager PyTorch){left}"
    return f"{check.max_abs_error:.2g} ({check.max_rel_error:.1g} of the largest output){left}"


def tolerance_text(check: Check) -> str:
    """Return which error was allowed."""
    pairs = sorted({(entry.atol, entry.rtol) for entry in check.comparisons if entry.atol or entry.rtol})
    return " or ".join(f"{atol:g} + {rtol:g} * abs(expected)" for atol, rtol in pairs) or "none"
