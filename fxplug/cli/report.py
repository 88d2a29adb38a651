"""What an optimisation leaves in its output folder."""

from __future__ import annotations

import json
import math
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.api import save
from fxplug.cli.environment import environment
from fxplug.cli.output import FILES, REPORT_FORMAT
from fxplug.cli.sections import make_sections, one_line, table_cell
from fxplug.cli.wording import (
    bytes_text,
    capture_text,
    change_text,
    error_text,
    latency_text,
    node_text,
    time_text,
    tolerance_text,
)
from fxplug.execute import GraphModule
from fxplug.plugins import ReportContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fxplug.api import Latency, OptimizationResult
    from fxplug.cli.sections import Section, SectionObservers
    from fxplug.lower import LoweringReport, NodeSupport
    from fxplug.passes import PassReport
    from fxplug.plugins import PluginManager

__all__ = ["Job", "stored_module", "write_files"]

_REPORT_VERSION = 1


@dataclass(frozen=True)
class Job:
    """What the user asked for."""

    model: str
    """The reference."""
    class_name: str
    parameters: int
    inputs: tuple[Any, ...]
    """The example inputs."""
    examples: tuple[str, ...]
    """Dtype and shape of each of them."""
    backend: str | None


def stored_module(result: OptimizationResult) -> GraphModule:
    """Return the module that is written: the result, where a file can hold it."""
    return result.module if isinstance(result.module, GraphModule) else result.graph_module


def write_files(
    folder: Path,
    job: Job,
    result: OptimizationResult,
    allow: Sequence[str],
    manager: PluginManager,
    observers: SectionObservers | None = None,
) -> list[str]:
    """Write module, readable Python and reports.

    Args:
        folder: An empty folder.
        job: What was asked for.
        result: What came of it.
        allow: Functions that the module's file may name besides.
        manager: Supplies sections of the report, and names in the module's file.
        observers: What sections heard of the passes; None: nothing.

    Returns:
        What the user should know, in sentences: the sections that could not be written.

    Raises:
        StorageError: The module holds something that a file cannot.
    """
    module_file, source_file, json_file, markdown_file = (folder / name for name in FILES)
    save(stored_module(result), module_file, allow=allow, manager=manager)
    source_file.write_text(_source(job, result), encoding="utf-8")
    data = _report(job, result)
    lowered = None if result.lowering is None else result.module
    context = ReportContext(result.graph_module, job.inputs, data, folder, lowered=lowered)
    sections = make_sections(manager, context, observers)
    data["sections"] = [section.entry for section in sections]
    others = sorted({entry.name for entry in folder.iterdir()} - set(FILES))
    data["files"] = [*FILES, *others]
    json_file.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    markdown_file.write_text("\n".join(_markdown(job, result, sections, others)) + "\n", encoding="utf-8")
    return [section.error for section in sections if section.error]


# -- readable Python ---------------------------------------------------------------------------------------------


def _source(job: Job, result: OptimizationResult) -> str:
    module = result.graph_module
    values = module.graph.python_code("self").globals
    imports = [
        f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        for name, value in sorted(values.items())
        if isinstance(value, types.ModuleType)
    ]
    if "import torch" not in imports:
        imports.append("import torch")
    others = [
        f"# {name} stands for {one_line(repr(value))}"
        for name, value in sorted(values.items())
        if not isinstance(value, types.ModuleType) and getattr(value, "__module__", None) != "builtins"
    ]
    lines = [
        f"# {one_line(job.model)} as fxplug {environment()['fxplug']} has optimised it, to be read.",
        "# The program with its weights is in module.fxplug: fxplug.load('module.fxplug').",
        *others,
        "",
        *imports,
        "",
        "",
        module.print_readable(print_output=False),
    ]
    return "\n".join(lines)


# -- report.json -------------------------------------------------------------------------------------------------


def _report(job: Job, result: OptimizationResult) -> dict[str, Any]:
    return {
        "format": REPORT_FORMAT,
        "version": _REPORT_VERSION,
        "environment": environment(),
        "model": {
            "reference": job.model,
            "class": job.class_name,
            "parameters": job.parameters,
            "inputs": list(job.examples),
        },
        "pipeline": result.pipeline or None,
        "fingerprint": result.fingerprint or None,
        "nodes": {"traced": result.traced_nodes, "optimised": result.nodes},
        "trace_seconds": result.trace_seconds,
        "capture": {
            "mode": result.mode or None,
            "guards": [
                {"text": guard.text, "line": guard.line or None, "source": guard.source or None}
                for guard in result.guards
            ],
        },
        "passes": [_pass_entry(report) for report in result.passes],
        "backend": None if result.lowering is None else _backend_entry(result.lowering, result),
        "check": {
            "passed": result.check.passed,
            "max_abs_error": _number(result.check.max_abs_error),
            "max_rel_error": _number(result.check.max_rel_error),
            "elements": result.check.elements,
            "values": [
                {
                    "path": entry.path,
                    "expected": entry.expected,
                    "max_abs_error": _number(entry.max_abs_error),
                    "max_rel_error": _number(entry.max_rel_error),
                    "elements": entry.elements,
                    "rtol": entry.rtol,
                    "atol": entry.atol,
                }
                for entry in result.check.comparisons
            ],
        },
        "latency": None if result.latency is None else _latency_entry(result.latency),
        "warnings": list(result.warnings),
        "files": list(FILES),
    }


