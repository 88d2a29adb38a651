"""A module that was saved and loaded is the same module."""

from __future__ import annotations

import copy
import inspect
import json
import math
import operator
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from fxplug.analyze import propagate_shapes
from fxplug.execute import GraphModule
from fxplug.ir import Graph, Origin, RegionEntry, SourceLine
from fxplug.storage import FORMAT_VERSION, load, save


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1), nn.BatchNorm2d(8))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(8, 4)

    def forward(self, x, *, negative_slope: float = -0.0):
        x = F.leaky_relu(self.stem(x), negative_slope=0.1)
        return self.head(self.pool(x).flatten(1)) + negative_slope


def attention(query, key, value, mask=None):
    batch, heads, length, width = query.shape
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(16)
    scores = scores.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), float("-inf"))
    weights = F.softmax(scores, dim=-1, dtype=torch.float32)
    result = torch.einsum("bhqk,bhkd->bhqd", weights, value)[:, :, ::2, ..., None]
    return {"result": result.squeeze(-1), "size": (batch, length), "rest": [heads, width, None]}


def assert_same_graph(ours: GraphModule, theirs: GraphModule) -> None:
    assert str(ours.graph) == str(theirs.graph)
    assert ours.code == theirs.code
    assert repr(ours) == repr(theirs)
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    for one, other in zip(ours.graph.nodes, theirs.graph.nodes, strict=True):
        assert [origin.to_data() for origin in one.origins] == [origin.to_data() for origin in other.origins]
        assert one.stack_trace == other.stack_trace
        assert (one.region, one.type) == (other.region, other.type)
        assert list(one.meta) == list(other.meta)
        assert [user.name for user in one.users] == [user.name for user in other.users]


def assert_same_state(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, one), (other_name, other) in zip(ours.named_modules(), theirs.named_modules(), strict=True):
        assert (name, type(one), one.training) == (other_name, type(other), other.training)
        assert one._non_persistent_buffers_set == other._non_persistent_buffers_set
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for table in ("named_parameters", "named_buffers"):
        pairs = zip(getattr(ours, table)(), getattr(theirs, table)(), strict=True)
        for (name, one), (other_name, other) in pairs:
            assert (name, one.dtype, one.stride(), one.requires_grad) == (
                other_name,
                other.dtype,
                other.stride(),
                other.requires_grad,
            )
            assert torch.equal(one, other)


@pytest.mark.parametrize("training", [True, False])
def test_a_convolutional_net_comes_back_with_equal_text_state_and_outputs(trace, round_trip, training):
    model = ConvNet().train(training)
    module = trace(model)
    module(torch.randn(4, 3, 8, 8))

    loaded = round_trip(module)

    assert_same_graph(module, loaded)
    assert_same_state(module, loaded)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(module(x), loaded(x))
    # In training mode the call moved the statistics of both modules alike.
    assert_same_state(module, loaded)


def test_a_function_with_attention_comes_back_with_equal_text_and_outputs(trace, round_trip):
    module = trace(attention)

    loaded = round_trip(module)

    assert_same_graph(module, loaded)
    inputs = [torch.randn(2, 2, 4, 16) for _ in range(3)]
    ours, theirs = module(*inputs), loaded(*inputs)
    assert torch.equal(ours["result"], theirs["result"])
    assert (ours["size"], ours["rest"]) == (theirs["size"], theirs["rest"])


