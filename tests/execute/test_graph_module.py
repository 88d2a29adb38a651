"""GraphModule: what it takes over, and that it always runs the graph as it is."""

from __future__ import annotations

import copy
import inspect
import operator
import traceback

import pytest
import torch
import torch.fx
from torch import nn

from fxplug.errors import CodegenError, GraphError, InvalidArgumentError
from fxplug.execute import RESERVED_ATTRIBUTES, GraphModule, Interpreter
from fxplug.ir import Graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self.register_buffer("temporary", torch.zeros(3), persistent=False)
        self.plain = torch.ones(3)

    def forward(self, x):
        return self.stack(self.linear(x)) * self.scale + self.offset + self.temporary + self.plain


def only_call(module):
    (node,) = module.graph.find_nodes(op="call_function")
    return node


# -- what it takes over


def test_only_what_the_graph_names_is_taken(capture):
    root = Net()
    module = capture(root)

    assert [name for name, _ in module.named_children()] == ["linear", "stack"]
    assert module.linear is root.linear
    assert module.get_submodule("stack.0") is root.stack[0]
    assert module.scale is root.scale


def test_keys_of_the_state_are_those_of_the_root(capture):
    root = Net()
    expected = [key for key in root.state_dict() if not key.startswith("unused")]

    assert sorted(capture(root).state_dict()) == sorted(expected)


def test_state_of_the_root_can_be_loaded_and_back(capture):
    first, second = capture(Net()), Net()
    first.load_state_dict({key: value for key, value in second.state_dict().items() if "unused" not in key})

    x = torch.randn(4, 3)
    assert torch.equal(first.eval()(x), second.eval()(x))


def test_training_flag_is_taken_over(capture):
    assert capture(Net().eval()).training is False
    assert capture(Net()).training is True


def test_train_and_eval_reach_the_submodules(capture):
    module = capture(Net()).eval()
    assert not any(part.training for part in module.modules())
    x = torch.randn(4, 3)
    before = module.get_submodule("stack.1").running_mean.clone()
    module(x)
    assert torch.equal(module.get_submodule("stack.1").running_mean, before)
    module.train()(x)
    assert not torch.equal(module.get_submodule("stack.1").running_mean, before)


def test_buffer_that_is_not_persistent_stays_so(capture):
    module = capture(Net())

    assert "temporary" in dict(module.named_buffers())
    assert "temporary" not in module.state_dict()


def test_root_may_be_a_dict_of_paths():
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_module("a.b", (x,))
    graph.output(graph.call_function(operator.add, (y, graph.get_attr("a.c"))))
    linear, buffer = nn.Linear(3, 3), torch.ones(3)
    module = GraphModule({"a.b": linear, "a.c": buffer, "more": nn.ReLU()}, graph)

    assert module.a.b is linear
    assert module.a.c is buffer
    assert not hasattr(module, "more")
    x = torch.randn(2, 3)
    assert torch.equal(module(x), linear(x) + 1)


def test_missing_path_in_a_dict_is_named():
    graph = Graph()
    graph.output(graph.get_attr("a.b"))

    with pytest.raises(
        GraphError, match=r"the graph refers to 'a\.b', which is missing in the given dict.*\['x'\]"
    ):
        GraphModule({"x": torch.ones(1)}, graph)


def test_missing_path_in_a_module_is_named():
    graph = Graph()
    graph.output(graph.get_attr("linear.nothing"))

    with pytest.raises(GraphError, match=r"refers to 'linear\.nothing', which Net does not have"):
        GraphModule(Net(), graph)


def test_module_named_by_paths_of_different_depth():
    graph = Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("stack.0.weight")
    whole = graph.call_module("stack", (x,))
    graph.output((weight, whole))
    root = Net()
    module = GraphModule(root, graph)

    weight, _ = module.eval()(torch.ones(2, 3))
    assert weight is root.stack[0].weight
    assert module.stack is root.stack


def test_root_without_tensors_at_all(capture):
    assert capture(lambda x: x + 1)(torch.ones(1)).item() == 2


def test_class_name_is_shown():
    graph = Graph()
    graph.output(graph.placeholder("x"))

    assert repr(GraphModule(nn.Module(), graph, "Fancy")).startswith("Fancy(")


