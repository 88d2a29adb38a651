"""Plugins on the command line: listed, diagnosed, and bringing commands of their own."""

from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = '''
import fxplug
from fxplug import CommandRecord, PassRecord

def make_pass():
    from fxplug import Pass, PassResult

    class Nothing(Pass):
        def run(self, module, context):
            return PassResult(modified=False)

    return Nothing()

def make_command():
    import click

    @click.command()
    @click.argument("name")
    def hello(name):
        """Greet somebody."""
        click.echo(f"hello {name}")

    return hello

def make_broken():
    raise ImportError("no drawing library")

def make_wrong():
    return "not a command"

@fxplug.hookimpl
def fxplug_register_passes():
    return [PassRecord("nothing", make_pass, "Does nothing.")]

@fxplug.hookimpl
def fxplug_node_created(node):
    return None

@fxplug.hookimpl
def fxplug_register_commands():
    return [
        CommandRecord("hello", make_command, "Greets."),
        CommandRecord("draw", make_broken, "Draws."),
        CommandRecord("wrong", make_wrong, "Returns text."),
        CommandRecord("trace", make_command, "Has the name of a command of fxplug."),
    ]
'''
BROKEN = "raise OSError('cannot find the engine')\n"


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a plugin where Python finds it, as pip would."""
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv("FXPLUG_LOAD_PLUGINS")

    def put(name: str, source: str, requires: str = "fxplug") -> None:
        (site / f"fxp_test_{name}.py").write_text(source)
        metadata = site / f"fxplug_{name}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fxplug-{name}\nVersion: 1.2\nRequires-Dist: {requires}\n"
        )
        (metadata / "entry_points.txt").write_text(f"[fxplug]\n{name} = fxp_test_{name}\n")

    return put


@pytest.fixture(autouse=True)
def only_test_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the plugins that happen to be installed where the tests run."""
    from fxplug.plugins import manager

    discover = manager.discover
    monkeypatch.setattr(
        manager, "discover", lambda: [found for found in discover() if found.target.startswith("fxp_test_")]
    )


def test_without_plugins_the_list_says_so(fxplug):
    assert fxplug("plugins", "list").stdout == "No plugin is installed.\n"
    assert json.loads(fxplug("plugins", "list", "--json").stdout) == []


def test_the_list_says_what_each_plugin_offers(fxplug, install):
    install("good", GOOD)
    header, line = fxplug("plugins", "list").stdout.splitlines()

    assert header.split() == ["plugin", "distribution", "status", "offers,", "or", "reason"]
    assert line.split("  ")[0] == "good"
    assert "fxplug-good 1.2" in line
    assert "active" in line
    assert (
        "passes good:nothing; commands good:hello, good:draw, good:wrong, good:trace; hooks node_created"
        in line
    )


def test_a_broken_plugin_is_listed_with_reason_and_remedy_and_the_others_work(fxplug, install):
    install("good", GOOD)
    install("broken", BROKEN)
    result = fxplug("plugins", "list")

    assert result.exit_code == 0
    assert "importing fxp_test_broken raised OSError: cannot find the engine" in result.stdout
    assert "pip uninstall fxplug-broken" in result.stdout
    assert result.stderr.startswith("Warning: Plugin 'broken' (fxplug-broken 1.2) is skipped: ")
    assert "good:nothing" in result.stdout


def test_disabled_plugins_are_counted_and_shown_with_all(fxplug, install, monkeypatch):
    install("good", GOOD)
    monkeypatch.setenv("FXPLUG_DISABLE_PLUGINS", "good")

    assert fxplug("plugins", "list").stdout == "No plugin takes part.\n1 disabled (good); --all shows why.\n"
    assert "switched off by FXPLUG_DISABLE_PLUGINS" in fxplug("plugins", "list", "--all").stdout


def test_json_says_the_same_to_programs(fxplug, install):
    install("good", GOOD)
    (entry,) = json.loads(fxplug("plugins", "list", "--json").stdout)

    assert entry["name"] == "good"
    assert (entry["status"], entry["reason"]) == ("active", "")
    assert entry["passes"] == ["good:nothing"]


