"""The interpreter: every step can be seen and changed."""

from __future__ import annotations

import gc
import operator
import traceback
import weakref

import pytest
import torch
import torch.fx
from torch import nn

from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph, RegionEntry


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, factor=2.0):
        return torch.relu(self.linear(x)).mul(factor) * self.scale


X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def module(capture):
    torch.manual_seed(0)
    return capture(Net())


def nodes(module):
    return {node.name: node for node in module.graph.nodes}


def test_result_is_that_of_the_module(module):
    assert torch.equal(Interpreter(module).run(X), module(X))
    assert torch.equal(Interpreter(module).run(X, 3.0), module(X, 3.0))


def test_edited_graph_is_interpreted_as_it_is(module):
    interpreter = Interpreter(module)
    interpreter.run(X)
    module.graph.output_node().args = (nodes(module)["linear"],)

    assert torch.equal(interpreter.run(X), module.linear(X))


def test_another_graph_with_the_same_root(module):
    graph = Graph()
    graph.output(graph.call_module("linear", (graph.placeholder("y"),)))

    assert torch.equal(Interpreter(module, graph=graph).run(X), module.linear(X))


def test_boxed_run_empties_its_list(module):
    inputs = [X, 2.0]

    assert torch.equal(Interpreter(module).boxed_run(inputs), module(X))
    assert inputs == []


def test_boxed_run_drops_each_input_behind_its_last_use():
    watched = []

    def watch(value):
        watched.append(weakref.ref(value))
        return value + 1

    def look(_):
        return watched[0]() is None

    graph = Graph()
    first, second = graph.placeholder("first"), graph.placeholder("second")
    used = graph.call_function(watch, (first,))
    graph.output((graph.call_function(look, (used,)), second))
    inputs = [torch.ones(1), torch.ones(1)]
    interpreter = Interpreter(GraphModule(nn.Module(), graph))

    assert interpreter.boxed_run(inputs)[0] is True


@pytest.mark.parametrize(
    ("count", "message"), [(0, "no value was given for the input 'x'"), (3, "3 values were given")]
)
def test_boxed_run_leaves_its_list_when_it_does_not_fit(module, count, message):
    inputs = [X] * count
    with pytest.raises(GraphError, match=message):
        Interpreter(module).boxed_run(inputs)
    assert len(inputs) == count


def test_boxed_run_asks_the_methods_of_a_subclass(module):
    class Doubling(Interpreter):
        def placeholder(self, target, args, kwargs):
            value = super().placeholder(target, args, kwargs)
            return value * 2 if target == "x" else value

    assert torch.equal(Doubling(module).boxed_run([X]), module(X * 2))


def test_a_subclass_that_loads_values_its_own_way_is_asked_for_every_node():
    class Loading(Interpreter):
        def map_nodes_to_values(self, args, n):
            asked.append(n.name)
            return super().map_nodes_to_values(args, n)

    asked = []
    graph = Graph()
    x = graph.placeholder("x")
    flat = graph.call_function(torch.relu, (x,), name="flat")
    named = graph.call_function(torch.add, (), {"input": flat, "other": 1}, name="named")
    nested = graph.call_function(torch.stack, ([named, x],), name="nested")
    graph.output(nested)
    module = GraphModule(nn.Module(), graph)

    assert torch.equal(Loading(module).run(X), module(X))
    assert set(asked) == {node.name for node in graph.nodes}
    assert asked.count("named") == 2  # For its positional arguments, and for the others.


def test_an_interpreter_knows_the_submodules_and_the_last_uses(module):
    interpreter = Interpreter(module)
    found = nodes(module)

    assert interpreter.submodules["linear"] is module.linear
    assert interpreter.user_to_last_uses[found["relu"]] == [found["linear"]]
    assert Interpreter(module, garbage_collect_values=False).user_to_last_uses == {}


