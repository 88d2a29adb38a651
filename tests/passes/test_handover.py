"""What nodes inherit from those that passes put them in the place of."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import zipfile

import pytest
import torch
from torch import nn

import fxplug
from fxplug.execute import GraphModule
from fxplug.ir import Graph, MadeBy, Origin
from fxplug.passes import BUILTIN_PASSES, Pass, PassRecord, PassResult, Pipeline, PipelineStep
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS, decompose, replace_pattern

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
CHANGED = PassResult(modified=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x + 3
        y = torch.relu(self.norm(self.conv(x)))
        y = nn.functional.hardswish(self.linear(y))
        return y * 2


class Running(Pass):
    def __init__(self, function):
        self.function = function

    def run(self, module, context):
        return self.function(module) or CHANGED


def run(module, *functions, **names):
    """Run functions as passes, each under its name and of ``NAME-dist 1.0``."""
    steps = [
        PipelineStep(
            function.__name__,
            PassRecord(function.__name__, lambda function=function: Running(function), "Test."),
            provider=f"{function.__name__}-dist 1.0",
        )
        for function in functions
    ]
    Pipeline("test", steps).run(module, (X,))
    return module


def swap(module, old, new):
    for node in module.graph.find_nodes(op="call_function", target=old):
        with module.graph.inserting_before(node):
            made = module.graph.call_function(new, node.args, node.kwargs)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)


def first(module):
    swap(module, torch.relu, torch.sigmoid)


def second(module):
    swap(module, torch.sigmoid, torch.tanh)


def third(module):
    swap(module, torch.tanh, torch.exp)


def without_lines(module):
    """Return the nodes that no line of the program is known of."""
    return [
        node.name
        for node in module.graph.nodes
        if node.op not in {"placeholder", "output"} and not any(origin.source() for origin in node.origins)
    ]


@pytest.fixture
def module(capture):
    torch.manual_seed(0)
    return capture(Net().eval())


def test_a_node_that_three_passes_replaced_one_after_the_other_shows_all_three(module):
    run(module, first, second, third)

    (node,) = module.graph.find_nodes(op="call_function", target=torch.exp)
    assert node.history == tuple(MadeBy(name, f"{name}-dist 1.0") for name in ("first", "second", "third"))
    assert str(node.history[0]) == "first of first-dist 1.0"
    assert node.origins[0].source().text == "y = torch.relu(self.norm(self.conv(x)))"


def test_nodes_that_nothing_happened_to_have_no_history(module):
    run(module, first)

    assert [node.name for node in module.graph.nodes if node.history] == ["sigmoid"]


def test_a_pass_that_follows_itself_is_noted_once(module):
    def there(module):
        swap(module, torch.relu, torch.sigmoid)
        swap(module, torch.sigmoid, torch.relu)

    run(module, there, there)

    (node,) = module.graph.find_nodes(op="call_function", target=torch.relu)
    assert [entry.name for entry in node.history] == ["there"]


def test_a_node_whose_target_changes_notes_the_pass(module):
    def retarget(module):
        for node in module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.sigmoid

    run(module, retarget)

    assert {
        node.name: [entry.name for entry in node.history] for node in module.graph.nodes if node.history
    } == {"relu": ["retarget"]}


def test_a_node_whose_submodule_is_another_one_notes_the_pass(module):
    def exchange(module):
        module.add_submodule("linear", nn.Linear(6, 6))

    run(module, exchange)

    assert [node.name for node in module.graph.nodes if node.history] == ["linear"]


FUSE = next(record for record in BUILTIN_PASSES if record.name == "fuse-conv-bn")


def test_the_folded_convolution_notes_the_pass_and_both_lines(module):
    Pipeline("test", [PipelineStep("fuse-conv-bn", FUSE)]).run(module)

    (node,) = module.graph.find_nodes(op="call_module", target="conv")
    assert [str(entry) for entry in node.history] == ["fuse-conv-bn of fxplug"]


def test_parts_of_what_takes_a_place_inherit_from_what_uses_them_and_say_so(module):
    def expand(module):
        for node in module.graph.find_nodes(op="call_function", target=torch.relu):
            with module.graph.inserting_before(node):
                zero = module.graph.call_function(torch.zeros_like, node.args)
                made = module.graph.call_function(torch.maximum, (node.args[0], zero))
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)

    run(module, expand)

    nodes = {node.name: node for node in module.graph.nodes}
    assert [entry.inside for entry in nodes["zeros_like"].history] == [True]
    assert [entry.inside for entry in nodes["maximum"].history] == [False]
    assert without_lines(module) == []


def test_nodes_between_input_and_output_inherit_from_what_they_use_or_what_is_near(module):
    def insert(module):
        graph = module.graph
        (value,) = graph.output_node().all_input_nodes
        with graph.inserting_before(graph.output_node()):
            scaled = graph.call_function(operator.mul, (value, 1.0))
            graph.output_node().args = (scaled,)
            graph.call_function(torch.ones, (3,))
        with graph.inserting_before(next(iter(graph.nodes)).next):
            graph.call_function(torch.zeros, (3,))

    run(module, insert)

    assert without_lines(module) == []
    (ones,) = module.graph.find_nodes(op="call_function", target=torch.ones)
    (scaled,) = module.graph.find_nodes(op="call_function", target=operator.mul)[1:]
    assert scaled.origins[0].source().text == "return y * 2"
    assert ones.history == (MadeBy("insert", "insert-dist 1.0", inside=True),)


def replaced(module):
    replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.maximum(x, torch.zeros_like(x)))  # noqa: PLW0108 - traced


def decomposed(module):
    module.graph = decompose(module, BUILTIN_DECOMPOSITIONS).graph


@pytest.mark.parametrize("function", [first, replaced, decomposed], ids=lambda function: function.__name__)
def test_every_node_has_a_line_after_any_kind_of_pass(module, function):
    before = len(module.graph.nodes)
    run(module, function)

    assert [node for node in module.graph.nodes if node.history]
    assert without_lines(module) == []
    assert len(module.graph.nodes) >= before


@pytest.mark.parametrize("record", BUILTIN_PASSES, ids=lambda record: record.name)
def test_every_node_has_a_line_after_each_built_in_pass(module, record):
    Pipeline("test", [PipelineStep(record.name, record)]).run(module, (X,))

    assert without_lines(module) == []


def test_a_pass_that_writes_the_graph_anew_is_noted_by_new_nodes_only(module):
    run(module, decomposed)

    nodes = {node.name: [entry.name for entry in node.history] for node in module.graph.nodes}
    assert nodes["conv"] == nodes["relu"] == []
    assert {tuple(names) for names in nodes.values() if names} == {("decompose", "decomposed")}


def test_a_failing_pass_leaves_no_history(module):
    def fail(module):
        first(module)
        raise ValueError

    with pytest.raises(fxplug.PassError):
        run(module, fail)

    assert [node.name for node in module.graph.nodes if node.history] == []


def test_a_graph_made_by_hand_has_no_lines_but_a_history():
    graph = Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    module = run(GraphModule(nn.Module(), graph), first)

    (node,) = module.graph.find_nodes(op="call_function")
    assert [entry.name for entry in node.history] == ["first"]
    assert node.stack_trace is None


def test_nothing_listens_outside_of_passes_and_origins_stay_shared(module):
    assert module.graph.observers == []

    run(module, first, second)

    assert module.graph.observers == []


def test_files_copies_and_pickles_keep_the_history(module, tmp_path):
    run(module, first, second, decomposed)
    expected = [node.history for node in module.graph.nodes]
    assert any(entry.inside for history in expected for entry in history)

    fxplug.save(module, tmp_path / "module.fxplug")

    for other in (
        fxplug.load(tmp_path / "module.fxplug"),
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
    ):
        assert [node.history for node in other.graph.nodes] == expected


def test_a_file_that_has_a_name_for_a_history_loads(module, tmp_path):
    (node,) = module.graph.find_nodes(op="call_function", target=torch.relu)
    node.origins = tuple(origin.derived("fuse") for origin in node.origins)
    fxplug.save(module, tmp_path / "module.fxplug")

    with zipfile.ZipFile(tmp_path / "module.fxplug") as file:
        (name,) = [name for name in file.namelist() if "graph" in name]
        rows = json.loads(file.read(name))["graphs"][0]["origins"]
    loaded = fxplug.load(tmp_path / "module.fxplug")

    # The bare name, as those files have it.
    assert {row[3] for row in rows if len(row) > 3} == {"fuse"}
    (node,) = loaded.graph.find_nodes(op="call_function", target=torch.relu)
    assert node.history == (MadeBy("fuse"),)


def test_the_history_is_shown_where_people_read_a_graph(module):
    run(module, first)

    assert "# Made by: first of first-dist 1.0" in module.print_readable(print_output=False)
    assert "Made by" not in module.code


def test_an_origin_is_told_of_by_its_last_pass():
    origin = Origin(None).derived("one").derived(MadeBy("two", "dist 1"))

    assert (origin.made_by, [entry.name for entry in origin.history]) == ("two", ["one", "two"])
    assert Origin.from_data(origin.to_data()).history == origin.history
