"""Subclasses of Tracer: what they override is used where torch.fx uses it."""

from __future__ import annotations

import copy
import math
import operator
from collections import OrderedDict
from contextvars import ContextVar

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

import fxplug
import fxplug.fx
from fxplug.capture import PH, ParameterProxy, Proxy, Scope, ScopeContextManager, Tracer, TracerBase
from fxplug.capture.policy import TracePolicy
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute import GraphModule

LIBRARIES = [fxplug, torch.fx]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return F.relu(self.linear(x), inplace=False) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.norm = nn.LayerNorm(3)

    def forward(self, x, shift=1):
        parts = [self.block(x), {"shift": shift}["shift"]]
        return torch.stack([self.norm(parts[0]), parts[0]]) + parts[1]


def plain(value):
    """Return a value without what differs between the libraries."""
    if isinstance(value, (fxplug.Proxy, torch.fx.Proxy, fxplug.Node, torch.fx.Node)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    return getattr(value, "__name__", value) if callable(value) else value


def heard(base, name, root, select=lambda args: args, concrete_args=None):
    """Trace with a subclass that notes every call of its method `name`, and return the notes and the graph."""
    notes = []
    original = getattr(base, name)

    def method(self, *args, **kwargs):
        notes.append(plain([*select(args), *kwargs.values()]))
        return original(self, *args, **kwargs)

    graph = type("Noting", (base,), {name: method})().trace(root, concrete_args)
    return notes, str(graph)


def both(name, root, select=lambda args: args, concrete_args=None):
    return [heard(fx.Tracer, name, root, select, concrete_args) for fx in LIBRARIES]


@pytest.mark.parametrize("name", ["create_node", "create_proxy"])
def test_every_node_is_made_by_the_method(name):
    # torch.fx wishes for the names of functions, which are those that nodes get anyway.
    ours, theirs = both(name, Net(), lambda args: args[:4])

    assert [note[:4] for note in ours[0]] == [note[:4] for note in theirs[0]]
    kinds = {"placeholder", "call_module", "call_function", "get_attr"}
    assert {note[0] for note in ours[0]} == (kinds | {"output"} if name == "create_node" else kinds)


@pytest.mark.parametrize("name", ["proxy", "is_leaf_module", "path_of_module", "call_module", "create_arg"])
def test_method_is_asked_as_often_and_with_the_same(name):
    select = (lambda args: [type(args[0]).__name__, args[2:]]) if name == "call_module" else lambda args: args
    if name in {"is_leaf_module", "path_of_module"}:
        select = lambda args: [type(args[0]).__name__, *args[1:]]  # noqa: E731
    ours, theirs = both(name, Net(), select)

    if name == "create_arg":
        # Defaults are arguments of their placeholders there and are converted once more here.
        ours, theirs = ([note for note in found[0] if note not in ([1], [[1]])] for found in (ours, theirs))
        assert ours == theirs
    else:
        assert ours[0] == theirs[0]
        assert ours[0]


def test_getattr_hears_of_parameters_and_submodules_by_their_own_names():
    select = lambda args: [args[0], type(args[1]).__name__]  # noqa: E731
    ours, theirs = both("getattr", Net(), select)

    assert ours == theirs
    assert ours[0] == [
        ["block", "Block"],
        ["linear", "Linear"],
        ["scale", "Parameter"],
        ["norm", "LayerNorm"],
    ]


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_getattr_may_leave_a_parameter_as_it_is(fx):
    class Real(fx.Tracer):
        def getattr(self, attr, attr_val, parameter_proxy_cache):
            if attr == "scale":
                return attr_val
            return super().getattr(attr, attr_val, parameter_proxy_cache)

    class Branching(Block):
        def forward(self, x):
            return x * self.scale if self.scale.sum() == 3 else x

    graph = Real().trace(Branching())
    assert [node.op for node in graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_getattr_may_replace_a_submodule(fx):
    class Replacing(fx.Tracer):
        def getattr(self, attr, attr_val, parameter_proxy_cache):
            return self.root.norm if attr == "block" else attr_val

    graph = Replacing().trace(Net())
    assert [node.target for node in graph.nodes if node.op == "call_module"] == ["norm", "norm"]


def test_getattr_may_ask_for_another_attribute():
    class Other(Tracer):
        def getattr(self, attr, attr_val, parameter_proxy_cache):
            if attr == "scale":
                return super().getattr("bias", self.root.linear.bias, parameter_proxy_cache)
            return super().getattr(attr, attr_val, parameter_proxy_cache)

    graph = Other().trace(Block())
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["linear.bias"]


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_create_args_for_root_gives_what_is_run(fx):
    class Doubling(fx.Tracer):
        def create_args_for_root(self, root_fn, is_module, concrete_args=None):
            function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
            assert args[0] is self.root
            doubled = [args[0], args[1] * 2, *args[2:]]
            return (lambda *given: function(*given) + 1), doubled

    net = Net()
    tracer = Doubling()
    module = fx.GraphModule(net, tracer.trace(net))
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), net(x * 2) + 1)


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_create_args_for_root_may_be_written_anew(fx):
    class OwnInputs(fx.Tracer):
        def create_args_for_root(self, root_fn, is_module, concrete_args=None):
            names = root_fn.__code__.co_varnames[1 : root_fn.__code__.co_argcount]
            inputs = [self.create_proxy("placeholder", f"given_{name}", (), {}) for name in names]
            return root_fn, [self.root, *inputs]

    graph = OwnInputs().trace(Net())
    assert [node.target for node in graph.nodes if node.op == "placeholder"] == ["given_x", "given_shift"]


