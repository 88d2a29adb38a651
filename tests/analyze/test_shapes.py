"""Shapes with open sizes, values without data, and the table of them."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fxplug
from fxplug.analyze import ShapeProp, described_copy, propagate_shapes, shape_text
from fxplug.api import ExampleError
from fxplug.errors import AnalysisError, GraphError, InvalidArgumentError
from fxplug.plugins import PluginManager
from fxplug.semantics.symbols import SymbolicSizes, is_asked_about, lies_as

NONE = PluginManager(candidates=[], environ={})
IMAGES = torch.randn(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(144, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        size = x.shape[0] * 2
        return self.head(x.reshape(x.shape[0], -1)), x.flatten(), torch.cat([x, x]), torch.ones(size, 1)


def trace(program):
    return fxplug.symbolic_trace(program, manager=NONE)


def texts(module):
    return {node.name: shape_text(node) for node in module.graph.nodes}


def test_named_sizes_stay_open_everywhere():
    module = trace(Net())
    statistics = copy.deepcopy(module.state_dict())
    result = propagate_shapes(module, IMAGES, dynamic={"x": {0: "batch"}})

    found = texts(module)
    assert found["x"] == "float32[batch, 3, 8, 8]"
    assert found["conv"] == found["norm"] == found["relu"] == "float32[batch, 4, 6, 6]"
    assert found["flatten"] == "float32[144*batch]"
    assert found["cat"] == "float32[2*batch, 4, 6, 6]"
    assert found["ones"] == "float32[2*batch, 1]"
    assert found["head"] == "float32[batch, 2]"
    assert isinstance(result[0].shape[0], torch.SymInt)
    for name, value in module.state_dict().items():
        assert torch.equal(value, statistics[name])


def test_values_without_data_are_noted():
    module = trace(Net())
    propagate_shapes(module, IMAGES, dynamic={0: {0: "batch"}})
    (convolution,) = (node for node in module.graph.nodes if node.name == "conv")
    assert convolution.meta["val"].shape == convolution.meta["tensor_meta"].shape
    assert convolution.meta["val"].device == torch.device("cpu")
    assert not convolution.meta["val"].requires_grad

    propagate_shapes(module, IMAGES)
    assert "val" not in convolution.meta
    assert convolution.meta["tensor_meta"].shape == (2, 4, 6, 6)


def test_one_name_is_one_size():
    module = trace(lambda x, y: (x + y, x.t() @ y, torch.cat([x, y], 1)))
    x = torch.ones(5, 3)
    propagate_shapes(module, x, x, dynamic={"x": {0: "n"}, "y": {0: "n"}})
    assert set(texts(module).values()) >= {"float32[n, 3]", "float32[3, 3]", "float32[n, 6]"}
    with pytest.raises(AnalysisError, match="node 'add' needs it to be"):
        propagate_shapes(module, x, x, dynamic={"x": {0: "n"}, "y": {0: "m"}})


def test_a_size_that_is_fixed_by_the_program_cannot_stay_open():
    with pytest.raises(
        AnalysisError, match="Cannot leave the size 'width' open: node 'head' needs it to be 4"
    ):
        propagate_shapes(_head(), torch.ones(2, 4), dynamic={0: {1: "width"}})


def _head():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x)

    return trace(Head())


def test_layouts_in_memory_stay():
    module = trace(lambda x: x * 2)
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    propagate_shapes(module, images, dynamic={0: {0: "n", 2: "h"}})
    assert module.graph.output_node().meta["tensor_meta"].memory_format is torch.channels_last
    with pytest.raises(InvalidArgumentError, match=r"do not lie side by side. Pass tensor.contiguous\(\)"):
        propagate_shapes(module, torch.randn(4, 4)[:, ::2], dynamic={0: {0: "n"}})


def test_layouts_are_known_where_torch_does_not_tell():
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    made = SymbolicSizes({0: {0: "n", 2: "h"}}, ["x"], [images]).converted(0, images)
    parts = {"shape": made.shape, "stride": made.stride, "dim": made.dim}
    silent = SimpleNamespace(**parts, is_contiguous=lambda memory_format: False)

    assert lies_as(silent, torch.channels_last)
    assert not lies_as(silent, torch.contiguous_format)
    assert not lies_as(silent, torch.channels_last_3d)
    assert not is_asked_about(made.shape[0])


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({0: {0: "n"}}, "its size is 1, and what holds for 0 and 1"),
        ({3: {0: "n"}}, "input 3 open: there is no such input. There are 'x', and their positions"),
        ({0: {"first": "n"}}, "dimension 'first' of input 0"),
        ({0: {1: 3}}, "call a size 3"),
        ({0: "n"}, "input 0 open: 'n' says not which"),
    ],
)
def test_what_cannot_stay_open(dynamic, message):
    with pytest.raises(InvalidArgumentError, match=message):
        propagate_shapes(trace(lambda x: x + 1), torch.ones(1, 4), dynamic=dynamic)


def test_copies_and_pickles_of_noted_modules():
    module = trace(Net())
    propagate_shapes(module, IMAGES, dynamic={0: {0: "batch"}})
    assert texts(copy.deepcopy(module)) == texts(module)
    restored = pickle.loads(pickle.dumps(module))
    assert texts(restored) == texts(module)
    assert not any("val" in node.meta for node in restored.graph.nodes)


def test_the_table_is_readable():
    table = fxplug.shapes(trace(Net()), IMAGES, dynamic={"x": {0: "batch"}})
    lines = str(table).splitlines()
    assert lines[0].split() == ["name", "opcode", "target", "value", "line"]
    (line,) = (line for line in lines if line.startswith("reshape"))
    assert line.split()[:3] == ["reshape", "call_method", "reshape"]
    assert "float32[batch, 144]" in line
    assert "test_shapes.py:" in line
    rows = {row.name: row for row in table.nodes}
    assert "batch" in {row.value for row in table.nodes}
    assert rows["conv"].target == "conv"


def test_the_table_leaves_the_module_alone():
    model = Net()
    module = trace(model)
    table = fxplug.shapes(module, IMAGES, dynamic={0: {0: "batch"}})
    assert not any("tensor_meta" in node.meta for node in module.graph.nodes)
    assert table.module is not module
    assert int(model.norm.num_batches_tracked) == 0


def test_the_table_of_a_program_that_is_captured_first():
    table = fxplug.shapes(lambda x: x[:1] * 2, (torch.ones(3, 2),), manager=NONE)
    assert [row.value for row in table.nodes][-1] == "float32[1, 2]"


def test_a_model_that_fails_on_the_inputs_is_told_from_one_that_cannot_be_captured():
    with pytest.raises(ExampleError, match=r"Cannot run Linear on the example inputs \(float32\[2, 5\]\)"):
        fxplug.shapes(nn.Linear(3, 3), torch.ones(2, 5))


class _Counting(ShapeProp):
    """Notes besides how many dimensions every value has."""

    def run_node(self, n):
        value = super().run_node(n)
        n.meta["rank"] = value.dim() if isinstance(value, torch.Tensor) else None
        return value


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "batch"}}])
def test_an_interpreter_makes_the_notes_of_a_copy_also_where_sizes_are_open(dynamic):
    module = fxplug.symbolic_trace(Net().eval(), manager=NONE)
    described = described_copy(module, IMAGES, dynamic=dynamic, interpreter=_Counting)
    assert [node.meta["rank"] for node in described.graph.nodes][:2] == [4, 4]
    first = next(iter(described.graph.nodes))
    assert shape_text(first) == ("float32[2, 3, 8, 8]" if dynamic is None else "float32[batch, 3, 8, 8]")
    assert all("rank" not in node.meta for node in module.graph.nodes)


def test_an_interpreter_is_refused_a_size_that_cannot_stay_open():
    with pytest.raises(AnalysisError, match="'width'"):
        described_copy(_head(), torch.ones(2, 4), dynamic={0: {1: "width"}}, interpreter=_Counting)


@pytest.mark.parametrize("name", ["apply_", "map_", "map2_"])
def test_methods_that_call_a_function_for_each_element_run_with_data(name):
    """Without data, PyTorch reads memory that is not there, and the process ends."""
    others = {"apply_": 0, "map_": 1, "map2_": 2}[name]
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.mul, (x, 2))
    called = graph.call_method(name, (doubled, *(x,) * others, lambda *values: sum(values)))
    graph.output(called)
    module = fxplug.GraphModule(nn.Module(), graph)

    described = described_copy(module, torch.arange(3.0))

    assert described.graph.output_node().meta["tensor_meta"].shape == (3,)
    with pytest.raises(GraphError, match=f"'{name}' without data"), FakeTensorMode() as mode:
        fxplug.Interpreter(module).run(mode.from_tensor(torch.arange(3.0)))
