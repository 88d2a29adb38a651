"""``fxplug explain``: who decided what, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.api.explaining import explain_leaf, explain_node
from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.references import load_model
from fxplug.plugins.explanations import explain_pass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fxplug.api.explaining import LeafExplanation, NodeExplanation
    from fxplug.plugins.explanations import PassExplanation, PassPlace
    from fxplug.plugins.options import OptionInfo

__all__ = ["explain"]

Fact = tuple[str, str]


@click.group(short_help="Who decided what: about a leaf, a pass, a node.")
def explain() -> None:
    """Say who decided what, and why: plugin, configuration, or fxplug itself."""


def _print_facts(facts: Iterable[Fact]) -> None:
    """Print lines of label and text; a label that is empty continues the one above."""
    rows = list(facts)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        click.echo(f"{label.ljust(width)}  {text}".rstrip())


# -- leaf


@explain.command("leaf", short_help="Why a module stays one node, or does not.")
@click.argument("reference", metavar="MODEL")
@click.argument("path")
@json_option
@config_option
@traceback_option
@click.pass_context
def leaf(context: click.Context, reference: str, path: str, config: Path | None, *, as_json: bool) -> None:
    """Say whether the module at PATH of MODEL stays one node of the graph, and who decides it.

    MODEL is package.module:callable or path.py:callable. PATH is dotted, such as encoder.layers.0. Nothing is traced:
    configuration and plugins are asked as a trace asks them.
    """
    manager = manager_for(config)
    found = explain_leaf(load_model(context, reference), path, manager=manager)
    if as_json:
        print_json(found)
    else:
        _print_facts(_leaf_facts(found))


def _leaf_facts(found: LeafExplanation) -> Iterator[Fact]:
    yield "module", f"{found.path} ({found.kind})"
    for decision in found.unwrapped_by:
        yield "unwrapped by", str(decision)
    yield "leaf", "yes: it stays one node" if found.is_leaf else "no: its forward is traced"
    yield "decided by", str(found.decided_by)
    for number, decision in enumerate(found.asked_before):
        yield (
            "" if number else "no opinion",
            decision.name if decision.by == "configuration" else str(decision),
        )


# -- pass


@explain.command("pass", short_help="Who offers a pass, and why it runs where it runs.")
@click.argument("name")
@click.option("--pipeline", metavar="NAME", help="Look at this pipeline only.")
@json_option
@config_option
@traceback_option
def explain_pass_command(name: str, pipeline: str | None, config: Path | None, *, as_json: bool) -> None:
    """Say who offers the pass NAME, what it takes, and where and why there it runs in each pipeline."""
    found = explain_pass(name, manager_for(config), pipeline)
    if as_json:
        print_json(found)
    else:
        _print_facts(_pass_facts(found))


def _pass_facts(found: PassExplanation) -> Iterator[Fact]:
    short = f" (short: {found.short_name})" if found.short_name not in {None, found.name} else ""
    yield "pass", f"{found.name}{short}"
    yield "what it does", found.summary
    yield "offered by", f"{found.distribution} {found.version}".strip()
    yield "phase", found.phase
    for label, names in (("before", found.before), ("after", found.after), ("preserves", found.preserves)):
        yield label, ", ".join(names) or "nothing declared"
    for number, option in enumerate(found.options):
        yield "" if number else "options", _option_text(option)
    if not found.options:
        yield "options", "none"
    for place in found.places:
        yield from _place_facts(place)
    if not found.places:
        yield "runs in", "no pipeline"
    for override in found.overrides:
        yield "overridden", override


def _option_text(option: OptionInfo) -> str:
    default = "required" if option.required else f"default {plain_data(option.default)!r}"
    text = f"{option.name}: {option.type}, {default}"
    return f"{text}. {option.description}" if option.description else text


def _place_facts(place: PassPlace) -> Iterator[Fact]:
    yield "runs in", f"pipeline {place.pipeline!r}, {place.position} of {place.total}; {place.listed_by}"
    for neighbour, word, reasons in (
        (place.previous, "after", place.after_previous),
        (place.following, "before", place.before_following),
    ):
        if neighbour:
            yield "", f"{word} {neighbour!r}: {' and '.join(reasons)}"


# -- node


@explain.command("node", short_help="What a node is, and who made it so.")
@click.argument("reference", metavar="MODEL")
@click.argument("name")
@click.option(
    "--pipeline", metavar="NAME", help="Run this pipeline first, and explain the node as it left it."
)
@example_options
@json_option
@config_option
@traceback_option
@click.pass_context
def node(
    context: click.Context,
    reference: str,
    name: str,
    mode: str | None,
    pipeline: str | None,
    config: Path | None,
    *,
    as_json: bool,
    **given: Any,
) -> None:
    """Capture MODEL and say what the node NAME of its graph is, and who made it so.

    MODEL is package.module:callable or path.py:callable. `fxplug trace MODEL --tabular` shows the names of the nodes.
    """
    check_examples(**given)
    manager = manager_for(config)
    model = load_model(context, reference)
    inputs = example_inputs(context, **given, model=model)
    found = explain_node(model, name, inputs, mode=mode, pipeline=pipeline, manager=manager)
    if as_json:
        print_json(found)
    else:
        _print_facts(_node_facts(found))


def _node_facts(found: NodeExplanation) -> Iterator[Fact]:
    yield "node", found.name
    yield "opcode", found.opcode
    yield "target", found.target
    yield "args", found.args
    yield "kwargs", found.kwargs
    yield "line", f"{found.source or 'not known'}" + (f": {found.source_text}" if found.source_text else "")
    stack = [f"{path or 'the root'} ({kind})" for path, kind in found.module_stack]
    for number, text in enumerate(stack or ["none"]):
        yield "" if number else "inside", text
    for number, text in enumerate(found.history):
        yield "" if number else "made by", text
    if found.leaf is not None:
        for label, text in list(_leaf_facts(found.leaf))[1:]:
            yield label, text
    if found.kept is not None:
        yield "kept as a call by", str(found.kept.decided_by)
    for number, mixin in enumerate(found.mixins):
        yield "" if number else "mixed in", f"{mixin.name}, by {mixin.by}"
    for number, note in enumerate(found.notes):
        hidden = "" if note.counts else " (does not count: an earlier plugin has the key)"
        yield "" if number else "notes", f"{note.key} = {note.value!r}, by {note.by}{hidden}"
    yield "effect", found.effect
    for number, decision in enumerate(found.effect_by):
        yield "" if number else "according to", str(decision)
