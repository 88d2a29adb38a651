"""What can be done with a module once it is captured and edited: copies, pickles, other tools, being freed."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import linecache
import operator
import pickle
import sys
import weakref

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

from fxplug.analyze import propagate_shapes
from fxplug.capture import Tracer, Transformer
from fxplug.errors import GraphError
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x))) + 1


class Reading(Net):
    """Reads a parameter and a constant directly."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x):
        return F.linear(super().forward(x), self.linear.weight) * self.scale + self.offset + torch.ones(3)


X = torch.linspace(-1, 1, 12).reshape(4, 3)


def edited(root):
    tracer = Tracer()
    graph = tracer.trace(root)
    module = GraphModule(tracer.root, graph, type(root).__name__)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(operator.mul, (output.args[0], 3)),)
    return module


@pytest.fixture(params=[Net, Reading])
def module(request):
    torch.manual_seed(0)
    return edited(request.param().eval())


def last_call(module):
    return module.graph.output_node().args[0]


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, backend="eager", fullgraph=True)


WAYS = {
    "copied": copy.copy,
    "deep-copied": copy.deepcopy,
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    "saved by torch": saved_and_loaded,
    "scripted": torch.jit.script,
    "traced by torch.jit": lambda module: torch.jit.trace(module, (X,)),
    "replicated": lambda module: module._replicate_for_data_parallel(),
    "compiled": compiled,
    "exported": lambda module: torch.export.export(module, (X,)).module(),
    "exported strictly": lambda module: torch.export.export(module, (X,), strict=True).module(),
    "traced by torch.fx": torch.fx.symbolic_trace,
    "traced by fxplug": lambda module: GraphModule(module, Tracer().trace(module)),
    "wrapped again": lambda module: GraphModule(module, module.graph),
    "interpreted": lambda module: Interpreter(module).run,
    "transformed": lambda module: Transformer(module).transform(),
    "called through its class": lambda module: functools.partial(GraphModule.forward, module),
    "a part of another model": lambda module: nn.Sequential(module, nn.Identity()),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("ran_before", [True, False], ids=["ran", "fresh"])
@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_a_transformed_module_can_be(module, way, ran_before):
    reference = copy.deepcopy(module)
    if ran_before:
        module(X)
    last_call(module).update_arg(1, 4)
    last_call(reference).update_arg(1, 4)
    if way is WAYS["replicated"]:
        # The caller gives a replica its parameters.
        result = way(module)
        for name, parameter in module.named_parameters(recurse=False):
            setattr(result, name, parameter)
    else:
        result = way(module)

    torch.testing.assert_close(result(X), reference(X))
    torch.testing.assert_close(module(X), reference(X))


# -- copies


def test_deep_copy_computes_the_same_with_its_own_weights(module):
    other = copy.deepcopy(module)

    assert torch.equal(other(X), module(X))
    assert other.linear.weight is not module.linear.weight
    assert other.graph is not module.graph
    assert other.graph.owning_module is other
    assert str(other.graph) == str(module.graph)
    assert sorted(other.state_dict()) == sorted(module.state_dict())


def test_deep_copy_is_independent(module):
    expected = module(X)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.linear.weight.zero_()
    last_call(other).update_arg(1, 100)
    next(iter(other.graph.nodes)).meta["note"] = 1

    assert torch.equal(module(X), expected)
    assert not torch.equal(other(X), expected)
    assert "note" not in next(iter(module.graph.nodes)).meta


def test_deep_copy_keeps_shared_parameters_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x)) @ self.first.weight

    other = copy.deepcopy(edited(Tied()))
    assert other.first.weight is other.second.weight


def test_deep_copy_copies_lifted_constants_once():
    other = copy.deepcopy(edited(Reading().eval()))
    other.double()

    assert other(X.double()).dtype == torch.float64


def test_shallow_copy_shares_values_but_not_tables(module):
    other = copy.copy(module)
    assert torch.equal(other(X), module(X))
    assert other.linear is module.linear
    other.linear = nn.Linear(3, 3, bias=False)

    assert module.linear.bias is not None
    assert not torch.equal(other(X), module(X))