def test_create_args_for_root_of_a_function_gets_no_module():
    seen = []

    class Watching(Tracer):
        def create_args_for_root(self, root_fn, is_module, concrete_args=None):
            function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
            seen.append((root_fn, is_module, concrete_args, len(args)))
            return function, args

    def program(x, y):
        return x

    Watching().trace(program, {"y": 1})
    assert seen == [(program, False, {"y": 1}, 2)]


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_constants_get_names_from_get_fresh_qualname(fx):
    class Naming(fx.Tracer):
        def get_fresh_qualname(self, prefix):
            return super().get_fresh_qualname(f"of_mine{prefix}")

    graph = Naming().trace(lambda x: x + torch.ones(1) * torch.zeros(2))
    assert [node.target for node in graph.nodes if node.op == "get_attr"] == ["of_mine_tensor_constant0"]


def test_fresh_names_are_those_of_neither_root_nor_graph():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.thing0 = nn.Linear(1, 1)
            self._tensor_constant0 = 5

        def forward(self, x):
            return x + torch.ones(1)

    tracer = Tracer()
    tracer.trace(Root())
    assert tracer.get_fresh_qualname("thing") == "thing1"
    assert tracer.get_fresh_qualname("_tensor_constant") == "_tensor_constant2"
    assert tracer.get_fresh_qualname("other") == "other0"


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_questions_are_answered_by_the_tracer(fx):
    class Answering(fx.Tracer):
        def to_bool(self, obj):
            return obj.node.target is not operator.lt

        def iter(self, obj):
            return iter([obj[0], obj[1]])

        def keys(self, obj):
            return ["dim"]

    def program(x, options):
        parts = [part for part in x if part > 0]
        return torch.sum(parts[0] if x < 1 else parts[1], **options)

    graph = Answering().trace(program)
    assert [node.name for node in graph.nodes] == [
        "x",
        "options",
        "getitem",
        "getitem_1",
        "gt",
        "gt_1",
        "lt",
        "getitem_2",
        "sum_1",
        "output",
    ]


# -- partial capture


def test_root_cannot_be_changed_by_its_tracer():
    class Nesting(Tracer):
        """Replaces a module by a graph module in the very root, where torch.fx lets it."""

        def call_module(self, m, forward, args, kwargs):
            if type(m) is Block:
                setattr(self.root, "block", GraphModule(m, Tracer().trace(m)))  # noqa: B010
            return super().call_module(m, forward, args, kwargs)

    net = Net()
    block = net.block
    with pytest.raises(TraceError, match="'block', which is part of the module's state"):
        Nesting().trace(net)
    assert net.block is block


def test_call_module_may_collect_graphs_beside_the_trace():
    class Nesting(Tracer):
        def __init__(self):
            super().__init__()
            self.captured = {}

        def call_module(self, m, forward, args, kwargs):
            path = self.path_of_module(m)
            if type(m) is not Block:
                return super().call_module(m, forward, args, kwargs)
            self.captured[path] = GraphModule(m, Tracer().trace(m))
            return self.create_proxy("call_module", path, args, kwargs)

    net = Net()
    tracer = Nesting()
    module = GraphModule(net, tracer.trace(net))
    module.add_submodule("block", tracer.captured["block"])
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), net(x))
    assert [node.target for node in module.graph.find_nodes(op="call_module")] == ["block", "norm"]
    assert isinstance(module.block, GraphModule)


