"""Comparing graph modules layer by layer."""

from __future__ import annotations

import copy
import gc
import math
import operator
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze.comparison import Tolerance
from fxplug.analyze.layers import compare_layers, failing_node
from fxplug.errors import AnalysisError
from fxplug.execute.fused import onednn_fault
from fxplug.passes import BUILTIN_PASSES, Pipeline, PipelineStep
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS, decompose

FUSE = next(record for record in BUILTIN_PASSES if record.name == "fuse-conv-bn")
ONEDNN = next(record for record in BUILTIN_PASSES if record.name == "onednn-fuse")
X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linears = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        for linear in self.linears:
            y = nn.functional.hardswish(linear(y)) + 1
        return y


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Net().eval())


def pairs(found):
    return {layer.name: layer.reference for layer in found.layers}


def test_a_module_agrees_with_itself(module):
    found = compare_layers(module, module, (X,))

    assert found.passed
    assert pairs(found) == {
        node.name: node.name for node in module.graph.nodes if node.op not in {"placeholder"}
    }
    assert {layer.max_abs_error for layer in found.layers} == {0.0}
    assert {layer.sqnr for layer in found.layers} == {math.inf}
    assert (found.worst, found.first_difference) == (None, None)
    assert (found.only_in_reference, found.only_in_module) == ((), ())


def test_a_folded_convolution_stands_for_the_norm(module):
    folded = copy.deepcopy(module)
    Pipeline("test", [PipelineStep("fuse-conv-bn", FUSE)]).run(folded)

    found = compare_layers(module, folded, (X,))

    assert found.passed
    assert pairs(found)["conv"] == "norm"
    assert found.only_in_reference == ("conv",)
    assert found.only_in_module == ()


class Fusable(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.parts = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)]) for _ in range(3)
        )

    def forward(self, x):
        y = torch.sigmoid(self.second(self.first(x).relu()))
        for _ in range(2):
            y = torch.relu(self.again(y))
        for conv, norm in self.parts:
            y = torch.relu(norm(conv(y)) + y)
        return y


@pytest.mark.skipif(bool(onednn_fault()), reason="oneDNN cannot be used here")
@pytest.mark.parametrize("is_reference", [False, True])
def test_fused_layers_stand_for_the_last_call_that_became_part_of_them(is_reference):
    plain = fxplug.symbolic_trace(Fusable().eval())
    fused = copy.deepcopy(plain)
    Pipeline("fuse", [PipelineStep("fuse-conv-bn", FUSE), PipelineStep("onednn-fuse", ONEDNN)]).run(
        fused, (X,)
    )

    found = compare_layers(*((fused, plain) if is_reference else (plain, fused)), (X,))

    assert found.differences == ()
    aligned = pairs(found)
    if is_reference:
        aligned = {reference: name for name, reference in aligned.items()}
    assert [node.op for node in fused.graph.nodes].count("call_module") == 7
    expected = {"first": "relu", "second": "sigmoid", "again": "relu_1", "again_1": "relu_2"}
    expected |= {f"parts_{number}_0": f"relu_{number + 3}" for number in range(3)}
    assert aligned == {**expected, "output": "output"}


@pytest.mark.skipif(bool(onednn_fault()), reason="oneDNN cannot be used here")
def test_a_fused_layer_that_is_wrong_is_found():
    plain = fxplug.symbolic_trace(Fusable().eval())
    fused = copy.deepcopy(plain)
    Pipeline("fuse", [PipelineStep("fuse-conv-bn", FUSE), PipelineStep("onednn-fuse", ONEDNN)]).run(
        fused, (X,)
    )
    with torch.no_grad():
        fused.get_parameter("parts.1.0.weight").add_(1)

    first = compare_layers(plain, fused, (X,)).first_difference
    assert (first.name, first.reference) == ("parts_1_0", "relu_4")


def test_a_decomposed_call_stands_for_the_call_and_its_parts_for_nothing(module):
    decomposed = decompose(module, BUILTIN_DECOMPOSITIONS)

    found = compare_layers(module, decomposed, (X,))

    values = [node for node in decomposed.graph.nodes if node.history and not node.history[-1].inside]
    assert [pairs(found)[node.name] for node in values] == ["hardswish", "hardswish_1", "hardswish_2"]
    assert pairs(found)["add_3"] == "add_1"  # Names of a graph that was written anew are other ones.
    assert found.passed
    assert found.only_in_reference == ()
    assert set(found.only_in_module) == {
        node.name for node in decomposed.graph.nodes if any(entry.inside for entry in node.history)
    }


