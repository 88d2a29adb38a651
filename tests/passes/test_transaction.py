"""What a failing pass did is undone, and what it did without a word is noticed: tensors and modules of all sorts."""

# ruff: noqa: PLW0108 - functions of torch have no signature to trace

from __future__ import annotations

import contextlib
import copy
import gc
import subprocess
import sys
import types
import weakref
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fxplug
from fxplug.errors import PassError
from fxplug.execute import GraphModule
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep, Snapshot
from fxplug.semantics import storages
from fxplug.semantics.internals import dispatch_modes

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def run(module, change, *, fails=True, modified=False, on_error="raise", observers=()):
    class Change(Pass):
        def run(self, module, context):
            change(module)
            if fails:
                raise ValueError("on purpose")
            return PassResult(modified=modified)

    step = PipelineStep("change", PassRecord("change", Change, "Changes something."))
    return Pipeline("test", [step], on_error).run(module, observers=observers)


def fail(module, change):
    with pytest.raises(PassError, match="on purpose"):
        run(module, change)


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x))


class Plain:
    pass


class Visible(OrderedDict):
    def keys(self):
        return [key for key in super().__iter__() if not key.startswith("_")]


class Scaled(OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Expired(OrderedDict):
    def __getitem__(self, key):
        raise KeyError(key)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Affine())


class TestGradients:
    def test_a_dtype_that_a_gradient_stands_against(self, module):
        module(X).sum().backward()
        weight = module.linear.weight
        before, gradient, values = weight.detach().clone(), weight.grad, weight.grad.clone()

        fail(module, lambda module: module.half())

        assert module.linear.weight is weight
        assert weight.dtype == torch.float32
        assert weight.grad is gradient
        assert torch.equal(weight, before)
        assert torch.equal(gradient, values)

    def test_values_that_were_added_up(self, module):
        module(X).sum().backward()
        values = module.linear.weight.grad.clone()

        fail(module, lambda module: module(X * 2).sum().backward())

        assert torch.equal(module.linear.weight.grad, values)

    def test_that_has_one_itself(self, module):
        weight = module.linear.weight
        weight.grad = torch.ones_like(weight)
        weight.grad.grad = torch.full_like(weight, 2.0)
        inner = weight.grad.grad

        fail(module, lambda module: module.linear.weight.grad.grad.zero_())
        assert weight.grad.grad is inner
        assert torch.equal(inner, torch.full_like(weight, 2.0))


class TestGraphs:
    def test_notes_of_nodes(self, module):
        node = next(iter(module.graph.nodes))
        node.meta["of.mine"] = [1]

        def annotate(module):
            for node in module.graph.nodes:
                node.meta["more"] = 1
            next(iter(module.graph.nodes)).meta["of.mine"].append(2)

        fail(module, annotate)

        assert next(iter(module.graph.nodes)) is node
        assert node.meta["of.mine"] == [1]
        assert all("more" not in node.meta for node in module.graph.nodes)

    def test_a_graph_module_inside(self):
        inner = fxplug.symbolic_trace(lambda x: torch.relu(x))

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x) + 1

        tracer = fxplug.Tracer(autowrap_modules=())
        tracer.is_leaf_module = lambda module, name: isinstance(module, GraphModule)
        module = GraphModule(root := Outer(), tracer.trace(root))
        expected = module(X)

        def edit(module):
            graph = module.get_submodule("inner").graph
            graph.output_node().args = (graph.find_nodes(op="placeholder")[0],)

        fail(module, edit)
        assert torch.equal(module(X), expected)
        with pytest.raises(PassError, match="the graph of inner"):
            run(module, edit, fails=False)

    def test_what_is_no_part_of_the_nodes(self, module):
        graph = module.graph

        def change(module):
            module.graph.lifted["constant"] = torch.ones(1)
            module.graph.captured_training = True
            module.graph.observers.append(print)

        fail(module, change)
        assert module.graph is graph
        assert (graph.lifted, graph.captured_training, graph.observers) == ({}, None, [])


