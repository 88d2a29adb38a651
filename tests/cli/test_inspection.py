"""``plugins show``, the whole of ``plugins list --json``, and the doctor on conflicts and on what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = """
import fxplug
from fxplug import BackendRecord, PassRecord
from fxplug.plugins import EffectRecord
from fxplug.ir import OUTSIDE

PLUGIN_BEFORE = ["other"]
PLUGIN_PROGRAMS = {"fxp-no-such-program": "draws"}

def log_value(value):
    return value

@fxplug.hookimpl
def fxplug_register_passes():
    return [PassRecord("nothing", object, "Does nothing.")]

@fxplug.hookimpl
def fxplug_register_backends():
    return [BackendRecord("mine", object, "Runs.", requires=("fxp-no-such-engine",))]

@fxplug.hookimpl
def fxplug_register_effects():
    return [EffectRecord(log_value, OUTSIDE)]

@fxplug.hookimpl
def fxplug_trace_started(event):
    pass

@fxplug.hookimpl(optionalhook=True)
def quant_converters():
    pass
"""


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a plugin where Python finds it, and hides all others."""
    from fxplug.plugins import checking, manager

    discover = manager.discover
    for module in (manager, checking):
        monkeypatch.setattr(
            module,
            "discover",
            lambda: [found for found in discover() if found.target.startswith("fxp_test_")],
        )
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv("FXPLUG_LOAD_PLUGINS")

    def put(name: str, source: str, requires: str = "fxplug>=0.1,<0.2") -> None:
        (site / f"fxp_test_{name}.py").write_text(source)
        metadata = site / f"fxplug_{name}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fxplug-{name}\nVersion: 1.2\nRequires-Dist: {requires}\n"
        )
        (metadata / "entry_points.txt").write_text(f"[fxplug]\n{name} = fxp_test_{name}\n")

    return put


def test_show_says_everything_about_one_plugin(fxplug, install, folder):
    install("other", "")
    install("good", GOOD)

    lines = fxplug("plugins", "show", "fxplug-good").stdout.splitlines()

    assert lines == [
        "plugin         good",
        "distribution   fxplug-good 1.2",
        "status         active",
        f"module         fxp_test_good, {folder / 'site' / 'fxp_test_good.py'}",
        "requires       fxplug <0.2,>=0.1",
        "place          1, before other (PLUGIN_BEFORE)",
        "hooks          fxplug_trace_started",
        "               quant_converters (nobody who takes part declares it)",
        *lines[8:11],
        "programs       fxp-no-such-program: draws",
    ]
    offers = {line[15:] for line in lines[8:11]}
    assert offers == {
        "passes: good:nothing - Does nothing.",
        "backends: good:mine - Runs.",
        "effects: log_value",
    }


def test_show_says_why_a_plugin_takes_no_part(fxplug, install, monkeypatch):
    monkeypatch.setattr("fxplug.plugins.manager.core_version", lambda: "0.1.0")
    install("broken", "raise OSError('no engine')")
    install("old", "", requires="fxplug<0.1")

    assert (
        "failed: importing fxp_test_broken raised OSError: no engine. Update"
        in fxplug("plugins", "show", "broken").stdout
    )
    old = fxplug("plugins", "show", "old").stdout
    assert "requires       fxplug <0.1" in old
    assert "incompatible: it requires fxplug <0.1" in old
    missing = fxplug("plugins", "show", "brokn")
    assert missing.exit_code == 2
    assert "There is no plugin named 'brokn'. Did you mean 'broken'?" in missing.stderr


def test_json_of_show_and_list_is_the_same_and_complete(fxplug, install):
    install("good", GOOD)
    install("off", "")

    shown = json.loads(fxplug("plugins", "show", "good", "--json").stdout)
    listed = json.loads(fxplug("plugins", "list", "--json", "--all").stdout)

    assert listed[0] == shown
    assert [entry["name"] for entry in listed] == ["good", "off"]
    assert shown["records"][0].keys() == {"hook", "name", "summary"}
    assert {entry["name"] for entry in shown["records"]} == {"good:nothing", "good:mine", "log_value"}
    assert shown["idle_hooks"] == ["quant_converters"]
    assert shown["before"] == ["other"]
    assert shown["core_range"] == "<0.2,>=0.1"
    assert shown["path"].endswith("fxp_test_good.py")
    assert (shown["place"], shown["failures"], shown["programs"]) == (1, [], {"fxp-no-such-program": "draws"})


def test_programs_that_are_no_table_are_refused(fxplug, install):
    install("odd", "PLUGIN_PROGRAMS = ['dot']\n")

    assert "PLUGIN_PROGRAMS is ['dot']; it must be a dict of programs and what they are for" in (
        fxplug("plugins", "list").stdout
    )


# -- doctor