def test_shallow_copy_runs_with_its_own_values(module):
    module(X)
    other, reference = copy.copy(module), copy.deepcopy(module)
    other.linear = reference.linear = nn.Linear(3, 3)

    assert other.forward.__self__ is other
    assert torch.equal(other(X), reference(X))
    assert not torch.equal(other(X), module(X))


def test_copies_of_copies(module):
    other = copy.deepcopy(copy.copy(copy.deepcopy(module)))

    assert torch.equal(other(X), module(X))


# -- pickles


def test_pickle_round_trip(module):
    data = pickle.dumps(module)
    other = pickle.loads(data)

    assert torch.equal(other(X), module(X))
    assert str(other.graph) == str(module.graph)
    assert other.code == module.code
    assert other.graph.owning_module is other
    assert sorted(other.state_dict()) == sorted(module.state_dict())


def test_pickle_keeps_notes_and_origins(module):
    last_call(module).meta["note"] = {"a": [1]}
    other = pickle.loads(pickle.dumps(module))

    assert last_call(other).meta["note"] == {"a": [1]}
    for ours, theirs in zip(other.graph.nodes, module.graph.nodes, strict=True):
        assert ours.stack_trace == theirs.stack_trace
        assert list(ours.meta.get("nn_module_stack", ())) == list(theirs.meta.get("nn_module_stack", ()))


def test_pickled_module_can_be_edited(module):
    other = pickle.loads(pickle.dumps(module))
    last_call(other).update_arg(1, 0)

    assert not other(X).any()


def test_torch_save_and_load(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)

    assert torch.equal(torch.load(file, weights_only=False)(X), module(X))


def test_state_dict_round_trip(module):
    other = edited(type_of(module)().eval())
    assert not torch.equal(other(X), module(X))
    other.load_state_dict(module.state_dict())

    assert torch.equal(other(X), module(X))


def type_of(module):
    return {"Net": Net, "Reading": Reading}[module._get_name()]


# -- other tools


def test_traced_by_torch_jit(module, recwarn):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        traced = torch.jit.trace(module, (X,))
    torch.testing.assert_close(traced(X), module(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated:DeprecationWarning")
def test_two_different_modules_are_scripted_in_one_process(module):
    other = edited(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))

    torch.testing.assert_close(torch.jit.script(module)(X), module(X))
    torch.testing.assert_close(torch.jit.script(other)(X), other(X))


def test_exported(module):
    exported = torch.export.export(module, (X,))

    torch.testing.assert_close(exported.module()(X), module(X))


def test_traced_by_torch_fx(module):
    theirs = torch.fx.symbolic_trace(module)

    torch.testing.assert_close(theirs(X), module(X))
    assert [node.op for node in theirs.graph.nodes] == [node.op for node in module.graph.nodes]


def test_traced_by_torch_fx_as_it_is_after_each_edit(module):
    torch.fx.symbolic_trace(module)
    last_call(module).update_arg(1, 7)

    torch.testing.assert_close(torch.fx.symbolic_trace(module)(X), module(X))


def test_several_modules_are_traced_by_torch_fx_in_one_process(module):
    other = edited(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))

    for one in (module, other, module):
        torch.testing.assert_close(torch.fx.symbolic_trace(one)(X), one(X))


def test_traced_by_torch_fx_inside_another_model(module):
    outer = nn.Sequential(module, nn.ReLU(), edited(nn.Linear(3, 3)))
    theirs = torch.fx.symbolic_trace(outer)

    torch.testing.assert_close(theirs(X), outer(X))
    assert {node.target for node in theirs.graph.find_nodes(op="call_module")} >= {"0.linear", "1"}


def test_traced_by_a_tracer_of_torch_fx_that_is_customised(module):
    class Own(torch.fx.Tracer):
        def trace(self, root, concrete_args=None):
            return super().trace(root, concrete_args)

    theirs = torch.fx.GraphModule(module, Own().trace(module))
    torch.testing.assert_close(theirs(X), module(X))


