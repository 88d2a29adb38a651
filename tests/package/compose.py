"""Run in a fresh environment: what the installed plugins make of a model, as one line of JSON.

python compose.py                    # as they are installed
python compose.py FOLDER FOLDER ...  # one plugin per folder, in every order of the folders
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings

import torch
from torch import nn

import fxplug
from fxplug.plugins import PluginWarning, default_manager, reset_default_manager

PREFIX = "compose_"
NOTING = ("shared", "keep-gate", "note-sums", "slow-engine")


class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.gate = Gate()

    def forward(self, x):
        return self.gate(torch.relu(torch.relu(self.norm(self.conv(x)))) + 1.0)


def observe() -> dict[str, object]:
    """Return what the plugins do, and what is said about them."""
    reset_default_manager()
    model, example = Model().eval(), (torch.linspace(-2, 2, 192).reshape(1, 3, 8, 8),)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = fxplug.symbolic_trace(model).graph
        manager = default_manager()
        result = fxplug.optimize(model, example, backend="slow", measure=False)
    modules = {name for name in sys.modules if name.startswith(PREFIX)}
    return {
        "graph": str(graph),
        "notes": {
            node.name: {key: note for key, note in node.meta.items() if key.split(".")[0] in NOTING}
            for node in graph.nodes
        },
        "pipeline": [step.name for step in manager.resolve_pipeline("inference").steps],
        "passes": [report.name for report in result.passes],
        "backends": list(manager.backends()),
        "optimised": str(result.graph_module.graph),
        "output": result.module(*example).flatten().tolist(),
        "is_close": torch.allclose(result.module(*example), model(*example), atol=1e-5),
        "plugins": {
            f"{info.distribution} {info.version}": [
                info.name,
                info.status,
                list(info.hooks),
                info.reason,
                info.remedy,
            ]
            for info in manager.plugin_infos()
        },
        "warnings": sorted(str(entry.message) for entry in caught if entry.category is PluginWarning),
        "modules": sorted(modules),
    }


def observe_orders(folders: list[str]) -> dict[str, object]:
    """Return what was seen; the same, whatever the order of the folders on the path is."""
    path, first = list(sys.path), None
    for number, four in enumerate(itertools.permutations(folders[:4])):
        order, fifth = list(four), folders[4:]
        order[number % 5 : number % 5] = fifth
        for name in [name for name in sys.modules if name.startswith(PREFIX)]:
            del sys.modules[name]
        sys.path[:] = [path[0], *order, *path[1:]]
        seen = observe()
        if first is None:
            first = seen
        differing = [key for key in seen if seen[key] != first[key]]
        assert not differing, f"{differing} differ in the order {order}: {seen} instead of {first}"
    assert first is not None
    return first


sys.stdout.write(json.dumps(observe_orders(sys.argv[1:]) if sys.argv[1:] else observe()) + "\n")