def test_passes_are_listed_with_where_they_come_from_and_the_pipelines(fxplug, install):
    install("good", GOOD)
    listing = fxplug("passes", "list").stdout
    data = json.loads(fxplug("passes", "list", "--json").stdout)

    assert any(
        line.split()[0] == "nothing" and line.endswith("fxplug-good 1.2")
        for line in listing.splitlines()
        if line
    )
    assert "inference  dead-code, remove-identities, fuse-conv-bn, onednn-fuse, propagate-shapes" in listing
    assert data["passes"][-1] == {
        "name": "good:nothing",
        "short_name": "nothing",
        "phase": "optimize",
        "summary": "Does nothing.",
        "provider": "fxplug-good 1.2",
    }
    assert data["pipelines"]["inference"] == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]


def test_backends_are_listed_with_what_their_engine_needs(fxplug, install):
    install(
        "engine",
        "import fxplug\nfrom fxplug import BackendRecord\n@fxplug.hookimpl\ndef fxplug_register_backends():\n"
        "    return [BackendRecord('mine', dict, 'Runs fast.', requires=('click', 'fxp-no-such-engine'))]\n",
    )
    listing = fxplug("backends", "list").stdout
    data = json.loads(fxplug("backends", "list", "--json").stdout)

    assert "built in" in listing
    assert "fxp-no-such-engine is not installed" in listing
    (mine,) = [entry for entry in data if entry["name"].endswith("mine")]
    assert mine["requires"]["fxp-no-such-engine"] is None
    assert mine["requires"]["click"]


# -- doctor


def test_the_doctor_finds_nothing_wrong_and_says_what_to_type_next(fxplug, install):
    install("good", GOOD)
    result = fxplug("doctor")

    assert result.exit_code == 0
    for expected in (
        "fxplug ",
        "Python ",
        "torch ",
        "machine ",
        "FXPLUG_CONFIG  ''",
        "good    fxplug-good 1.2  active",
    ):
        assert expected in result.stdout
    assert (
        "Nothing is broken. Next:\n  fxplug optimize MODEL --example 1x3x224x224 --out optimised"
        in result.stdout
    )


def test_the_doctor_names_broken_plugins_with_reason_and_remedy(fxplug, install):
    install("good", GOOD)
    install("broken", BROKEN)
    install("old", GOOD, requires="fxplug<0.0.1")
    result = fxplug("doctor")

    assert result.exit_code == 1
    assert result.stderr == ""
    assert "are broken:" in result.stdout or "is broken:" in result.stdout
    assert (
        "- Plugin 'broken' (fxplug-broken 1.2) is failed: importing fxp_test_broken raised OSError: cannot find the "
        "engine. Update or uninstall fxplug-broken"
    ) in result.stdout


def test_the_doctor_goes_on_after_a_wrong_configuration(fxplug, install, folder):
    install("good", GOOD)
    (folder / "mine.toml").write_text("[plugins]\ndisabel = []\n")
    result = fxplug("doctor", "--config", "mine.toml")

    assert result.exit_code == 1
    assert "1 thing is broken:" in result.stdout
    assert "disabel" in result.stdout
    assert "good    fxplug-good 1.2  active" in result.stdout


def test_the_doctor_goes_on_after_an_unknown_name_in_the_environment(fxplug, install, monkeypatch):
    install("good", GOOD)
    monkeypatch.setenv("FXPLUG_DISABLE_PLUGINS", "goood")
    result = fxplug("doctor")

    assert result.exit_code == 1
    assert (
        "There is no plugin named 'goood'. Did you mean 'good'? The name stands in FXPLUG_DISABLE_PLUGINS."
        in (result.stdout)
    )


