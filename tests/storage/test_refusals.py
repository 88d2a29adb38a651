"""What cannot be stored is refused by name, with what to do, before anything is written."""

from __future__ import annotations

import dataclasses
import io
import operator
import os
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, RegionEntry
from fxplug.plugins import Config, PluginManager, TraceConfig
from fxplug.storage import documents, load, save, tensors


class Custom(nn.Module):
    def forward(self, x):
        return x


def scale(x):
    return x * 2


def one_call(target, *args, op="call_function", root=None, **kwargs) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.create_node(op, target, (x, *args), kwargs, "call"))
    return GraphModule(root if root is not None else nn.Module(), graph)


def holding(module) -> GraphModule:
    return one_call("part", op="call_module", root={"part": module})


def refusal(module, tmp_path, **options) -> str:
    path = tmp_path / "module.fxplug"
    with pytest.raises(StorageError) as caught:
        save(module, path, **options)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value).replace(str(path), "FILE")


def test_a_module_without_a_graph(tmp_path):
    assert refusal(nn.Linear(2, 2), tmp_path) == (
        "Cannot save a torch.nn.modules.linear.Linear: only a fxplug.GraphModule can be stored. Make one "
        "with fxplug.symbolic_trace(...) first. [FXP-S014]"
    )


def test_a_leaf_module_of_the_user(tmp_path):
    assert refusal(one_call("blocks.0", op="call_module", root={"blocks.0": Custom()}), tmp_path) == (
        f"Cannot save to 'FILE': submodule 'blocks.0': its class {__name__}.Custom is not one that "
        f"torch.nn.modules ships, so a file cannot rebuild it. Trace through it instead of keeping it as a "
        f"leaf, or name the class when saving and again when loading: allow=['{__name__}:Custom']. [FXP-S012]"
    )


def test_a_module_with_hooks(tmp_path):
    linear = nn.Linear(2, 2)
    linear.register_forward_hook(lambda *_: None)

    assert refusal(one_call("linear", op="call_module", root={"linear": linear}), tmp_path) == (
        "Cannot save to 'FILE': submodule 'linear': it has hooks (_forward_hooks), and a file cannot hold "
        "the functions they call. Remove them before saving, and register them again after loading. "
        "[FXP-S014]"
    )


def test_a_module_whose_forward_was_replaced(tmp_path):
    linear = nn.Linear(2, 2)
    linear.forward = scale

    assert refusal(one_call("linear", op="call_module", root={"linear": linear}), tmp_path) == (
        "Cannot save to 'FILE': submodule 'linear': its attribute 'forward' replaces what the class Linear "
        "defines under that name. Delete the attribute before saving. [FXP-S008]"
    )


def test_an_attribute_that_is_no_plain_value(tmp_path):
    linear = nn.Linear(2, 2)
    linear.owner = weakref.ref(linear)

    assert refusal(one_call("linear", op="call_module", root={"linear": linear}), tmp_path).startswith(
        "Cannot save to 'FILE': attribute 'owner' of submodule 'linear': <weakref at"
    )


def test_a_submodule_that_contains_itself(tmp_path):
    outer = nn.Sequential(nn.Sequential())
    outer[0].append(outer)

    assert refusal(one_call("outer", op="call_module", root={"outer": outer}), tmp_path) == (
        "Cannot save to 'FILE': the module tree is nested too deeply, or contains itself. Flatten it. "
        "[FXP-S014]"
    )


def test_a_function_that_must_be_allowed(tmp_path):
    assert refusal(one_call(os.path.join), tmp_path) == (
        "Cannot save to 'FILE': node 'call': 'posixpath:join' is not among the functions that a file may "
        "name. Allow it when saving and again when loading: allow=['posixpath:join']. [FXP-S012]"
    )


@pytest.mark.parametrize(
    "target", [lambda x: x, operator.itemgetter(0), "".join], ids=["lambda", "object", "method"]
)
def test_a_function_without_a_name(tmp_path, target):
    message = refusal(one_call(target), tmp_path)

    assert message.startswith(
        f"Cannot save to 'FILE': node 'call': {target!r} has no name under which a file could"
    )
    assert message.endswith("at the top level of a module, and name it in allow=. [FXP-S012]")


