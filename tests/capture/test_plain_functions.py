"""Functions in which there is nothing to look for, and programs that are made of them: which they are."""

from __future__ import annotations

import gc
import random
import types
import weakref
from functools import cached_property, wraps

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.capture.interception import own_code
from fxplug.capture.plain_functions import plain_parts
from fxplug.capture.plain_programs import plain_program
from fxplug.capture.policy import TracePolicy
from fxplug.errors import TraceError

SCALE = 2.0
SCRIPTS = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def relu_of_the_program(x):
    return x.relu()


torch_in_disguise = types.SimpleNamespace(relu=torch.relu)


class Net(nn.Module):
    """What the forwards below are forwards of."""

    factor = 3

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.none = None
        self.flag = True
        self.scale = 0.5
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.zeros(4))
        self.plain_tensor = torch.ones(4)
        self.items = [1, 2]
        self.function = relu_of_the_program
        self.function_of_torch = torch.relu

    def helper(self, x):
        return self.act(self.layer(x))

    def asking_helper(self, x):
        return x if isinstance(x, torch.Tensor) else self.layer(x)

    @property
    def read(self):
        return self.scale

    @cached_property
    def kept(self):
        return self.scale

    @staticmethod
    def static(x):
        return torch.relu(x)


def with_forward(forward):
    return type("Net", (Net,), {"forward": forward})()


def calls_layers(self, x):
    return self.act(self.layer(x))


def adds(self, x):
    y = self.layer(x)
    y += x
    return (y * self.scale - self.factor, -x)


def compares_with_none(self, x):
    left = x if self.none is None else self.none(x)
    return left if self.flag else self.act(left)


def calls_torch(self, x):
    return F.relu(torch.flatten(self.block(x), 1), inplace=False)


def calls_a_method(self, x):
    return self.helper(x) + self.helper(x)


def reads_a_weight(self, x):
    return x * self.weight + self.offset


def reads_a_global(self, x):
    return self.act(x) * SCALE


def calls_a_function_of_torch_that_it_holds(self, x):
    return self.function_of_torch(x)


PLAIN = [
    *(calls_layers, adds, compares_with_none, calls_torch, calls_a_method, reads_a_global, reads_a_weight),
    calls_a_function_of_torch_that_it_holds,
]


def asks(self, x):
    return self.act(x) if isinstance(x, torch.Tensor) else x


def compares_an_input(self, x):
    return x if x is None else self.act(x)


def assigns(self, x):
    self.scale = 2.0
    return self.act(x)


def calls_through_a_global(self, x):
    return torch_in_disguise.relu(x)


def calls_a_method_of_a_value(self, x):
    return self.layer(x).relu()


def reads_an_attribute_of_a_value(self, x):
    return self.layer(x).T


def reads_a_property(self, x):
    return x * self.read


def reads_what_is_cached(self, x):
    return x * self.kept


def reads_a_list(self, x):
    return x * self.items


def reads_a_tensor_that_is_no_buffer(self, x):
    return x * self.plain_tensor


def calls_an_attribute(self, x):
    return self.function(x)


def calls_a_static_method(self, x):
    return self.static(x)


def calls_a_method_that_asks(self, x):
    return self.asking_helper(x)


def hands_itself_on(self, x):
    return self.act(x, self)


def hands_a_module_on(self, x):
    return torch.utils.checkpoint.checkpoint(self.block, x)


def keeps_a_module(self, x):
    block = self.block
    return block[0](x)


def chooses_a_receiver(self, x):
    return (x if self.flag else torch).relu(x)


def chooses_a_module(self, x):
    return (self.none or self.act)(x)


def changes_a_mode(self, x):
    torch.set_grad_enabled(False)
    return self.act(x)


def seeds(self, x):
    torch.manual_seed(0)
    return self.act(x)


def changes_threads(self, x):
    torch.set_num_threads(1)
    return self.act(x)


def catches(self, x):
    try:
        return self.layer(x)
    except RuntimeError:
        return self.act(x)


def enters_a_context(self, x):
    with torch.no_grad():
        return self.act(x)


def loops(self, x):
    for layer in self.block:
        x = layer(x)
    return x


def has_a_function(self, x):
    def inner(y):
        return self.act(y)

    return inner(x)


