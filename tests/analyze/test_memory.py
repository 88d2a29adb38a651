"""Predicted memory is what the allocator sees, and what one counts by hand."""

from __future__ import annotations

import gc
import json
import runpy
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import fxplug
from fxplug import CallCost, FlopFormulaRecord
from fxplug.analyze import cost_table
from fxplug.analyze.memory import MemoryProp, StorageTracker
from fxplug.analyze.shapes import described_copy
from fxplug.errors import UnknownNameError
from fxplug.plugins import PluginManager
from fxplug.semantics.internals import dispatch_modes, is_fake

NONE = PluginManager(candidates=[], environ={})
ROOT = Path(__file__).parents[2]
KIB = 1024


def costs(program, *inputs):
    return fxplug.cost(program, inputs, manager=NONE)


def measured_peak(module, inputs, folder):
    """Return the most bytes that PyTorch's allocator gives out at one time during a call."""
    with torch.no_grad():
        module(*inputs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            module(*inputs)
    watched.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    live = peak = 0
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=_time):
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def _time(event):
    return event["ts"]


# -- models ----------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.middle = nn.Conv2d(32, 64, 3, padding=1)
        self.up1, self.up2 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.merge1, self.merge2 = nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x):
        first = self.down1(x).relu_()
        second = self.down2(F.max_pool2d(first, 2)).relu_()
        x = self.middle(F.max_pool2d(second, 2)).relu()
        x = self.merge1(torch.cat([self.up1(x), second], 1)).relu()
        return self.merge2(torch.cat([self.up2(x), first], 1))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layers = kind(32, 64, num_layers=2, batch_first=True, **options)
        self.head = nn.Linear(128 if options else 64, 5)

    def forward(self, x):
        return self.head(self.layers(x)[0])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class InPlaceAndViews(nn.Module):
    def forward(self, x):
        y = x * 2
        y += 1
        y[:, :4].mul_(3)
        shifted = torch.zeros_like(y)
        shifted[:, 1:] = y[:, :-1]
        return y.view(-1).relu_().sum() + shifted.t().contiguous().sum()


MODELS = {
    "MLP": (
        lambda: nn.Sequential(
            nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)
        ),
        (64, 256),
    ),
    "transformer encoder": (Encoder, (8, 50, 64)),
    "U-Net": (UNet, (2, 3, 64, 64)),
    "LSTM": (lambda: Recurrent(nn.LSTM), (8, 50, 32)),
    "LSTM in both directions": (lambda: Recurrent(nn.LSTM, bidirectional=True), (8, 50, 32)),
    "GRU": (lambda: Recurrent(nn.GRU), (8, 50, 32)),
    "attention": (Attending, (8, 50, 64)),
    "in place and views": (InPlaceAndViews, (512, 512)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.ReLU(), nn.Conv3d(8, 8, 3)), (1, 3, 12, 12, 12)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU6(), nn.Conv2d(64, 128, 1)),
        (2, 64, 28, 28),
    ),
    "enlarging": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Sigmoid()),
        (2, 3, 34, 34),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_predicted_peak_is_what_the_allocator_sees(name, tmp_path):
    build, shape = MODELS[name]
    module = fxplug.trace(build().eval(), (torch.randn(shape),), manager=NONE)

    predicted = costs(module, torch.randn(shape)).peak_activation_bytes

    assert predicted == pytest.approx(measured_peak(module, (torch.randn(shape),), tmp_path), rel=0.1)


@pytest.mark.parametrize("batch", [1, 4])
def test_resnet50(batch, tmp_path):
    model = runpy.run_path(str(ROOT / "examples/resnet50.py"))["ResNet50"]().eval()
    images = torch.randn(batch, 3, 224, 224)
    module = fxplug.trace(model, images, check=False, manager=NONE)
    table = costs(module, images)

    assert table.multiply_adds / batch == pytest.approx(4.09e9, rel=0.01)
    assert table.parameter_bytes == 25_557_032 * 4
    # Mean and variance of 26,560 features, and 53 counters.
    assert table.buffer_bytes == 2 * 26_560 * 4 + 53 * 8
    assert table.input_bytes == batch * 3 * 224 * 224 * 4
    assert table.peak_activation_bytes == pytest.approx(measured_peak(module, (images,), tmp_path), rel=0.1)
    assert table.peak_bytes == (
        table.parameter_bytes + table.buffer_bytes + table.input_bytes + table.peak_activation_bytes
    )
    (root,) = [row for row in table.rows("module") if row.name == ""]
    assert (root.kind, root.calls, root.multiply_adds) == ("ResNet50", len(table.nodes), table.multiply_adds)
    assert root.parameter_bytes == table.parameter_bytes
    first, *_ = table.rows("kind", sort="multiply_adds")
    assert (first.name, first.calls) == ("Conv2d", 53)


# -- by hand ---------------------------------------------------------------------------------------------------------


def memory(table):
    return {node.name: (node.allocated_bytes, node.workspace_bytes, node.peak_bytes) for node in table.nodes}