OFF = "raise SystemExit('a plugin that is switched off was imported')\n"


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ('[trace]\nmodee = "x"\n', {"FXPLUG_DISABLE_PLUGINS": "off"}),
        ('[plugins]\ndisable = ["off", "oof"]\n', {}),
        ('[plugins]\ndisable = ["off", 3]\n', {}),
        ('[plugins]\ndisable = ["off"]\nrequire = ["absent"]\n', {}),
        ('[plugins]\ndisable = ["off"]\n', {"FXPLUG_CALL_LOG": "perhaps", "FXPLUG_STRICT": "perhaps"}),
        ("", {"FXPLUG_DISABLE_PLUGINS": "off,oof"}),
        ("", {"FXPLUG_LOAD_PLUGINS": "good,oof"}),
        ("[plugins\n", {"FXPLUG_LOAD_PLUGINS": "good"}),
    ],
)
def test_the_doctor_imports_no_plugin_that_is_switched_off_whatever_else_is_wrong(
    fxplug, install, folder, monkeypatch, text, variables
):
    install("good", GOOD)
    install("off", OFF)
    (folder / "mine.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = fxplug("doctor", "--config", "mine.toml")

    assert result.exit_code == 1
    assert "good    fxplug-good 1.2  active" in result.stdout
    assert "off     fxplug-off 1.2   disabled" in result.stdout


@pytest.mark.parametrize(
    "text",
    [
        '[plugins\ndisable = ["off"]\n',
        '[plugins]\ndisabel = ["off"]\n',
        '[plugins]\ndisable = "off"\n',
        '[pluginz]\ndisable = ["off"]\n',
        'disable = ["off"]\n',
    ],
)
def test_the_doctor_imports_nothing_when_it_cannot_tell_what_is_switched_off(fxplug, install, folder, text):
    install("off", OFF)
    (folder / "mine.toml").write_text(text)
    result = fxplug("doctor", "--config", "mine.toml")

    assert result.exit_code == 1
    assert "1 thing is broken:" in result.stdout
    assert "No plugin was imported: which ones are switched off cannot be told until" in result.stdout
    assert "off     fxplug-off 1.2  disabled" in result.stdout


# -- commands of plugins


def test_a_plugins_command_runs_by_its_short_and_its_full_name(fxplug, install):
    install("good", GOOD)

    assert fxplug("hello", "world").stdout == "hello world\n"
    assert fxplug("good:hello", "world").stdout == "hello world\n"
    assert "Greet somebody." in fxplug("hello", "--help").stdout


def test_help_lists_commands_of_plugins_without_making_them(fxplug, install):
    install("good", GOOD)
    text = fxplug("--help").stdout

    assert "Commands of plugins:" in text
    assert " hello " in text
    assert "Draws." in text
    assert "no drawing library" not in text


def test_a_command_that_cannot_be_made_fails_alone(fxplug, install):
    install("good", GOOD)
    result = fxplug("draw")

    assert result.exit_code == 1
    assert (
        "Cannot make 'good:draw' of plugin 'good' (fxplug-good 1.2): its factory raised ImportError: no drawing"
        in (result.stderr)
    )
    assert fxplug("hello", "world").exit_code == 0


def test_a_command_that_is_none_is_an_error_of_its_plugin(fxplug, install):
    install("good", GOOD)

    assert "its factory returned a str instead of a click command" in fxplug("wrong").stderr


def test_a_command_of_fxplug_prevails_and_the_other_keeps_its_full_name(fxplug, install):
    install("good", GOOD)

    assert fxplug("trace", "models.py:net").stdout.startswith("def forward")
    assert fxplug("good:trace", "world").stdout == "hello world\n"
    assert "good:trace" in fxplug("--help").stdout


def test_help_works_when_the_configuration_does_not(fxplug, install, monkeypatch):
    install("good", GOOD)
    monkeypatch.setenv("FXPLUG_CONFIG", "missing.toml")
    result = fxplug("--help")

    assert result.exit_code == 0
    assert "optimize" in result.stdout
    assert "Commands of plugins are not listed: Cannot read the configuration missing.toml" in " ".join(
        result.stdout.split()
    )


def test_an_unknown_command_is_answered_with_the_nearest_ones(fxplug, install):
    install("good", GOOD)

    assert "There is no command 'optimise'. Did you mean 'optimize'?" in fxplug("optimise").stderr
    result = fxplug("helo")
    assert result.exit_code == 2
    assert "There is no command 'helo'. Did you mean 'hello'?" in result.stderr


def test_a_command_of_a_distribution_that_is_missing_names_it(fxplug, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("fxplug.cli.app.metadata.distribution", missing)

    for name in ("draw", "diff", "view"):
        result = fxplug(name, "model.py:build")
        assert result.exit_code == 2
        assert (
            f"The command '{name}' is brought by fxplug-viz, which is not installed: pip install fxplug-viz"
            in result.stderr
        )
