"""Analyses are served while they are true, and never afterwards."""

from __future__ import annotations

import gc
import operator
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug.errors import AnalysisError, PassError, UnknownNameError
from fxplug.passes import (
    BUILTIN_PASSES,
    FuseConvBN,
    Pass,
    PassContext,
    PassRecord,
    PassResult,
    Pipeline,
    PipelineStep,
    analyze,
    check_preserved,
    known_facts,
)

X = torch.randn(2, 3, 8, 8)
SHAPES = frozenset({"shapes"})
NOTES = {"tensor_meta": 1, "val": 2, "example_value": 3, "type": int}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout()

    def forward(self, x):
        return self.drop(torch.relu(self.bn(self.conv(x)))).flatten(1)


@pytest.fixture
def module():
    return fxplug.symbolic_trace(Net().eval())


def step(function, name="step", **declared):
    class Step(Pass):
        def run(self, module, context):
            result = function(module, context)
            return result if isinstance(result, PassResult) else PassResult(modified=bool(result))

    return PipelineStep(name, PassRecord(name, Step, "Test.", **declared))


def run(module, *steps, inputs=(X,), **options):
    return Pipeline("test", steps, **options).run(module, inputs)


def node_of(module, target):
    return next(node for node in module.graph.nodes if node.target == target)