def test_the_first_difference_is_the_node_whose_inputs_agree(module):
    wrong = copy.deepcopy(module)
    wrong.graph.find_nodes(op="call_function", target=nn.functional.hardswish)[1].target = nn.functional.relu

    found = compare_layers(module, wrong, (X,))

    first = found.first_difference
    assert not found.passed
    assert (first.name, first.target, first.inputs_agree) == ("hardswish_1", "torch.nn.functional.relu", True)
    assert first.line.endswith("in forward")
    assert found.differences[0].name == "hardswish_1"
    assert not next(layer for layer in found.layers if layer.name == "linears_2").inputs_agree
    assert first.max_abs_error == max(layer.max_abs_error for layer in found.layers if layer is first)
    assert found.worst.max_rel_error >= first.max_rel_error > 0


def test_a_new_node_is_named_with_what_is_computed_from_it(module):
    wrong = copy.deepcopy(module)
    graph = wrong.graph
    (relu,) = graph.find_nodes(op="call_function", target=torch.relu)
    with graph.inserting_after(relu):
        scaled = graph.call_function(operator.mul, (relu, 1.5))
    relu.replace_all_uses_with(scaled, lambda user: user is not scaled)

    first = compare_layers(module, wrong, (X,)).first_difference

    assert (first.name, first.new_inputs) == ("linears_0", (scaled.name,))


def test_a_new_node_before_the_output_is_found_too(module):
    wrong = copy.deepcopy(module)
    graph = wrong.graph
    (value,) = graph.output_node().all_input_nodes
    with graph.inserting_before(graph.output_node()):
        scaled = graph.call_function(operator.mul, (value, 1.5))
    graph.output_node().args = (scaled,)

    first = compare_layers(module, wrong, (X,)).first_difference

    assert (first.name, first.new_inputs) == ("output", (scaled.name,))


def test_a_difference_that_does_not_reach_the_output_is_not_to_blame(module):
    wrong = copy.deepcopy(module)
    wrong.graph.find_nodes(op="call_module", target="linears.2")[0].target = "linears.1"
    wrong.conv.bias.data += 1  # Which the norm subtracts again.
    wrong.norm.running_mean += 1

    found = compare_layers(module, wrong, (X,))

    assert found.differences[0].name == "conv"
    assert found.first_difference.name == "linears_2"


def test_numbers_are_those_of_the_definitions():
    module = fxplug.symbolic_trace(nn.Identity())
    wrong = fxplug.symbolic_trace(lambda x: x + torch.tensor([0.0, 0.5]))
    values = torch.tensor([3.0, 4.0])

    (output,) = compare_layers(module, wrong, (values,)).layers

    assert output.max_abs_error == 0.5
    assert output.max_rel_error == 0.125
    assert output.sqnr == pytest.approx(10 * math.log10(25 / 0.25))
    assert output.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))


def test_dtypes_count_unless_they_shall_not(module):
    half = copy.deepcopy(module)
    with half.graph.inserting_before(half.graph.output_node()):
        (value,) = half.graph.output_node().all_input_nodes
        half.graph.output_node().args = (half.graph.call_method("half", (value,)),)

    strict = compare_layers(module, half, (X,), tolerance=Tolerance(1e-2, 1e-2))
    lenient = compare_layers(module, half, (X,), tolerance=Tolerance(1e-2, 1e-2), same_dtype=False)

    assert strict.outputs[0].reason == "its dtype is torch.float16 and should be torch.float32"
    assert lenient.passed


def test_both_draw_the_same_random_numbers_and_nothing_is_left_behind():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return torch.dropout(self.norm(x), 0.5, True) + torch.rand(4)

    module = fxplug.symbolic_trace(Drops())
    other = copy.deepcopy(module)
    inputs = torch.linspace(-1, 1, 12).reshape(3, 4)
    kept = inputs.clone()
    torch.manual_seed(3)
    state = torch.get_rng_state()

    found = compare_layers(module, other, (inputs,))
    same = compare_layers(module, module, (inputs,))

    assert found.passed
    assert same.passed
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(inputs, kept)
    assert int(module.norm.num_batches_tracked) == int(other.norm.num_batches_tracked) == 0


def test_values_that_are_written_to_later_are_compared_as_they_were():
    def program(x):
        y = x * 2
        z = torch.sigmoid(x)
        y.add_(1)
        return y + z

    module = fxplug.symbolic_trace(program)
    other = copy.deepcopy(module)
    (late,) = other.graph.find_nodes(op="call_function", target=operator.mul)
    (sigmoid,) = other.graph.find_nodes(op="call_function", target=torch.sigmoid)
    sigmoid.append(late)  # The order differs: a value of the reference has to wait.

    found = compare_layers(module, other, (torch.ones(2),))

    assert found.differences == ()