class TestTensors:
    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
    @pytest.mark.parametrize("layout", ["coo", "csr"])
    def test_sparse_ones(self, module, layout):
        dense = torch.eye(3)
        sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
        module.register_buffer("sparse", sparse)

        def double(module):
            module.sparse.values().mul_(2) if layout == "csr" else module.sparse.mul_(2)

        fail(module, double)
        assert torch.equal(module.sparse.to_dense(), dense)
        with pytest.raises(PassError, match="sparse changed"):
            run(module, double, fails=False)

    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    def test_quantized_ones(self, module):
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        module.register_buffer("quantized", quantized)

        run(module, lambda module: module.quantized.copy_(module.quantized), fails=False)
        fail(module, lambda module: module.quantized.copy_(torch.zeros(3)))
        assert torch.equal(module.quantized.dequantize(), quantized.dequantize())

    def test_conjugated_ones(self, module):
        module.register_buffer("wave", torch.full((3,), 1 - 1j).conj())

        run(module, lambda module: module.wave.mul_(1), fails=False)
        fail(module, lambda module: module.wave.mul_(2))
        assert torch.equal(module.wave, torch.full((3,), 1 + 1j))

    def test_lazy_ones_do_not_stand_in_the_way(self):
        module = GraphModule({"lazy": nn.LazyLinear(3)}, graph_that_calls("lazy"))
        run(module, lambda module: None, fails=False)
        fail(module, lambda module: module(X))
        assert isinstance(module.lazy.weight, nn.parameter.UninitializedParameter)

    def test_attributes_of_a_parameter(self, module):
        module.linear.weight.mark = 1
        fail(module, lambda module: vars(module.linear.weight).update(mark=2, other=3))
        assert vars(module.linear.weight) == {"mark": 1}

    def test_tensors_and_lists_that_are_attributes_of_a_parameter(self, module):
        weight = module.linear.weight
        weight.scale, weight.tags = torch.ones(3), [1]
        scale = weight.scale
        scale.owner = weight  # In a circle.

        def change(module):
            weight.scale.mul_(2)
            weight.tags.append(2)
            weight.scale = torch.zeros(3)

        fail(module, change)
        assert weight.scale is scale
        assert scale.tolist() == [1, 1, 1]
        assert weight.tags == [1]

    @pytest.mark.parametrize(
        ("values", "otherwise"),
        [
            (torch.tensor([1 + 2j, 3 - 1j]), lambda tensor: tensor.conj()),
            (torch.tensor([1.0, 2.0]), torch._neg_view),
        ],
        ids=["conjugated", "negated"],
    )
    def test_the_same_memory_that_is_read_otherwise(self, module, values, otherwise):
        module.register_buffer("wave", values)

        def change(module):
            module.wave.data = otherwise(module.wave.data)

        expected = values.tolist()
        fail(module, change)
        assert module.wave.tolist() == expected
        with pytest.raises(PassError, match="wave changed"):
            run(module, change, fails=False)

    @pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
    def test_hooks_of_a_parameter(self, module, register):
        heard = []
        weight = module.linear.weight
        getattr(module.linear.bias, register)(lambda _: heard.append("bias"))

        def change(module):
            for tensor in (module.linear.weight, module.linear.bias):
                getattr(tensor, register)(lambda _: heard.append("pass"))

        fail(module, change)
        module(X).sum().backward()
        assert heard == ["bias"]
        with pytest.raises(PassError, match=r"linear\.weight"):
            run(module, change, fails=False)
        assert module.linear.weight is weight


def graph_that_calls(path):
    graph = fxplug.Graph()
    graph.output(graph.call_module(path, (graph.placeholder("x"),)))
    return graph