def test_values_end_with_their_last_use():
    def program(x):
        a = x + 1
        b = a * 2  # The last use of a.
        c = b - 1
        return c * b

    assert memory(costs(program, torch.ones(256))) == {
        "add": (KIB, 0, KIB),
        "mul": (KIB, 0, 2 * KIB),
        "sub": (KIB, 0, 2 * KIB),
        "mul_1": (KIB, 0, 3 * KIB),
    }


def test_views_and_writes_in_place_take_nothing_and_keep_what_they_look_at():
    def program(x):
        a = x + 1
        half = a[:128]
        a.mul_(2)
        return half.view(2, 64)

    found = memory(costs(program, torch.ones(256)))

    assert [size for size, _, _ in found.values()] == [KIB, 0, 0, 0]
    assert {peak for _, _, peak in found.values()} == {KIB}


def test_what_the_caller_holds_is_no_activation():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(256))
            self.register_buffer("mean", torch.ones(512))
            self.plain = torch.ones(128)

        def forward(self, x):
            return x.view(2, 128)[0].add_(1), self.scale.view(2, 128), self.mean[:4], self.plain

    table = costs(Model(), torch.ones(256))

    assert table.peak_activation_bytes == 0
    assert (table.parameter_bytes, table.buffer_bytes, table.input_bytes) == (KIB, 2 * KIB + KIB // 2, KIB)


def test_what_a_module_makes_inside_is_its_workspace():
    class Inside(nn.Module):
        def forward(self, x):
            return (x.exp() + x.exp()).sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = Inside()

        def forward(self, x):
            return self.inside(x)

    class Tracer(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    model = Model()
    module = fxplug.GraphModule(model, Tracer().trace(model))

    (node,) = costs(module, torch.ones(256)).nodes
    # Two results of exp are alive when they are added.
    assert (node.allocated_bytes, node.workspace_bytes, node.peak_bytes) == (4, 3 * KIB - 4, 3 * KIB)


def test_indices_that_pooling_makes_and_drops_are_workspace():
    (node,) = costs(lambda x: F.max_pool2d(x, 2), torch.ones(1, 1, 32, 32)).nodes

    assert (node.allocated_bytes, node.workspace_bytes) == (KIB, 2 * KIB)


def test_casts_of_a_region_last_as_long_as_it_does():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64, bias=False)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.linear(x)
                return self.linear(y)

    first, second = costs(Model(), torch.ones(1, 64)).nodes

    weights = 64 * 64 * 2
    assert first.allocated_bytes == weights + 64 * 2
    # Cast once for both calls.
    assert second.allocated_bytes == 64 * 2


def test_a_program_that_asks_for_values_is_followed_as_it_runs():
    def program(x):
        y = x[x > 0]
        return y + 1

    found = memory(costs(program, torch.tensor([1.0, -1.0, 2.0])))

    assert found["add"][0] == 2 * 4


def test_shared_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(8, 4)
            self.inner = nn.Linear(4, 4, bias=False)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.words.weight
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.head(self.inner(self.words(x)))

    table = costs(Tied(), torch.zeros(2, dtype=torch.int64))

    assert table.parameter_bytes == (8 * 4 + 4 * 4 + 3) * 4
    assert [node.parameters for node in table.nodes] == [
        {"words.weight": 128},
        {"inner.weight": 64},
        {"words.weight": 128},
    ]
    rows = {row.name: row.parameter_bytes for row in table.rows("kind")}
    assert rows == {"Embedding": 128, "Linear": 64 + 128}
    (root,) = [row for row in table.rows("module") if not row.name]
    assert root.parameter_bytes == 128 + 64


def test_a_formula_says_what_a_call_takes_meanwhile():
    def formula(call):
        return CallCost(7, workspace_bytes=5000)

    module = described_copy(
        fxplug.symbolic_trace(_add_and_relu, manager=NONE), torch.ones(256), interpreter=MemoryProp
    )
    table = cost_table(module, [FlopFormulaRecord(torch.relu, formula)])
    assert [(node.workspace_bytes, node.peak_bytes) for node in table.nodes] == [
        (0, KIB),
        (5000, 2 * KIB + 5000),
    ]


def _add_and_relu(x):
    return torch.relu(x + 1)


def test_the_module_and_the_random_state_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    costs(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))

    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- tables ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x) + 1


def test_rows_by_module_hold_all_that_lies_inside():
    table = costs(Nested(), torch.ones(1, 4))

    rows = {
        row.name: (row.kind, row.calls, row.multiply_adds, row.parameter_bytes)
        for row in table.rows("module")
    }
    assert rows == {
        "": ("Nested", 5, 36, 160),
        "blocks": ("Sequential", 4, 32, 160),
        "blocks.0": ("Block", 2, 16, 80),
        "blocks.0.linear": ("Linear", 1, 16, 80),
        "blocks.1": ("Block", 2, 16, 80),
        "blocks.1.linear": ("Linear", 1, 16, 80),
    }


