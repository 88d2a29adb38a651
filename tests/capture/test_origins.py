"""Where nodes come from: the user's line, and the modules around it."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.capture import Tracer


def scaled(value):
    return value * 2  # in the helper


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = self.linear(x)  # in Inner
        return scaled(x) + self.weight


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.stack = nn.Sequential(nn.ReLU(), Inner())

    def forward(self, x):
        x = F.relu(x)  # in Outer
        x = self.inner(x)
        return self.stack(x)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + offset for offset, line in enumerate(lines) if text in line]
    return number


@pytest.fixture(scope="module")
def graph():
    return Tracer().trace(Outer())


def node(graph, name):
    (found,) = [node for node in graph.nodes if node.name == name]
    return found


def source(node):
    return node.origins[0].source()


@pytest.mark.parametrize(
    ("name", "function", "text"),
    [
        ("relu", Outer.forward, "# in Outer"),
        ("inner_linear", Inner.forward, "# in Inner"),
        ("mul", scaled, "# in the helper"),
        ("inner_weight", Inner.forward, "scaled(x) + self.weight"),
        ("add", Inner.forward, "scaled(x) + self.weight"),
        ("stack_1_linear", Inner.forward, "# in Inner"),
    ],
)
def test_origin_is_the_users_line(graph, name, function, text):
    found = source(node(graph, name))

    assert found.filename == __file__
    assert found.line == line_of(function, text)
    assert found.function == function.__name__
    assert text in found.text


def test_every_call_has_one_origin(graph):
    assert all(len(node.origins) == 1 for node in graph.nodes if node.op not in {"placeholder", "output"})


def test_frames_lead_from_the_node_to_the_root(graph):
    frames = [(frame.function, frame.line) for frame in node(graph, "mul").origins[0].frames()]

    assert frames == [
        ("scaled", line_of(scaled, "# in the helper")),
        ("forward", line_of(Inner.forward, "scaled(x)")),
        ("forward", line_of(Outer.forward, "self.inner(x)")),
    ]


def test_stack_trace_is_a_python_traceback_with_the_innermost_line_last(graph):
    trace = node(graph, "mul").stack_trace

    assert trace.splitlines()[-1].strip() == "return value * 2  # in the helper"
    assert (
        trace.splitlines()[0]
        == f'  File "{__file__}", line {line_of(Outer.forward, "self.inner(x)")}, in forward'
    )
    assert "fxplug" not in trace.replace(__file__, "")


def test_inside_torch_nn_the_container_is_the_line(graph):
    frames = list(node(graph, "stack_0").origins[0].frames())

    assert frames[0].filename.endswith("container.py")
    assert frames[-1].line == line_of(Outer.forward, "self.stack(x)")


def test_parameter_has_the_line_of_its_first_use():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            x = x + self.weight  # first
            return x * self.weight  # second

    found = source(node(Tracer().trace(Root()), "weight"))
    assert found.text.endswith("# first")


def test_lines_of_a_loop_and_of_a_multiline_call():
    def program(x):
        for _ in range(2):
            x = x + 1  # loop
        return torch.clamp(
            x,
            min=0,  # call
        )

    graph = Tracer().trace(program)
    assert [source(node(graph, name)).text for name in ("add", "add_1")] == ["x = x + 1  # loop"] * 2
    assert source(node(graph, "clamp")).text.startswith("return torch.clamp(")


def test_function_without_module_has_no_module_stack():
    graph = Tracer().trace(lambda x: x + 1)

    assert "nn_module_stack" not in node(graph, "add").meta


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("relu", [""]),
        ("inner_linear", ["", "inner", "inner.linear"]),
        ("mul", ["", "inner"]),
        ("inner_weight", ["", "inner"]),
        ("stack_0", ["", "stack", "stack.0"]),
        ("stack_1_linear", ["", "stack", "stack.1", "stack.1.linear"]),
        ("add_1", ["", "stack", "stack.1"]),
    ],
)
def test_module_stack_names_every_module_from_the_root_inward(graph, name, paths):
    stack = node(graph, name).meta["nn_module_stack"]

    assert list(stack) == paths
    assert all(path == key for key, (path, _) in stack.items())
    assert stack[""][1] is Outer


def test_module_stack_holds_the_classes(graph):
    kinds = [kind for _, kind in node(graph, "stack_1_linear").meta["nn_module_stack"].values()]

    assert kinds == [Outer, nn.Sequential, Inner, nn.Linear]


def test_module_stack_after_a_child_is_that_of_the_parent_again():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + 1  # behind the child

    graph = Tracer().trace(Root())
    last = node(graph, "add_1")
    assert list(last.meta["nn_module_stack"]) == [""]
    assert [frame.text for frame in last.origins[0].frames()] == [
        "return self.inner(x) + 1  # behind the child"
    ]


def test_module_stack_after_a_child_that_failed_is_that_of_the_parent():
    class Failing(nn.Module):
        def forward(self, x):
            raise LookupError

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing = Failing()

        def forward(self, x):
            try:
                return self.failing(x)
            except LookupError:
                return x + 1

    graph = Tracer().trace(Root())
    assert list(node(graph, "add").meta["nn_module_stack"]) == [""]


def test_recursive_calls_of_one_module_are_told_apart():
    class Recursive(nn.Module):
        def forward(self, x, depth=2):
            return self(x + 1, depth - 1) if depth else x

    graph = Tracer().trace(Recursive(), {"depth": 2})
    frames = [len(list(node(graph, name).origins[0].frames())) for name in ("add", "add_1")]
    assert frames == [1, 2]


def test_generators_and_comprehensions_are_users_lines():
    def program(x):
        return sum(x * factor for factor in (1, 2))  # in the generator

    found = source(node(Tracer().trace(program), "mul_1"))
    assert found.line == line_of(program, "# in the generator")


def test_line_in_a_helper_called_by_torch_is_found():
    def program(x):
        return torch.nn.functional.multi_margin_loss(x, x)  # called

    found = source(list(Tracer().trace(program).nodes)[1])
    assert found.line == line_of(program, "# called")


@pytest.mark.parametrize("kind", [nn.Linear, Inner])
def test_graph_does_not_keep_frames_or_modules_alive(kind):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3) if kind is nn.Linear else kind()

        def forward(self, x):
            return self.inner(x)

    gc.collect()
    gc.disable()
    try:
        root = Root()
        weight = weakref.ref(root.inner.weight)
        graph = Tracer().trace(root)
        del root
        assert len(graph.nodes) > 2
        assert weight() is None
    finally:
        gc.enable()


def test_origin_outside_of_any_source_is_no_problem():
    namespace: dict = {}
    exec(compile("def program(x):\n    return x + 1\n", "<nowhere>", "exec"), namespace)
    found = source(node(Tracer().trace(namespace["program"]), "add"))

    assert (found.filename, found.line, found.text) == ("<nowhere>", 2, "")


class Helped(nn.Module):
    """Calls its first layer by a function of its own, and the second one itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.second(applied(self.first, x))


def applied(layer, x):
    return layer(x)


def test_a_layer_that_a_function_calls_first_comes_from_that_function_and_from_forward():
    graph = Tracer().trace(Helped())
    frames = {
        node.target: [frame.function for frame in node.origins[0].frames()]
        for node in graph.nodes
        if node.op == "call_module"
    }

    assert frames == {"first": ["applied", "forward"], "second": ["forward"]}
