"""Programs that call methods of traced values, take them apart and go through lists of modules: which are plain."""

from __future__ import annotations

import gc
import math
import weakref
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.capture.interception import own_code
from fxplug.capture.plain_functions import plain_parts
from fxplug.capture.plain_programs import plain_program
from fxplug.capture.policy import TracePolicy
from fxplug.capture.tracer import Tracer
from fxplug.errors import TraceError
from fxplug.semantics.effects import method_computes


class Other:
    """No value of torch, with methods of the same names."""

    def view(self, x):
        return x if isinstance(x, torch.Tensor) else x + 1


class Loops(nn.ModuleList):
    """Goes through itself in its own way."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


class Net(nn.Module):
    """What the forwards below are forwards of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.by_name = nn.ModuleDict({"first": nn.Linear(4, 4)})
        self.reversed_blocks = Loops([nn.Linear(4, 4), nn.ReLU()])
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.other = Other()
        self.plain_list = [nn.ReLU()]
        self.heads = 2
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))


def with_forward(forward):
    return type("Net", (Net,), {"forward": forward})()


def calls_methods(self, x):
    return self.layer(x).transpose(0, 1).contiguous().view(-1, self.heads).softmax(dim=-1)


def unpacks_a_shape(self, x):
    rows, columns = x.shape
    return self.layer(x).view(columns, rows) * rows


def unpacks_parts(self, x):
    left, right = self.layer(x).chunk(2, dim=-1)
    return left * right.sigmoid()


def reads_elements(self, x):
    return x[0] + self.mask[: x.size(0), :4][0] + x[..., None].squeeze(-1)[:, 1:2]


def goes_through_modules(self, x):
    for block in self.blocks:
        x = block(x)
    for step in self.chain:
        x = step(x) + x
    return self.layer(x)


def goes_through_modules_in_one_another(self, x):
    for block in self.blocks:
        y = block(x)
        for block in self.chain:  # noqa: PLW2901 - what it is about
            x = block(y)
    return block(x)


def computes_numbers(self, x):
    return x * math.sqrt(x.size(-1)) / math.pi + math.log(2.0)


def reads_what_a_tensor_is(self, x):
    return self.layer(x).to(x.dtype).to(x.device).T.reshape(x.shape) * x.ndim


def makes_tensors_of_sizes(self, x):
    return x + torch.zeros(x.shape[1], dtype=x.dtype) + torch.arange(4).view(1, 4)


def writes_before_it_unpacks(self, x):
    y = self.layer(x)
    F.relu(y, inplace=True)
    rows, columns = y.shape
    return y.view(columns, rows)


def writes(self, x):
    return self.layer(x).add_(1)


PLAIN = [
    writes,
    *(calls_methods, computes_numbers, goes_through_modules, goes_through_modules_in_one_another),
    *(makes_tensors_of_sizes, reads_elements, reads_what_a_tensor_is, unpacks_a_shape, unpacks_parts),
    writes_before_it_unpacks,
]


def resizes(self, x):
    return self.layer(x).resize_(2)


def writes_to_elements(self, x):
    y = self.layer(x)
    y[0] = 0
    return y


def draws(self, x):
    return self.layer(x).bernoulli()


def asks_for_a_number(self, x):
    return x * self.mask.sum().item()


def makes_an_array(self, x):
    return x + self.mask.numpy().sum()


def asks_for_a_place_in_memory(self, x):
    return x + x.data_ptr()


def calls_what_no_tensor_has(self, x):
    return x.helper()


def calls_a_hidden_method(self, x):
    return x._values()


def reads_data(self, x):
    return x.data + 1


def reads_gradients(self, x):
    return self.layer(x) if x.requires_grad else x


def keeps_a_method(self, x):
    view = x.view
    return view(-1)


def calls_a_method_of_what_it_holds(self, x):
    return self.other.view(x)


def calls_a_method_of_an_element(self, x):
    for block in self.blocks:
        x = block.view(x)
    return x


def calls_a_method_of_what_was_an_element(self, x):
    for block in self.blocks:
        x = block(x)
    return block.view(x)


def hands_an_element_on(self, x):
    for block in self.blocks:
        x = self.layer(x, block)
    return x


def keeps_an_element(self, x):
    for block in self.blocks:
        kept = block
        x = kept.view(x)
    return x


def keeps_an_element_in_passing(self, x):
    for block in self.blocks:
        x = (kept := block)(x)
        x = kept.view(x)
    return x