class Rooted(nn.Module):
    def forward(self, x):
        self.seen = x
        return x * math.sqrt(x.shape[0])


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
@pytest.mark.filterwarnings("ignore:While tracing, forward assigned:fxplug.errors.TraceWarning")
def test_call_module_may_run_the_module_itself(fx):
    class Running(fx.Tracer):
        def call_module(self, m, forward, args, kwargs):
            return forward(*args, **kwargs)

    root = nn.Sequential(Rooted())
    graph = Running().trace(root)
    assert [node.name for node in graph.nodes] == [
        "input_1",
        "getattr_1",
        "getitem",
        "sqrt",
        "mul",
        "output",
    ]
    assert hasattr(root[0], "seen") is (fx is torch.fx)  # torch.fx leaves a proxy in the model.


def test_functions_are_wrapped_in_modules_that_a_subclass_runs_itself():
    class Running(Tracer):
        def call_module(self, m, forward, args, kwargs):
            return forward(*args, **kwargs)

    namespace = {"sqrt": math.sqrt}
    exec("def forward(self, x):\n    return sqrt(x)", namespace)
    root = nn.Sequential(type("Elsewhere", (nn.Module,), {"forward": namespace["forward"]})())
    assert [node.target for node in Running().trace(root).find_nodes(op="call_function")] == [math.sqrt]


def test_graph_module_inside_is_flattened_or_kept(capture):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = capture(Block())

        def forward(self, x):
            return self.inner(x) + 1

    class Keeping(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, GraphModule) or super().is_leaf_module(m, module_qualified_name)

    outer, x = Outer(), torch.randn(2, 3)
    flat, kept = capture(outer), capture(outer, tracer=Keeping())
    assert [node.target for node in flat.graph.find_nodes(op="call_module")] == ["inner.linear"]
    assert [node.target for node in kept.graph.find_nodes(op="call_module")] == ["inner"]
    for module in (flat, kept):
        torch.testing.assert_close(module(x), outer(x))


# -- attributes


def test_older_subclass_without_a_factory_of_proxies_still_works():
    class Older(Tracer):
        def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None):
            return super().create_proxy(kind, target, args, kwargs, name, type_expr)

    assert len(Older(param_shapes_constant=True).trace(Block()).nodes) == 6


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_shapes_of_parameters_are_constants_on_request(fx):
    class Root(Block):
        def forward(self, x):
            weight = self.linear.weight
            if weight.shape[0] == weight.size()[1] and weight.ndim == weight.dim() == 2:
                return x * weight.nelement() + self.scale.numel()
            return x

    module = fx.GraphModule(Root(), fx.Tracer(param_shapes_constant=True).trace(Root()))
    assert [node.op for node in module.graph.nodes if node.op == "call_function"] == ["call_function"] * 2
    assert module(torch.zeros(1)).item() == 3
    with pytest.raises(ValueError, match=r"control flow|condition"):
        fx.Tracer().trace(Root())