@pytest.mark.parametrize("name", sorted(RESERVED_ATTRIBUTES))
@pytest.mark.parametrize("op", ["call_module", "get_attr"])
def test_reserved_names_are_refused(name, op):
    root = nn.Module()
    root._modules[name] = nn.Linear(3, 3)
    graph = Graph()
    x = graph.placeholder("x")
    path = name if op == "call_module" else f"{name}.weight"
    graph.output(graph.create_node(op, path, (x,) if op == "call_module" else ()))

    with pytest.raises(GraphError, match=rf"Cannot use '{name}' as the name of a submodule.*\[FXP-G010\]"):
        GraphModule(root, graph)


@pytest.mark.parametrize("name", sorted(RESERVED_ATTRIBUTES - {"graph"}))
def test_reserved_names_cannot_be_assigned_later(capture, name):
    with pytest.raises(GraphError, match="FXP-G010"):
        setattr(capture(Net()), name, nn.ReLU())
    with pytest.raises(GraphError, match="FXP-G010"):
        capture(Net()).add_module(name, nn.ReLU())


@pytest.mark.parametrize("name", sorted(RESERVED_ATTRIBUTES))
def test_reserved_names_cannot_be_registered_later(capture, name):
    with pytest.raises((GraphError, KeyError)):
        capture(Net()).register_buffer(name, torch.ones(1))
    with pytest.raises((GraphError, KeyError)):
        capture(Net()).register_parameter(name, nn.Parameter(torch.ones(1)))


OWN_NAMES = sorted(
    {
        name
        for name in (*dir(GraphModule), *vars(GraphModule(nn.Module(), Graph())))
        if not name.startswith("__")
    }
    - set(dir(nn.Module()))
)


@pytest.mark.parametrize("name", OWN_NAMES)
def test_every_name_that_only_a_graph_module_has_is_reserved(name):
    assert name in RESERVED_ATTRIBUTES


@pytest.mark.parametrize("name", ["meta_", "compiled", "root", "targets", "nodes", "fold", "note"])
def test_other_names_are_free(capture, name):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(3, 3))

        def forward(self, x):
            return getattr(self, name)(x)

    root = Root()
    x = torch.randn(2, 3)
    assert torch.equal(capture(root)(x), root(x))


# -- the graph is what runs


def test_edited_graph_never_runs_old_code(capture):
    module = capture(lambda x: x + 1)
    assert module(torch.ones(1)).item() == 2
    node = only_call(module)
    node.target = operator.sub
    assert module(torch.ones(1)).item() == 0
    node.update_arg(1, 5)
    assert module(torch.ones(1)).item() == -4
    with module.graph.inserting_after(node):
        doubled = module.graph.call_function(operator.mul, (node, 2))
    node.replace_all_uses_with(doubled, delete_user_cb=lambda user: user is not doubled)
    assert module(torch.ones(1)).item() == -8
    module.graph.output_node().args = (doubled.args,)
    assert module(torch.ones(1)) == (torch.tensor([-4.0]), 2)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda x: setattr(x, "target", "renamed"), "(renamed)"),
        (lambda x: setattr(x, "type", int), "(x: int)"),
        (lambda x: setattr(x, "args", (5,)), "(x=5)"),
        (lambda x: x.graph.placeholder("y", default_value=None), "(x, y=None)"),
    ],
)
def test_signature_is_right_after_every_edit(capture, edit, expected):
    module = capture(lambda x: x + 1)
    assert str(inspect.signature(module.forward)) == "(x)"
    (x,) = module.graph.find_nodes(op="placeholder")
    with module.graph.inserting_after(x):
        edit(x)

    assert str(inspect.signature(module.forward)) == expected


def test_code_follows_the_graph(capture):
    module = capture(lambda x: x + 1)
    assert "x + 1" in module.code
    only_call(module).update_arg(1, 7)

    assert "x + 7" in module.code
    assert "x + 7" in module.print_readable(print_output=False)
    assert "x + 7" in str(module)


def test_unedited_graph_is_compiled_once(capture):
    module = capture(lambda x: x + 1)

    assert module.forward.__func__ is module.forward.__func__


def test_recompile_returns_the_code(capture):
    module = capture(lambda x: x + 1)

    assert module.recompile().src == module.code


def test_bound_forward_kept_from_before_runs_what_it_was(capture):
    module = capture(lambda x: x + 1)
    kept = module.forward
    only_call(module).update_arg(1, 7)

    assert kept(torch.ones(1)).item() == 2
    assert module.forward(torch.ones(1)).item() == 8