def yields(self, x):
    yield self.act(x)


def imports(self, x):
    import torch

    return torch.relu(x)


def stars(self, *xs):
    return self.act(*xs)


def takes_a_default(self, x, kept=[]):  # noqa: B006 - what it is about
    return self.act(x)


def overwrites_itself(self, x):
    self = x
    return self + 1


NOT_PLAIN = [
    *(asks, assigns, calls_a_method_of_a_value, calls_a_method_that_asks, calls_a_static_method, catches),
    *(calls_an_attribute, calls_through_a_global, changes_a_mode, changes_threads, chooses_a_module),
    *(chooses_a_receiver, compares_an_input, enters_a_context, hands_a_module_on, hands_itself_on, imports),
    *(has_a_function, keeps_a_module, loops, overwrites_itself, reads_a_list, stars),
    *(reads_a_property, reads_a_tensor_that_is_no_buffer, reads_an_attribute_of_a_value, yields),
    *(reads_what_is_cached, seeds, takes_a_default),
]


@pytest.mark.parametrize("forward", PLAIN)
def test_forwards_that_call_modules_and_torch_are_plain(forward):
    net = with_forward(forward)
    parts = plain_parts(type(net).forward, net, own_code)
    assert parts is not None
    assert parts[0].code is forward.__code__


@pytest.mark.parametrize("forward", NOT_PLAIN)
def test_forwards_that_may_do_more_are_not(forward):
    net = with_forward(forward)
    assert plain_parts(type(net).forward, net, own_code) is None


def quiet_class(**methods):
    return type("Net", (Net,), {"forward": calls_layers, **methods})


@pytest.mark.parametrize(
    "name",
    [
        "__getattr__",
        "__getattribute__",
        "__call__",
        "__setattr__",
        "__add__",
        "__iter__",
        "__bool__",
        "__eq__",
    ],
)
def test_classes_with_special_methods_are_looked_through(name):
    kind = quiet_class(**{name: getattr(nn.Module, name, lambda self, *args: NotImplemented)})
    if name == "__eq__":
        kind.__hash__ = nn.Module.__hash__
    net = kind()
    assert plain_parts(kind.forward, net, own_code) is None


def test_classes_of_other_classes_are_looked_through():
    class Meta(type):
        pass

    class Made(Net, metaclass=Meta):
        forward = calls_layers

    assert plain_parts(Made.forward, Made(), own_code) is None


def test_a_class_that_gets_a_special_method_later_is_looked_through():
    kind = quiet_class()
    net = kind()
    assert plain_parts(kind.forward, net, own_code) is not None
    kind.__iter__ = lambda self: iter(())
    assert plain_parts(kind.forward, net, own_code) is None


def test_what_hides_a_method_or_a_module_counts():
    net = with_forward(calls_a_method)
    vars(net)["helper"] = lambda x: x
    assert plain_parts(type(net).forward, net, own_code) is None
    other = with_forward(calls_layers)
    vars(other)["act"] = nn.ReLU()
    assert plain_parts(type(other).forward, other, own_code) is None


def test_another_global_of_the_same_name_counts(monkeypatch):
    net = with_forward(calls_torch)
    assert plain_parts(type(net).forward, net, own_code) is not None
    monkeypatch.setitem(calls_torch.__globals__, "F", torch_in_disguise)
    assert plain_parts(type(net).forward, net, own_code) is None


def modules_of(net):
    return list(net.modules())


def always(code):
    return False


def test_a_program_is_plain_if_all_of_its_modules_are():
    net = with_forward(calls_layers)
    assert plain_program(modules_of(nn.Sequential(net, nn.ReLU())), own_code, always)
    other = nn.Sequential(net, with_forward(asks))
    assert plain_program(modules_of(other), own_code, always) is None


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_program_with_hooks_is_not_plain(register):
    net = with_forward(calls_layers)
    handle = getattr(net.layer, register)(lambda *args: None)
    assert plain_program(modules_of(net), own_code, always) is None
    handle.remove()
    assert plain_program(modules_of(net), own_code, always)


def test_a_program_with_hooks_for_all_modules_is_not_plain():
    net = with_forward(calls_layers)
    with nn.modules.module.register_module_forward_hook(lambda *args: None):
        assert plain_program(modules_of(net), own_code, always) is None