def test_parameters_keep_their_kind_through_torch_fx():
    tracer = Tracer()
    graph = tracer.trace(with_all_kinds)
    module = GraphModule(tracer.root, graph)
    theirs = torch.fx.symbolic_trace(module)

    assert torch.equal(theirs(X), module(X))
    assert torch.equal(theirs(X, 2.0, k=4.0), module(X, 2.0, k=4.0))


def with_all_kinds(x, factor=1.0, *, k=2.0):
    return x * factor + k


# -- the class on its own


def test_forward_can_be_called_through_the_class(module):
    assert torch.equal(GraphModule.forward(module, X), module(X))
    assert torch.equal(type(module).forward(module, x=X), module(X))


def test_looking_at_the_class_says_nothing_about_one_module(module):
    root = module  # noqa: F841 - a tracer would have a local of this name in the frame that asks

    def ask():
        return GraphModule.forward

    assert not inspect.isfunction(ask())


# -- subclasses


class Own(GraphModule):
    """A graph module with a constructor and attributes of its own."""

    limit = 3

    def __init__(self, root, graph, *, note):
        super().__init__(root, graph, "Own")
        self.note = note
        self.extra = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(1))

    def helper(self):
        return self.note

    def forward_twice(self, x):
        return super().forward(super().forward(x))


class Wrapping(GraphModule):
    """Runs its graph between two steps of its own."""

    def forward(self, x):
        return super().forward(x + 1) * 2


@pytest.fixture
def own():
    torch.manual_seed(0)
    tracer = Tracer()
    graph = tracer.trace(Net().eval())
    return Own(tracer.root, graph, note=[1])


COPIES = [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]


