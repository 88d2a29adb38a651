"""What this plugin answers when fxplug asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.plugins import CommandRecord, ReportSectionRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command

    from fxplug import GraphModule
    from fxplug.plugins import ReportContext
    from fxplug_viz.pass_steps import PassSteps

__all__ = [
    "PLUGIN_PROGRAMS",
    "fxplug_register_commands",
    "fxplug_register_report_sections",
    "fxplug_represent",
]

PLUGIN_PROGRAMS = {"dot": "makes the pictures of 'fxplug draw' and 'fxplug diff'; it is part of Graphviz"}


@hookimpl
def fxplug_register_commands() -> Iterable[CommandRecord]:
    """Offer ``fxplug draw``, ``fxplug diff`` and ``fxplug view``."""
    return [
        CommandRecord("draw", _make_draw, "Draw the graph of a model: as a picture, or as a tree of text."),
        CommandRecord("diff", _make_diff, "Show what became of a graph, as text or as a picture."),
        CommandRecord("view", _make_view, "Write a page that shows a graph, for a browser."),
    ]


def _make_draw() -> Command:
    # A trace in somebody's program asks this plugin too, and needs no command line.
    from fxplug_viz.command import draw  # noqa: PLC0415

    return draw


def _make_view() -> Command:
    from fxplug_viz.viewer_command import view  # noqa: PLC0415 - as above

    return view


@hookimpl
def fxplug_register_report_sections() -> Iterable[ReportSectionRecord]:
    """Write ``report.html`` and ``steps.html`` beside the other reports."""
    return [ReportSectionRecord("report", _write_report, "The report as a page", _make_steps)]


def _make_steps() -> PassSteps:
    from fxplug_viz.pass_steps import PassSteps  # noqa: PLC0415 - as above

    return PassSteps()


def _write_report(context: ReportContext) -> str | None:
    from fxplug_viz.report import write_report  # noqa: PLC0415 - as above

    return write_report(context)


def _make_diff() -> Command:
    from fxplug_viz.diff_command import diff  # noqa: PLC0415

    return diff


@hookimpl
def fxplug_represent(graph_module: GraphModule, format: str) -> str | bytes | None:  # noqa: A002 - the hook's name for it
    """Show a module as DOT text, as a picture, or as a picture in a page."""
    if format not in {"dot", "svg", "png", "pdf", "html"}:
        return None
    from fxplug_viz.notebook import represent  # noqa: PLC0415

    return represent(graph_module, format)