def test_graphs_without_origins_are_aligned_by_name(module):
    bare = copy.deepcopy(module)
    for node in bare.graph.nodes:
        node.origins = ()

    found = compare_layers(module, bare, (X,))

    assert pairs(found) == {node.name: node.name for node in bare.graph.nodes if node.op != "placeholder"}
    assert {layer.aligned_by for layer in found.layers} <= {"input", "uses", "name"}


def test_names_do_not_decide_where_a_loop_lost_a_turn():
    def program(x):
        for factor in (1.0, 2.0, 3.0):
            x = torch.tanh(x * factor)
        return x

    module = fxplug.symbolic_trace(program)
    less = copy.deepcopy(module)
    middle = less.graph.find_nodes(op="call_function", target=torch.tanh)[1]
    (scaled,) = middle.all_input_nodes
    middle.replace_all_uses_with(scaled.args[0])
    less.graph.erase_node(middle)
    less.graph.erase_node(scaled)

    found = compare_layers(module, less, (torch.ones(2),))

    assert pairs(found) == {
        "mul": "mul",
        "tanh": "tanh",
        "mul_2": "mul_2",
        "tanh_2": "tanh_2",
        "output": "output",
    }
    assert found.only_in_reference == ("mul_1", "tanh_1")
    assert found.first_difference.name == "mul_2"


def test_nodes_without_a_partner_are_listed(module):
    less = copy.deepcopy(module)
    (relu,) = less.graph.find_nodes(op="call_function", target=torch.relu)
    relu.replace_all_uses_with(relu.args[0])
    less.graph.erase_node(relu)

    found = compare_layers(module, less, (X,))

    assert found.only_in_reference == ("relu",)
    assert found.first_difference.name == "linears_0"


def test_modules_with_other_inputs_are_refused(module):
    other = fxplug.symbolic_trace(lambda x, y: x + y)

    with pytest.raises(AnalysisError, match=r"the reference takes \(x\), and the other one takes \(x, y\)"):
        compare_layers(module, other, (X,))


def test_a_module_that_fails_is_named_with_its_node(module):
    broken = copy.deepcopy(module)
    broken.add_submodule("linears.1", nn.Linear(5, 5))

    with pytest.raises(
        AnalysisError, match=r"^The module fails at node 'linears_1' \(.*in forward\): RuntimeError"
    ):
        compare_layers(module, broken, (X,))
    assert failing_node(broken, (X,)).node.name == "linears_1"
    assert failing_node(module, (X,)) is None


def test_missing_inputs_are_named(module):
    with pytest.raises(AnalysisError, match="no value was given for the input 'x'"):
        compare_layers(module, module, ())


def test_only_values_that_wait_are_kept():
    def program(x):
        for _ in range(50):
            x = torch.tanh(x)
        return x

    module = fxplug.symbolic_trace(program)
    alive = []

    original = torch.tanh
    references = []

    def counting(value):
        result = original(value)
        references.append(weakref.ref(result))
        gc.collect()
        alive.append(sum(reference() is not None for reference in references))
        return result

    for node in module.graph.find_nodes(op="call_function"):
        node.target = counting
    compare_layers(module, copy.deepcopy(module), (torch.ones(2),))

    assert len(alive) == 100
    assert max(alive) < 10


class Writing(nn.Module):
    """Two uses of a value, and a write to it between them."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, x):
        value = x * 1
        before = torch.relu(value)
        self.write(value)
        return value + before


def _first_row(value, number):
    value[0] = number


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        (lambda it: it.add_(1), lambda it: it.add_(1.5), "add_"),
        (lambda it: it.view(-1).add_(1), lambda it: it.view(-1).add_(1.5), "add_"),
        (lambda it: _first_row(it, 1.0), lambda it: _first_row(it, 2.0), "setitem"),
    ],
    ids=["the value", "a view of it", "its elements"],
)
def test_where_a_value_is_written_the_write_is_named_and_not_the_read(right, wrong, name):
    reference, judged = (fxplug.symbolic_trace(Writing(write)) for write in (right, wrong))

    found = compare_layers(reference, judged, (X,))

    assert found.first_difference.name == name
    assert [layer.name for layer in found.layers if layer.inputs_agree and not layer.passed] == [name]


class WritesParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.scale.add_(1)
        return x * self.scale


def test_parameters_that_a_run_writes_are_as_they_were():
    first, second = (fxplug.symbolic_trace(WritesParameter()) for _ in range(2))

    found = compare_layers(first, second, (X,))

    assert found.passed
    assert all(torch.equal(part.scale, torch.ones(8)) for part in (first, second))
    assert failing_node(first, (X,)) is None
    assert torch.equal(first.scale, torch.ones(8))