def test_parameter_proxies_have_what_plugins_mix_in():
    class Mixin:
        mixed = True

    seen = []

    class Root(Block):
        def forward(self, x):
            seen.append(self.scale)
            return x * self.scale

    policy = TracePolicy(proxy_mixins=lambda node, kind, context: (Mixin,))
    graph = Tracer(param_shapes_constant=True, policy=policy).trace(Root())
    assert isinstance(seen[0], ParameterProxy)
    assert seen[0].mixed
    assert [node.op for node in graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_another_method_may_be_traced(fx):
    class Model(nn.Module):
        def forward(self, x):
            raise NotImplementedError

        def encode(self, x, scale=2):
            return x * scale

    class Encoding(fx.Tracer):
        traced_func_name = "encode"

    module = fx.GraphModule(Model(), Encoding().trace(Model()))
    assert module(torch.ones(1)).item() == 2
    assert [node.target for node in module.graph.nodes if node.op == "placeholder"] == ["x", "scale"]


def test_method_that_does_not_exist_is_named():
    tracer = Tracer()
    tracer.traced_func_name = "encode"
    with pytest.raises(TraceError, match=r"Cannot trace Block: it has no method 'encode'"):
        tracer.trace(Block())


def test_hooks_run_around_forward_only():
    class Model(nn.Module):
        def forward(self, x):
            return self.encode(x)

        def encode(self, x):
            return x * 2

    root = Model()
    root.register_forward_hook(lambda module, args, result: result + 1)
    tracer = Tracer()
    tracer.traced_func_name = "encode"
    assert [node.name for node in tracer.trace(root).nodes] == ["x", "mul", "output"]
    assert [node.name for node in Tracer().trace(root).nodes] == ["x", "mul", "add", "output"]


def test_scope_and_stack_say_where_the_trace_is():
    log = []

    class Watching:
        def create_node(self, *args, **kwargs):
            node = super().create_node(*args, **kwargs)
            log.append(
                (node.name, self.scope.module_path, self.scope.module_type, list(self.module_stack.items()))
            )
            return node

    logs = []
    for fx in LIBRARIES:
        log.clear()
        tracer = type("Both", (Watching, fx.Tracer), {})()
        tracer.trace(Net())
        logs.append((list(log), dict(tracer.node_name_to_scope), tracer.root_module_name))
    assert logs[0] == logs[1]
    assert ("relu", "block", Block, [("block", ("block", Block))]) in logs[0][0]
    assert logs[0][1]["block_linear"] == ("block.linear", nn.Linear)
    assert logs[0][1]["stack"] == ("", None)


def test_tracer_with_a_scope_of_its_own():
    """As quantization tracers are written."""

    class Scoped(Tracer):
        def __init__(self):
            super().__init__()
            self.scope = Scope("", None)
            self.module_stack = OrderedDict()
            self.node_name_to_scope = {}

        def call_module(self, m, forward, args, kwargs):
            current = Scope(f"<{self.path_of_module(m)}>", type(m))
            with ScopeContextManager(self.scope, current):
                return super().call_module(m, forward, args, kwargs)

        def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
            node = super().create_node(kind, target, args, kwargs, name, type_expr)
            self.node_name_to_scope[node.name] = (self.scope.module_path, self.scope.module_type)
            return node

    tracer = Scoped()
    tracer.trace(Net())
    assert tracer.node_name_to_scope["block_linear"] == ("<block.linear>", nn.Linear)
    assert tracer.node_name_to_scope["relu"] == ("<block>", Block)
    assert tracer.node_name_to_scope["stack"] == ("", None)
    assert tracer.module_stack == {}


def test_scope_of_the_tracer_can_be_changed_for_a_while():
    tracer = Tracer()
    with ScopeContextManager(tracer.scope, Scope("here", nn.ReLU)) as scope:
        assert (tracer.scope.module_path, scope.module_type) == ("here", nn.ReLU)
    assert repr(tracer.scope) == "Scope('', None)"


def test_submodule_paths():
    net = Net()
    tracer = Tracer()
    tracer.trace(net)

    assert tracer.submodule_paths[net.block.linear] == "block.linear"
    assert len(tracer.submodule_paths) == 4


def test_keywords_of_the_constructor():
    tracer = Tracer(autowrap_modules=(math,), autowrap_functions=(len,), param_shapes_constant=True)

    assert tracer.param_shapes_constant
    assert (tracer.trace_asserts, tracer.check_mutable_operations) == (False, False)
    assert (tracer.record_stack_traces, tracer.proxy_buffer_attributes) == (True, True)
    assert isinstance(tracer, TracerBase)


def test_tracer_can_be_copied_deeply():
    class Custom(Tracer):
        def __init__(self):
            super().__init__(autowrap_modules=(math, operator))
            self.notes = [1]

    tracer = Custom()
    tracer.trace(Net())
    other = copy.deepcopy(tracer)

    assert type(other) is Custom
    assert other.autowrap_modules == (math, operator)
    assert other.notes == [1]
    assert other.notes is not tracer.notes
    assert str(other.trace(Net())) == str(tracer.trace(Net()))


STEPS = ContextVar("steps", default=0)


def test_a_tracer_that_has_seen_a_context_variable_change_can_be_copied_deeply():
    def counts(x):
        STEPS.set(STEPS.get() + 1)
        return x + 1

    tracer = Tracer()
    with pytest.raises(TraceError, match="STEPS"):
        tracer.trace(counts)

    assert str(copy.deepcopy(tracer).graph) == str(tracer.graph)
    assert STEPS.get() == 0


# -- writes


def write_with_out(x):
    return torch.add(x, 1, out=x)


def write_with_method(x):
    return x.add_(1)


def write_with_operator(x):
    x += 1
    return x


def swallow(x):
    try:
        x.add_(1)
    except Exception:
        return x
    return -x


@pytest.mark.parametrize("program", [write_with_out, write_with_method, write_with_operator, swallow])
def test_writes_are_refused_on_request(program):
    class Strict(Tracer):
        check_mutable_operations = True

    with pytest.raises(
        TraceError, match=r"in place at .*test_custom_tracers\.py:\d+ in .*FXP-T030"
    ) as caught:
        Strict().trace(program)
    assert f"in {program.__name__} (" in str(caught.value)
    assert Tracer().trace(program).observers == []


def test_what_does_not_write_is_recorded_although_writes_are_refused():
    tracer = Tracer()
    tracer.check_mutable_operations = True
    graph = tracer.trace(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(inplace=True), Block()))

    assert graph.observers == []
    assert str(graph) == str(Tracer().trace(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), Block())))