def test_what_has_no_graph_is_refused():
    with pytest.raises(InvalidArgumentError, match="Cannot interpret a Linear: it has no graph"):
        Interpreter(nn.Linear(2, 2))


def test_inputs_in_stars_take_what_is_left():
    graph = Graph()
    first = graph.placeholder("first")
    rest = graph.placeholder("*rest")
    graph.output((first, graph.call_function(len, (rest,))))
    module = GraphModule(nn.Module(), graph)

    assert Interpreter(module).run(1, 2, 3) == module(1, 2, 3) == (1, 2)


def test_default_is_used_where_no_input_is_given(capture):
    assert Interpreter(capture(lambda x, y=3: x + y)).run(1) == 4


@pytest.mark.parametrize(("name", "args", "expected"), [("*rest", (1, 2), (1, 2)), ("**rest", (), {})])
def test_value_of_starred_inputs_is_that_of_python(name, args, expected):
    graph = Graph()
    graph.output(graph.placeholder(name))
    module = GraphModule(nn.Module(), graph)

    assert module(*args) == expected
    assert Interpreter(module).run(*args) == expected


def test_too_few_inputs_name_the_one_that_is_missing(capture):
    with pytest.raises(GraphError, match="no value was given for the input 'y', which has no default"):
        Interpreter(capture(lambda x, y: x + y)).run(1)


def test_too_many_inputs_are_refused(capture):
    with pytest.raises((GraphError, TypeError)):
        Interpreter(capture(lambda x: x + 1)).run(1, 2)


@pytest.mark.parametrize(
    ("opcode", "override", "expected"),
    [
        (
            "placeholder",
            lambda value, target: value + 1 if target == "x" else value,
            lambda net, x: net(x + 1),
        ),
        ("get_attr", lambda value, target: value * 5, lambda net, x: net(x) * 5),
        ("call_function", lambda value, target: value - 1 if target is torch.relu else value, None),
        ("call_method", lambda value, target: value * 7, lambda net, x: net(x) * 7),
        ("call_module", lambda value, target: -value, None),
        ("output", lambda value, target: {"result": value}, lambda net, x: {"result": net(x)}),
    ],
)
def test_each_opcode_has_a_method_to_override(module, opcode, override, expected):
    seen = []

    def method(self, target, args, kwargs):
        seen.append(target)
        return override(getattr(Interpreter, opcode)(self, target, args, kwargs), target)

    changed = type("Changed", (Interpreter,), {opcode: method})(module).run(X)
    assert seen == [node.target for node in module.graph.nodes if node.op == opcode]
    if expected is not None:
        torch.testing.assert_close(changed, expected(module, X))
    else:
        assert not torch.equal(changed, module(X))


def test_run_node_sees_every_node_in_order(module):
    class Recording(Interpreter):
        def __init__(self, module):
            super().__init__(module)
            self.seen = []

        def run_node(self, n):
            value = super().run_node(n)
            self.seen.append((n.name, type(value)))
            return value

    recording = Recording(module)
    recording.run(X)
    assert [name for name, _ in recording.seen] == [node.name for node in module.graph.nodes]
    assert recording.seen[-1][1] is torch.Tensor


def test_run_node_may_replace_a_value(module):
    class Zeroing(Interpreter):
        def run_node(self, n):
            value = super().run_node(n)
            return torch.zeros_like(value) if n.name == "relu" else value

    assert not Zeroing(module).run(X).any()


def test_fetch_attr_may_be_overridden(module):
    class Frozen(Interpreter):
        def fetch_attr(self, target):
            value = super().fetch_attr(target)
            return torch.zeros_like(value) if target == "scale" else value

    assert not Frozen(module).run(X).any()


def test_fetch_attr_names_what_is_missing(module):
    with pytest.raises(
        GraphError, match=r"'linear\.nothing', but linear \(Linear\) has no attribute 'nothing'"
    ):
        Interpreter(module).fetch_attr("linear.nothing")


