"""Fused layers, and what plugins bring, in exported programs."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.execute import GraphModule
from fxplug.execute.fused import (
    ACTIVATIONS,
    FUSED_MODULES,
    FusedConv1d,
    FusedConv2d,
    FusedConv3d,
    FusedLinear,
)
from fxplug.ir import Graph
from fxplug.storage import ProvidedTarget, Provisions, StorageTargetRecord
from fxplug.storage.export import ExportError, export_package

LAYERS = [
    (FusedLinear, nn.Linear(4, 4), (3, 4)),
    (FusedConv1d, nn.Conv1d(4, 4, 3, padding=1, bias=False), (2, 4, 5)),
    (FusedConv2d, nn.Conv2d(4, 4, 3, padding=1, groups=2), (2, 4, 5, 5)),
    (FusedConv3d, nn.Conv3d(4, 4, 1), (1, 4, 3, 3, 3)),
]
NUMBERS = {"leaky_relu": (0.1,), "hardtanh": (-0.5, 0.75)}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """(module, options) -> the package that was written for it, and the text of its model.py."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(module, **options):
        names.append(f"exported_fused_{len(names)}")
        export_package(module, tmp_path / names[-1], **options)
        importlib.invalidate_caches()
        return importlib.import_module(names[-1]), (tmp_path / names[-1] / "model.py").read_text()

    yield write
    for loaded in [known for known in sys.modules if known.partition(".")[0] in names]:
        del sys.modules[loaded]


@pytest.fixture(autouse=True)
def _without_onednn():
    """Let a fused layer do what the plain calls do, to the bit."""
    torch.backends.mkldnn.enabled = False
    yield
    torch.backends.mkldnn.enabled = True


def graph_module(root, *calls, inputs=1):
    """Return a module that calls `calls`, each with the values before it, as many as it takes."""
    graph = Graph()
    values = [graph.placeholder(name) for name in ("x", "y")[:inputs]]
    result = None
    for target, args in calls:
        result = graph.call_module(target, tuple(values[number] for number in args))
        values.append(result)
    graph.output(result)
    return GraphModule(root, graph)


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize(("kind", "layer", "shape"), LAYERS)
def test_a_fused_layer_is_written_as_the_calls_that_it_stands_for(exported, kind, layer, shape, activation):
    module = graph_module({"a": kind(layer, activation, NUMBERS.get(activation, ()))}, ("a", (0,)))
    x = torch.randn(shape)
    package, text = exported(module)
    loaded = package.load()

    assert "fxplug" not in text
    assert type(loaded.a) is {fused: plain for plain, fused in FUSED_MODULES.items()}[kind]
    assert list(loaded.state_dict()) == list(module.state_dict())
    assert torch.equal(loaded(x), module(x))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_sum_comes_before_the_activation(exported, in_place):
    fused = FusedConv2d(nn.Conv2d(3, 3, 1), "relu", add=True, in_place=in_place, reuse=True)
    module = graph_module({"part.a": fused}, ("part.a", (0, 1)), inputs=2)
    package, text = exported(module)
    x, y = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    kept = y.clone()

    assert (" += y\n" in text) is in_place
    assert torch.equal(package.load()(x, y), F.relu(module.part.a._layer(x) + y))
    assert torch.equal(y, kept)


def test_the_order_of_the_result_is_kept(exported):
    layer = nn.Conv2d(3, 3, 1).to(memory_format=torch.channels_last)
    for layout in ("contiguous", "any"):
        module = graph_module({"a": FusedConv2d(layer, "relu", layout=layout)}, ("a", (0,)))
        x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        package, text = exported(module)

        assert (".contiguous()" in text) is (layout == "contiguous")
        assert package.load()(x).stride() == module(x).stride()