def _pass_entry(report: PassReport) -> dict[str, Any]:
    outcome = report.result
    return {
        "name": report.name,
        "provider": report.provider,
        "modified": outcome is not None and outcome.modified,
        "summary": "" if outcome is None else outcome.summary,
        "details": {} if outcome is None else {key: _plain(value) for key, value in outcome.details.items()},
        "nodes_before": report.nodes_before,
        "nodes_after": report.nodes_after,
        "nodes_made": report.changes.made,
        "nodes_erased": report.changes.erased,
        "nodes_edited": report.changes.edited,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "seconds": report.seconds,
        "error": report.error or None,
        "skipped": report.skipped or None,
        "verified": report.verified or None,
    }


def _backend_entry(report: LoweringReport, result: OptimizationResult) -> dict[str, Any]:
    return {
        "name": report.backend,
        "runs_the_module": not result.fallback and not report.eager,
        "fallback": result.fallback or None,
        "restriction": result.restriction or None,
        "coverage": report.coverage,
        "unsupported": [_call_entry(node) for node in report.unsupported],
        "left": [_call_entry(node) for node in _left(report)],
        "partitions": [
            {
                "name": partition.name,
                "backend": partition.backend,
                "nodes": list(partition.nodes),
                "compute_nodes": partition.compute_nodes,
                "transfer_bytes": partition.transfer_bytes,
                "fallback": partition.fallback or None,
            }
            for partition in report.partitions
        ],
    }


def _left(report: LoweringReport) -> list[NodeSupport]:
    """Return the calls that the backend could run, and that are in no partition all the same."""
    return [node for node in report.nodes if node.ok and not node.partition and report.partitions]


def _call_entry(node: NodeSupport) -> dict[str, str]:
    return {"node": node.name, "target": node.target, "reason": node.reason, "source": node.source}


def _latency_entry(latency: Latency) -> dict[str, Any]:
    return {
        "eager_seconds": latency.before,
        "eager_spread": latency.before_spread,
        "optimised_seconds": latency.after,
        "optimised_spread": latency.after_spread,
        "ratio": latency.ratio,
        "runs": latency.runs,
        "method": "medians of single calls that took turns in one process, after a warm-up",
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# -- report.md ---------------------------------------------------------------------------------------------------


def _markdown(
    job: Job, result: OptimizationResult, sections: Sequence[Section], others: Sequence[str]
) -> Iterator[str]:
    where = environment()
    yield f"# {job.class_name}, optimised"
    yield ""
    yield f"`{job.model}`, {job.parameters:,} parameters, with {', '.join(job.examples) or 'no input'}."
    yield f"fxplug {where['fxplug']}, PyTorch {where['torch']}, Python {where['python']}, {where['threads']} threads on"
    yield f"{where['processor']}."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| captured | {capture_text(result)} |"
    yield f"| nodes | {node_text(result.traced_nodes, result.nodes)} |"
    yield f"| largest error | {error_text(result.check)} |"
    yield f"| allowed error | {tolerance_text(result.check)} |"
    yield f"| latency | {'not measured' if result.latency is None else latency_text(result.latency)} |"
    yield from _markdown_guards(result)
    yield ""
    yield "## Passes"
    yield ""
    yield "| pass | from | what it did | nodes | changed | weights | time |"
    yield "|---|---|---|---|---|---|---|"
    for report in result.passes:
        did = report.error or (f"did not run: {report.skipped}" if report.skipped else "")
        if report.result is not None:
            did = report.result.summary
        nodes = node_text(report.nodes_before, report.nodes_after)
        changed = change_text(report.changes) or "nothing"
        weights = bytes_text(report.bytes_before, report.bytes_after)
        yield (
            f"| {report.name} | {report.provider} | {table_cell(did)} | {nodes} | {changed} | {weights} | "
            f"{time_text(report.seconds)} |"
        )
    if result.fingerprint:
        yield ""
        yield f"Fingerprint of the pipeline: `{result.fingerprint}`"
    if result.lowering is not None:
        yield from _markdown_backend(result.lowering)
    for section in sections:
        yield from section.markdown()
    if result.warnings:
        yield ""
        yield "## Warnings"
        yield ""
        for warning in result.warnings:
            yield f"- {one_line(warning)}"
    yield ""
    yield "## Files"
    yield ""
    yield "- `module.fxplug`: the module with its weights; `fxplug.load` restores it, running nothing"
    yield "- `module.py`: the program as Python, to be read"
    yield "- `report.json`: this report for programs"
    for name in others:
        yield f"- `{name}`: from a section above"


def _markdown_guards(result: OptimizationResult) -> Iterator[str]:
    if not result.guards:
        return
    yield ""
    yield "## Guards"
    yield ""
    yield "Every call checks that the program would go the way that was captured:"
    yield ""
    yield "| what holds | where the program asked |"
    yield "|---|---|"
    for guard in result.guards:
        asked = f"{guard.line}: {guard.source}" if guard.source else guard.line
        yield f"| {table_cell(guard.text)} | {table_cell(asked)} |"


def _markdown_backend(report: LoweringReport) -> Iterator[str]:
    yield ""
    yield f"## Backend {report.backend}"
    yield ""
    yield f"It supports {len(report.nodes) - len(report.unsupported)} of {len(report.nodes)} calls."
    stays = [*report.unsupported, *_left(report)]
    if stays:
        yield ""
        yield "| in PyTorch | target | why | source |"
        yield "|---|---|---|---|"
    for node in stays:
        yield f"| {node.name} | {table_cell(node.target)} | {table_cell(node.reason)} | {table_cell(node.source)} |"