@pytest.mark.parametrize(
    "target", [eval, exec, compile, open, __import__, setattr, os.system, torch.load, torch.save]
)
def test_functions_that_run_code_or_touch_files(tmp_path, target):
    assert "is not among the functions that a file may name" in refusal(one_call(target), tmp_path)


@pytest.mark.parametrize("method", ["tofile", "__reduce__", "apply_", "register_hook", "_asdict"])
def test_methods_that_tensors_do_not_have_or_that_call_back(tmp_path, method):
    assert refusal(one_call(method, op="call_method"), tmp_path) == (
        f"Cannot save to 'FILE': node 'call': the method {method!r} is not among those that a file may "
        f"call. If you know what it does and trust the file, allow it: allow=['.{method}']. [FXP-S012]"
    )


def test_reading_a_private_attribute(tmp_path):
    assert refusal(one_call(getattr, "_base"), tmp_path) == (
        "Cannot save to 'FILE': node 'call': it reads the attribute '_base'. A stored graph may only read "
        "attributes whose names are literal and public: read the value in the model before the graph needs "
        "it. [FXP-S012]"
    )


def test_an_argument_of_an_unknown_type(tmp_path):
    assert refusal(one_call(torch.add, {1, 2}), tmp_path) == (
        "Cannot save to 'FILE': node 'call': a value of type builtins.set cannot be stored. Use tensors of "
        "the module, plain Python values, torch's constants, and lists, tuples and dicts of them. "
        "[FXP-S014]"
    )


def test_an_argument_that_is_nested_too_deeply(tmp_path):
    value: list = []
    for _ in range(150):
        value = [value]

    assert "node 'call': containers are nested more than 100 deep. Flatten" in refusal(
        one_call(len, value), tmp_path
    )


def test_a_region_with_a_context_of_the_user(tmp_path):
    module = one_call(torch.relu)
    module.graph.find_nodes(op="call_function")[0].region = (
        RegionEntry(torch.profiler.record_function, ("x",)),
    )

    assert "node 'call': 'torch.autograd.profiler:record_function' is not among" in refusal(module, tmp_path)


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (torch.eye(2).to_sparse(), "it is sparse, nested or quantized. Store its parts as plain tensors."),
        (torch.eye(2, dtype=torch.complex64).conj(), "Call resolve_conj() or resolve_neg()."),
        (torch.ones(2, requires_grad=True) * 2, "gradients flow through. Call detach()."),
    ],
    ids=["sparse", "conjugate", "computed"],
)
def test_a_tensor_of_an_unusual_kind(tmp_path, tensor, fault):
    graph = Graph()
    graph.output(graph.get_attr("part.value"))
    message = refusal(GraphModule({"part.value": tensor}, graph), tmp_path)

    assert message.startswith("Cannot save to 'FILE': 'part.value': the tensor cannot be stored: it is")
    assert message.endswith(f"{fault} [FXP-S014]")


def test_a_sparse_weight_among_others(tmp_path):
    weights = {name: nn.Parameter(torch.ones(2, 2)) for name in ("first", "odd", "last")}
    weights["odd"] = nn.Parameter(torch.eye(2).to_sparse())
    graph = Graph()
    graph.output([graph.get_attr(name) for name in weights])

    assert refusal(GraphModule(weights, graph), tmp_path) == (
        "Cannot save to 'FILE': 'odd': the tensor cannot be stored: it is sparse, nested or quantized. Store its parts "
        "as plain tensors. [FXP-S014]"
    )


@pytest.mark.parametrize("size", [0, 8])
def test_a_weight_whose_memory_was_freed_or_shrunk(tmp_path, size):
    linear = nn.Linear(2, 2)
    memory = linear.weight.untyped_storage()
    memory.resize_(size)
    message = refusal(one_call("linear", op="call_module", root={"linear": linear}), tmp_path)

    assert message == (
        "Cannot save to 'FILE': 'linear.weight': the tensor cannot be stored: its memory was freed, or is smaller than "
        "it. Gather the weights of the module before saving. [FXP-S014]"
    )
    assert memory.nbytes() == size


def test_a_parameter_that_is_not_initialised_yet(tmp_path):
    message = refusal(one_call("lazy", op="call_module", root={"lazy": nn.LazyLinear(2)}), tmp_path)

    assert message.startswith("Cannot save to 'FILE': submodule 'lazy': it has hooks (")