def test_a_layer_that_is_called_twice_and_tied_is_one(exported):
    layer = nn.Linear(3, 3)
    root = {"a": FusedLinear(layer, "relu"), "b": FusedLinear(layer)}
    module = graph_module(root, ("a", (0,)), ("a", (1,)), ("b", (2,)))
    package, text = exported(module)
    loaded, x = package.load(), torch.randn(2, 3)

    assert text.count("nn.Linear(") == 2
    assert loaded.a.weight is loaded.b.weight
    assert torch.equal(loaded(x), module(x))


def test_it_learns_as_the_fused_one_does(exported):
    module = graph_module({"a": FusedLinear(nn.Linear(3, 3), "gelu_tanh")}, ("a", (0,)))
    loaded, x = exported(module)[0].load(), torch.randn(2, 3)
    for program in (loaded, module):
        program(x).sum().backward()

    assert torch.equal(loaded.a.weight.grad, module.a.weight.grad)


def test_exporting_leaves_the_fused_module_as_it_is(exported):
    module = graph_module({"a": FusedLinear(nn.Linear(3, 3), "relu")}, ("a", (0,)))
    before = (module.code, repr(module), str(module.graph), module.graph.version)
    exported(module)

    assert (module.code, repr(module), str(module.graph), module.graph.version) == before


class Holder(nn.Module):
    """Calls a fused layer in code that is no graph."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(FusedLinear(nn.Linear(3, 3), "relu"))

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("part", [Holder(), nn.Sequential(FusedLinear(nn.Linear(3, 3), "relu"))])
def test_a_fused_layer_that_other_code_calls_is_refused(tmp_path, part):
    with pytest.raises(ExportError) as caught:
        fxplug.export_python(graph_module({"holder": part}, ("holder", (0,))), tmp_path / "out")

    assert "node 'holder' uses 'holder', in which layers are fused with what follows them" in str(
        caught.value
    )
    assert caught.value.code == "FXP-S020"
    assert not (tmp_path / "out").exists()


def test_a_graph_module_inside_writes_its_own(exported):
    inner = graph_module({"a": FusedLinear(nn.Linear(3, 3), "relu")}, ("a", (0,)))
    module = graph_module({"inner": inner}, ("inner", (0,)))
    x = torch.randn(2, 3)

    assert torch.equal(exported(module)[0].load()(x), module(x))


def test_an_operator_that_fxplug_registers_is_refused(tmp_path):
    graph = Graph()
    steps = torch.ops.fxplug.quantize_per_tensor.default
    graph.output(graph.call_function(steps, (graph.placeholder("x"), 0.5, 0, 0, 255, torch.uint8)))
    with pytest.raises(ExportError) as caught:
        fxplug.export_python(GraphModule(nn.Module(), graph), tmp_path / "out")

    assert str(caught.value).startswith(
        "Cannot export the module as Python: node 'quantize_per_tensor_default' uses a value that is the operator "
        "fxplug.quantize_per_tensor.default, which fxplug registers and torch alone does not have."
    )


# -- what plugins bring


class Shift(nn.Module):
    """A layer of a plugin."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x + self.by


TEXT = '''\
"""Layers of a plugin."""

from torch import nn


class Shift(nn.Module):
    """A layer of a plugin."""

    def forward(self, x):
        """Return the sum."""
        return x + self.by
'''


def brought(make, plugin="sample-layers"):
    record = StorageTargetRecord("shift", Shift, python=make)
    return lambda: Provisions((ProvidedTarget(record, plugin, "fxplug-sample", "1.0"),))


def shifted():
    return graph_module({"a": Shift(2)}, ("a", (0,)))


def test_what_a_plugin_gives_stands_beside_the_program(exported):
    package, text = exported(shifted(), provisions=brought(lambda: {"__init__.py": TEXT}))
    loaded = package.load()

    assert "from .sample_layers import Shift\n" in text
    assert type(loaded.a) is not Shift
    assert torch.equal(loaded(torch.ones(2)), torch.full((2,), 3.0))
    assert "imports" not in package.__doc__