class TestModules:
    def test_a_parametrisation_that_was_taken_away(self):
        root = Affine()
        parametrizations.orthogonal(root.linear)
        module = fxplug.symbolic_trace(root)
        module.add_submodule("linear", root.linear)
        expected = module.linear(X)

        fail(module, lambda module: parametrize.remove_parametrizations(module.linear, "weight"))

        assert torch.equal(module.linear(X), expected)

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("mode", lambda module: module.eval()),
            ("hook", lambda module: module.act.register_forward_hook(lambda *_: None)),
            ("exchanged", lambda module: module.add_submodule("act", nn.GELU())),
            ("forward", lambda module: setattr(module.act, "forward", torch.tanh)),
            ("class", lambda module: setattr(module.act, "__class__", nn.SiLU)),
            ("removed", lambda module: module.delete_submodule("act")),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_change_that_was_not_said_is_noticed(self, module, name, change):
        with pytest.raises(PassError, match="says that it changed nothing"):
            run(module, change, fails=False)

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
    def test_scripted_parts_are_no_change(self):
        module = GraphModule({"scripted": torch.jit.script(nn.ReLU())}, graph_that_calls("scripted"))
        run(module, lambda module: None, fails=False)


class TestModes:
    def test_a_mode_that_a_pass_leaves_entered_is_taken_away(self, module):
        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        before = dispatch_modes()
        run(module, lambda module: Mode().__enter__(), fails=False)
        assert dispatch_modes() == before


def test_models_with_control_flow_can_be_optimised():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    result = fxplug.optimize(Branches(), (X + 1,))
    assert torch.equal(result.module(X + 1), X + 2)


def test_a_pass_may_compile_and_run_functions(module):
    def compiles(module):
        compiled = torch.compile(lambda x: torch.relu(x) * 2, backend="eager")
        assert torch.equal(compiled(X), torch.relu(X) * 2)
        with torch.no_grad():
            module.linear.weight.add_(1)

    before = module.linear.weight.detach().clone()
    fail(module, compiles)
    assert torch.equal(module.linear.weight, before)