@pytest.mark.parametrize(
    "child",
    [
        pytest.param(lambda: nn.LazyLinear(4), id="lazy"),
        pytest.param(lambda: torch.jit.script(nn.Linear(4, 4)), id="scripted", marks=SCRIPTS),
        pytest.param(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), id="parametrised"),
        pytest.param(lambda: nn.DataParallel(nn.Linear(4, 4)), id="wrapped"),
        pytest.param(lambda: fxplug.symbolic_trace(nn.Linear(4, 4)), id="captured"),
    ],
)
def test_a_program_with_other_modules_is_not_plain(child):
    net = with_forward(calls_layers)
    net.act = child()
    assert plain_program(modules_of(net), own_code, always) is None


def test_a_program_that_says_what_training_means_is_not_plain():
    kind = quiet_class(train=lambda self, mode=True: nn.Module.train(self, mode))
    assert plain_program(modules_of(kind()), own_code, always) is None


class Draws(nn.Module):
    """Draws of Python's generator, which is heard of only where that is put in place."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def forward(self, x):
        return x * self.rng.random()


def test_what_is_not_plain_is_heard_of_behind_what_is():
    program = nn.Sequential(with_forward(calls_layers), Draws())
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(program)
    assert caught.value.code == "FXP-T053"


def code_while_traced(program, function):
    """Return the code that a function has while the first node of a program is recorded."""
    codes = []

    def on_node(node, context):
        codes.append(function.__code__)

    fxplug.Tracer(policy=TracePolicy(node_created=on_node)).trace(program)
    return codes[1]  # Inputs are recorded before anything is put in place.


def test_what_hears_of_other_programs_is_not_put_in_place_for_a_plain_one():
    function, own = nn.Module._apply, nn.Module._apply.__code__
    assert code_while_traced(with_forward(calls_layers), function) is own
    assert code_while_traced(with_forward(assigns_and_calls), function) is not own
    assert function.__code__ is own


def assigns_and_calls(self, x):
    self.flag = True
    return self.act(x)


@pytest.mark.parametrize("forward", [*PLAIN, calls_a_method_of_a_value, loops])
def test_what_is_captured_does_what_the_program_does(forward):
    net = with_forward(forward)
    captured = fxplug.symbolic_trace(net)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        torch.testing.assert_close(captured(x.clone()), net(x.clone()), rtol=0, atol=0)


def decorated(function):
    @wraps(function)
    def inner(self, x):
        return function(self, x) * SCALE

    return inner


def test_a_decorated_forward_is_looked_through():
    net = with_forward(decorated(calls_layers))
    assert plain_parts(type(net).forward, net, own_code) is None
    x = torch.randn(2, 4)
    torch.testing.assert_close(fxplug.symbolic_trace(net)(x), net(x), rtol=0, atol=0)


def test_a_tracer_that_was_used_by_hand_begins_anew():
    tracer = fxplug.Tracer()
    tracer.create_proxy("placeholder", "by_hand", (), {})
    graph = tracer.trace(with_forward(calls_layers))
    assert [node.name for node in graph.nodes] == ["x", "layer", "act", "output"]


def test_a_method_that_is_replaced_on_a_tracer_is_called():
    tracer = fxplug.Tracer()
    asked = []
    tracer.is_leaf_module = lambda module, path: asked.append(path) or True
    tracer.trace(with_forward(calls_layers))
    assert asked == ["layer", "act"]


def entering(kind):
    return TracePolicy(is_leaf_module=lambda module, path, context: False if type(module) is kind else None)


def test_layers_that_a_policy_enters_are_watched():
    program = nn.Sequential(with_forward(calls_layers), nn.BatchNorm1d(4)).train()
    graph = fxplug.Tracer(policy=entering(nn.Linear)).trace(program)
    assert "linear" in [node.name for node in graph.nodes]
    with pytest.raises(TraceError) as caught:  # It asks for the dimensions of what it is given.
        fxplug.Tracer(policy=entering(nn.BatchNorm1d)).trace(program)
    assert caught.value.code == "FXP-T001"


class Wraps(nn.Module):
    """Stands for another module."""

    def forward(self, x):
        return torch.relu(x)


def test_modules_that_a_policy_finds_in_others_are_watched():
    inner, program = with_forward(assigns), with_forward(calls_layers)
    program.act = Wraps()
    policy = TracePolicy(unwrap_module=lambda module: inner if isinstance(module, Wraps) else None)
    with pytest.raises(TraceError, match="scale") as caught:
        fxplug.Tracer(policy=policy).trace(program)
    assert caught.value.code == "FXP-T055"
    assert inner.scale == 0.5


class Twice(nn.Module):
    """Calls two modules of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Chooses(nn.ReLU()), Chooses(nn.ReLU())

    def forward(self, x):
        return self.other(self.one(self.other(x)))