def test_gradients_are_equal_after_a_round_trip(trace, round_trip):
    module = trace(ConvNet().eval())
    loaded = round_trip(module)
    x = torch.randn(2, 3, 8, 8)

    module(x).sum().backward()
    loaded(x).sum().backward()

    for one, other in zip(module.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_recurrent_net_keeps_its_flat_weights_tied_to_its_parameters(trace, round_trip):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    module = trace(Net())
    loaded = round_trip(module)

    assert [id(weight) for weight in loaded.rnn._flat_weights] == [
        id(weight) for weight in loaded.rnn.parameters()
    ]
    x = torch.randn(2, 5, 3)
    assert torch.equal(module(x), loaded(x))


def test_a_transformer_layer_comes_back_with_its_activation_function(trace, round_trip):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation=F.gelu, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    module = trace(Net().eval())
    loaded = round_trip(module)

    assert loaded.layer.activation is F.gelu
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        assert torch.equal(module(x), loaded(x))


def test_tied_and_shared_parameters_are_stored_once_and_stay_tied(trace, tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight
            self.view = nn.Parameter(self.embedding.weight.data[1:3, ::2])
            self.again = self.head

        def forward(self, tokens):
            return self.again(self.embedding(tokens)) + self.head.weight.sum() + self.view.sum()

    path = tmp_path / "tied.fxplug"
    module = trace(Net())
    save(module, path)
    loaded = load(path)

    assert loaded.head.weight is loaded.embedding.weight
    assert loaded.view.untyped_storage().data_ptr() == loaded.embedding.weight.untyped_storage().data_ptr()
    assert (loaded.view.stride(), loaded.view.storage_offset()) == ((4, 2), 4)
    with torch.no_grad():
        loaded.embedding.weight.fill_(2.0)
    assert loaded.view.eq(2.0).all()
    with zipfile.ZipFile(path) as archive:
        weights = safetensors.torch.load(archive.read("weights.safetensors"))
    assert {name: weight.numel() for name, weight in weights.items()} == {"view": 20}


def test_one_module_at_two_paths_stays_one_module(round_trip):
    shared = nn.Linear(2, 2)
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("second", (graph.call_module("first", (x,)),)))
    loaded = round_trip(GraphModule({"first": shared, "second": shared}, graph))

    assert loaded.first is loaded.second


def test_buffers_keep_their_persistence_and_parameters_their_gradient_flag(trace, round_trip):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(2))
            self.register_buffer("temporary", torch.zeros(2), persistent=False)
            self.register_buffer("missing", None)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.constant = torch.full((2,), 3.0)

        def forward(self, x):
            return x + self.kept + self.temporary + self.frozen + self.constant

    loaded = round_trip(trace(Net()))

    assert list(loaded.state_dict()) == ["frozen", "kept"]
    assert not loaded.frozen.requires_grad
    assert isinstance(loaded.frozen, nn.Parameter)
    assert loaded(torch.zeros(2)).tolist() == [5.0, 5.0]


def test_a_name_that_is_left_of_a_buffer_that_was_taken_away_is_not_stored(trace, round_trip):
    model = nn.Sequential(nn.Linear(2, 2))
    for name in ("taken", "kept"):
        model[0].register_buffer(name, torch.ones(1), persistent=False)
    del model[0]._buffers["taken"]
    assert model[0]._non_persistent_buffers_set == {"taken", "kept"}
    loaded = round_trip(trace(model))

    assert loaded.get_submodule("0")._non_persistent_buffers_set == {"kept"}
    assert torch.equal(loaded(torch.ones(2)), model(torch.ones(2)))


def test_training_flags_of_single_submodules_are_kept(trace, round_trip):
    model = ConvNet().train()
    model.pool.eval()
    loaded = round_trip(trace(model))

    assert loaded.training
    assert not loaded.pool.training


def test_regions_are_kept_and_entered(trace, round_trip):
    module = trace(lambda x: (x * 2, x + 1))
    module.graph.find_nodes(op="call_function")[0].region = (
        RegionEntry(torch.no_grad),
        RegionEntry(torch.autocast, ("cpu", torch.bfloat16)),
    )
    loaded = round_trip(module)

    assert_same_graph(module, loaded)
    doubled, increased = loaded(torch.ones(2, requires_grad=True))
    assert (doubled.requires_grad, increased.requires_grad) == (False, True)