def test_a_graph_without_an_existing_path(tmp_path):
    module = one_call("linear", op="call_module", root={"linear": nn.Linear(2, 2)})
    module.delete_submodule("linear")

    assert refusal(module, tmp_path) == (
        "Cannot save to 'FILE': node 'call': it refers to 'linear', but the module holds no submodule at "
        "that path. [FXP-S009]"
    )


def test_a_code_generator_of_the_users_own(tmp_path):
    class Generator:
        def generate(self, graph, root_module="self"):
            raise NotImplementedError

    module = one_call(torch.relu)
    module.graph.set_codegen(Generator())

    assert refusal(module, tmp_path) == (
        "Cannot save to 'FILE': the graph has a code generator of its own (Generator), which a file cannot "
        "hold. Call graph.set_codegen(fxplug.CodeGen()) before saving, and set yours again after loading. "
        "[FXP-S014]"
    )


def test_code_that_is_changed_by_a_transformer(tmp_path):
    module = one_call(torch.relu)
    with module.graph.on_generate_code(lambda _: lambda lines: lines):
        assert refusal(module, tmp_path) == (
            "Cannot save to 'FILE': the graph's code is changed by a transformer (graph.on_generate_code), which a "
            "file cannot hold. End its context before saving, and register it again after loading. [FXP-S014]"
        )
    save(module, tmp_path / "module.fxplug")


def test_a_fault_inside_a_nested_graph_module_names_its_path(tmp_path):
    inner = one_call(os.getcwd)

    assert "submodule 'a.b': node 'call': 'posix:getcwd' is not among the functions" in refusal(
        one_call("a.b", op="call_module", root={"a.b": inner}), tmp_path
    )


@pytest.mark.parametrize("entry", ["os.system", "os:", "", ".a.b", 3, "a:b c"])
def test_an_allowed_name_of_another_form(tmp_path, entry):
    assert refusal(one_call(torch.relu), tmp_path, allow=[entry]) == (
        f"Cannot save to 'FILE': allow holds {entry!r}. Name a function as 'package.module:function', a "
        f"method as '.method'. [FXP-S014]"
    )


def test_an_allowed_name_that_does_not_exist(tmp_path):
    message = refusal(one_call(scale), tmp_path, allow=["package_that_is_missing:function"])

    assert message == (
        "Cannot save to 'FILE': node 'call': allow names 'package_that_is_missing:function', which cannot "
        "be found: No module named 'package_that_is_missing'. Install it, or correct the name. [FXP-S014]"
    )


def test_hooks_of_the_second_of_two_like_modules(tmp_path):
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.register_forward_hook(lambda *_: None)

    assert "submodule 'part.1': it has hooks (_forward_hooks)" in refusal(
        holding(nn.Sequential(first, second)), tmp_path
    )


@pytest.mark.parametrize("is_buffer", [False, True])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_weight_with_hooks(tmp_path, is_buffer, register):
    linear = nn.Linear(2, 2)
    if is_buffer:
        linear.register_buffer("scale", torch.ones(2, requires_grad=True))
    handle = getattr(linear.scale if is_buffer else linear.weight, register)(lambda _: None)
    message = refusal(holding(linear), tmp_path)

    name = "scale" if is_buffer else "weight"
    assert (
        f"'part.{name}': the tensor cannot be stored: it has hooks, and a file cannot hold the functions"
        in message
    )
    handle.remove()
    save(holding(linear), tmp_path / "module.fxplug")


def test_a_region_of_something_that_is_no_context(tmp_path):
    graph = Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    node.region = (RegionEntry(torch.relu),)
    graph.output(node)

    assert "a region enters 'torch:relu', which is no context" in refusal(
        GraphModule(nn.Module(), graph), tmp_path
    )


@dataclasses.dataclass
class Unset:
    one: int
    other: int = dataclasses.field(init=False)


class Slotted:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class InSlots(Slotted):
    one: int


def with_argument(value):
    graph = Graph()
    graph.output((graph.placeholder("x"), value))
    return GraphModule(nn.Module(), graph)


def test_a_field_that_was_never_set(tmp_path):
    message = refusal(with_argument(Unset(1)), tmp_path, allow=[f"{__name__}:Unset"])
    assert "the field 'other' of a Unset was never set" in message