def test_a_policy_is_asked_what_is_in_each_call_of_a_module():
    program, asked = Twice(), []

    def unwrap(module):
        asked.append(module)
        return program.one if module is program.other and len(asked) > 2 else None

    graph = fxplug.Tracer(policy=TracePolicy(unwrap_module=unwrap)).trace(program)

    assert [module for module in asked if isinstance(module, Chooses)] == [
        *(program.other, program.one, program.other, program.one)
    ]
    assert [
        str(node.target) for node in graph.find_nodes(op="call_module") if "layer" in str(node.target)
    ] == [*("other.layer", "one.layer", "one.layer")]


class Chooses(nn.Module):
    """Calls what it has, if it has something."""

    def __init__(self, act=None) -> None:
        super().__init__()
        self.layer, self.act, self.has = nn.Linear(4, 4), act, act is not None

    def forward(self, x):
        return self.act(self.layer(x)) if self.has else self.layer(x)


def doubled(x):
    return x * 2 if type(x) is torch.Tensor else x


def alike(program, captured):
    x = torch.randn(3, 4)
    expected, found = program(x), captured(x)
    assert found.requires_grad == expected.requires_grad
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def captures(program):
    return fxplug.symbolic_trace(program), fxplug.trace(program, (torch.randn(3, 4),), check=False)


def test_modules_of_one_class_may_hold_other_things():
    program = nn.Sequential(Chooses(), Chooses(doubled))
    for captured in captures(program):
        alike(program, captured)
    hidden = nn.Sequential(with_forward(calls_a_method), with_forward(calls_a_method))
    vars(hidden[1])["helper"] = torch.no_grad()(lambda x: x * 2)
    for captured in captures(hidden):
        alike(hidden, captured)


quiet_relu = torch.no_grad()(F.relu)


@wraps(F.relu)
def wrapped_relu(x):
    return F.relu(x) * 2 if type(x) is torch.Tensor else x


def calls_decorated(self, x):
    return quiet_relu(self.layer(x))


def calls_wrapped(self, x):
    return wrapped_relu(self.layer(x))


@pytest.mark.parametrize("forward", [calls_decorated, calls_wrapped])
def test_functions_that_only_say_that_they_are_of_torch_are_not(forward):
    program = with_forward(forward)
    assert plain_parts(type(program).forward, program, own_code) is None
    for captured in captures(program):
        alike(program, captured)


def calls_relu(self, x):
    return F.relu(self.layer(x))


def test_a_function_of_torch_that_is_exchanged_later_counts(monkeypatch):
    program = with_forward(calls_relu)
    assert plain_parts(type(program).forward, program, own_code) is not None
    monkeypatch.setattr(F, "relu", wrapped_relu)
    assert plain_parts(type(program).forward, program, own_code) is None


def test_a_method_that_is_exchanged_later_counts():
    kind = quiet_class(forward=calls_a_method, helper=Net.helper)
    program = kind()
    assert plain_parts(kind.forward, program, own_code) is not None
    kind.helper = Net.asking_helper
    assert plain_parts(kind.forward, program, own_code) is None
    kind.helper = property(lambda self: self.layer)
    assert plain_parts(kind.forward, program, own_code) is None


class Pops(nn.Sequential):
    def forward(self, x):
        self.pop(0)
        return torch.relu(x)


class Fills(nn.Embedding):
    def forward(self, x):
        self._fill_padding_idx_with_zero()
        return torch.relu(x)