def test_the_doctor_notes_what_is_missing_and_what_is_unsettled_without_calling_it_broken(fxplug, install):
    install("good", GOOD)
    install("rival", GOOD.replace('"other"', '"third"'))

    result = fxplug("doctor")

    assert result.exit_code == 0, result.stdout
    text = " ".join(result.stdout.split())
    assert "pass nothing good:nothing (fxplug-good 1.2), rival:nothing (fxplug-rival 1.2)" in text
    assert (
        "Note: The pass name 'nothing' is claimed by good:nothing and rival:nothing. Write one of these full names, or "
        'switch a plugin off: disable = ["rival"] in the table [tool.fxplug.plugins].'
    ) in text
    assert (
        "Note: Backend 'good:mine' cannot run here: fxp-no-such-engine is not installed. Run: pip install"
        in text
    )
    assert (
        "Note: The program 'fxp-no-such-program' is not on the path. Plugin 'good' (fxplug-good 1.2) names it"
        in text
    )
    assert "Nothing is broken." in text


TELLING = """
from fxplug import hookimpl
from fxplug.plugins import BackendRecord

def fail():
    raise OSError("no such device")

@hookimpl
def fxplug_register_backends():
    needs = ("fxp-no-such-engine",)
    return [
        BackendRecord("told", object, "Runs.", requires=needs, problem=lambda: "there is no rocket. Build one."),
        BackendRecord("well", object, "Runs.", requires=needs, problem=lambda: ""),
        BackendRecord("lost", object, "Runs.", problem=fail),
    ]
"""


def test_the_doctor_asks_backends_why_they_do_not_run_here(fxplug, install):
    install("telling", TELLING)

    result = fxplug("doctor")

    assert result.exit_code == 0, result.stdout
    text = " ".join(result.stdout.split())
    assert "Note: Backend 'told' cannot run here: there is no rocket. Build one." in text
    assert "Note: Backend 'lost' cannot run here: asked why, it fails with OSError: no such device" in text
    assert "Backend 'well' cannot run here" not in text
    assert "pip install fxp-no-such-engine" not in text


DEVICE = """
import fxplug

@fxplug.hookimpl
def fxplug_register_devices():
    return [fxplug.DeviceRecord("npu", {"float32": 1e9}, 1e9, 1e9, "A test.")]

@fxplug.hookimpl
def fxplug_register_report_sections():
    return [fxplug.ReportSectionRecord("sizes", lambda context: None, "Sizes.")]
"""


def test_the_doctor_lists_devices_and_sections_that_several_plugins_claim(fxplug, install):
    install("one", DEVICE)
    install("two", DEVICE)

    text = " ".join(fxplug("doctor").stdout.split())

    assert "device npu one:npu (fxplug-one 1.2), two:npu (fxplug-two 1.2)" in text
    assert "report section sizes one:sizes (fxplug-one 1.2), two:sizes (fxplug-two 1.2)" in text
    assert (
        "Note: The device name 'npu' is claimed by one:npu and two:npu. Write one of these full names" in text
    )


def test_a_broken_installation_is_told_what_to_type_next(fxplug, install):
    install("broken", "raise OSError('no engine')")

    assert fxplug("doctor").stdout.endswith("Then:\n  fxplug plugins list --all\n  fxplug doctor\n")


def test_the_doctor_says_the_same_to_programs(fxplug, install):
    install("good", GOOD)
    install("broken", "raise OSError('no engine')")

    result = fxplug("doctor", "--json")
    data = json.loads(result.stdout)

    assert result.exit_code == 1
    assert data.keys() == {
        *("environment", "torch_names", "configuration", "plugins", "conflicts", "backends", "programs"),
        *("problems", "notes", "next"),
    }
    assert [entry["status"] for entry in data["plugins"]] == ["failed", "active"]
    assert all(entry["found"] is True for entry in data["torch_names"])
    assert "Plugin 'broken' (fxplug-broken 1.2) is failed" in data["problems"][0]


# -- what is imported when


def run_python(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Everything that asks which distributions there are goes through one of these modules.
METADATA = """
import sys
before = set(sys.modules)
import fxplug
brought = set(sys.modules) - before
assert not [name for name in brought if name.split(".")[0] in {"importlib_metadata", "pluggy", "torch", "packaging"}]
assert "importlib.metadata" not in brought
"""


def test_importing_fxplug_asks_for_no_metadata_and_loads_neither_torch_nor_pluggy(folder):
    done = run_python(METADATA, folder)

    assert done.returncode == 0, done.stderr


def test_a_plugin_is_imported_with_the_first_trace_and_not_before(install, folder):
    install("good", GOOD)
    program = (
        "import sys, fxplug, fxplug.plugins, torch\n"
        "fxplug.Tracer().trace(torch.nn.ReLU())\n"
        "assert 'fxp_test_good' not in sys.modules\n"
        "fxplug.symbolic_trace(torch.nn.ReLU())\n"
        "assert 'fxp_test_good' in sys.modules\n"
    )
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])

    done = run_python(program, folder, PYTHONPATH=path, FXPLUG_LOAD_PLUGINS="good")

    assert done.returncode == 0, done.stderr


def test_help_loads_plugins_for_their_commands_alone_and_no_torch_when_there_is_none(install, folder):
    program = (
        "import sys\nfrom fxplug.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "assert 'fxplug.plugins' not in sys.modules\n"
    )
    for argument in ("--version", "--help"):
        called = program.replace("sys.argv[1:]", repr([argument]))
        done = run_python(called, folder, FXPLUG_LOAD_PLUGINS="")
        assert done.returncode == 0, done.stderr