def test_another_graph_may_be_assigned(capture):
    module, other = capture(lambda x: x + 1), capture(lambda y: y * 10)
    module(torch.ones(1))
    module.graph = other.graph

    assert module(torch.ones(1)).item() == 10
    assert str(inspect.signature(module.forward)) == "(y)"
    assert module.graph is other.graph


def test_assigned_graph_brings_its_constants(capture):
    module, other = capture(lambda x: x + 1), capture(lambda x: x + torch.full((1,), 5.0))
    module.graph = other.graph

    assert module(torch.ones(1)).item() == 6


def test_assigned_graph_brings_its_constants_though_the_module_has_some(capture):
    module, other = capture(lambda x: x + torch.ones(1)), capture(lambda x: x + torch.full((1,), 5.0))
    module.graph = other.graph

    assert module(torch.ones(1)).item() == 6


def test_graph_brings_its_constants_to_a_root_that_has_some(capture):
    root, other = capture(lambda x: x + torch.ones(1)), capture(lambda x: x + torch.full((1,), 5.0))

    assert GraphModule(root, other.graph)(torch.ones(1)).item() == 6


def test_assigned_graph_must_be_one(capture):
    module = capture(lambda x: x + 1)
    with pytest.raises(InvalidArgumentError, match=r"Cannot set graph to a str: assign a fxplug\.Graph"):
        module.graph = "graph"
    assert module(torch.ones(1)).item() == 2


def test_assigned_graph_that_does_not_fit_leaves_the_module_as_it_was(capture):
    module = capture(Net())
    former = module.graph
    other = Graph()
    other.output(other.get_attr("nowhere"))
    with pytest.raises(GraphError, match="'nowhere'"):
        module.graph = other

    assert module.graph is former
    assert module(torch.ones(4, 3)).shape == (4, 3)


def test_graph_edited_through_another_module_is_seen(capture):
    module = capture(lambda x: x + 1)
    twin = GraphModule(nn.Module(), module.graph)
    module(torch.ones(1))
    twin(torch.ones(1))
    only_call(twin).update_arg(1, 9)

    assert module(torch.ones(1)).item() == twin(torch.ones(1)).item() == 10


# -- it is a module like others


def test_hooks_run(capture):
    module = capture(lambda x: x + 1)
    module.register_forward_pre_hook(lambda module, args: (args[0] * 10,))
    module.register_forward_hook(lambda module, args, result: result * 100)

    assert module(torch.ones(1)).item() == 1100


def test_hooks_of_submodules_run(capture):
    root = Net()
    module = capture(root)
    seen = []
    root.linear.register_forward_hook(lambda *_: seen.append("linear"))
    module(torch.ones(2, 3))

    assert seen == ["linear"]


def test_subclass_may_wrap_forward(capture):
    class Doubling(GraphModule):
        def forward(self, *args):
            return super().forward(*args) * 2

    captured = capture(lambda x: x + 1)
    module = Doubling(nn.Module(), captured.graph)
    assert module(torch.ones(1)).item() == 4
    only_call(module).update_arg(1, 2)
    assert module(torch.ones(1)).item() == 6


def test_forward_cannot_be_shadowed_by_accident(capture):
    module = capture(lambda x: x + 1)
    module.forward = lambda x: x * 50

    assert module(torch.ones(1)).item() == 50
    del module.forward
    assert module(torch.ones(1)).item() == 2


def test_dtype_moves_parameters_buffers_and_constants(capture):
    class Root(Net):
        def forward(self, x):
            return super().forward(x) + torch.ones(3)

    module = capture(Root()).double()
    assert module(torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float64


def test_functional_call_replaces_parameters(capture):
    module = capture(Net()).eval()
    zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}

    result = torch.func.functional_call(module, zeros, (torch.ones(2, 3),))
    assert torch.equal(result, torch.ones(2, 3))


def test_meta_of_a_captured_module_is_handed_on(capture):
    module = capture(lambda x: x + 1)
    module.meta["note"] = 1

    assert GraphModule(module, module.graph).meta == {"note": 1}
    assert GraphModule(module, module.graph).meta is not module.meta


def test_print_readable_prints(capture, capsys):
    text = capture(Net()).print_readable()

    assert capsys.readouterr().out == text
    assert text.startswith("class Net(torch.nn.Module):\n    def forward(self, x):\n")
    compile(text, "readable", "exec")


def test_error_in_generated_code_shows_its_line(capture):
    module = capture(lambda x: x @ x)
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(2, 3))
    assert "matmul = x @ x" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("again", ["assigned", "wrapped"])
