"""Folding nodes into a submodule, and inlining submodules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError, PartitionError, UnknownNameError
from fxplug.execute import GraphModule
from fxplug.passes import BUILTIN_PASSES, InlineSubmodules, PassContext, Pipeline, PipelineStep

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.second = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        y = self.first(x * self.scale)
        return self.second(y + self.shift) * self.scale + y


def captured(model=None):
    model = Model() if model is None else model
    return model, fxplug.symbolic_trace(model)


def calls(module):
    return [node.name for node in module.graph.nodes if node.op.startswith("call_")]


def text(module, *prefixes):
    """Return a graph as text, without names, and with the paths that things had outside of submodules."""
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    rows = []
    for node in module.graph.nodes:
        target = node.target
        for prefix in prefixes:
            target = target.removeprefix(f"{prefix}.") if isinstance(target, str) else target
        arguments = fxplug.map_arg((node.args, dict(node.kwargs)), lambda used: f"%{numbers[used]}")
        rows.append((node.op, str(target), str(arguments), node.region, node.origins))
    return rows


# -- folding


def test_nodes_become_a_submodule_with_what_only_they_use():
    model, module = captured()
    expected = model(X)
    call = fxplug.fold_submodule(module, ["first_0", "first_1", "add"], "stem")

    module.graph.lint()
    assert calls(module) == ["mul", "stem", "getitem", "getitem_1", "second", "mul_1", "add_1"]
    assert call.target == "stem"
    assert calls(module.stem) == ["first_0", "first_1", "add"]
    assert {id(value) for value in module.parameters()} == {id(value) for value in model.parameters()}
    assert set(module.state_dict()) == {
        "scale",
        "second.weight",
        "second.bias",
        "stem.first.0.weight",
        "stem.first.0.bias",
    }
    assert [name for name, _ in module.named_buffers()] == ["stem.shift"]
    assert not hasattr(module, "first")
    assert torch.equal(module(X), expected)


def test_what_stands_between_and_needs_them_moves_behind():
    module = fxplug.symbolic_trace(
        lambda x: ((a := torch.sin(x)), (b := a + 1), (c := torch.cos(x)), b * c)[-1]
    )
    expected = module(X)
    fxplug.fold_submodule(module, ["sin", "cos"], "waves")

    assert calls(module) == ["waves", "getitem", "getitem_1", "add", "mul"]
    assert torch.equal(module(X), expected)


def test_a_value_that_leads_out_and_back_is_an_error_that_names_the_way():
    model, module = captured()
    before = text(module)
    with pytest.raises(PartitionError) as caught:
        fxplug.fold_submodule(module, ["first_0", "second"], "stem")

    assert str(caught.value) == (
        "Cannot fold the nodes into one submodule: a value of 'first_0' goes through 'first_1' and 'add', which would "
        "stay outside, and back to 'second'. Fold these too, or leave out 'second'. [FXP-G030]"
    )
    assert text(module) == before
    assert not hasattr(module, "stem")
    assert torch.equal(module(X), model(X))


def test_an_effect_that_leads_out_and_back_is_an_error():
    module = fxplug.symbolic_trace(lambda x: ((y := x * 1), (z := y + 1), y.add_(1), y * z)[-1])
    with pytest.raises(PartitionError, match="an effect or a value of 'add' goes through 'add_'"):
        fxplug.fold_submodule(module, ["add", "mul_1"], "inner")
    fxplug.fold_submodule(module, ["add", "add_"], "inner")

    assert torch.equal(module(X), (X + 1) * (X + 1))


def test_nodes_can_be_folded_in_folded_ones_and_unused_values_stay_unused():
    model, module = captured()
    fxplug.fold_submodule(module, ["first_0", "first_1"], "inner")
    fxplug.fold_submodule(module, ["mul", "inner"], "outer")

    assert isinstance(module.outer.inner, GraphModule)
    assert torch.equal(module(X), model(X))


def test_regions_origins_and_notes_come_along():
    def program(x):
        with torch.no_grad():
            y = torch.sin(x)
        return y * x

    module = fxplug.symbolic_trace(program)
    fxplug.analyze.ShapeProp(module).propagate(X)
    (sine,) = module.graph.find_nodes(op="call_function", target=torch.sin)
    origins, region = sine.origins, sine.region
    call = fxplug.fold_submodule(module, [sine], "inner")
    (inside,) = module.inner.graph.find_nodes(op="call_function", target=torch.sin)

    assert (inside.origins, inside.region, call.origins, call.region) == (origins, region, origins, ())
    assert inside.meta["tensor_meta"].shape == call.meta["tensor_meta"].shape == X.shape
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    assert torch.equal(x.grad, X.sin())


@pytest.mark.parametrize(
    ("nodes", "name", "kind", "message"),
    [
        ([], "inner", InvalidArgumentError, "Cannot fold nothing"),
        (["x"], "inner", InvalidArgumentError, "Cannot fold node 'x': it is no call but a placeholder"),
        (["nothing"], "inner", UnknownNameError, "There is no node named 'nothing'"),
        (["mul"], "second", InvalidArgumentError, "into 'second': the module has that already"),
        (["mul"], "graph", InvalidArgumentError, "into 'graph'"),
        (["mul"], "a.b", InvalidArgumentError, "into 'a.b': no submodule may have that name"),
    ],
)
def test_what_cannot_be_folded_is_refused(nodes, name, kind, message):
    _, module = captured()
    before = text(module)
    with pytest.raises(kind, match=message):
        fxplug.fold_submodule(module, nodes, name)

    assert text(module) == before


def test_a_node_of_another_module_is_refused():
    _, module = captured()
    _, other = captured()
    with pytest.raises(ForeignNodeError, match="no node of this module's graph"):
        fxplug.fold_submodule(module, other.graph.find_nodes(op="call_module"), "inner")


def test_weights_of_the_original_are_loaded_after_folding_and_after_inlining():
    _, module = captured()
    fxplug.fold_submodule(module, ["first_0", "first_1", "add"], "stem")
    for _ in range(2):
        other = Model()
        fxplug.load_original_state_dict(module, other.state_dict())
        torch.testing.assert_close(module(X), other(X), rtol=0, atol=0)
        if "stem" in calls(module):
            fxplug.inline_submodule(module, "stem")


# -- round trip


@pytest.mark.parametrize("nodes", [["mul"], ["mul", "first_0"], ["first_0", "first_1", "add"], None])
def test_folding_and_inlining_give_the_same_graph(nodes):
    model, module = captured()
    nodes = calls(module) if nodes is None else nodes
    before, parameters = text(module), [id(value) for value in model.parameters()]
    fxplug.fold_submodule(module, nodes, "inner")
    assert fxplug.inline_submodule(module, "inner") == 1

    module.graph.lint()
    reads = [row for row in text(module, "inner") if row[0] == "get_attr"]
    assert len(reads) == 2
    assert [row[:2] for row in text(module, "inner") if row[0] != "get_attr"] == [
        row[:2] for row in before if row[0] != "get_attr"
    ]
    assert sorted(id(value) for value in module.parameters()) == sorted(parameters)
    assert not isinstance(module.inner, GraphModule)
    assert torch.equal(module(X), model(X))


def test_the_round_trip_of_nodes_without_attributes_is_exact():
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
    before = text(module)
    fxplug.fold_submodule(module, ["_0", "_1"], "inner")
    fxplug.inline_submodule(module, "inner")

    assert text(module, "inner") == before


# -- inlining


class Leaves(fxplug.Tracer):
    """Leaves every submodule as it is."""

    def is_leaf_module(self, m, module_qualified_name):
        return True


def with_leaves(model):
    tracer = Leaves()
    graph = tracer.trace(model)
    return GraphModule(tracer.root, graph)


class Calls(nn.Module):
    def __init__(self, inner, program):
        super().__init__()
        self.inner = inner
        self.program = program

    def forward(self, x):
        return self.program(self.inner, x)


def inlined(inner, program):
    """Return a module with the calls of `inner` inlined, checked against the module."""
    model = Calls(inner, program)
    module = with_leaves(model)
    count = len(module.graph.find_nodes(op="call_module", target="inner"))
    assert count
    keys = list(module.state_dict())
    assert fxplug.inline_submodule(module, "inner") == count
    module.graph.lint()
    assert list(module.state_dict()) == keys
    assert not module.graph.find_nodes(op="call_module", target="inner")
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)
    return module


def test_a_submodule_that_is_called_several_times_is_inlined_at_each_call():
    module = inlined(
        fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), lambda inner, x: inner(inner(x)) + x
    )

    assert [node.target for node in module.graph.find_nodes(op="call_module")] == ["inner.0", "inner.1"] * 2


def test_a_submodule_that_can_be_captured_is_inlined():
    module = inlined(Model(), lambda inner, x: inner(x) * 2)

    assert isinstance(module.inner, Model)
    assert {node.target for node in module.graph.find_nodes(op="call_module")} == {
        "inner.first.0",
        "inner.first.1",
        "inner.second",
    }


def test_defaults_keywords_and_starred_parameters_are_bound():
    def program(x, factor=2, *rest, shift=1, **more):
        return x * factor + sum(rest) + shift + more.get("extra", 0)

    class Wide(nn.Module):
        def forward(self, x, factor=2, *, shift=1):
            return x * factor + shift

    inner = fxplug.symbolic_trace(Wide())
    inlined(
        inner, lambda inner, x: inner(x) + inner(x, 3) + inner(x, factor=4, shift=x) + inner(factor=x, x=x)
    )


def test_results_of_every_structure_are_taken_apart():
    def several(x):
        return {"sum": x + 1, "rest": [x * 2, (x, 3)]}

    class Several(nn.Module):
        def forward(self, x):
            return several(x)

    def use(inner, x):
        found = inner(x)
        return found["rest"][0] + found["sum"], found["rest"][1][1], found

    inlined(fxplug.symbolic_trace(Several()), use)


def test_a_result_that_somebody_changes_is_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return [x + 1, x]

    def use(inner, x):
        found = inner(x)
        found[0] = x
        return found[0] + found[1]

    module = with_leaves(Calls(fxplug.symbolic_trace(Pair()), use))
    with pytest.raises(
        GraphError, match="it returns a immutable_list, and 'setitem' may change what 'inner' returned"
    ):
        fxplug.inline_submodule(module, "inner")


def test_new_nodes_run_in_the_regions_of_the_call_too():
    class Inner(nn.Module):
        def forward(self, x):
            with torch.enable_grad():
                y = x * 2
            return x + 1, y

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fxplug.symbolic_trace(Inner())

        def forward(self, x):
            with torch.no_grad():
                return self.inner(x)

    module = with_leaves(Outer())
    fxplug.inline_submodule(module, "inner")
    first, second = module(X.clone().requires_grad_())

    assert not first.requires_grad
    assert second.requires_grad


def test_effects_keep_their_order():
    class Inner(nn.Module):
        def forward(self, x):
            y = x * 1
            x.add_(1)
            return y

    inlined(fxplug.symbolic_trace(Inner()), lambda inner, x: ((y := x * 1), inner(y) + y)[1])


def test_constants_that_the_submodule_does_not_hold_come_along():
    class Inner(nn.Module):
        def forward(self, x):
            return x + torch.tensor([1.0, 2.0, 3.0])

    module = inlined(Inner(), lambda inner, x: inner(x))
    twin = copy.deepcopy(module)

    assert not module.state_dict()
    fxplug.load_original_state_dict(module, {})
    assert torch.equal(twin(X), X + torch.tensor([1.0, 2.0, 3.0]))


def guarded():
    return fxplug.trace(lambda x: x * 2 if x.sum() < 100 else x, (X,))


def hooked():
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()))
    module.register_forward_hook(lambda *_: None)
    return module


def own_forward():
    module = nn.ReLU()
    module.forward = lambda x: x * 3
    return module


class Subclass(GraphModule):
    def forward(self, x):
        return super().forward(x) + 1


def with_structure():
    return fxplug.symbolic_trace(lambda pair: pair["a"], concrete_args={"pair": {"a": fxplug.PH}})


def depends_on_mode():
    class Inner(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x

    return fxplug.symbolic_trace(Inner().eval())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (hooked, "it has hooks, which nobody would call"),
        (own_forward, "it has a forward of its own on the instance"),
        (
            lambda: Subclass(nn.Module(), fxplug.symbolic_trace(lambda x: x * 1).graph),
            "its class Subclass has a forward",
        ),
        (guarded, "it has guards, which nobody would check"),
        (with_structure, "its graph has a calling convention of its own"),
        (depends_on_mode, "it was captured for self.training being False"),
        (lambda: fxplug.symbolic_trace(lambda x, y: x + y), "its call 'inner' does not fit its parameters"),
    ],
)
def test_what_inlining_would_change_is_refused(make, reason):
    module = with_leaves(Calls(make(), lambda inner, x: inner(x)))
    before = text(module)
    with pytest.raises(GraphError, match=reason) as caught:
        fxplug.inline_submodule(module, "inner")

    assert caught.value.code == "FXP-G032"
    assert "Cannot inline the submodule 'inner'" in str(caught.value)
    assert text(module) == before


def test_a_path_that_is_not_called_is_refused():
    _, module = captured()
    with pytest.raises(UnknownNameError, match="There is no submodule that is called named 'third'"):
        fxplug.inline_submodule(module, "third")


# -- the pass


def nested():
    inner = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    middle = with_leaves(Calls(inner, lambda inner, x: inner(x) + inner(x * 2)))
    return Calls(middle, lambda inner, x: inner(x) * 3)


RECORD = next(record for record in BUILTIN_PASSES if record.name == "inline-submodules")


def test_the_pass_inlines_graph_modules_and_those_in_them_and_is_idempotent():
    model = nested()
    module = with_leaves(model)
    parameters = [id(value) for value in module.parameters()]
    first = InlineSubmodules().run(module, PassContext())
    second = InlineSubmodules().run(module, PassContext())

    assert (first.modified, first.details) == (True, {"inlined": 3, "left": 0})
    assert (second.modified, second.summary) == (False, "nothing to inline")
    assert {node.target for node in module.graph.find_nodes(op="call_module")} == {
        "inner.inner.0",
        "inner.inner.1",
    }
    assert [id(value) for value in module.parameters()] == parameters
    assert isinstance(model.inner, GraphModule)
    assert isinstance(model.inner.inner, GraphModule)
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)


def test_the_pass_leaves_what_it_may_not_inline_and_says_so():
    module = with_leaves(Calls(hooked(), lambda inner, x: inner(x)))
    result = InlineSubmodules().run(module, PassContext())

    assert not result.modified
    assert result.summary == "nothing to inline; 'inner' stays: it has hooks, which nobody would call"


def test_the_pass_takes_the_paths_that_it_is_given():
    model = Calls(Model(), lambda inner, x: inner(x))
    module = with_leaves(model)

    assert not InlineSubmodules().run(module, PassContext()).modified
    assert InlineSubmodules(paths=["inner"]).run(module, PassContext()).modified
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)


def test_the_pass_asks_before_each_rewrite():
    class Denying(PassContext):
        def allows(self, node, what):
            asked.append((node.name, what))
            return False

    asked = []
    module = with_leaves(nested())
    before = text(module)
    result = InlineSubmodules().run(module, Denying())

    assert asked == [("inner", "inline")]
    assert (result.modified, result.summary, text(module)) == (False, "nothing to inline", before)


def test_the_pass_runs_in_a_verified_pipeline_notes_itself_and_keeps_weights_loadable():
    module = with_leaves(nested())
    step = PipelineStep("inline-submodules", RECORD)
    (report,) = Pipeline("trial", [step], verify="paranoid").run(module, (X,))

    assert report.result.modified
    assert {node.history[-1].name for node in module.graph.nodes if node.op.startswith("call_module")} == {
        "inline-submodules"
    }
    other = nested()
    fxplug.load_original_state_dict(module, other.state_dict())
    torch.testing.assert_close(module(X), other(X), rtol=0, atol=0)


def test_the_pass_is_undone_when_the_pipeline_fails():
    module = with_leaves(nested())
    before, inner = text(module), module.inner

    class Failing(InlineSubmodules):
        def run(self, module, context):
            super().run(module, context)
            raise ValueError("no")

    step = PipelineStep("failing", fxplug.PassRecord("failing", Failing, "Fails."))
    with pytest.raises(fxplug.PassError):
        Pipeline("trial", [step]).run(module)

    assert text(module) == before
    assert module.inner is inner
    assert isinstance(module.inner.inner, GraphModule)
    module(X)