def test_a_slot_that_is_no_field(tmp_path):
    value = InSlots(1)
    value.hidden = 2
    message = refusal(with_argument(value), tmp_path, allow=[f"{__name__}:InSlots"])
    assert "a InSlots has 'hidden', which is no field of the class" in message
    del value.hidden
    save(with_argument(value), tmp_path / "module.fxplug", allow=[f"{__name__}:InSlots"])


class Packed(nn.Module):
    def __getstate__(self):
        return {"configuration": 1}


def test_a_class_that_gives_another_state_away(tmp_path):
    message = refusal(holding(Packed()), tmp_path, allow=[f"{__name__}:Packed"])
    assert "its class Packed gives a state away that lacks '_buffers'" in message


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.utils.parametrize.register_parametrization(self.layer, "weight", Symmetric())

    def forward(self, x):
        return self.layer(x)


def test_parametrized_weights_are_stored_as_part_of_the_program(tmp_path):
    model, x = Parametrized(), torch.rand(3, 2)
    message = refusal(fxplug.trace(model, (x,)), tmp_path)
    assert "submodule 'layer': its weights are computed by parametrizations" in message
    assert "through_modules" in message
    assert "remove_parametrizations" in message

    manager = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())
    save(fxplug.trace(model, (x,), manager=manager), tmp_path / "module.fxplug")
    torch.testing.assert_close(load(tmp_path / "module.fxplug")(x), model(x))
    nn.utils.parametrize.remove_parametrizations(model.layer, "weight")
    save(fxplug.trace(model, (x,)), tmp_path / "module.fxplug")
    torch.testing.assert_close(load(tmp_path / "module.fxplug")(x), model(x))


def test_more_values_than_a_file_may_hold(tmp_path, monkeypatch):
    module = with_argument(1)
    module.meta["text"] = "," * 1000
    monkeypatch.setattr(documents, "MOST_VALUES", 900)

    assert "modules.json holds more than the 900 values" in refusal(module, tmp_path)


def test_names_that_are_longer_than_a_header_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "LARGEST_HEADER", 300)
    long = nn.Module()
    long.add_module("n" * 300, nn.Linear(2, 2))

    assert "the names of its weights are too long" in refusal(holding(long), tmp_path)


@pytest.mark.parametrize("value", [torch.relu, torch.Tensor, [torch.relu], {"key": (torch.relu,)}])
def test_a_function_as_an_argument_of_a_region(tmp_path, value):
    graph = Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    node.region = (RegionEntry(torch.no_grad, (value,)),)
    graph.output(node)

    assert "an argument of a region is a function or a class" in refusal(
        GraphModule(nn.Module(), graph), tmp_path
    )


@dataclasses.dataclass
class Listed(list):
    one: int = 1


@dataclasses.dataclass
class Asking:
    one: int
    other: int = dataclasses.field(init=False)

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_a_dataclass_that_is_a_list_or_asks_for_what_is_missing(tmp_path):
    linear = nn.Linear(2, 2)
    linear.setting = Listed()
    assert "attribute 'setting' of submodule 'part'" in refusal(
        holding(linear), tmp_path, allow=[f"{__name__}:Listed"]
    )
    message = refusal(with_argument(Asking(1)), tmp_path, allow=[f"{__name__}:Asking"])
    assert "the field 'other' of a Asking was never set" in message


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "compile_it",
    [lambda module: torch.jit.trace(module, torch.ones(2)), torch.jit.script],
    ids=["traced", "scripted"],
)
def test_a_module_that_torch_has_compiled(tmp_path, compile_it):
    message = refusal(holding(compile_it(nn.Linear(2, 2))), tmp_path)
    assert "submodule 'part': a scripted or traced module" in message
    assert "FXP-S014" in message


@pytest.mark.parametrize("options", [{}, {"allow_pickle": True}])
def test_what_is_no_path(options):
    place = io.BytesIO()
    with pytest.raises(StorageError, match="Cannot save to a BytesIO: pass the path of a file") as info:
        fxplug.save(one_call(torch.relu), place)
    assert info.value.code == "FXP-S001"
    with pytest.raises(StorageError, match="Cannot load a BytesIO: pass the path of a file") as info:
        fxplug.load(place, **options)
    assert info.value.code == "FXP-S001"