def test_rows_by_class_hold_all_modules_of_it():
    rows = {
        row.name: (row.calls, row.multiply_adds) for row in costs(Nested(), torch.ones(1, 4)).rows("class")
    }

    assert rows == {"Nested": (5, 36), "Sequential": (4, 32), "Block": (4, 32), "Linear": (2, 32)}


def test_rows_are_sorted_and_name_their_line():
    table = costs(Nested(), torch.ones(1, 4))

    rows = table.rows(sort="multiply_adds")
    assert [row.multiply_adds for row in rows] == [16, 16, 4, 0, 0]
    assert rows[0].line.startswith(f"{__file__}:")
    assert rows[0].line.endswith(" in forward")
    assert [row.name for row in table.rows(sort="name")] == sorted(node.name for node in table.nodes)


def test_a_grouping_and_a_column_that_do_not_exist():
    table = costs(Nested(), torch.ones(1, 4))

    with pytest.raises(UnknownNameError, match=r"no grouping named 'layer'.*\[FXP-F001\]"):
        table.rows("layer")
    with pytest.raises(
        UnknownNameError, match=r"no column named 'multiply_add'. Did you mean 'multiply_adds'"
    ):
        table.rows(sort="multiply_add")


# -- without data ----------------------------------------------------------------------------------------------------


def test_the_meta_device_tells_the_same():
    def found(device):
        with torch.device(device):
            return costs(Nested().eval(), torch.ones(3, 4))

    assert found("meta").peak_bytes == found("cpu").peak_bytes
    assert found("meta").multiply_adds == found("cpu").multiply_adds


def test_attention_on_the_meta_device_is_one_kernel():
    query = torch.empty(1, 4, 512, 16, device="meta")

    (node,) = costs(lambda q: F.scaled_dot_product_attention(q, q, q), query).nodes

    assert (node.allocated_bytes, node.workspace_bytes) == (4 * 512 * 16 * 4, 0)


# -- what cannot be costed -------------------------------------------------------------------------------------------


def test_wrong_inputs_are_an_error_that_says_what_the_model_says():
    with pytest.raises(
        fxplug.api.ExampleError, match=r"Cannot run Nested on the example inputs \(float32\[1, 5\]\)"
    ):
        costs(Nested(), torch.ones(1, 5))


def test_wrong_inputs_of_a_graph_module_name_the_node_and_its_line():
    module = fxplug.symbolic_trace(Nested(), manager=NONE)

    with pytest.raises(
        fxplug.FxplugError, match=r"fails at node 'blocks_0_linear' \(.*test_memory.py:\d+ in forward\)"
    ):
        costs(module, torch.ones(1, 5))


def test_calls_that_compile_what_they_are_given_run_unheard():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda y: (y + 1,), lambda y: (y - 1,), (x,))[0]

    table = costs(Branches(), torch.ones(256))

    (branch,) = [node for node in table.nodes if node.target == "cond"]
    assert (branch.allocated_bytes, branch.workspace_bytes) == (KIB, 0)
    assert fxplug.profile(Branches(), torch.ones(256), runs=1, manager=NONE).peak_bytes > KIB


def test_memory_that_cannot_be_followed_is_unknown_and_not_none():
    class Unheard(nn.Module):
        def forward(self, x):
            if dispatch_modes() > is_fake(x):  # Shapes are found in one mode.
                raise RuntimeError("somebody listens")
            return x + 1

    class Tracer(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    model = nn.Sequential(Unheard())
    table = costs(fxplug.GraphModule(model, Tracer().trace(model)), torch.ones(256))

    assert (table.peak_activation_bytes, table.peak_bytes, table.peak_node) == (None, None, None)
    assert table.rows()[0].peak_bytes is None


def test_a_node_without_origin_lies_in_the_root():
    module = fxplug.symbolic_trace(Nested(), manager=NONE)
    (output,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(output):
        added = module.graph.call_function(torch.relu, (output.args[0],))
    output.args = (added,)
    module.recompile()

    roots = [row for row in costs(module, torch.ones(1, 4)).rows("module") if not row.name]
    assert [(row.kind, row.calls) for row in roots] == [("Nested", 6)]


def test_the_tracker_keeps_nothing_alive_and_hears_nothing_behind_its_end():
    parameter = torch.ones(256)
    tracker = StorageTracker([parameter])
    with tracker:
        kept = parameter * 2
        del kept
        kept = parameter + parameter
    assert (tracker.live, tracker.peak) == (KIB, KIB)
    alive = weakref.ref(tracker)
    del kept, tracker
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_nothing_takes_nothing(kind, dtype):
    table = costs(kind(3, 4, 3).to(dtype), torch.ones(0, 3, 8, 8, dtype=dtype))

    assert table.peak_activation_bytes == 0


def test_a_double_convolution_unfolds_its_windows():
    (node,) = costs(nn.Conv2d(3, 4, 3).double(), torch.ones(1, 3, 8, 8, dtype=torch.float64)).nodes

    assert (node.allocated_bytes, node.workspace_bytes) == (4 * 36 * 8, 27 * 36 * 8)