def negate(module, *_):
    """Edit the graph, keeping all shapes."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(operator.neg, (output.args[0],)),)
    return True


def rename(module, *_):
    node_of(module, "bn").name = f"norm_{module.graph.version}"
    return True


def shrink(module, *_):
    """Give the nodes behind the first convolution other shapes."""
    module.conv.stride = (2, 2)
    module.graph.version += 1
    return True


class TestResults:
    def test_shapes_are_those_of_a_run(self, module):
        shapes = {}

        def look(module, context):
            known = context.analysis("shapes")
            shapes.update({node.name: known[node] for node in module.graph.nodes})

        run(module, step(look))
        propagate_shapes(module, X)
        for node in module.graph.nodes:
            noted = node.meta["tensor_meta"]
            known = shapes[node.name]
            assert known.shape == noted.shape
            assert known.dtype == noted.dtype

    def test_asking_for_shapes_leaves_module_and_inputs_alone(self, module):
        module.train()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        inputs = (X.clone(),)
        run(module, step(lambda _, context: len(context.analysis("shapes")) == 0), inputs=inputs)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert torch.equal(inputs[0], X)
        assert all("tensor_meta" not in node.meta for node in module.graph.nodes)

    def test_effects_are_those_of_the_nodes(self, module):
        module.train()
        known = analyze("effects", module)
        assert known[node_of(module, "bn")].writes
        assert known[node_of(module, "drop")].random
        assert not known[node_of(module, "conv")].must_be_kept

    def test_an_unknown_name_is_refused_with_a_suggestion(self, module):
        with pytest.raises(PassError, match=r"There is no analysis named 'shape'\. Did you mean 'shapes'"):
            run(module, step(lambda _, context: context.analysis("shape")))
        with pytest.raises(UnknownNameError):
            analyze("shape", module)

    def test_shapes_need_inputs(self, module):
        with pytest.raises(PassError, match="Cannot analyse 'shapes' without example inputs"):
            run(module, step(lambda _, context: context.analysis("shapes")), inputs=None)

    def test_a_context_that_knows_no_module_says_so(self, module):
        with pytest.raises(AnalysisError, match="this context does not know the module"):
            PassContext((X,)).analysis("effects")
        assert len(PassContext(module=module).analysis("effects")) == len(module.graph.nodes)


class TestValidity:
    def served(self, module, between, **declared):
        """Ask before and after a pass; return the two results."""
        found = []
        look = step(lambda _, context: bool(found.append(context.analysis("shapes"))))
        run(module, look, step(between, **declared), look)
        return found

    def test_nothing_is_computed_twice_while_nothing_changes(self, module):
        first, second = self.served(module, lambda *_: False)
        assert first is second

    def test_nothing_is_computed_that_nobody_asks_for(self, module, monkeypatch):
        monkeypatch.setitem(fxplug.passes.ANALYSES, "shapes", lambda *_: pytest.fail("computed"))
        run(module, step(negate))

    @pytest.mark.parametrize(
        "between",
        [
            negate,
            rename,
            lambda module, _: bool(module.get_submodule("conv").register_forward_hook(print)),
            lambda module, _: module.train() is module,
            lambda module, _: module.add_submodule("conv", nn.Conv2d(3, 4, 3)),
            lambda module, _: setattr(module.conv, "stride", (2, 2)) is None,
            lambda module, _: bool(module.conv.held["sizes"].append(3)),
            lambda module, _: module.conv.weight.data.zero_() is not None,
            lambda module, _: setattr(module, "graph", type(module.graph).__deepcopy__(module.graph)) is None,
        ],
        ids=["inserted", "renamed", "hook", "mode", "module", "attribute", "container", "values", "graph"],
    )
    def test_whatever_changes_makes_a_result_invalid(self, module, between):
        module.conv.held = {"sizes": [1]}
        first, second = self.served(module, between, replaces_parameters=True)
        assert first is not second
        assert not first.is_current
        assert second.is_current
        with pytest.raises(AnalysisError) as caught:
            len(first)
        assert caught.value.code == "FXP-A001"
        assert 'PassRecord(preserves=frozenset({"shapes"}))' in str(caught.value)

    def test_what_is_preserved_is_served_again(self, module):
        first, second = self.served(module, rename, preserves=SHAPES)
        assert first is second
        assert second[node_of(module, "conv")].shape == (2, 4, 6, 6)

    def test_what_another_pass_does_not_preserve_is_not_served(self, module):
        first, second = self.served(module, rename, preserves=frozenset({"effects"}))
        assert first is not second

    def test_what_is_not_known_of_new_nodes_is_computed(self, module):
        first, second = self.served(module, negate, preserves=SHAPES)
        assert first is not second
        assert len(second) == len(first.__dict__["_values"]) + 1

    def test_an_edit_between_two_passes_is_noticed(self, module):
        found = []
        look = step(lambda _, context: bool(found.append(context.analysis("shapes"))), preserves=SHAPES)

        def observer(event):
            if event.index == 1 and event.result is None and event.error is None:
                negate(event.module)

        Pipeline("test", [look, look]).run(module, (X,), [observer])
        assert found[0] is not found[1]

    def test_an_edit_inside_the_pass_is_noticed(self, module):
        def work(module, context):
            held = context.analysis("shapes")
            conv = node_of(module, "conv")
            assert held[conv].shape[-1] == 6
            shrink(module)
            with pytest.raises(AnalysisError, match="were changed since"):
                held[conv]
            assert context.analysis("shapes")[conv].shape[-1] == 3
            return True

        run(module, step(work))

    def test_a_pass_that_preserves_reads_on_while_it_edits(self, module):
        def work(module, context):
            held = context.analysis("shapes")
            negate(module)
            new = module.graph.find_nodes(op="call_function", target=operator.neg)[0]
            assert held[node_of(module, "conv")].shape[-1] == 6
            assert held.get(new) is None
            with pytest.raises(AnalysisError, match="node 'neg': it was made after"):
                held[new]
            assert context.analysis("shapes")[new].shape == (2, 144)
            return True

        run(module, step(work, preserves=SHAPES))

    def test_a_pass_that_fails_preserves_nothing(self, module):
        found = []

        def fail(module, context):
            shrink(module)
            raise ValueError("on purpose")

        look = step(lambda _, context: bool(found.append(context.analysis("shapes"))))
        run(module, look, step(fail, preserves=SHAPES), look, on_error="rollback")
        assert found[0] is not found[1]
        assert found[1][node_of(module, "conv")].shape[-1] == 6

    def test_a_result_keeps_no_dropped_weights_alive(self, module):
        context = PassContext((X,), module=module)
        context.analysis("effects")
        held = weakref.ref(module.conv.weight)
        module.add_submodule("conv", nn.Conv2d(3, 4, 3))
        gc.collect()
        assert held() is None


class TestNotes:
    def noted(self, module):
        for node in module.graph.nodes:
            node.meta.update(NOTES, mine="kept")
        return module

    def names(self, module):
        return {name for node in module.graph.nodes for name in node.meta} & {*NOTES, "mine"}

    def test_they_are_dropped_after_an_edit_that_does_not_preserve_shapes(self, module):
        run(self.noted(module), step(shrink))
        assert self.names(module) == {"mine"}

    def test_also_those_of_graphs_inside(self, module):
        graph = fxplug.Graph()
        graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
        outer = fxplug.GraphModule({"inner": self.noted(module)}, graph)
        run(outer, step(lambda outer, _: negate(outer)))
        assert self.names(module) == {"mine"}

    @pytest.mark.parametrize(
        ("function", "declared"),
        [(shrink, SHAPES), (lambda *_: False, frozenset()), (lambda *_: False, SHAPES)],
        ids=["preserved", "unchanged", "both"],
    )
    def test_else_they_are_kept(self, module, function, declared):
        run(self.noted(module), step(function, preserves=declared))
        assert self.names(module) == {*NOTES, "mine"}

    def test_a_pass_that_only_notes_keeps_what_it_noted(self, module):
        run(module, step(lambda module, context: propagate_shapes(module, X) is None))
        assert "tensor_meta" in node_of(module, "conv").meta

    def test_a_failure_behind_it_gives_them_back(self, module):
        def break_it(module, *_):
            module.conv = nn.Conv2d(3, 5, 3)
            return True

        with pytest.raises(PassError):
            run(self.noted(module), step(break_it))
        assert self.names(module) == {*NOTES, "mine"}


class TestChecking:
    def lies(self, module, function, names=("shapes", "effects")):
        before = known_facts(names, module, (X,))
        function(module)
        return check_preserved(before, module, (X,))

    def test_the_truth_is_found_to_be_true(self, module):
        assert self.lies(module, rename) == []
        assert self.lies(module, negate) == []

    @pytest.mark.parametrize("record", BUILTIN_PASSES, ids=lambda record: record.name)
    def test_built_in_passes_tell_the_truth(self, module, record):
        def transform(module):
            record.factory().run(module, PassContext((X,), module=module))

        assert self.lies(module, transform, record.preserves) == []

    def test_a_lie_about_shapes_is_found(self, module):
        found = self.lies(module, shrink)
        assert "'shapes' of node 'conv' was float32[2, 4, 6, 6] and is float32[2, 4, 3, 3]" in found

    def test_a_lie_about_effects_is_found(self, module):
        assert any("'effects' of node 'bn' was" in lie for lie in self.lies(module, lambda m: m.train()))

    def test_notes_that_are_out_of_date_are_found(self, module):
        propagate_shapes(module, X)
        node_of(module, "conv").meta["tensor_meta"] = node_of(module, "x").meta["tensor_meta"]
        found = self.lies(module, lambda _: None)
        assert found == ["'shapes' of node 'conv' is noted as float32[2, 3, 8, 8] and is float32[2, 4, 6, 6]"]

    def test_a_graph_that_does_not_run_any_more_is_a_finding(self, module):
        (found,) = self.lies(
            module, lambda module: module.add_submodule("conv", nn.Conv2d(7, 4, 3)), ["shapes"]
        )
        assert found.startswith("'shapes' cannot be analysed any more: RuntimeError")

    def test_another_graph_is_compared_by_names(self, module):
        def exchange(module):
            module.graph = fxplug.symbolic_trace(Net().eval()).graph
            shrink(module)

        assert any("'conv' was" in lie for lie in self.lies(module, exchange))

    def test_shapes_are_left_out_without_inputs(self, module):
        assert list(known_facts(["shapes", "effects"], module, None)) == ["effects"]


def test_folding_keeps_the_shapes_that_are_known(module):
    known = []
    look = step(lambda _, context: bool(known.append(context.analysis("shapes"))))
    fuse = next(record for record in BUILTIN_PASSES if record.factory is FuseConvBN)
    run(module, look, PipelineStep(fuse.name, fuse), look)
    assert known[0] is known[1]
    assert known[1][node_of(module, "conv")].shape == (2, 4, 6, 6)


class Counting(nn.Module):
    """Returns as many numbers as a buffer has that are not zero."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0]))

    def forward(self, x):
        return x[self.mask.bool()] + 1


class TestValuesThatAreUndone:
    @staticmethod
    def sizes_of(module, first, **options):
        sizes = []

        def second(module, context):
            sizes.append(tuple(context.analysis("shapes")[node_of(module, operator.add)].shape))
            return False

        run(module, step(first, "first"), step(second, "second"), inputs=(torch.ones(3),), **options)
        return sizes

    def test_what_a_failing_pass_asked_for_is_not_served(self):
        def first(module, context):
            module.mask.zero_()
            context.analysis("shapes")
            raise ValueError

        module = fxplug.symbolic_trace(Counting())
        assert self.sizes_of(module, first, on_error="rollback") == [(2,)]

    def test_what_a_pass_asked_for_that_took_its_writes_back_is_not_served(self):
        def first(module, context):
            mask = module.mask.data
            former = mask.clone()
            mask.zero_()
            context.analysis("shapes")
            mask.copy_(former)
            return False

        assert self.sizes_of(fxplug.symbolic_trace(Counting()), first) == [(2,)]