def packs_an_element(self, x):
    for block in self.blocks:
        x = (packed := (block, x))[0](x)
        x = packed[0].view(x)
    return x


def computes_with_an_element(self, x):
    for block in self.blocks:
        x = x + block
    return x


def takes_an_element_apart(self, x):
    for left, right in self.blocks:
        x = left(right(x))
    return x


def puts_elements_into_itself(self, x):
    for self in self.blocks:  # noqa: B020, PLR1704 - what it is about
        x = self(x)
    return x


def overwrites_an_element(self, x):
    for block in self.blocks:
        block = x  # noqa: PLW2901 - what it is about
        x = block.view(-1)
    return x


def goes_through_values(self, x):
    y = x
    for row in x:
        y = y + row
    return y


def goes_through_names(self, x):
    for name in self.by_name:
        x = self.by_name[name](x)
    return x


def goes_through_parameters(self, x):
    for weight in self.weights:
        x = x * weight
    return x


def goes_through_a_list(self, x):
    for layer in self.plain_list:
        x = layer(x)
    return x


def goes_through_modules_in_a_way_of_their_own(self, x):
    for block in self.reversed_blocks:
        x = block(x)
    return x


def counts_modules(self, x):
    for number, block in enumerate(self.blocks):
        x = block(x) * number
    return x


def lists_results(self, x):
    return torch.cat([block(x) for block in self.blocks])


def takes_the_square_root(self, x):
    return x * sqrt(x.size(-1))


def unpacks_with_a_star(self, x):
    first, *_ = x.shape
    return x * first


NOT_PLAIN = [
    *(asks_for_a_number, asks_for_a_place_in_memory, calls_a_hidden_method, calls_a_method_of_an_element),
    *(calls_a_method_of_what_it_holds, calls_a_method_of_what_was_an_element, calls_what_no_tensor_has),
    *(computes_with_an_element, counts_modules, draws, goes_through_a_list, goes_through_names),
    *(goes_through_modules_in_a_way_of_their_own, goes_through_parameters, goes_through_values),
    *(hands_an_element_on, keeps_a_method, keeps_an_element, keeps_an_element_in_passing, lists_results),
    *(makes_an_array, overwrites_an_element, packs_an_element, puts_elements_into_itself, reads_data),
    *(reads_gradients, takes_an_element_apart, takes_the_square_root, unpacks_with_a_star),
    *(resizes, writes_to_elements),
]


def is_plain(forward, **options):
    net = with_forward(forward)
    return plain_parts(type(net).forward, net, own_code, **options) is not None


@pytest.mark.parametrize("forward", PLAIN)
def test_methods_of_values_are_plain_where_all_values_are_traced(forward):
    assert is_plain(forward, with_methods=True)
    assert not is_plain(forward)  # A value may be anything elsewhere.


@pytest.mark.parametrize("forward", NOT_PLAIN)
def test_what_may_run_code_that_is_not_looked_at_is_not(forward):
    assert not is_plain(forward, with_methods=True)


def program_of(forward):
    """Return a program of modules and layers that has only what it calls: the others have code of their own."""
    net = with_forward(forward)
    for name in ("reversed_blocks", "weights", "by_name"):
        del net._modules[name]
    return net


def watched(root):
    """Return the graph of a program that is looked through and watched."""
    tracer = Tracer()
    tracer.may_be_plain = False
    tracer._replaced_methods = lambda: tracer._replaced
    graph = tracer.trace(root)
    return graph, tracer


def told(graph):
    return [
        (
            *(node.name, node.op, node.target, str(node.args), str(node.kwargs), node.region, node.type),
            [(str(origin.source()), origin.module and str(origin.module.stack())) for origin in node.origins],
        )
        for node in graph.nodes
    ]


@pytest.mark.parametrize("forward", PLAIN)
def test_a_plain_program_is_recorded_as_others_are(forward):
    net = program_of(forward)
    tracer = Tracer()
    graph = tracer.trace(net)
    other, watching = watched(net)
    graph.lint()

    assert tracer._is_plain
    assert not watching._is_plain
    assert told(graph) == told(other)
    captured = fxplug.symbolic_trace(net)
    for _ in range(2):
        x = torch.randn(4, 4)
        torch.testing.assert_close(captured(x.clone()), net(x.clone()), rtol=0, atol=0)


