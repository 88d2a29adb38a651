"""``report.html``: what ``fxplug optimize`` did and measured, as a page to read from top to bottom, also on paper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import fxplug
from fxplug.errors import FxplugError
from fxplug_viz.pass_steps import PassSteps
from fxplug_viz.viewer_page import asset, page, write_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fxplug.plugins import ReportContext

__all__ = ["FILE", "STEPS_FILE", "report_html", "write_report"]

FILE = "report.html"
STEPS_FILE = "steps.html"
"""The graph behind each pass; see `fxplug_viz.PassSteps`."""

_BIGGEST = 12
_ERRORS = 10
_LONGEST = 2000


def write_report(context: ReportContext) -> str | None:
    """Write the page beside the other reports, and one with the graph behind each pass.

    Args:
        context: What is reported on.

    Returns:
        What ``report.md`` says of it; None where no report is written.
    """
    if context.folder is None:
        return None
    steps = context.observer
    has_steps = False
    if isinstance(steps, PassSteps) and steps.steps:
        has_steps = True
        steps.view(context.folder / STEPS_FILE, title=f"{context.data['model']['class']}, pass by pass")
    write_page(context.folder / FILE, report_html(context))
    said = f"`{FILE}` says the same with pictures, for a browser or a printer."
    return f"{said} `{STEPS_FILE}` shows the graph behind each pass." if has_steps else said


def report_html(context: ReportContext) -> str:
    """Return the page.

    Args:
        context: What is reported on.
    """
    data = context.data
    model = data["model"]
    passes = [_pass_row(entry, data) for entry in data["passes"]]
    return page(
        "report.html.j2",
        scripts={},
        style=asset("report.css"),
        title=f"{model['class']}, optimised",
        data=data,
        summary=list(_summary(data)),
        bars=_latency_bars(data["latency"]),
        mode=(data.get("capture") or {}).get("mode") or "",
        restriction=(data["backend"] or {}).get("restriction") or "",
        guards=context.module.guards,
        assumptions=[str(text) for text in context.module.meta.get("assumptions", ())],
        passes=passes,
        running="" if data["backend"] is None else _running(data["backend"]),
        partitions=_partitions(data["backend"]),
        stays=_stays(data["backend"]),
        errors=_errors(data["check"]["values"]),
        errors_left_out=max(0, len(data["check"]["values"]) - _ERRORS),
        biggest=_biggest(context),
        time_text=time_text,
        number_text=number_text,
        spread_text=spread_text,
        coverage_text=coverage_text,
        shortened=_shortened,
        environment=data["environment"],
        steps_file=STEPS_FILE if isinstance(context.observer, PassSteps) and context.observer.steps else "",
    )


# -- words ------------------------------------------------------------------------------------------------------


def time_text(seconds: float | None) -> str:
    """Return a duration as people read it."""
    return "" if seconds is None else _prefixed(seconds, "s", ((1.0, ""), (1e-3, "m"), (1e-6, "µ")))


def size_text(size: float) -> str:
    """Return a number of bytes as people read it."""
    return _prefixed(size, "B", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")))


def count_text(count: float) -> str:
    """Return a large number as people read it."""
    steps = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1e3, " thousand"), (1.0, ""))
    return _prefixed(count, "", steps)


def number_text(value: float | None) -> str:
    """Return an error with two digits."""
    return "not a number" if value is None else f"{value:.2g}"


def spread_text(share: float) -> str:
    """Return by how much single calls vary."""
    return f"± {share:.0%}" if share >= 0.005 else "± less than 1%"


def coverage_text(share: float) -> str:
    """Return which share of the calls a backend supports; only all of them are 100 %."""
    if share in {0, 1}:
        return "all" if share else "none"
    return f"{min(max(share, 0.001), 0.999):.1%}"


def share_text(share: float) -> str:
    """Return a share of the work."""
    return f"{share:.1%}" if share >= 0.0005 or share == 0 else "under 0.1%"


def _prefixed(value: float, unit: str, steps: Sequence[tuple[float, str]]) -> str:
    factor, prefix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / factor
    digits = (
        0 if scaled == 0 or float(scaled).is_integer() else max(0, 2 - math.floor(math.log10(abs(scaled))))
    )
    return f"{scaled:.{min(digits, 2)}f}{'' if not unit else ' '}{prefix}{unit}".rstrip()


def _shortened(text: object) -> str:
    shown = str(text)
    return (
        shown
        if len(shown) <= _LONGEST
        else f"{shown[:_LONGEST]}… ({len(shown) - _LONGEST:,} more characters)"
    )


def _ratio_text(ratio: float) -> str:
    if abs(ratio - 1) < 0.02:
        return "as fast as the original, within what can be told apart"
    return (
        f"{ratio:.2f} times as fast as the original"
        if ratio > 1
        else f"{1 / ratio:.2f} times as slow as the original"
    )


# -- parts ------------------------------------------------------------------------------------------------------


def _summary(data: Mapping[str, Any]) -> Iterator[str]:
    latency, check, nodes = data["latency"], data["check"], data["nodes"]
    if latency is None:
        yield "How fast the result is was not measured."
    else:
        yield (
            f"One call takes {time_text(latency['optimised_seconds'])} instead of "
            f"{time_text(latency['eager_seconds'])}: the result is {_ratio_text(latency['ratio'])}."
        )
        if abs(math.log(latency["ratio"] or 1)) < max(latency["eager_spread"], latency["optimised_spread"]):
            yield "Single calls vary by about as much, so do not rely on it: measure again on a machine that is idle."
    if not check.get("elements", 1):
        yield "Nothing was compared with the original: for this example it returns no numbers."
    elif check["max_abs_error"] == 0:
        yield "Its outputs are equal to those of the original, bit by bit."
    else:
        yield (
            f"Its outputs differ from those of the original by {number_text(check['max_abs_error'])} at the "
            f"most, which {'is within' if check['passed'] else 'is MORE than'} what was allowed."
        )
    changed = [entry["name"] for entry in data["passes"] if entry["modified"]]
    did = f"{len(changed)} of {len(data['passes'])} passes changed it" if data["passes"] else "No pass ran"
    yield f"{did}; the program went from {nodes['traced']} to {nodes['optimised']} steps."
    failed = [entry["name"] for entry in data["passes"] if entry["error"]]
    if failed:
        count = "1 pass" if len(failed) == 1 else f"{len(failed)} passes"
        yield f"{count} failed and {'was' if len(failed) == 1 else 'were'} undone: {', '.join(failed)}."
    backend = data["backend"]
    if backend is not None:
        covered = coverage_text(backend["coverage"])
        yield f"The backend {backend['name']} supports {covered} of its calls, and {_running(backend)}."


def _running(backend: Mapping[str, Any]) -> str:
    """Return what of a module a backend runs."""
    if backend["runs_the_module"]:
        return "runs it"
    if backend["fallback"]:
        return f"does not run it: {backend['fallback'].rstrip('.')}"
    taken = sum(1 for partition in backend["partitions"] if not partition["fallback"])
    return f"runs {taken or 'no'} part{'' if taken == 1 else 's'} of it; PyTorch runs the rest"


def _latency_bars(latency: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if latency is None:
        return []
    longest = max(latency["eager_seconds"], latency["optimised_seconds"]) or 1.0
    return [
        {
            "label": label,
            "seconds": latency[f"{key}_seconds"],
            "spread": latency[f"{key}_spread"],
            "share": latency[f"{key}_seconds"] / longest,
        }
        for label, key in (("original", "eager"), ("optimised", "optimised"))
    ]


def _pass_row(entry: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    most = max([data["nodes"]["traced"], *(one["nodes_before"] for one in data["passes"])]) or 1
    counts = [
        (entry["nodes_made"], "made"),
        (entry["nodes_erased"], "erased"),
        (entry["nodes_edited"], "edited"),
    ]
    before, after = entry["bytes_before"], entry["bytes_after"]
    return {
        "name": entry["name"],
        "provider": entry["provider"],
        "failed": bool(entry["error"]),
        "did": _what_it_did(entry),
        "before": entry["nodes_before"],
        "after": entry["nodes_after"],
        "share_before": entry["nodes_before"] / most,
        "share_after": entry["nodes_after"] / most,
        "changes": ", ".join(f"{count} {verb}" for count, verb in counts if count) or "nothing",
        "weights": _weights_text(before, after),
        "seconds": entry["seconds"],
        "verified": entry["verified"] or "",
    }


def _what_it_did(entry: Mapping[str, Any]) -> str:
    if entry["error"]:
        return f"failed and was undone: {entry['error']}"
    return f"did not run: {entry['skipped']}" if entry["skipped"] else entry["summary"]


def _weights_text(before: int, after: int) -> str:
    """Return the size of the weights; how much it changed, where both numbers would read the same."""
    if before == after:
        return size_text(after)
    if size_text(before) != size_text(after):
        return f"{size_text(before)} → {size_text(after)}"
    return f"{size_text(after)} ({'more' if after > before else 'less'} by {size_text(abs(after - before))})"


def _partitions(backend: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the partitions of a backend, with the share that each has of the calls in them."""
    found = [] if backend is None else list(backend.get("partitions") or ())
    most = max([partition["compute_nodes"] for partition in found], default=0) or 1
    return [
        {
            "name": partition["name"],
            "nodes": ", ".join(partition["nodes"]),
            "calls": partition["compute_nodes"],
            "share": partition["compute_nodes"] / most,
            "moved": "not known"
            if partition["transfer_bytes"] is None
            else size_text(partition["transfer_bytes"]),
            "outcome": f"stays in PyTorch: {partition['fallback']}"
            if partition["fallback"]
            else f"runs in {partition['backend']}",
        }
        for partition in found
    ]


