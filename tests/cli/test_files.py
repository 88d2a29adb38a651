"""``fxplug inspect``, ``fxplug verify`` and ``fxplug export``."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import xxhash

import fxplug as fxp

GUARDED = """
import helper_functions
import torch
import xxhash
from torch import nn

class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            y = self.linear(x)
        return y if x.shape[0] > 1 else x

class Inside(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

class Calling(nn.Module):
    def forward(self, x):
        return helper_functions.double(x)
"""
HELPER = "import fxplug\n\ndef double(x):\n    return x * 2\n\nfxplug.wrap(double)\n"


@pytest.fixture
def stored(folder, monkeypatch):
    """(name of a class) -> a file with a captured module."""
    (folder / "helper_functions.py").write_text(HELPER)
    (folder / "guarded.py").write_text(GUARDED)

    def store(name="Guarded", **options):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            module = fxp.trace(
                getattr(importlib.import_module("guarded"), name)().eval(), (torch.ones(2, 3),)
            )
        fxp.save(module, folder / "module.fxplug", **options)
        for known in ("guarded", "helper_functions"):
            sys.modules.pop(known, None)
        return "module.fxplug"

    return store


def test_inspect_shows_what_is_in_a_file(fxplug, stored):
    result = fxplug("inspect", stored())
    lines = result.stdout.splitlines()

    assert result.exit_code == 0, result.stderr
    assert lines[0].startswith("file       module.fxplug, ")
    assert lines[1].startswith("written by fxplug ")
    assert "tensors    2, parameters with 12 elements" in lines
    assert "plugins    none needed" in lines
    assert any(line.startswith("guards     x.shape[0] > 1") for line in lines)
    table = lines[lines.index("Guarded") + 1 :]
    assert table[0].split() == ["opcode", "name", "target", "args", "kwargs", "region"]
    assert ["call_module", "linear", "linear", "(x,)", "{}", "torch:no_grad()"] in [
        line.split() for line in table
    ]


def test_inspect_shows_the_code(fxplug, stored):
    output = fxplug("inspect", stored(), "--code").stdout

    assert "def forward(self, x):\n    with torch.no_grad():" in output
    assert "opcode" not in output


def test_inspect_without_the_program(fxplug, stored):
    assert "linear " not in fxplug("inspect", stored(), "--summary").stdout


def test_inspect_as_json(fxplug, stored):
    data = json.loads(fxplug("inspect", stored(), "--json").stdout)

    assert (data["format"], data["file"]["tensors"], data["file"]["plugins"]) == ("fxplug-file", 2, {})
    assert data["file"]["graphs"][0]["nodes"][0]["op"] == "placeholder"
    assert data["file"]["modules"]["torch.nn.modules.linear:Linear"] == 1


def test_inspect_reads_a_file_that_cannot_be_loaded_here(fxplug, stored):
    file = stored("Calling", allow=["helper_functions:double"])
    result = fxplug("inspect", file)

    assert result.exit_code == 0, result.stderr
    assert "allow      helper_functions:double" in result.stdout
    assert "helper_functions" not in sys.modules
    refused = fxplug("inspect", file, "--code")
    assert refused.exit_code == 1
    assert "helper_functions:double" in refused.stderr


@pytest.mark.parametrize(
    ("content", "said"), [(None, "there is no such file"), (b"PK", "it is damaged or not an fxplug file")]
)
def test_inspect_says_why_a_file_cannot_be_read(fxplug, folder, content, said):
    if content is not None:
        (folder / "odd.fxplug").write_bytes(content)
    result = fxplug("inspect", "odd.fxplug")

    assert result.exit_code == 1
    assert f"Error: Cannot read 'odd.fxplug': {said}" in result.stderr


def test_inspect_names_the_guards_inside_the_program(fxplug, stored):
    assert "guards     x.sum() > 0 (asked at " in fxplug("inspect", stored("Inside")).stdout


def test_inspect_refuses_what_does_not_fit_together(fxplug, stored, folder):
    file = stored()
    with zipfile.ZipFile(folder / file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    graphs = json.loads(members["graph.json"])
    graphs["graphs"][0]["nodes"][0].clear()
    members["graph.json"] = json.dumps(graphs).encode()
    manifest = json.loads(members["manifest.json"])
    manifest["members"]["graph.json"] = {
        "xxh3_128": xxhash.xxh3_128_hexdigest(members["graph.json"]),
        "size": len(members["graph.json"]),
    }
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(folder / "odd.fxplug", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    result = fxplug("inspect", "odd.fxplug")

    assert result.exit_code == 1
    assert "Cannot read 'odd.fxplug': its content does not fit together" in result.stderr


def test_verify_passes_a_sound_file(fxplug, stored):
    result = fxplug("verify", stored())

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("module.fxplug: sound, ")


def test_verify_names_what_is_wrong(fxplug, stored, folder):
    file = stored()
    content = bytearray((folder / file).read_bytes())
    with zipfile.ZipFile(folder / file) as archive:
        info = archive.getinfo("weights.safetensors")
    padding = int.from_bytes(content[info.header_offset + 28 : info.header_offset + 30], "little")
    content[info.header_offset + 30 + len(info.filename) + padding + info.file_size - 4] ^= 1
    (folder / "flipped.fxplug").write_bytes(content)
    result = fxplug("verify", file, "flipped.fxplug")
    data = json.loads(fxplug("verify", file, "flipped.fxplug", "--json").stdout)

    assert result.exit_code == 1
    assert "flipped.fxplug: Cannot load 'flipped.fxplug': " in result.stdout
    assert "weights.safetensors" in result.stdout or "CRC" in result.stdout
    assert [entry["sound"] for entry in data["files"]] == [True, False]


def test_verify_says_what_to_allow(fxplug, stored):
    file = stored("Calling", allow=["helper_functions:double"])
    result = fxplug("verify", file)

    assert result.exit_code == 1
    assert "helper_functions:double" in result.stdout
    assert "helper_functions" not in sys.modules


@pytest.fixture
def imported(folder, monkeypatch):
    """(name) -> a package in the working directory."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module


def test_export_writes_a_model(fxplug, imported):
    result = fxplug("export", "models.py:Net", "written", "--class-name", "Small")

    assert result.exit_code == 0, result.stderr
    assert result.stdout == "Written to written: model.py, and weights.pt, which load() reads.\n"
    module = imported("written").load()
    assert type(module).__name__ == "Small"
    assert not module.training
    assert module(torch.ones(1, 3, 8, 8)).shape == (1, 4, 6, 6)


def test_export_writes_a_file(fxplug, stored, imported):
    file = stored()
    assert fxplug("export", file, "written_file").exit_code == 0

    loaded = fxp.load(file)
    assert torch.equal(imported("written_file").load()(torch.ones(2, 3)), loaded(torch.ones(2, 3)))


def test_export_captures_on_examples(fxplug, imported):
    result = fxplug("export", "models.py:Branch", "written_branch", "--example", "1x3x8x8")

    assert result.exit_code == 0, result.stderr
    assert "check_" in Path(imported("written_branch").__path__[0], "model.py").read_text()


def test_export_replaces_only_on_demand(fxplug):
    assert fxplug("export", "models.py:Net", "out").exit_code == 0
    again = fxplug("export", "models.py:Net", "out")

    assert again.exit_code == 1
    assert "overwrite" in again.stderr
    assert fxplug("export", "models.py:Net", "out", "--overwrite").exit_code == 0


# -- functions of the user


COMMANDS = {
    "inspect": ["inspect", "module.fxplug", "--code"],
    "verify": ["verify", "module.fxplug"],
    "trace": ["trace", "module.fxplug"],
    "decompose": ["decompose", "module.fxplug", "--example", "2x3"],
    "cost": ["cost", "module.fxplug", "--example", "2x3"],
    "profile": ["profile", "module.fxplug", "--example", "2x3", "--runs", "1"],
    "optimize": ["optimize", "module.fxplug", "--example", "2x3", "--no-measure"],
    "plan": ["plan", "module.fxplug", "--example", "2x3", "--backend", "eager"],
    "compare": ["compare", "module.fxplug", "module.fxplug", "--example", "2x3"],
    "export": ["export", "module.fxplug", "exported"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_is_allowed_is_found_in_the_working_directory(fxplug, stored, monkeypatch, command):
    with monkeypatch.context() as patch:
        patch.syspath_prepend(Path.cwd())
        stored("Calling", allow=["helper_functions:double"])

    refused = fxplug(*command)
    result = fxplug(*command, "--allow", "helper_functions:double")

    assert refused.exit_code == 1
    assert "allow it: --allow helper_functions:double." in refused.stderr + refused.stdout
    assert result.exit_code == 0, result.stderr
    assert "helper_functions" not in sys.modules or sys.modules["helper_functions"].__file__


@pytest.mark.parametrize(
    ("helper", "said"),
    [
        ("def other(): pass", "--allow names 'helper_functions:double', which cannot be found"),
        ("1 / 0", "whose module cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_allowed_and_not_there_is_named(fxplug, stored, folder, monkeypatch, helper, said):
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        stored("Calling", allow=["helper_functions:double"])
    (folder / "helper_functions.py").write_text(
        f"# Of another size, so that it is compiled anew.\n{helper}\n"
    )
    importlib.invalidate_caches()

    result = fxplug("cost", "module.fxplug", "--example", "2x3", "--allow", "helper_functions:double")

    assert result.exit_code == 1
    assert said in result.stderr


def test_messages_name_options_where_functions_have_arguments(fxplug, folder):
    result = fxplug("trace", "models.py:Branch")
    assert "give example inputs" in result.stderr.lower()
    assert "--example or --example-from" in result.stderr
    assert "fxplug.trace(" not in result.stderr


def test_a_file_is_optimised_with_its_guards(fxplug, stored):
    stored()

    result = fxplug("optimize", "module.fxplug", "--example", "2x3", "--no-measure", "--out", "out")

    assert result.exit_code == 0, result.stderr
    assert "as the graph module that was given" in result.stdout
    assert [guard.text for guard in fxp.load("out/module.fxplug").guards] == [
        guard.text for guard in fxp.load("module.fxplug").guards
    ]


def test_how_to_load_a_file_says_what_to_allow(fxplug, stored, folder):
    (folder / "helper_functions.py").write_text(HELPER)
    (folder / "guarded.py").write_text(GUARDED)

    result = fxplug(
        *("optimize", "guarded.py:Calling", "--example", "2x3", "--no-measure", "--out", "out"),
        *("--allow", "helper_functions:double"),
    )

    assert result.exit_code == 0, result.stderr
    assert "allow=['helper_functions:double'])" in result.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["export", "models.py:net", "."], "or pass --overwrite to replace"),
        (["export", "models.py:net", "new", "--class-name", "a b"], "such as --class-name Model."),
        (
            ["optimize", "models.py:net", "--example", "1x3x8x8", "--set", "dead-code.x=1"],
            "(given at the command line: --set dead-code.x=1): it takes no options",
        ),
        (["profile", "models.py:net", "--example", "1x3x8x8", "--device", "meta"], "fxplug cost tells what"),
    ],
    ids=["overwrite", "class-name", "set", "cost"],
)
def test_messages_are_those_of_a_command_line(fxplug, command, said):
    result = fxplug(*command)

    assert result.exit_code != 0
    assert said in result.stderr