@pytest.mark.parametrize("make", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_a_copy_of_a_subclass_is_one(own, make):
    other = make(own)
    other.graph.output_node().meta["note"] = 1

    assert type(other) is Own
    assert (other.helper(), other.limit) == ([1], 3)
    assert torch.equal(other(X), own(X))
    assert torch.equal(other.forward_twice(X), own(own(X)))
    assert torch.equal(other.extra(X), own.extra(X))
    assert sorted(other.state_dict()) == sorted(own.state_dict())


class WrappingAgain(Wrapping):
    def forward(self, x):
        return super().forward(x) - 1


class Calling(GraphModule):
    def __call__(self, x):
        return super().__call__(x) + 1


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("kind", [Wrapping, WrappingAgain])
def test_a_subclass_that_runs_its_graph_is_compiled_also_after_an_edit(module, kind, fullgraph):
    torch._dynamo.reset()
    wrapping = kind(module, module.graph)
    compiled = torch.compile(wrapping, backend="eager", fullgraph=fullgraph)

    torch.testing.assert_close(compiled(X), wrapping(X))
    before = wrapping(X)
    last_call(wrapping).update_arg(1, 9)
    torch.testing.assert_close(compiled(X), wrapping(X))
    assert not torch.equal(before, wrapping(X))


def test_a_subclass_that_runs_its_graph_is_compiled_inside_another_model(module):
    torch._dynamo.reset()
    outer = nn.Sequential(Wrapping(module, module.graph), nn.ReLU())
    compiled = torch.compile(outer, backend="eager", fullgraph=True)

    torch.testing.assert_close(compiled(X), outer(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("kind", "named"), [(Wrapping, "Wrapping"), (WrappingAgain, "WrappingAgain"), (Calling, "Calling")]
)
def test_scripting_refuses_a_subclass_that_changes_what_a_call_does(module, kind, named, nested):
    part = kind(module, module.graph)
    model = nn.Sequential(nn.Identity(), part) if nested else part

    with pytest.raises(GraphError, match=rf"Cannot script .*\.{named} has a forward or __call__ of its own"):
        torch.jit.script(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_a_subclass_that_computes_what_its_graph_does_is_scripted(own):
    other = type("Plain", (GraphModule,), {"helper": lambda self: 1})(own, own.graph)

    torch.testing.assert_close(torch.jit.script(other)(X), own(X))


@pytest.mark.parametrize("make", COPIES[1:], ids=["deepcopy", "pickle"])
def test_nodes_in_attributes_of_a_copy_stand_in_its_graph(own, make):
    own.note = [own.graph.output_node()]
    own.graph.lint()
    other = make(own)

    assert other.note[0] is other.graph.output_node()
    assert other.note[0] is not own.graph.output_node()


@pytest.mark.parametrize("make", [copy.deepcopy, COPIES[2]], ids=["deepcopy", "pickle"])
def test_attributes_of_a_copied_subclass_are_its_own(own, make):
    other = make(own)
    other.note.append(2)
    other.seen += 1

    assert own.note == [1]
    assert not own.seen.any()


def test_a_subclass_may_run_its_graph_inside_its_own_forward(module):
    wrapping = Wrapping(module, copy.deepcopy(module.graph))

    assert torch.equal(wrapping(X), module(X + 1) * 2)
    assert torch.equal(copy.deepcopy(wrapping)(X), module(X + 1) * 2)
    torch.testing.assert_close(torch.fx.symbolic_trace(wrapping)(X), wrapping(X))


@pytest.mark.parametrize("name", ["helper", "limit", "forward_twice"])
def test_names_of_a_subclass_are_reserved_too(name):
    root = nn.Module()
    root.add_module(name, nn.Linear(3, 3))
    graph = Graph()
    graph.output(graph.call_module(name, (graph.placeholder("x"),)))

    GraphModule(root, graph)
    with pytest.raises(GraphError, match=rf"Cannot use '{name}'.*FXP-G010"):
        Own(root, graph, note=0)
    module = Own(nn.Module(), Graph(), note=0)
    with pytest.raises(GraphError, match="FXP-G010"):
        setattr(module, name, nn.ReLU())


def test_tables_of_a_shallow_copy_are_its_own(module):
    other = copy.copy(module)
    other.register_buffer("late", torch.ones(1), persistent=False)
    other.register_forward_hook(lambda *_: 0)
    other.register_forward_pre_hook(lambda *_: None)
    other.meta["note"] = 1

    assert other(X) == 0
    assert torch.is_tensor(module(X))
    assert "late" not in module._non_persistent_buffers_set
    assert module.meta == {}


def test_a_copy_owns_the_graph_when_the_original_is_gone(module):
    tracer = Tracer()
    first = GraphModule(tracer.root, tracer.trace(lambda x: x + 1))
    second = copy.copy(first)
    assert first.graph.owning_module is first
    del first
    gc.collect()

    assert second.graph.owning_module is second


# -- hooks, devices and dtypes


def test_hooks_run(module):
    calls = []
    module.register_forward_pre_hook(lambda _, args: calls.append("before") or (args[0] * 0,))
    module.register_forward_hook(lambda _, args, result: calls.append("after") or result + 1)
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    module(X.clone().requires_grad_()).sum().backward()

    assert calls == ["before", "after", "backward"]


def test_moved_and_converted_with_its_constants(module):
    module.double()
    assert {value.dtype for value in module.state_dict().values() if value.is_floating_point()} == {
        torch.float64
    }
    assert module(X.double()).dtype == torch.float64
    assert module.to("meta")(X.double().to("meta")).device.type == "meta"


# -- parallel


def test_a_replica_runs_its_own_weights(module):
    module(X)
    replica = module._replicate_for_data_parallel()
    for part, original in zip(replica.modules(), module.modules(), strict=True):
        assert part is not original or part is not replica
    replica.linear = replica.linear._replicate_for_data_parallel()
    replica.linear.weight = module.linear.weight.detach() * 2
    replica.linear.bias = module.linear.bias.detach() * 0
    reference = copy.deepcopy(module)
    with torch.no_grad():
        reference.linear.weight.mul_(2)
        reference.linear.bias.zero_()
    for name, parameter in module.named_parameters(recurse=False):
        setattr(replica, name, parameter)

    torch.testing.assert_close(replica(X), reference(X))
    assert replica.forward.__self__ is replica
    assert not torch.equal(module(X), reference(X))


@pytest.fixture
def process_group(tmp_path, monkeypatch):
    if sys.platform == "linux":  # Else it would ask the network for the name of this machine.
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch was built without it",
)
@pytest.mark.usefixtures("process_group")
def test_wrapped_for_distributed_training(module):
    module.train()
    reference = copy.deepcopy(module)
    wrapped = nn.parallel.DistributedDataParallel(module)
    wrapped(X).sum().backward()
    reference(X).sum().backward()

    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    last_call(module).update_arg(1, 5)
    torch.testing.assert_close(wrapped(X), module(X))


def test_compiled_without_graph_break(module):
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)

    torch.testing.assert_close(compiled(X), module(X))


def test_compiled_again_after_an_edit(module):
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    compiled(X)
    last_call(module).update_arg(1, 9)

    torch.testing.assert_close(compiled(X), module(X))


@torch.compiler.disable
def negated(x):
    return -x


class Breaking(nn.Module):
    """Calls what torch.compile leaves alone."""

    def forward(self, x):
        return negated(x) * 2


class Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = Breaking()

    def forward(self, x):
        return self.inner(self.linear(x)).relu()


class KeepingBreaks(Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Breaking) or super().is_leaf_module(m, module_qualified_name)


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_where_a_submodule_breaks_the_graph(inside):
    torch._dynamo.reset()
    tracer = KeepingBreaks()
    graph = tracer.trace(Holding())
    module = GraphModule(tracer.root, graph)
    outer = nn.Sequential(module, nn.ReLU()) if inside else module
    compiled = torch.compile(outer, backend="eager")

    with torch.no_grad():  # Behind a break, Dynamo looks at the gradients of values that have none.
        torch.testing.assert_close(compiled(X), outer(X))
        graph.output_node().update_arg(0, graph.output_node().args[0].args[0])
        torch.testing.assert_close(compiled(X), outer(X))


def test_compiled_inside_another_model_without_graph_break(module):
    torch._dynamo.reset()
    outer = nn.Sequential(module, edited(nn.Linear(3, 3)))
    compiled = torch.compile(outer, backend="eager", fullgraph=True)

    torch.testing.assert_close(compiled(X), outer(X))


def test_traced_by_fxplug_again(module):
    again = edited(module)

    torch.testing.assert_close(again(X), module(X) * 3)
    assert [(node.op, node.target) for node in list(again.graph.nodes)[:-2]] == [
        (node.op, node.target) for node in list(module.graph.nodes)[:-1]
    ]


def test_traced_inside_another_model(module):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x) - 1

    outer = edited(Outer().eval())
    torch.testing.assert_close(outer(X), (module(X) - 1) * 3)
    paths = {node.target for node in outer.graph.nodes if node.op in {"call_module", "get_attr"}}
    assert "inner" not in paths
    assert "inner.linear" in paths