def _stays(backend: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the calls that stay in PyTorch: what a backend cannot run, and what it could and was not given."""
    return [] if backend is None else [*backend["unsupported"], *backend.get("left", ())]


def _errors(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def size(entry: Mapping[str, Any]) -> float:
        # An error that is no number is larger than any.
        return math.inf if entry["max_abs_error"] is None else entry["max_abs_error"]

    largest = sorted(values, key=size, reverse=True)[:_ERRORS]
    return [dict(entry, path=entry["path"] or "the output") for entry in largest]


def _biggest(context: ReportContext) -> dict[str, Any] | None:
    """Return the nodes that compute most, None where they cannot be counted."""
    try:
        costs = fxplug.cost(context.module, context.example_inputs)
    except (FxplugError, RuntimeError, TypeError, ValueError):
        return None
    total = costs.multiply_adds
    counted = [node for node in costs.nodes if node.multiply_adds]
    largest = sorted(counted, key=lambda node: node.multiply_adds or 0, reverse=True)[:_BIGGEST]
    shares = [(node.multiply_adds or 0) / (total or 1) for node in largest]
    return {
        "total": count_text(total),
        "together": share_text(sum(shares)),
        "others": len(counted) - len(largest),
        "moved": size_text(costs.bytes),
        "parameters": size_text(costs.parameter_bytes),
        "peak": None if costs.peak_bytes is None else size_text(costs.peak_bytes),
        "unknown": len(costs.unknown),
        "rows": [
            {
                "name": node.name,
                "target": node.target,
                "work": count_text(node.multiply_adds or 0),
                "percent": share_text(share),
                "share": min(1.0, share),
                "moved": size_text(node.bytes),
                "parameters": size_text(node.parameter_bytes),
                "line": node.line,
            }
            for node, share in zip(largest, shares, strict=True)
        ],
    }