def test_torch_fx_lets_these_pass():
    class Strict(torch.fx.Tracer):
        check_mutable_operations = True

    Strict().trace(write_with_method)
    Strict().trace(write_with_out)


# -- assertions


def asserting(x):
    assert x.sum() > 0, "the sum is to be positive"
    assert x.dim() == 2
    assert not x.isnan().any()
    return x * 2


@pytest.fixture
def asserted():
    """(function) -> the same function with Python's own assertions: pytest rewrites those of its tests."""
    import inspect
    import textwrap

    def compiled(function):
        namespace = {"torch": torch}
        exec(textwrap.dedent(inspect.getsource(function)), namespace)
        return namespace[function.__name__]

    return compiled


def test_assertions_are_recorded_on_request(asserted):
    tracer = Tracer()
    tracer.trace_asserts = True
    module = GraphModule(nn.Module(), tracer.trace(asserted(asserting)))

    assert len(module.graph.find_nodes(op="call_function", target=torch._assert)) == 3
    module.graph.eliminate_dead_code()
    assert module(torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(AssertionError, match=r"^the sum is to be positive"):
        module(-torch.ones(2, 2))
    with pytest.raises(AssertionError, match="in asserting"):
        module(torch.ones(2))
    with pytest.raises(AssertionError, match=r"isnan|the sum is"):
        module(torch.tensor([[1.0, math.nan]]))


def test_assertions_are_refused_by_default(asserted):
    with pytest.raises(TraceError, match="FXP-T001"):
        Tracer().trace(asserted(asserting))


def test_other_conditions_are_refused_although_assertions_are_recorded():
    tracer = Tracer()
    tracer.trace_asserts = True
    with pytest.raises(TraceError, match="FXP-T001"):
        tracer.trace(lambda x: x if x.sum() > 0 else -x)


# -- arguments


class Adding(nn.Module):
    def forward(self, x):
        return x + 1


# Where torch.fx calls a method of what is compiled, the captured module does not have the weights of that.
@pytest.mark.parametrize(
    ("fx", "expected"),
    [
        (LIBRARIES[0], [("call_module", "inner")]),
        (LIBRARIES[1], [("get_attr", "inner._c"), ("call_method", "forward")]),
    ],
    ids=["fxplug", "torch.fx"],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_scripted_modules_are_called(fx, expected):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.script(Adding())

        def forward(self, x):
            return self.inner(x) * 2

    root = Model()
    module = fx.GraphModule(root, fx.Tracer().trace(root))
    calls = [(node.op, node.target) for node in module.graph.nodes]
    assert calls[1 : 1 + len(expected)] == expected
    assert module(torch.ones(1)).item() == 4


def test_proxy_class_may_be_chosen_for_one_node():
    class Special(Proxy):
        pass

    class Choosing(Tracer):
        def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
            if target is torch.relu:
                proxy_factory_fn = lambda node: Special(node, self)  # noqa: E731
            return super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)

    seen = []

    def program(x):
        value = torch.relu(x)
        seen.append(value)
        return value + 1

    Choosing().trace(program)
    assert [type(value) for value in seen] == [Special]


def test_trace_takes_concrete_arguments_by_name_and_position():
    class Passing(Tracer):
        def trace(self, root, concrete_args=None):
            return super().trace(root, concrete_args={"shift": 2})

    graph = Passing().trace(Net())
    assert len(graph.find_nodes(op="call_function", target=torch._assert)) == 1
    assert len(Tracer().trace(Net(), (PH, 2)).nodes) == len(graph.nodes)


def test_warnings_say_which_line_started_the_trace():
    with pytest.warns(TraceWarning) as caught:
        Tracer().trace(Rooted())
    assert caught[0].filename == __file__