def test_vectorised_and_differentiated(module):
    torch.testing.assert_close(torch.vmap(module)(X[None])[0], module(X))
    gradient = torch.func.grad(lambda x: module(x).sum())(X)
    x = X.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(module(x).sum(), x)[0])


def test_trained(module):
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module(X).square().mean()
    for _ in range(20):
        optimizer.zero_grad()
        module(X).square().mean().backward()
        optimizer.step()
    assert module(X).square().mean() < before


# -- being freed


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def use(module):
    module(X)
    str(module)
    copy.deepcopy(module)
    copy.copy(module)(X)
    pickle.dumps(module)
    last_call(module).update_arg(1, 4)
    module(X)
    Interpreter(module).run(X)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", [Net, Reading])
def test_weights_are_freed_by_reference_counting_alone(kind):
    module = edited(kind().eval())
    watched = [weakref.ref(parameter) for parameter in module.parameters()]
    use(module)
    del module

    assert [reference() for reference in watched] == [None] * len(watched)


@pytest.mark.usefixtures("no_collector")
def test_weights_of_a_loaded_module_are_freed_by_reference_counting_alone():
    module = pickle.loads(pickle.dumps(edited(Reading().eval())))
    watched = weakref.ref(module.scale)
    use(module)
    del module

    assert watched() is None


