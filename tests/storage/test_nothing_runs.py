"""Loading runs, compiles, imports and unpickles nothing: Python's own audit events say so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import fxplug.semantics
from fxplug.errors import StorageError
from fxplug.storage import load

events = []
watching = False

def watch(event, arguments):
    if watching:
        events.append([event, repr(arguments)[:200]])

sys.addaudithook(watch)
outcomes = []
for path in sys.argv[1:]:
    modules = set(sys.modules)
    watching = True
    try:
        load(path)
        outcomes.append("loaded")
    except StorageError as error:
        outcomes.append("refused")
    watching = False
    assert set(sys.modules) == modules, set(sys.modules) - modules
print(json.dumps([outcomes, events]))
"""


def run(paths) -> tuple[list[str], list[list[str]]]:
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    outcomes, events = json.loads(result.stdout)
    return outcomes, events


@pytest.fixture
def hostile(stored, tmp_path):
    """Return files that try to get something run, behind one that is good."""
    good = tmp_path / "good.fxplug"
    good.write_bytes(stored.path.read_bytes())
    paths = [good]
    attempts = [
        {"target": "os:system", "args": ["touch escaped"]},
        {"target": "builtins:eval", "args": ["__import__('os').system('touch escaped')"]},
        {"target": "torch:load", "args": ["escaped"]},
        {"target": "colorsys:rgb_to_hsv", "args": []},
        {"target": "torch:_dynamo.optimize"},
        {"target": "torch.ops:load_library"},
        {"op": "call_method", "target": "__reduce__"},
        {"name": "__import__('os').system('touch escaped')"},
        {"type": {"$name": "this:d"}},
        {"meta": {"__reduce__": {"$name": "os:system"}}},
        {"region": [["antigravity:fly", []]]},
    ]
    nodes = json.loads(stored.members["graph.json"])["graphs"][0]["nodes"]
    (original,) = (row for row in nodes if row[1] == "relu")
    for number, fields in enumerate(attempts):
        stored.edit(
            "graph.json", lambda content: content["graphs"][0]["nodes"].__setitem__(2, list(original))
        )
        stored.node("relu", **fields)
        path = tmp_path / f"hostile{number}.fxplug"
        path.write_bytes(stored.path.read_bytes())
        paths.append(path)
    return paths


def test_loading_causes_no_audit_event_but_opening_the_file(hostile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcomes, events = run(hostile)

    assert outcomes == ["loaded"] + ["refused"] * (len(hostile) - 1)
    opened = [arguments for event, arguments in events if event == "open"]
    assert [event for event, _ in events if event != "open"] == []
    assert len(opened) == len(hostile)
    assert all(str(path) in arguments for path, arguments in zip(hostile, opened, strict=True))
    assert not (tmp_path / "escaped").exists()


def test_the_graph_is_compiled_when_the_module_is_called_and_not_before(stored, monkeypatch):
    import torch

    from fxplug.execute import graph_module
    from fxplug.storage import load

    compiled = []
    original = graph_module.compile_code
    monkeypatch.setattr(
        graph_module, "compile_code", lambda *args, **kwargs: compiled.append(1) or original(*args, **kwargs)
    )

    module = load(stored.path)
    assert compiled == []
    module(torch.ones(1, 2))
    assert compiled == [1]
