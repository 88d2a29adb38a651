"""Plugins made of plain modules, managers that find nothing else, and what was captured plainly."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest
from torch import testing

from fxplug import trace
from fxplug.api import plain_capture
from fxplug.plugins import Config, PluginCandidate, PluginManager, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_plugin(name: str, **hooks: Callable[..., Any]) -> PluginCandidate:
    """A plugin whose entry module has these hook implementations."""
    module = types.ModuleType(f"{name}_plugin")
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return PluginCandidate.of_module(module, name)


@pytest.fixture
def manager_with() -> Callable[..., PluginManager]:
    """Makes a manager that knows one plugin called ``sample`` with the given hooks, and nothing that is installed."""

    def make(config: Config | None = None, **hooks: Callable[..., Any]) -> PluginManager:
        candidates = [make_plugin("sample", **hooks)] if hooks else []
        return PluginManager(config=config or Config(), candidates=candidates, environ={}, version="0.1.0")

    return make


@pytest.fixture
def manager(manager_with: Callable[..., PluginManager]) -> PluginManager:
    """A manager without any plugin."""
    return manager_with()


class HiddenCounter:
    """Counts its calls in a file: no trace looks into files, so none puts the count back or refuses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(b"")

    @property
    def calls(self) -> int:
        return self._path.stat().st_size

    def __call__(self) -> int:
        with self._path.open("ab") as file:
            file.write(b".")
        return self.calls


@pytest.fixture
def count_calls(tmp_path: Path) -> HiddenCounter:
    """Returns with each call how often it was called, in a place where no trace looks."""
    return HiddenCounter(tmp_path / "calls")


@pytest.fixture
def plainly(monkeypatch):
    """What was captured plainly, and None for each program that was not."""
    found = []
    capture = plain_capture.capture_plainly

    def noted(*args):
        found.append(capture(*args))
        return found[-1]

    monkeypatch.setattr("fxplug.api.capturing.capture_plainly", noted)
    return found


@pytest.fixture
def listened_to():
    """Captures a program on inputs in the way of those that are not plain."""

    def capture(net, *inputs, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fxplug.api.capturing.capture_plainly", lambda *args: None)
            return trace(net, inputs, **options)

    return capture


@pytest.fixture
def recorded():
    """What a captured program does, in order: kinds of nodes, what they call, and the contexts around them."""

    def nodes_of(captured):
        # ``count *= 2`` of a number is recorded as it stands there, or as what it does.
        alike = {"imul": "mul", "isub": "sub", "iadd": "add_"}
        names = [getattr(node.target, "__name__", str(node.target)) for node in captured.graph.nodes]
        # A weight is the same in each context.
        regions = [() if node.op == "get_attr" else node.region for node in captured.graph.nodes]
        # So is ``x += y`` of an attribute.
        ops = [
            "call_method" if name == "iadd" else node.op
            for node, name in zip(captured.graph.nodes, names, strict=True)
        ]
        return list(zip(ops, [alike.get(name, name) for name in names], regions, strict=True))

    return nodes_of


@pytest.fixture
def captured_both_ways(plainly, listened_to, recorded):
    """Captures a program without listening to it, and with: both do the same, and what it does, with another input."""

    def capture(net, example, other, *, check):
        captured = trace(net, (example,), check=check)
        assert plainly == [captured]
        heard = listened_to(net, example, check=check)
        assert recorded(captured) == recorded(heard)
        expected = net(other)
        for one in (captured, heard):
            found = one(other)
            testing.assert_close(found, expected, rtol=0, atol=0)
            assert found.requires_grad is expected.requires_grad
        return captured, heard

    return capture