@pytest.mark.usefixtures("no_collector")
def test_source_is_freed_with_its_module(module):
    def generated():
        return {name for name in linecache.cache if "-generated-" in name}

    before = generated()
    own = edited(Net().eval())
    for factor in range(20):
        last_call(own).update_arg(1, factor)
        own(X)
    assert len(generated() - before) == 1
    del own
    assert generated() <= before


@pytest.mark.usefixtures("no_collector")
def test_intermediate_values_are_freed_as_early_as_possible():
    alive: list = []

    def program(x):
        first = x + 1
        second = first * 2
        return second - 1

    module = edited(program)

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            alive.append(sum(reference() is not None for reference in seen))
            seen.append(weakref.ref(result))
            return result

    seen: list = []
    with Watching():
        module(X)
    assert max(alive) <= 1


@pytest.mark.usefixtures("no_collector")
def test_unused_values_are_freed_at_once():
    seen: list = []

    def note(value):
        seen.append(weakref.ref(value))

    tracer = Tracer()
    graph = tracer.trace(lambda x: x * 2)
    (node,) = graph.find_nodes(op="call_function")
    with graph.inserting_before(node):
        unused = graph.call_function(operator.add, (node.args[0], 1))
        graph.call_function(note, (unused,))
        graph.call_function(lambda: seen.append(seen[0]() is None), ())
    GraphModule(tracer.root, graph)(X)
    assert seen[1] is True


class Pooled(nn.Module):
    def forward(self, x):
        pooled = F.max_pool2d(torch.ops.aten.relu.default(x), 2)
        values, counts = torch.unique(torch.ops.aten.neg(pooled), return_counts=True)
        return F.adaptive_max_pool2d(pooled, 1), values, counts


def test_functions_that_pickle_does_not_find_by_themselves():
    tracer = Tracer()
    graph = tracer.trace(Pooled())
    graph.find_nodes(op="output")[0].args = ((*graph.find_nodes(op="output")[0].args[0], F.max_pool1d),)
    for node in graph.nodes:
        node.meta["made_of"] = (torch.ops.aten.relu.default, [F.max_pool2d])
    module = GraphModule(tracer.root, graph)
    loaded = pickle.loads(pickle.dumps(module))
    x = torch.randn(1, 2, 4, 4)
    assert next(iter(loaded.graph.nodes)).meta["made_of"] == (torch.ops.aten.relu.default, [F.max_pool2d])

    assert loaded.code == module.code
    assert [node.target for node in loaded.graph.nodes] == [node.target for node in graph.nodes]
    for one, other in zip(loaded(x), module(x), strict=True):
        assert one is other if callable(other) and not torch.is_tensor(other) else torch.equal(one, other)


def test_a_function_that_nobody_finds_is_said_to_be_one():
    def local(x):
        return x

    graph = Graph()
    graph.output(graph.call_function(local, (graph.placeholder("x"),)))
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(GraphModule(nn.Module(), graph))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_orders_of_memory_are_pickled_with_every_protocol(protocol):
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_method("contiguous", (x,), {"memory_format": torch.channels_last})
    y.meta["seen"] = [torch.contiguous_format, {"order": torch.preserve_format}]
    graph.output(y)
    module = GraphModule({}, graph)
    image = torch.ones(1, 2, 3, 3)
    propagate_shapes(module, image)
    notes = [node.meta for node in module.graph.nodes]
    assert notes[1]["tensor_meta"].memory_format is torch.channels_last

    loaded = pickle.loads(pickle.dumps(module, protocol))

    assert [node.meta for node in loaded.graph.nodes] == notes
    assert loaded(image).is_contiguous(memory_format=torch.channels_last)