def test_arguments_with_their_values(module):
    class Looking(Interpreter):
        def run_node(self, n):
            if n.op == "call_method":
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                assert torch.is_tensor(args[0])
                assert args[1:] == (2.0,)
                assert kwargs == {}
            return super().run_node(n)

    Looking(module).run(X)


def test_nested_arguments_are_filled_in(capture):
    def program(x):
        return torch.cat([x, x + 1])[x.shape[0] :], {"a": (x, [x])}

    module = capture(program)
    ours, theirs = Interpreter(module).run(X), module(X)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1]["a"][1][0], X)


def test_initial_values_are_not_computed_again(module):
    found = nodes(module)
    start = torch.full((2, 3), 10.0)
    seen = []

    class Recording(Interpreter):
        def run_node(self, n):
            seen.append(n.name)
            return super().run_node(n)

    result = Recording(module).run(X, initial_env={found["linear"]: start})
    assert torch.equal(result, start.relu() * 2 * module.scale)
    assert "linear" not in seen


def test_initial_values_are_not_changed(module):
    initial = {nodes(module)["linear"]: X}
    Interpreter(module).run(X, initial_env=initial)

    assert list(initial) == [nodes(module)["linear"]]


def test_value_that_is_none_is_a_value(capture):
    module = capture(lambda x, mask=None: (x, mask))

    assert Interpreter(module).run(1) == (1, None)


# -- memory


def lifetimes(module, *, collect):
    """Return, for each node that runs, how many intermediate values were alive just before."""
    alive, seen = [], []

    class Counting(Interpreter):
        def run_node(self, n):
            alive.append(sum(reference() is not None for reference in seen))
            value = super().run_node(n)
            if n.op.startswith("call_"):
                seen.append(weakref.ref(value))
            return value

    gc.disable()
    try:
        Counting(module, garbage_collect_values=collect).run(torch.ones(3))
    finally:
        gc.enable()
    return alive


def chain(x):
    for _ in range(5):
        x = x + 1
    return x


def test_values_are_dropped_after_their_last_use(capture):
    assert lifetimes(capture(chain), collect=True) == [0, 0, 1, 1, 1, 1, 1]


def test_values_are_kept_on_request(capture):
    assert lifetimes(capture(chain), collect=False) == [0, 0, 1, 2, 3, 4, 5]


def test_unused_values_are_dropped_at_once(capture):
    def program(x):
        x + 1
        x + 2
        return x * 3

    assert lifetimes(capture(program), collect=True) == [0, 0, 0, 0, 1]


def test_all_values_are_at_hand_afterwards_on_request(module):
    interpreter = Interpreter(module, garbage_collect_values=False)
    interpreter.run(X)

    assert torch.equal(interpreter.env[nodes(module)["linear"]], module.linear(X))


def test_nothing_is_kept_after_a_run(capture):
    interpreter = Interpreter(capture(chain))
    interpreter.run(X)

    assert interpreter.env == {}


# -- regions


class Context:
    """Notes when it is entered and left."""

    log: list = []  # noqa: RUF012

    def __init__(self, name, *rest):
        self.name = name

    def __enter__(self):
        Context.log.append(f"+{self.name}")

    def __exit__(self, *_):
        Context.log.append(f"-{self.name}")


@pytest.fixture
def log():
    Context.log.clear()
    return Context.log


def test_regions_are_entered_around_their_nodes(capture, log):
    module = capture(lambda x: x + 1 + 2)
    first, second = module.graph.find_nodes(op="call_function")
    outer, inner = RegionEntry(Context, ("outer",)), RegionEntry(Context, ("inner", 1))
    first.region = (outer, inner)
    second.region = (outer,)

    assert Interpreter(module).run(1) == 4
    assert log == ["+outer", "+inner", "-inner", "-outer", "+outer", "-outer"]
    log.clear()
    assert module(1) == 4
    assert log == ["+outer", "+inner", "-inner", "-outer"]


