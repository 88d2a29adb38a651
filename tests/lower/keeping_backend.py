"""A backend whose engines can be kept, in the plugin that brings it."""

from __future__ import annotations

import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

from torch import nn

import fxplug
from fxplug import storage
from fxplug.analyze.isolation import copy_module, copy_values
from fxplug.lower import Backend, BackendRecord, Support
from fxplug.plugins import PluginCandidate, PluginManager, hookimpl

VERSIONS = {"quick-engine": "3.1", "processor": "test"}


@dataclass(frozen=True)
class Options:
    """Options of the backend."""

    level: int = 1


class Engine(nn.Module):
    """Runs what it was compiled from; its results share memory with nothing."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *inputs):
        return copy_values(self.part(*copy_values(inputs)))


class Keeping(Backend):
    """Supports everything but what it is told; counts what it does."""

    def __init__(self, level=1, *refused):
        self.options = Options(level)
        self.refused = refused
        self.versions = dict(VERSIONS)
        self.compiled = self.restored = 0

    def supports(self, node, context):
        return Support(node.name not in self.refused, "" if node.name not in self.refused else "too hard")

    def compile(self, subgraph, example_inputs, options):
        self.compiled += 1
        return Engine(copy_module(subgraph))

    def environment(self):
        return self.versions

    def artefact(self, engine):
        with tempfile.TemporaryDirectory() as folder:
            storage.save(engine.part, Path(folder) / "part")
            return (Path(folder) / "part").read_bytes()

    def restore(self, artefact):
        self.restored += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "part").write_bytes(artefact)
            return Engine(storage.load(Path(folder) / "part"))


def manager(*backends):
    """Return a manager with one plugin, whose backend is made as the next of those given, then anew."""
    given = list(backends)

    def make(**options):
        return given.pop(0) if given else Keeping(**options)

    @hookimpl
    def fxplug_register_backends():
        return [BackendRecord("keeping", make, "Keeps its engines.", options=Options)]

    plugin = types.ModuleType("keeping_plugin")
    plugin.fxplug_register_backends = fxplug_register_backends
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "keeper")], environ={})


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x).tanh())


def traced():
    """Return a module."""
    return fxplug.symbolic_trace(Net().eval(), manager=manager())
