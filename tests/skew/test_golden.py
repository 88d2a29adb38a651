"""A plugin whose wheel was built for fxplug 0.1 loads and acts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEEL = Path(__file__).with_name("fxplug_golden-0.1.0-py3-none-any.whl")
CHECKSUM = "2a32d4480ec0ea4680ffa41d6504b4c396cba536906a7ad9e3028616e9a8e3fa"

PROGRAM = """
import json
import sys

import torch
from torch import nn

import fxplug
from fxplug.plugins import default_manager


class Kept(nn.Module):
    def forward(self, x):
        return x * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = Kept()

    def forward(self, x):
        from fxplug_golden import Sizes, tell
        tell(x)
        return torch.relu(torch.relu(-self.kept(x).reshape(Sizes(2, 2))))


def main():
    from fxplug_golden import HEARD, Sizes, Wrapper
    model, example = Wrapper(Model().eval()).eval(), (torch.linspace(-1, 1, 4),)
    traced = fxplug.symbolic_trace(model)
    Sizes.__iter__ = lambda self: iter(self.sizes)
    result = fxplug.optimize(traced, example, backend="golden:engine", measure=False)
    manager = default_manager()
    info = manager.plugin_info("golden")
    print(json.dumps({
        "status": [info.status, info.reason],
        "hooks": list(info.hooks),
        "nodes": [[node.op, str(getattr(node.target, "__name__", node.target))] for node in traced.graph.nodes],
        "notes": [node.meta.get("golden.op") for node in traced.graph.nodes],
        "negated": [node.name for node in traced.graph.nodes if node.meta.get("golden.negated")],
        "passes": [report.name for report in result.passes],
        "optimised": [str(getattr(node.target, "__name__", node.target)) for node in result.graph_module.graph.nodes],
        "heard": HEARD,
        "command": manager.find_command("shine").create().name,
    }))


if __name__ == "__main__":
    import fxplug_golden
    main()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    path = [os.environ.get("PYTHONPATH", "")]
    try:
        importlib.metadata.version("fxplug-golden")
    except importlib.metadata.PackageNotFoundError:
        zipfile.ZipFile(WHEEL).extractall(folder / "site")
        path.insert(0, str(folder / "site"))
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(folder / "program.py")],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "FXPLUG_CONFIG": "",
            "FXPLUG_LOAD_PLUGINS": "golden",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_wheel_is_the_one_that_was_built_then():
    assert hashlib.sha256(WHEEL.read_bytes()).hexdigest() == CHECKSUM


def test_it_is_active_with_every_hook(seen):
    assert seen["status"] == ["active", ""]
    assert len(seen["hooks"]) == 14


def test_every_question_of_a_trace_is_answered(seen):
    assert seen["nodes"] == [
        ["placeholder", "x"],
        ["call_function", "tell"],
        ["call_module", "kept"],
        ["call_method", "reshape"],
        ["call_function", "neg"],
        ["call_function", "relu"],
        ["call_function", "relu"],
        ["output", "output"],
    ]
    assert seen["notes"] == [opcode for opcode, _ in seen["nodes"]]
    assert seen["negated"] == ["neg"]


def test_what_it_offers_works(seen):
    assert seen["passes"] == [
        *(
            "dead-code",
            "remove-identities",
            "golden:single-relu",
            "fuse-conv-bn",
            "propagate-shapes",
        )
    ]
    # One relu is left, and the call that acts outside, though nobody uses its result.
    assert seen["optimised"].count("relu") == 1
    assert "tell" in seen["optimised"]
    assert seen["command"] == "shine"


def test_it_hears_of_traces_and_passes(seen):
    assert seen["heard"][:2] == ["trace started Model", "trace finished None"]
    assert "pass started golden:single-relu" in seen["heard"]
    assert "pass finished golden:single-relu True" in seen["heard"]