def test_several_origins_and_the_pass_that_made_a_node_are_kept(trace, round_trip):
    module = trace(lambda x: x + 1)
    (node,) = module.graph.find_nodes(op="call_function")
    caller = Origin(SourceLine("model.py", 3, "outer"))
    node.origins = (*node.origins, Origin(SourceLine("model.py", 7, "inner"), caller=caller, made_by="fuse"))
    loaded = round_trip(module)

    assert_same_graph(module, loaded)
    (loaded_node,) = loaded.graph.find_nodes(op="call_function")
    assert loaded_node.origins[1].made_by == "fuse"
    assert [str(frame) for frame in loaded_node.origins[1].frames()] == [
        "model.py:7 in inner",
        "model.py:3 in outer",
    ]


def test_module_stacks_can_be_read_from_loaded_nodes(trace, round_trip):
    loaded = round_trip(trace(ConvNet()))

    node = next(node for node in loaded.graph.nodes if node.target == "stem.0")
    assert [path for path, _ in node.meta["nn_module_stack"].values()] == ["", "stem", "stem.0"]
    assert node.meta["nn_module_stack"]["stem.0"][1] == "torch.nn.modules.conv.Conv2d"


def test_plain_notes_are_kept_and_the_others_are_listed(trace, tmp_path):
    path = tmp_path / "notes.fxplug"
    module = trace(ConvNet().eval())
    propagate_shapes(module, torch.randn(1, 3, 8, 8))
    node = module.graph.find_nodes(op="call_module", target="head")[0]
    node.meta |= {"cost": [1, 2.5, {"flops": (3,)}], "twin": node.all_input_nodes[0], "object": object()}
    node.meta |= {"tensor": torch.ones(1), "set": {1}}
    module.meta["options"] = {"precision": torch.float16}
    module.meta["handle"] = object()
    save(module, path)
    loaded = load(path)

    meta = loaded.graph.find_nodes(op="call_module", target="head")[0].meta
    assert meta["cost"] == [1, 2.5, {"flops": (3,)}]
    assert meta["twin"].name == "flatten"
    assert meta["tensor_meta"] == node.meta["tensor_meta"]
    assert type(meta["tensor_meta"]) is type(node.meta["tensor_meta"])
    assert meta["type"] is torch.Tensor
    assert not {"object", "tensor", "set"} & meta.keys()
    assert loaded.meta == {"options": {"precision": torch.float16}}
    with zipfile.ZipFile(path) as archive:
        left_out = json.loads(archive.read("manifest.json"))["left_out_meta"]
    assert {(entry["module"], entry["node"], entry["what"]) for entry in left_out} == {
        ("", "head", "meta['object']"),
        ("", "head", "meta['tensor']"),
        ("", "head", "meta['set']"),
        ("", "", "meta['handle']"),
    }


def test_an_annotation_without_an_exact_form_is_left_out_and_listed(tmp_path):
    class Batch:
        pass

    path = tmp_path / "annotation.fxplug"
    graph = Graph()
    graph.output(graph.placeholder("batch", Batch))
    save(GraphModule(nn.Module(), graph), path)

    assert load(path).graph.find_nodes(op="placeholder")[0].type is None
    with zipfile.ZipFile(path) as archive:
        left_out = json.loads(archive.read("manifest.json"))["left_out_meta"]
    assert left_out == [{"module": "", "node": "batch", "what": "type"}]


def test_nested_graph_modules_are_stored_with_their_graphs(trace, round_trip):
    inner = trace(ConvNet().eval())
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("relu", (graph.call_module("part.inner", (x,)),)))
    module = GraphModule({"part.inner": inner}, graph, "Outer")
    loaded = round_trip(module)

    assert type(loaded.part) is nn.Module
    assert type(loaded.part.inner) is GraphModule
    assert loaded.part.inner.graph.owning_module is loaded.part.inner
    assert_same_graph(module, loaded)
    assert_same_graph(inner, loaded.part.inner)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(module(x), loaded(x))


def test_lifted_values_are_kept(trace, round_trip):
    module = trace(lambda x: x + torch.full((2,), 2.0))
    assert list(module.graph.lifted) == ["_tensor_constant0"]
    loaded = round_trip(module)

    assert loaded.graph.lifted["_tensor_constant0"] is loaded._tensor_constant0
    assert loaded(torch.zeros(2)).tolist() == [2.0, 2.0]


