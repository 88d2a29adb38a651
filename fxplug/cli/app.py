"""The command ``fxplug`` and how its subcommands are found: its own by name, those of plugins when they are called."""

from __future__ import annotations

import importlib
import io
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

import fxplug
from fxplug.cli.failures import as_failure, orderly_termination, plain_warnings, traceback_option
from fxplug.errors import FxplugError, PluginError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.plugins import CommandOffer, PluginManager

__all__ = ["main"]

# Name -> (module with the command, one line for people). Help needs neither the module nor PyTorch.
_COMMANDS = {
    "optimize": ("fxplug.cli.optimize", "Capture a model, transform it, check it, measure it, write it."),
    "compare": ("fxplug.cli.compare", "Compare two models layer by layer, on the same inputs."),
    "bisect": ("fxplug.cli.bisect", "Find the pass, the rewrite and the node that made a result wrong."),
    "cost": ("fxplug.cli.cost", "Count multiply-adds, bytes and memory, node by node."),
    "profile": ("fxplug.cli.profile", "Measure the time and memory of every node."),
    "trace": ("fxplug.cli.trace", "Capture a model and print its graph."),
    "decompose": ("fxplug.cli.decompose", "Express a model by operators of ATen, and print its graph."),
    "inspect": ("fxplug.cli.files", "What is in a file that fxplug wrote."),
    "verify": ("fxplug.cli.files", "Check files that fxplug wrote, without running anything."),
    "export": ("fxplug.cli.export", "Write a model as a Python package that needs torch alone."),
    "passes": ("fxplug.cli.listings", "The passes and pipelines there are."),
    "pipelines": ("fxplug.cli.pipelines", "What a pipeline runs, with its fingerprint."),
    "backends": ("fxplug.cli.coverage", "The backends there are, and what each one runs."),
    "plan": ("fxplug.cli.plan", "What backends would run of a model, without building it."),
    "cache": ("fxplug.cli.cache", "What backends compiled and keep for the next time."),
    "plugins": (
        "fxplug.cli.authoring",
        "The plugins there are, and what became of each; checking and writing one.",
    ),
    "config": ("fxplug.cli.config", "The configuration: values in force, a check, a schema for editors."),
    "explain": ("fxplug.cli.explain", "Who decided what: about a leaf, a pass, a node."),
    "doctor": ("fxplug.cli.doctor", "Look for what is broken in this installation, and say what to do."),
}

# Name -> distribution of this project that brings it: people look for these where they are not installed.
_ELSEWHERE = {"diff": "fxplug-viz", "draw": "fxplug-viz", "view": "fxplug-viz"}

_EPILOG = """\b
Begin with:
  fxplug doctor
  fxplug optimize MODEL --example 1x3x224x224 --out optimised

\b
A MODEL is package.module:callable, path.py:callable, or a file.fxplug.
Exit codes: 0 done, 1 the work failed, 2 wrong usage."""


class _Application(click.Group):
    """Finds commands late, and turns every error into one message."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line: as click does, with orderly surroundings."""
        # What a terminal cannot show is no reason to fail.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        with plain_warnings(), orderly_termination():
            return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that can be called."""
        return [*_COMMANDS, *self._plugin_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of ours, or one that a plugin makes now."""
        if cmd_name in _COMMANDS:
            module = importlib.import_module(_COMMANDS[cmd_name][0])
            return getattr(module, cmd_name)
        try:
            offer = _manager().find_command(cmd_name)
        except UnknownNameError:
            return None
        command = offer.create()
        if not isinstance(command, click.Command):
            raise PluginError(
                f"Cannot run the command {offer.name!r} of plugin {offer.plugin!r} ({offer.provider}): its "
                f"factory returned a {type(command).__name__} instead of a click command. Report it to the "
                f"authors of {offer.distribution}."
            )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with, or offer the nearest ones."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            if args[0] in _ELSEWHERE:
                raise click.UsageError(_missing(args[0]), ctx)
            known = self.list_commands(ctx)
            raise click.UsageError(f"There is no command {args[0]!r}. {did_you_mean(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without making those of plugins."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])
        try:
            offers = self._plugin_commands(ctx, quietly=False)
        except FxplugError as error:
            formatter.write_paragraph()
            formatter.write_text(f"(Commands of plugins are not listed: {error})")
            return
        if offers:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, offer.record.summary) for name, offer in offers.items()])

    def _plugin_commands(self, _: click.Context, *, quietly: bool = True) -> Mapping[str, CommandOffer]:
        if not _may_have_plugins():
            return {}
        try:
            offers = _manager().commands().values()
        except FxplugError:
            if quietly:
                return {}
            raise
        # A command of ours hides the short name, the full one still works.
        return {offer.name if offer.shown_name in _COMMANDS else offer.shown_name: offer for offer in offers}

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises ends it with a message."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise  # Whoever read the output has seen enough: click ends the program quietly.
            raise as_failure(error, ctx) from error


def _missing(name: str) -> str:
    """Return what to say about a command of a distribution that is not there, or not active."""
    distribution = _ELSEWHERE[name]
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return f"The command {name!r} is brought by {distribution}, which is not installed: pip install {distribution}"
    return (
        f"The command {name!r} is brought by {distribution}, which is installed, but not active or too old. "
        "'fxplug plugins list' says why."
    )


def _may_have_plugins() -> bool:
    """Return whether a plugin could bring commands; finding that out imports neither PyTorch nor a plugin."""
    if os.environ.get("FXPLUG_LOAD_PLUGINS", "*").strip() == "":
        return False
    return bool(metadata.entry_points(group="fxplug"))


def _manager() -> PluginManager:
    """Return the process-wide manager; what makes it imports PyTorch, which not every command line needs."""
    return importlib.import_module("fxplug.cli.host").manager_for(None)


@click.group(
    cls=_Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
)
@click.version_option(fxplug.__version__, prog_name="fxplug", message="%(prog)s %(version)s")
@traceback_option
def main() -> None:
    """Capture PyTorch models as graphs, transform the graphs, and hand them on."""
