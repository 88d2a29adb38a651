"""Calls of torch that hold a traced value where torch expects a number."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import fxplug
from fxplug.capture import Tracer
from fxplug.errors import TraceError
from fxplug.plugins import Config, PluginManager, TraceConfig

TABLE = torch.arange(8.0).view(2, 4)
ROW = torch.arange(4.0).view(1, 4)

PROGRAMS = {
    "zeros": lambda x: torch.zeros(x.shape[0], 3),
    "zeros_of_a_size_behind": lambda x: torch.zeros(3, x.shape[0]),
    "zeros_of_two_sizes": lambda x: torch.zeros(x.shape[0], x.shape[1]),
    "zeros_of_one_size": lambda x: torch.zeros(x.shape[0]),
    "zeros_of_a_shape": lambda x: torch.zeros(x.shape),
    "zeros_of_a_tuple": lambda x: torch.zeros((x.shape[0], 3)),
    "zeros_with_a_dtype": lambda x: torch.zeros(x.shape[0], 3, dtype=x.dtype, device=x.device),
    "zeros_with_stars": lambda x: torch.zeros(*(x.shape[0], 3)),
    "zeros_by_default_device": lambda x: on_a_device(x + 0),
    "ones": lambda x: torch.ones(x.shape[0], 3),
    "empty": lambda x: torch.empty(x.shape[0], 3).fill_(1),
    "rand": lambda x: torch.rand(x.shape[0], 3) * 0,
    "randn": lambda x: torch.randn(x.shape[0], 3) * 0,
    "full": lambda x: torch.full((x.shape[0],), x.shape[1]),
    "arange": lambda x: torch.arange(x.shape[0]),
    "eye": lambda x: torch.eye(x.shape[0]),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0]),
    "tensor": lambda x: torch.tensor(x.shape[0]),
    "tensor_of_a_list": lambda x: torch.tensor([x.shape[0], 1]),
    "tensor_of_a_shape": lambda x: torch.tensor(x.shape),
    "as_tensor": lambda x: torch.as_tensor(x.shape[0]),
    "expand": lambda x: ROW.expand(x.shape[0], 4),
    "expand_rest": lambda x: ROW.expand(x.shape[0], -1),
    "expand_of_a_tuple": lambda x: ROW.expand((x.shape[0], 4)),
    "new_zeros": lambda x: ROW.new_zeros(x.shape[0], 3),
    "new_ones": lambda x: ROW.new_ones(x.shape[0], 3),
    "new_full": lambda x: ROW.new_full((x.shape[0],), 2.0),
    "view": lambda x: TABLE.view(x.shape[0], -1),
    "repeat": lambda x: ROW.repeat(x.shape[0], 1),
    "item": lambda x: TABLE[x.shape[0] - 1],
    "slice": lambda x: TABLE[: x.shape[0] - 1],
    "slice_of_a_column": lambda x: TABLE[:, x.shape[0] - 1 :],
    "split": lambda x: TABLE.split(x.shape[0])[0],
    "interpolate": lambda x: F.interpolate(TABLE[None, None], size=(x.shape[0], x.shape[1])),
    "dropout": lambda x: F.dropout(TABLE, 0.0 * x.shape[0]),
}


def on_a_device(x):
    with torch.device("cpu"):  # Itself a mode, which then hears first.
        return torch.zeros(x.shape[0], 3)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_size_stays_a_size(capture, program):
    module = capture(program)
    for x in (torch.ones(2, 4), torch.ones(2, 3)):
        torch.testing.assert_close(module(x), program(x))


@pytest.mark.parametrize("name", ["zeros", "expand", "new_zeros"])
def test_size_follows_the_input(capture, name):
    module = capture(PROGRAMS[name])
    assert [module(torch.ones(rows, 4)).shape[0] for rows in (1, 2, 5)] == [1, 2, 5]


def test_calls_are_recorded_as_they_were_written():
    graph = Tracer().trace(lambda x: torch.zeros(x.shape[0], 3, dtype=x.dtype))
    node = graph.find_nodes(op="call_function", target=torch.zeros)[0]
    assert [str(argument) for argument in node.args] == ["getitem", "3"]
    assert [str(argument) for argument in node.kwargs.values()] == ["getattr_2"]


RECORDED_BY_TORCH_FX = [
    "zeros_of_a_size_behind",
    "zeros_of_one_size",
    "zeros_of_a_shape",
    "zeros_of_a_tuple",
    "full",
    "arange",
    "view",
    "item",
]


@pytest.mark.parametrize("name", RECORDED_BY_TORCH_FX)
def test_graph_equals_that_of_torch_fx(name):
    reference = torch.fx.Tracer().trace(PROGRAMS[name])
    graph = Tracer().trace(PROGRAMS[name])
    assert [(node.op, node.name, str(node.args), str(node.kwargs)) for node in graph.nodes] == [
        (node.op, node.name, str(node.args), str(node.kwargs)) for node in reference.nodes
    ]


# -- a number is never made up


@pytest.mark.parametrize(
    "program",
    [
        lambda x: range(x.shape[0]),
        lambda x: [1, 2, 3][x.shape[0]],
        lambda x: "ab".center(x.shape[0]),
        lambda x: torch.Size([x.shape[0]]),
        lambda x: list(TABLE)[x.shape[0]],
    ],
    ids=["range", "item", "method", "Size", "list"],
)
def test_number_that_python_needs_is_refused(program):
    with pytest.raises((TraceError, TypeError)):
        Tracer().trace(program)


def test_number_that_nobody_heard_of_is_refused_in_the_end():
    seen = []

    def program(x):
        with torch._C.DisableTorchFunction():
            seen.append(torch.zeros(x.shape[0], 3))  # the line
        return x

    with pytest.raises(TraceError, match=r"a Python integer is needed.*# the line.*FXP-T002"):
        Tracer().trace(program)
    assert len(seen) == 1


def test_number_that_nobody_heard_of_is_refused_at_the_next_call():
    def program(x):
        with torch._C.DisableTorchFunction():
            torch.zeros(x.shape[0], 3)
        return torch.relu(x) + unreachable()

    def unreachable():
        raise AssertionError

    with pytest.raises(TraceError, match=r"a Python integer is needed.*FXP-T002"):
        Tracer().trace(program)


def test_call_that_torch_refuses_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        Tracer().trace(lambda x: torch.zeros(x.shape[0], 3, nothing=1))
    with contextlib.suppress(TypeError):
        ROW.data = 3


def test_attribute_of_a_tensor_cannot_be_set_to_a_traced_value():
    def program(x):
        constant = torch.zeros(3)
        constant.data = x
        return constant

    with pytest.raises(TraceError, match=r"takes no traced value at .*constant.data = x") as refused:
        Tracer().trace(program)
    assert refused.value.code == "FXP-T068"


# -- nobody else hears of it


class Listening(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_are_as_before_after_a_trace():
    before = _get_current_function_mode_stack()
    Tracer().trace(lambda x: torch.zeros(x.shape[0], 3))
    with pytest.raises(TraceError):
        Tracer().trace(lambda x: x if x else -x)
    assert _get_current_function_mode_stack() == before


def test_mode_that_the_program_leaves_behind_stays_alone():
    left = Listening()

    def program(x):
        left.__enter__()
        return x

    Tracer().trace(program)
    try:
        assert _get_current_function_mode_stack() == [left]
    finally:
        left.__exit__(None, None, None)


def test_other_threads_have_no_mode():
    seen = []

    def program(x):
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(_get_current_function_mode_stack).result())
        return x

    Tracer().trace(program)
    assert seen == [[]]


def test_trace_of_torch_fx_inside_a_trace_is_not_heard():
    inner = []

    def program(x):
        inner.append(torch.fx.Tracer().trace(lambda y: torch.relu(y) + F.relu(TABLE)))
        return x + 1

    assert len(Tracer().trace(program).nodes) == 3
    assert [node.op for node in inner[0].nodes].count("call_function") == 2


def test_trace_inside_a_trace_records_for_itself():
    inner = []

    def program(x):
        inner.append(Tracer().trace(PROGRAMS["zeros"]))
        return torch.zeros(x.shape[0], 3)

    assert str(Tracer().trace(program)) == str(inner[0])


def test_calls_without_a_traced_value_are_made():
    seen = []

    def program(x):
        seen.append((torch.zeros(2, 3), ROW.expand(2, 4), F.relu(ROW), TABLE[1:]))
        return x

    assert len(Tracer().trace(program).nodes) == 2
    assert [tensor.shape for tensor in seen[0]] == [(2, 3), (2, 4), (1, 4), (1, 4)]


def test_limits_of_an_unknown_dtype_are_refused_with_a_code():
    with pytest.raises(TraceError, match=r"torch\.finfo\(\) requires a floating point.*\[FXP-T068\]$"):
        Tracer().trace(lambda x: x * torch.finfo(x.dtype).min)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if torch.is_autocast_enabled(x.device.type) else x,
        lambda x: x + torch.rand(2, generator=torch.Generator(device=x.device)),
        lambda x: torch.distributions.Normal(0.0, 1.0, validate_args=True).log_prob(x),
    ],
    ids=["is_autocast_enabled", "Generator", "log_prob"],
)
def test_what_does_not_say_what_it_was_given_is_refused_with_a_code(program):
    with pytest.raises(TraceError, match=r"something takes no traced value.*\[FXP-T068\]$"):
        Tracer().trace(program)


# -- a size is not a tuple


@fxplug.wrap
def flat(x, size):
    return x.reshape(size.numel())


@fxplug.wrap
def flat_by_first(x, sizes):
    return x.reshape(sizes[0].numel())


class Flat(torch.nn.Module):
    def forward(self, x, size):
        return x.reshape(size.numel())


class FlatByLeaf(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.leaf = Flat()
        self.size = size

    def forward(self, x):
        return self.leaf(x, self.size)


WHOLE = torch.Size([4, 8])
WITH_SIZES = {
    "new_of_a_size": lambda x: x.new(torch.Size([4, 3])).zero_(),
    "new_of_no_size": lambda x: x.new(torch.Size(())).zero_() + x,
    "new_of_a_tuple": lambda x: x.new((4, 3)) + x.sum(),
    "new_of_sizes_of_x": lambda x: x.new(x.size()).zero_(),
    "new_of_a_slice": lambda x: x.new(x.shape[:1]).zero_() + x.sum(),
    "new_of_a_sum": lambda x: x.new(x.shape[:1] + torch.Size([2])).zero_() + x.sum(),
    "wrapped_function": lambda x: flat(x, WHOLE),
    "wrapped_function_by_name": lambda x: flat(x, size=WHOLE),
    "wrapped_function_of_a_list": lambda x: flat_by_first(x, [WHOLE]),
    "wrapped_function_of_sizes_of_x": lambda x: flat(x, x.shape[:1] + x.shape[1:]),
}


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize("name", WITH_SIZES)
def test_a_size_stays_one_where_a_call_tells_it_from_a_tuple(name, mode):
    program, x = WITH_SIZES[name], torch.rand(4, 8)

    captured = fxplug.trace(program, (x,) if mode != "symbolic" else None, mode=mode, check=False)

    torch.testing.assert_close(captured(x), program(x))


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
def test_a_leaf_module_gets_a_size(mode):
    manager = PluginManager(
        config=Config(trace=TraceConfig(leaf_modules=(f"{Flat.__module__}.Flat",))), candidates=()
    )
    model, x = FlatByLeaf(WHOLE), torch.rand(4, 8)

    captured = fxplug.trace(
        model, (x,) if mode != "symbolic" else None, mode=mode, check=False, manager=manager
    )

    assert [node.target for node in captured.graph.nodes if node.op == "call_module"] == ["leaf"]
    torch.testing.assert_close(captured(x), model(x))


def test_torch_is_given_tuples_for_sizes():
    graph = fxplug.symbolic_trace(lambda x: x.view(torch.Size([2, 2])) + torch.ones(torch.Size([2, 2]))).graph

    assert [
        node.target for node in graph.nodes if node.op == "call_function" and node.target is torch.Size
    ] == []