def test_regions_are_left_after_an_error(capture, log):
    module = capture(lambda x: x / 0)
    module.graph.find_nodes(op="call_function")[0].region = (RegionEntry(Context, ("outer",)),)

    with pytest.raises(ZeroDivisionError):
        Interpreter(module).run(1)
    assert log == ["+outer", "-outer"]


@pytest.mark.parametrize(
    "run", [lambda module: module, lambda module: Interpreter(module).run], ids=["code", "interpreter"]
)
def test_gradient_mode_of_a_region_is_honoured(capture, run):
    module = capture(lambda x: (x * 2, x * 3))
    module.graph.find_nodes(op="call_function")[0].region = (RegionEntry(torch.no_grad),)

    without, with_gradient = run(module)(torch.ones(2, requires_grad=True))
    assert (without.requires_grad, with_gradient.requires_grad) == (False, True)


# -- errors


def failing(x):
    y = x + 1
    return y @ y  # the line that fails


def test_error_names_the_node_and_the_users_line(capture):
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        Interpreter(capture(failing)).run(X)

    text = "".join(traceback.format_exception(caught.value))
    assert "While running node %matmul : [num_users=1] = call_function[target=operator.matmul]" in text
    assert f'File "{__file__}", line {failing.__code__.co_firstlineno + 2}, in failing' in text
    assert "return y @ y  # the line that fails" in text


def test_note_is_left_out_on_request(capture):
    interpreter = Interpreter(capture(failing))
    interpreter.extra_traceback = False

    with pytest.raises(RuntimeError) as caught:
        interpreter.run(X)
    assert not hasattr(caught.value, "__notes__")


def test_note_is_added_once_for_nested_interpreters(capture):
    inner = capture(failing)
    module = capture(lambda x: x * 2)
    module.graph.find_nodes(op="call_function")[0].target = lambda x, _: Interpreter(inner).run(x)

    with pytest.raises(RuntimeError) as caught:
        Interpreter(module).run(X)
    assert len(caught.value.__notes__) == 2


def test_use_before_definition_is_named(capture):
    module = capture(lambda x: x + 1 - 2)
    first, second = module.graph.find_nodes(op="call_function")
    second.append(first)

    with pytest.raises(
        GraphError, match=r"Cannot run node 'sub': its input 'add' has no value\. graph\.lint\(\)"
    ):
        Interpreter(module).run(1)


def test_interrupts_pass_without_a_note(capture):
    def interrupt(*_):
        raise KeyboardInterrupt

    module = capture(lambda x: x + 1)
    module.graph.find_nodes(op="call_function")[0].target = interrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        Interpreter(module).run(1)
    assert not hasattr(caught.value, "__notes__")


def test_functions_receive_plain_lists_and_dicts():
    def fill(values, options):
        values.append(1)
        options["new"] = 2
        return values, options

    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(fill, ([x], {"old": x})))
    module = GraphModule(nn.Module(), graph)
    assert module(0) == ([0, 1], {"old": 0, "new": 2})
    assert Interpreter(module).run(0) == ([0, 1], {"old": 0, "new": 2})


def test_methods_of_any_receiver_are_called():
    graph = Graph()
    text = graph.placeholder("text")
    graph.output(graph.call_method("replace", (text, "a", "b"), {}))

    assert Interpreter(GraphModule(nn.Module(), graph)).run("banana") == "bbnbnb"


def test_getitem_of_results_with_several_parts(capture):
    module = capture(lambda x: operator.getitem(torch.topk(x, 2), 0))

    assert torch.equal(Interpreter(module).run(X), torch.topk(X, 2)[0])


def test_what_torch_fx_has_captured_is_said_to_be_its_own():
    theirs = torch.fx.symbolic_trace(Net())
    for arguments in ({"module": theirs}, {"module": Net(), "graph": theirs.graph}):
        with pytest.raises(
            InvalidArgumentError, match=r"its graph is a torch.fx.graph.Graph, .* fxplug.symbolic_trace"
        ):
            Interpreter(**arguments)