def test_neither_a_pipeline_nor_a_capture_imports_what_takes_long():
    program = """
import sys
import torch
from torch import nn
import fxplug
model, inputs = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval(), (torch.ones(1, 3, 4, 4),)
fxplug.trace(model, inputs)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
result = fxplug.optimize(model, inputs, measure=False)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
print([report.name for report in result.passes if report.name == "onednn-fuse"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]", "['onednn-fuse']"]


def test_other_tensors_of_a_module_keep_their_memory(module):
    pointers = {name: value.data_ptr() for name, value in module.state_dict().items()}
    fail(module, lambda module: module.linear.bias.data.zero_())
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == pointers


def test_a_copy_of_the_module_is_not_touched(module):
    twin = copy.deepcopy(module)
    fail(module, lambda module: module.linear.weight.data.zero_())
    assert torch.equal(twin(X), module(X))


class TestContainers:
    def test_those_in_others_get_back_what_they_held(self, module):
        held = {"list": [1, {"a": [2]}], "tuple": ([3],), "set": {4}, "tensor": [torch.ones(2)]}
        module.act.held = held

        def change(module):
            held["list"][1]["a"].append(object())
            held["tuple"][0].clear()
            held["set"].add(5)
            held["tensor"][0].zero_()
            held["list"].reverse()
            held["more"] = 1

        inner, tensor = held["list"][1], held["tensor"][0]
        fail(module, change)

        assert module.act.held is held
        assert held["list"] == [1, {"a": [2]}]
        assert held["list"][1] is inner
        assert (held["tuple"], held["set"]) == (([3],), {4})
        assert held["tensor"][0] is tensor
        assert tensor.tolist() == [1, 1]
        assert "more" not in held

    def test_a_counter_holds_its_counts(self, module):
        module.act.seen = Counter({"a": 3, "b": 1})
        fail(module, lambda module: module.act.seen.update("ac"))
        assert module.act.seen == Counter({"a": 3, "b": 1})

    def test_one_that_holds_itself(self, module):
        held = [1]
        held.append(held)
        module.act.held = held
        fail(module, lambda module: held.clear())
        assert held[0] == 1
        assert held[1] is held

    def test_of_a_module_that_has_attributes_before_it_is_one(self):
        class Early(nn.Module):
            def __init__(self):
                self.__dict__["log"] = ["made"]
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3))
                self.later = {"a": [1]}

            def forward(self, x):
                return x * self.scale

        layer = Early()
        module = GraphModule({"layer": layer}, graph_that_calls("layer"))

        def change(module):
            module.layer.log.append("changed")
            module.layer.later["a"].append(2)
            module.layer.register_forward_hook(lambda *_: None)
            with torch.no_grad():
                module.layer.scale.mul_(2)

        fail(module, change)
        assert (layer.log, layer.later, len(layer._forward_hooks)) == (["made"], {"a": [1]}, 0)
        assert layer.scale.tolist() == [1, 1, 1]

    def test_of_classes_that_answer_with_something_else_than_they_hold(self, module):
        module.act.seen, module.act.scaled, module.act.gone = Visible(a=1, _b=2), Scaled(a=1), Expired(a=1)

        def change(module):
            for held in (module.act.seen, module.act.scaled, module.act.gone):
                held["more"] = 3

        fail(module, change)
        for held, expected in ((module.act.seen, {"a": 1, "_b": 2}), (module.act.scaled, {"a": 1})):
            assert list(OrderedDict.items(held)) == list(expected.items())
        assert list(OrderedDict.items(module.act.gone)) == [("a", 1)]
        assert not Snapshot(module).may_compute_otherwise()

    @pytest.mark.parametrize("name", ["training", "_is_full_backward_hook"])
    def test_in_the_place_of_what_every_module_has(self, module, name):
        held = {"a": [1]}
        vars(module.act)[name] = held

        def change(module):
            held["a"].append(2)
            held["b"] = 3

        fail(module, change)
        assert vars(module.act)[name] is held
        assert held == {"a": [1]}

    def test_beside_a_weak_proxy_of_what_the_pass_has_dropped(self, module):
        module.act.holder = types.SimpleNamespace(held=Plain())
        module.act.proxy = weakref.proxy(module.act.holder.held)
        weight = module.linear.weight.detach().clone()

        def change(module):
            module.act.holder.held = None
            gc.collect()
            with torch.no_grad():
                module.linear.weight.fill_(7)

        fail(module, change)
        assert torch.equal(module.linear.weight, weight)

    def test_among_the_buffers(self, module):
        held = module.act._buffers["odd"] = [1]
        snapshot = Snapshot(module)
        held.append(2)

        assert snapshot.may_compute_otherwise()
        snapshot.restore()
        assert held == [1]
        assert module.act._buffers["odd"] is held

    def test_a_table_that_is_no_dict_is_told_by_whole_names(self, module):
        vars(module.act)["_buffers"] = types.MappingProxyType({"ab": None})

        assert set(Snapshot(module).changes_of_state(module)) <= {"act.ab"}

    def test_a_value_that_is_another_one_counts(self, module):
        module.act.held = {"a": object(), "b": [1]}
        snapshot = Snapshot(module)

        assert not snapshot.may_compute_otherwise()
        module.act.held["a"] = object()
        assert snapshot.may_compute_otherwise()

    def test_of_a_tensor_that_were_empty(self, module):
        module.linear.weight.notes = []

        fail(module, lambda module: module.linear.weight.notes.append("changed"))
        assert module.linear.weight.notes == []


class TestTensorsThatBecameOthers:
    def test_an_integer_that_was_given_a_number_that_trains(self, module):
        module.register_buffer("count", torch.zeros((), dtype=torch.int64))
        count = module.count

        def change(module):
            count.data = torch.ones(3)
            count.requires_grad_()

        fail(module, change)
        assert module.count is count
        assert (count.dtype, count.tolist(), count.requires_grad) == (torch.int64, 0, False)

    @pytest.mark.parametrize("is_view", [False, True])
    def test_a_buffer_that_was_given_a_history(self, module, is_view):
        weight = module.linear.weight
        module.register_buffer("row", weight.detach()[0] if is_view else torch.ones(4))
        row, before = module.row, module.row.tolist()

        fail(module, lambda module: module.row.mul_(module.linear.bias.sum()))

        assert module.row is row
        assert row.is_leaf
        assert not row.requires_grad
        assert row.tolist() == before
        assert (row.data_ptr() == weight.data_ptr()) is is_view

    def test_a_tensor_that_is_a_plain_attribute_is_no_secret(self, module):
        module.act.plain = torch.ones(2)
        with pytest.raises(PassError, match=r"says that it changed nothing, but act\.plain changed"):
            run(module, lambda module: module.act.plain.zero_(), fails=False)


class TestInterrupts:
    def test_one_that_comes_while_a_pass_is_undone(self, module, monkeypatch):
        before, code = module.linear.weight.detach().clone(), module.code
        put_back = storages._put_back
        interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

        def impatient(*args):
            if interrupts:
                raise interrupts.pop()
            put_back(*args)

        def change(module):
            with torch.no_grad():
                module.linear.weight.zero_()
            module.added = nn.Linear(1, 1)
            module.graph.find_nodes(op="call_module", target="act")[0].target = "added"

        monkeypatch.setattr(storages, "_put_back", impatient)
        with pytest.raises(KeyboardInterrupt):
            run(module, change)
        assert not interrupts
        assert torch.equal(module.linear.weight, before)
        assert module.code == code
        assert not hasattr(module, "added")

    def test_one_that_comes_when_the_watch_ends_leaves_nobody_listening(self, module, monkeypatch):
        def interrupted(mode):
            raise KeyboardInterrupt

        before = dispatch_modes()
        monkeypatch.setattr(storages, "remove_modes_above", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(module, lambda module: None, fails=False)
        assert dispatch_modes() == before

    def test_one_that_comes_before_the_watch_is_ended_leaves_nobody_listening(self, module, monkeypatch):
        leave, interrupts = storages.StorageJournal.__exit__, [KeyboardInterrupt()]

        def impatient(*args):
            if interrupts:
                raise interrupts.pop()
            leave(*args)

        before = dispatch_modes()
        monkeypatch.setattr(storages.StorageJournal, "__exit__", impatient)
        with pytest.raises(KeyboardInterrupt):
            run(module, lambda module: None, fails=False)
        assert dispatch_modes() == before

    def test_one_that_comes_in_the_middle_of_an_edit(self, module, monkeypatch):
        act = module.graph.find_nodes(op="call_module", target="act")[0]
        text = str(module.graph)

        def interrupted(*_):
            raise KeyboardInterrupt

        def change(module):
            with monkeypatch.context() as patch:
                patch.setattr(type(module.graph._namespace), "create_name", interrupted)
                module.graph.call_function(torch.tanh, (act,))

        with pytest.raises(KeyboardInterrupt):
            run(module, change)
        assert str(module.graph) == text
        (act,) = module.graph.find_nodes(op="call_module", target="act")
        assert list(act.users) == [module.graph.output_node()]

    def test_an_observer_that_fails_does_not_keep_it_back(self, module):
        def interrupt(module):
            raise KeyboardInterrupt

        def observe(event):
            if event.error is not None:
                raise ValueError("cannot write the log")

        with pytest.raises(KeyboardInterrupt) as caught:
            run(module, interrupt, observers=[observe])
        assert str(caught.value.__cause__) == "cannot write the log"


def test_modules_that_run_one_graph_still_do(module):
    root = nn.ModuleDict({"first": module, "second": fxplug.GraphModule(Affine(), module.graph)})
    assert root["first"].graph is root["second"].graph
    outer = fxplug.Graph()
    x = outer.placeholder("x")
    outer.output((outer.call_module("first", (x,)), outer.call_module("second", (x,))))
    both = fxplug.GraphModule(root, outer)

    def change(both):
        both.first.graph.find_nodes(op="call_module", target="act")[0].target = "linear"

    code = both.first.code
    fail(both, change)
    assert both.first.graph is both.second.graph
    assert both.first.code == both.second.code == code


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_switched_for_all_that_follows_is_switched_back(module, fails):
    def change(_):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)

    try:
        with contextlib.suppress(PassError):
            run(module, change, fails=fails)
        assert torch.is_grad_enabled()
        assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


class TestWhatCannotBeUndone:
    @pytest.mark.parametrize("on_error", ["raise", "rollback", "stop"])
    def test_nothing_goes_on_with_the_module(self, module, on_error):
        with pytest.raises(PassError) as caught:
            run(module, lambda m: m.linear.weight.untyped_storage().resize_(0), on_error=on_error)
        assert str(caught.value) == (
            "Pass 'change' of fxplug failed: ValueError: on purpose. Not everything that it did could be undone "
            "(memory of 64 bytes was resized to 0, and nobody knows what it held); capture the model again. [FXP-P000]"
        )

    def test_the_process_goes_on_with_memory_of_its_size(self, module):
        with pytest.raises(PassError, match="nobody knows"):
            run(module, lambda m: m.linear.weight.untyped_storage().resize_(0))
        assert module.linear.weight.untyped_storage().nbytes() == 64
        assert module(X).shape == (2, 4)

    def test_it_is_no_change_that_goes_unnoticed(self, module):
        with pytest.raises(PassError, match=r"changed nothing, but linear\.weight changed"):
            run(module, lambda m: m.linear.weight.untyped_storage().resize_(0), fails=False)


class TestSettings:
    @pytest.mark.parametrize(
        ("layer", "name", "value"),
        [
            (nn.LeakyReLU(0.1), "negative_slope", 0.2),
            (nn.LeakyReLU(0.1), "inplace", True),
            (nn.AvgPool1d(2), "stride", (1,)),
            (nn.BatchNorm1d(4), "eps", 1.0),
        ],
    )
    def test_a_change_without_a_word_is_an_error(self, layer, name, value):
        module = fxplug.symbolic_trace(nn.Sequential(layer))
        former = getattr(layer, name)
        with pytest.raises(PassError, match=rf"changed nothing, but 0\.{name} changed"):
            run(module, lambda _: setattr(layer, name, value), fails=False)
        assert getattr(layer, name) == former

    @pytest.mark.parametrize("persistent", [False, True])
    def test_what_the_state_dict_holds_is_no_secret(self, module, persistent):
        module.linear.register_buffer("scale", torch.ones(2), persistent=persistent)
        keys = list(module.state_dict())

        def change(module):
            module.linear._non_persistent_buffers_set ^= {"scale"}

        with pytest.raises(PassError, match=r"changed nothing, but linear\.scale changed"):
            run(module, change, fails=False)
        assert list(module.state_dict()) == keys

    def test_what_other_modules_keep_in_attributes_is_theirs(self):
        class Counting(nn.Module):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return x

        module = fxplug.GraphModule(nn.ModuleDict({"part": Counting()}), graph_that_calls("part"))
        run(module, lambda module: module(X), fails=False)
        assert module.part.calls == 1

    def test_memory_that_numpy_has_seen_since_it_grew(self, module):
        module.register_buffer("scale", torch.ones(4))
        scale = module.scale

        def change(module):
            scale.resize_(7).fill_(2)
            scale.numpy()[:1] = 8

        fail(module, change)
        assert module.scale is scale
        assert torch.equal(scale, torch.ones(4))