def test_a_check_of_a_plain_program_knows_what_was_written_before():
    net = program_of(writes_before_it_unpacks)
    captured = fxplug.symbolic_trace(net)
    with pytest.raises(fxplug.GuardError, match="2 values to unpack") as caught:
        captured(torch.randn(2, 3, 4))
    assert not caught.value.can_run_again

    with pytest.raises(fxplug.GuardError, match="2 values to unpack") as caught:
        fxplug.symbolic_trace(program_of(unpacks_a_shape))(torch.randn(2, 3, 4))
    assert caught.value.can_run_again


def test_a_question_in_a_plain_program_is_refused_with_its_line():
    def forward(self, x):
        return x.view(-1) if x.size(0) > 2 else x

    net = program_of(forward)
    with pytest.raises(TraceError) as caught:
        Tracer().trace(net)
    with pytest.raises(TraceError) as expected:
        watched(net)
    assert str(caught.value) == str(expected.value)
    assert "if x.size(0) > 2" in str(caught.value)


def test_proxies_to_which_a_plugin_adds_may_answer_otherwise():
    class Asks:
        def view(self, *sizes):
            return Other()

    def forward(self, x):
        return x.view(x)

    for policy in (
        TracePolicy(mixins_of_kind=lambda kind, context: (Asks,)),
        TracePolicy(proxy_mixins=lambda node, kind, context: (Asks,)),
    ):
        tracer = Tracer(policy=policy)
        with pytest.raises(TraceError):
            tracer.trace(program_of(forward))
        assert not tracer._is_plain


def test_what_an_object_has_in_place_of_its_modules_is_gone_through():
    net = program_of(goes_through_modules)
    vars(net)["blocks"] = [nn.Tanh()]
    assert plain_program(list(net.modules()), own_code, lambda code: False, with_methods=True) is None


def test_math_that_somebody_has_exchanged_is_looked_through(monkeypatch):
    assert is_plain(computes_numbers, with_methods=True)
    monkeypatch.setattr(math, "sqrt", lambda number: number)
    assert not is_plain(computes_numbers, with_methods=True)


@pytest.mark.parametrize(
    "name",
    [
        *("add_", "item", "tolist", "numpy", "data_ptr", "backward", "register_hook", "retain_grad", "set_"),
        *(
            "bernoulli",
            "multinomial",
            "__add__",
            "_values",
            "apply_",
            "untyped_storage",
            "nothing",
            "resize_",
        ),
    ],
)
def test_methods_that_do_more_than_compute(name):
    assert not method_computes(name)


@pytest.mark.parametrize(
    "name", ["view", "transpose", "softmax", "size", "to", "chunk", "topk", "masked_fill"]
)
def test_methods_that_compute(name):
    assert method_computes(name)


class Twice(nn.Module):
    """Is called by a method that takes its object among others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def view(self, x):
        return x * 2 if type(x) is torch.Tensor else x

    def helper(*args):
        self, x = args
        return self.view(x)

    def forward(self, x):
        return self.layer(self.helper(x))


def test_an_object_among_other_arguments_is_looked_at():
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(Twice())
    assert caught.value.code == "FXP-T040"
    assert not is_plain(lambda *args: args[0].view(args[1]), with_methods=True)


def made_with(default):
    def method(self, x, value=default):
        return x if value == 0 else value.view(x)

    return method


def test_methods_with_the_same_code_and_other_defaults_are_looked_at():
    def forward(self, x):
        return self.first(x) + self.second(x)

    kind = type("Net", (Net,), {"forward": forward, "first": made_with(0), "second": made_with(Other())})
    other = type("Net", (Net,), {"forward": forward, "first": made_with(Other()), "second": made_with(0)})
    for one in (kind, other):
        assert plain_parts(one.forward, one(), own_code, with_methods=True) is None


def test_a_weight_that_an_array_shares_is_found_where_it_is_written_to():
    def forward(self, x):
        F.relu(self.shared.view(2, 2), inplace=True)
        return x + self.shared

    numpy = pytest.importorskip("numpy")
    net = program_of(forward)
    net.array = numpy.zeros(4, dtype=numpy.float32)
    net.register_buffer("shared", torch.from_numpy(net.array))
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(net)
    assert caught.value.code == "FXP-T055"


@pytest.mark.parametrize("result", ["x.view(-1).relu()", "[y.relu() for y in (x.view(-1),)][0]"])
def test_classes_are_let_go(result):
    names = {"nn": nn, "__name__": "made"}
    exec(f"class Made(nn.Module):\n  def forward(self, x): return {result}", names)
    fxplug.symbolic_trace(nn.Sequential(names["Made"]()))
    reference = weakref.ref(names["Made"])
    del names  # With what its forward finds among globals, the class itself.
    gc.collect()
    assert reference() is None