def test_constants_keep_their_dtype_when_a_graph_is_taken_over_again(capture, again):
    module = capture(lambda x: x + torch.ones(3)).bfloat16()
    if again == "assigned":
        module.graph = module.graph
    else:
        module = GraphModule(module, module.graph)

    assert module(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_constants_of_a_deep_copy_stay_its_own(capture):
    module = capture(lambda x: x + torch.ones(3))
    other = copy.deepcopy(module)
    other.graph = other.graph
    other._tensor_constant0.zero_()

    assert module(torch.zeros(3)).tolist() == [1, 1, 1]


def test_a_graph_without_output_returns_none():
    """As it does in torch.fx: it is a program that is run for what it does."""
    seen = []
    graph = Graph()
    graph.call_function(seen.append, (graph.placeholder("x"),))
    module = GraphModule(nn.Module(), graph)
    module.graph.lint()

    assert module(1) is None
    assert copy.deepcopy(module)(2) is None
    assert Interpreter(module).run(3) is None
    assert seen == [1, 2, 3]
    with pytest.raises(GraphError, match="the graph has no output node"):
        module.graph.output_node()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x


def called_for_its_effect():
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_module("step", (x,))
    graph.output(x)
    return graph


def test_a_graph_asks_the_module_through_which_it_was_reached():
    graph = called_for_its_effect()
    first = GraphModule({"step": nn.ReLU()}, graph)
    second = GraphModule({"step": Counting()}, graph)
    assert graph.owning_module is second
    second.graph.eliminate_dead_code()
    second(torch.ones(1))
    assert second.step.calls == 1
    second.delete_submodule("step")
    first.graph.lint()
    with pytest.raises(GraphError, match="step"):
        second.graph.lint()


def test_a_copy_with_another_submodule_keeps_the_calls_of_it():
    module = GraphModule({"step": nn.ReLU()}, called_for_its_effect())
    copied = copy.copy(module)
    copied.step = Counting()
    copied.graph.eliminate_dead_code()
    copied(torch.ones(1))
    assert copied.step.calls == 1
    # For the original the same call has no effect, and is removed.
    module.graph.eliminate_dead_code()
    assert not module.graph.find_nodes(op="call_module")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, "the graph is None, and no fxplug.Graph"),
        (torch.fx.symbolic_trace(Net()).graph, "fxplug does not run graphs of torch.fx: capture the module"),
        (GraphModule(nn.Module(), Graph()), "Pass its graph"),
    ],
    ids=["None", "torch.fx", "module"],
)
def test_what_is_no_graph_makes_no_module(capture, graph, message):
    with pytest.raises(InvalidArgumentError, match="Cannot make a GraphModule") as info:
        GraphModule(Net(), graph)
    assert message in str(info.value)
    with pytest.raises(InvalidArgumentError, match=r"Cannot set graph to a \w+: assign a fxplug\.Graph"):
        capture(Net()).graph = graph


@pytest.mark.parametrize("root", [None, 5, [("linear", nn.Linear(2, 2))]], ids=["None", "int", "list"])
def test_what_is_no_root_makes_no_module(root):
    with pytest.raises(InvalidArgumentError, match="Cannot make a GraphModule: the root is a"):
        GraphModule(root, Graph())


@pytest.mark.parametrize("opcode", ["call_module", "get_attr", "call_method"])
@pytest.mark.parametrize("target", [5, None])
def test_a_target_of_the_wrong_kind_is_said_when_code_is_needed(opcode, target):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.create_node(opcode, "neg", () if opcode == "get_attr" else (x,)))
    module = GraphModule({"neg": nn.Identity()}, graph)
    graph.find_nodes(op=opcode)[0].target = target

    for use in (module, lambda _: module.code, lambda _: graph.python_code("self")):
        with pytest.raises(
            CodegenError, match=f"node 'neg' .{opcode}. has the target {target}, which is not a string"
        ):
            use(torch.ones(1))


def test_an_error_in_code_of_others_is_not_taken_for_a_missing_forward():
    module = GraphModule({}, Graph())
    module.graph.output(module.graph.placeholder("x"))
    transformer = module.graph.on_generate_code(lambda current: lambda body: body.missing)
    with pytest.raises(CodegenError, match="'list' object has no attribute 'missing'") as info, transformer:
        module(torch.ones(1))
    assert isinstance(info.value.__cause__, AttributeError)