@pytest.mark.parametrize("program", [Pops(nn.ReLU(), nn.ReLU()), Fills(4, 4, padding_idx=0)])
def test_methods_of_torch_are_not_plain(program):
    assert plain_parts(type(program).forward, program, own_code) is None


@pytest.mark.parametrize("name", ["_call_impl", "_wrapped_call_impl", "__getattr__", "__setattr__"])
def test_classes_that_say_how_modules_are_called_are_looked_through(name):
    kind = quiet_class(**{name: getattr(nn.Module, name)})
    assert plain_parts(kind.forward, kind(), own_code) is None


def other(original):
    def called(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    return called


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((nn.Module, name) for name in ("_call_impl", "__call__", "train")),
        *((nn.Linear, name) for name in ("__call__", "forward", "_call_impl")),
        (nn.Sequential, "forward"),
    ],
)
def test_a_program_is_not_plain_where_somebody_has_changed_torch(monkeypatch, kind, name):
    program = nn.Sequential(with_forward(calls_layers))
    assert plain_program(modules_of(program), own_code, always) is not None
    monkeypatch.setattr(kind, name, other(getattr(kind, name)))
    assert plain_program(modules_of(program), own_code, always) is None


def otherwise(self, x):
    return x


def test_a_program_is_not_plain_where_a_method_of_torch_has_other_code(monkeypatch):
    program = nn.Sequential(with_forward(calls_layers))
    monkeypatch.setattr(nn.Sequential.forward, "__code__", otherwise.__code__)
    assert plain_program(modules_of(program), own_code, always) is None


def test_a_program_is_not_plain_where_containers_give_something_else(monkeypatch):
    program = nn.Sequential(with_forward(calls_layers))
    monkeypatch.setattr(nn.Sequential, "__iter__", lambda self: iter([doubled]))
    assert plain_program(modules_of(program), own_code, always) is None
    assert plain_parts(nn.Sequential.forward, program, own_code) is None


def test_a_module_that_is_called_otherwise_is_not_plain():
    program = nn.Sequential(with_forward(calls_layers))
    vars(program[0])["_call_impl"] = lambda x: x
    assert plain_program(modules_of(program), own_code, always) is None


def test_a_module_without_a_table_is_not_plain():
    program = nn.Sequential(nn.Linear(4, 4))
    del vars(program[0])["_backward_pre_hooks"]
    assert plain_program(modules_of(program), own_code, always) is None


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_of_torch_is_traced_as_a_root_as_before(training):
    layer = nn.Dropout(0.5).train(training)
    for captured in captures(layer):
        layer.train(not training)
        with pytest.raises(fxplug.GuardError):
            captured.train(not training)(torch.randn(3, 4))
        layer.train(training)


FLAG = torch.tensor(1.0)


def takes_a_tensor(self, x, flag=FLAG):
    return self.layer(x) if flag else x


def test_tensors_among_defaults_are_looked_at():
    program = with_forward(takes_a_tensor)
    assert plain_parts(type(program).forward, program, own_code) is None


class Through(fxplug.Tracer):
    """Calls modules without gradients."""

    def call_module(self, m, forward, args, kwargs):
        with torch.no_grad():
            return super().call_module(m, forward, args, kwargs)


def test_what_a_tracer_does_itself_is_heard_of():
    program = nn.Sequential(with_forward(calls_layers))
    graph = Through().trace(program)
    assert all(node.region for node in graph.find_nodes(op="call_module"))


def test_classes_that_were_looked_at_are_let_go_of():
    program = with_forward(calls_a_method)
    fxplug.symbolic_trace(program)
    kind = weakref.ref(type(program))
    del program
    gc.collect()
    assert kind() is None


class Watching(fxplug.Tracer):
    """Is no plain tracer: what it traces is watched."""


def described(graph):
    return [
        (
            node.name,
            node.op,
            str(node.target),
            str(node.args),
            node.meta,
            [str(line.source()) for line in node.origins],
        )
        for node in graph.nodes
    ]


@pytest.mark.parametrize("forward", PLAIN)
def test_what_is_watched_and_what_is_not_give_the_same_graph(forward):
    program = nn.Sequential(with_forward(forward), nn.Sequential(nn.Identity()))
    plain = fxplug.Tracer()
    assert described(plain.trace(program)) == described(Watching().trace(program))