def test_a_name_that_the_program_has_already_is_reached_through_the_package(exported):
    package, text = exported(shifted(), class_name="Shift", provisions=brought(lambda: {"__init__.py": TEXT}))

    assert "from . import sample_layers\n" in text
    assert torch.equal(package.load()(torch.ones(2)), torch.full((2,), 3.0))


def test_without_it_the_class_is_imported_from_where_it_is(exported):
    package, text = exported(shifted(), provisions=brought(None))

    assert f"import {__name__}\n" in text
    assert type(package.load().a) is Shift


@pytest.mark.parametrize("name", ["model", "math", "torch", "nn"])
def test_a_plugin_called_like_something_of_the_package_gets_another_folder(exported, name):
    provisions = brought(lambda: {"__init__.py": TEXT}, name)
    package, text = exported(shifted(), provisions=provisions)
    beside, _ = exported(shifted(), class_name="Shift", provisions=provisions)

    assert f"from .{name}_plugin import Shift\n" in text
    assert package.load().a.by == 2
    assert beside.load().a.by == 2


def test_a_parameter_that_hides_the_package_of_a_plugin_is_refused(tmp_path):
    def add_two(x):
        return x + 2

    graph = Graph()
    x, _ = graph.placeholder("add_two"), graph.placeholder("sample_layers")
    graph.output(graph.call_function(add_two, (x,)))
    record = StorageTargetRecord(
        "add", add_two, python=lambda: {"__init__.py": "def add_two(x):\n    return x + 2\n"}
    )
    provisions = Provisions((ProvidedTarget(record, "sample-layers", "fxplug-sample", "1.0"),))
    with pytest.raises(
        ExportError, match="the parameter 'sample_layers' has the name of something that the program"
    ):
        export_package(GraphModule(nn.Module(), graph), tmp_path / "out", provisions=lambda: provisions)


def test_the_folder_is_noted_so_that_it_can_be_replaced(tmp_path):
    for _ in range(2):
        provisions = brought(lambda: {"__init__.py": TEXT})
        export_package(shifted(), tmp_path / "out", overwrite=True, provisions=provisions)

    assert json.loads((tmp_path / "out" / "report.json").read_text())["files"] == ["sample_layers"]


def fail():
    raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fail, "it raised RuntimeError: no licence"),
        (lambda: ["x"], "it returned no dict with an '__init__.py'"),
        (lambda: {"layers.py": ""}, "no dict with an '__init__.py'"),
        (lambda: {"__init__.py": TEXT, "../x.py": ""}, "'../x.py' is not the name of a file of Python"),
        (lambda: {"__init__.py": TEXT, "x.txt": ""}, "'x.txt' is not the name of a file of Python"),
        (lambda: {"__init__.py": b""}, "'__init__.py' is not the name of a file of Python, or has no text"),
        (lambda: {"__init__.py": "def"}, "'__init__.py' is not Python: "),
        (lambda: {"__init__.py": "import numpy.linalg, fxplug\n"}, "'__init__.py' imports fxplug, numpy"),
        (lambda: {"__init__.py": "x = 1\n"}, "the package has no 'Shift'"),
    ],
)
def test_a_package_that_does_not_stand_alone_is_refused(tmp_path, make, reason):
    with pytest.raises(ExportError) as caught:
        export_package(shifted(), tmp_path / "out", provisions=brought(make))

    assert "'python' of the storage target 'shift' gives no package that needs torch alone: " in str(
        caught.value
    )
    assert reason in str(caught.value)
    assert "Report it to the authors of fxplug-sample 1.0." in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_modules_that_are_shared_many_times_are_looked_into_once(exported):
    shared = nn.Sequential(nn.ReLU())
    for _ in range(60):
        shared = nn.Sequential(shared, shared)
    graph = Graph()
    x = graph.placeholder("x")
    graph.get_attr("shared")
    graph.output(x)
    package, _ = exported(GraphModule({"shared": shared}, graph))

    assert torch.equal(package.load()(torch.ones(2)), torch.ones(2))