def test_a_loaded_module_can_be_edited_and_saved_again(trace, round_trip):
    loaded = round_trip(trace(lambda x: x + 1))
    (node,) = loaded.graph.find_nodes(op="call_function")
    node.target = operator.sub
    again = round_trip(loaded)

    assert again(torch.tensor(3)).item() == 2
    again.graph.lint()


def test_equal_modules_give_equal_files(trace, tmp_path):
    module = trace(ConvNet())
    save(module, tmp_path / "one.fxplug")
    save(module, tmp_path / "two.fxplug")

    assert (tmp_path / "one.fxplug").read_bytes() == (tmp_path / "two.fxplug").read_bytes()


def test_the_file_is_a_zip_with_a_manifest_and_readable_weights(trace, tmp_path):
    path = tmp_path / "module.fxplug"
    save(trace(ConvNet()), path)

    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == [
            "graph.json",
            "manifest.json",
            "modules.json",
            "weights.safetensors",
        ]
        assert archive.getinfo("weights.safetensors").compress_type == zipfile.ZIP_STORED
        manifest = json.loads(archive.read("manifest.json"))
        weights = safetensors.torch.load(archive.read("weights.safetensors"))
    assert (manifest["format"], manifest["format_version"]) == ("fxplug", FORMAT_VERSION)
    assert manifest["torch_version"] == torch.__version__
    assert sorted(manifest["members"]) == ["graph.json", "modules.json", "weights.safetensors"]
    assert weights["stem.0.weight"].shape == (8, 3, 3, 3)


def test_functions_and_methods_that_the_caller_allows_are_stored_and_imported(tmp_path, monkeypatch):
    (tmp_path / "allowed_package.py").write_text("def triple(x):\n    return x * 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    import allowed_package

    graph = Graph()
    x = graph.placeholder("x")
    tripled = graph.call_function(allowed_package.triple, (x,))
    graph.output((tripled, graph.call_method("custom", (x,))))
    path = tmp_path / "module.fxplug"
    allow = ["allowed_package:triple", ".custom"]
    save(GraphModule(nn.Module(), graph), path, allow=allow)
    monkeypatch.delitem(sys.modules, "allowed_package")
    loaded = load(path, allow=allow)

    (node,) = loaded.graph.find_nodes(op="call_function")
    assert node.target(2) == 6
    assert "allowed_package" in sys.modules


def test_saving_and_loading_need_no_numpy(tmp_path):
    program = f"""
import sys, warnings
sys.modules["numpy"] = None
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
from torch import equal, nn
import fxplug.semantics
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import load, save
path = {str(tmp_path / "module.fxplug")!r}
graph = Graph()
graph.output(graph.call_module("linear", (graph.placeholder("x"),)))
module = GraphModule({{"linear": nn.Linear(2, 2)}}, graph)
save(module, path)
assert equal(load(path).linear.weight, module.linear.weight)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_are_leaves_with_memory_of_their_own(tmp_path, device, lazy):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
    model[1].weight.requires_grad_(False)
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("1", (graph.call_module("0", (x,)),)))
    save(GraphModule(model, graph), tmp_path / "model.fxplug")
    loaded = load(tmp_path / "model.fxplug", lazy=lazy)
    found = dict(loaded.named_parameters())
    assert {name: one.requires_grad for name, one in found.items()} == {
        "0.weight": True,
        "0.bias": True,
        "1.weight": False,
        "1.bias": True,
    }
    assert all(type(one) is nn.Parameter and one.is_leaf for one in found.values())
    if device == "cpu":
        assert len({one.untyped_storage().data_ptr() for one in found.values()}) == len(found)
    loaded(torch.ones(1, 2, device=device)).sum().backward()
    assert {name for name, one in found.items() if one.grad is not None} == found.keys() - {"1.weight"}
    assert all(type(one) is nn.Parameter for one in copy.deepcopy(loaded).parameters())
