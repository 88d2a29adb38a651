"""A folder with small models, and commands run in it with no plugin and no configuration."""

from __future__ import annotations

import sys
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from fxplug.cli import main
from fxplug.plugins import reset_default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()

class Branch(Net):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

class Opaque(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Opaque()

    def forward(self, x):
        return self.part(x)

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 3)

    def forward(self, tokens):
        return self.embedding(tokens)

def net():
    return Net().eval()

def with_argument(size):
    return Net()

def failing():
    raise ValueError("no weights here")

def seven():
    return 7

def batch():
    return (torch.ones(1, 3, 8, 8),)

def mapping():
    return {"pixels": torch.ones(1)}

ready = Net().eval()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with ``models.py`` in it; afterwards nothing that was imported from it is left."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")
    monkeypatch.delenv("FXPLUG_DISABLE_PLUGINS", raising=False)
    monkeypatch.delenv("FXPLUG_STRICT", raising=False)
    before = dict(sys.modules)
    reset_default_manager()
    yield tmp_path
    reset_default_manager()
    assert str(tmp_path) not in sys.path
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]
    assert before.keys() <= sys.modules.keys()


def _lies_in(module: object, folder: Path) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(folder))


@pytest.fixture
def fxplug(folder: Path) -> Callable[..., Result]:
    """Runs a command line in `folder`."""

    # Until click 8.2 the runner mixed what is written to the two streams, unless told otherwise.
    separate: dict[str, Any] = (
        {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    )

    def run(*arguments: str) -> Result:
        result = CliRunner(**separate).invoke(main, arguments, prog_name="fxplug")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
