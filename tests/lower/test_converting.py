"""The skeleton of backends that write programs operator by operator."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import GuardError, LoweringError, NotConvertibleError
from fxplug.lower import (
    AtenProgram,
    CallRow,
    CallTable,
    ConverterRecord,
    ConverterTable,
    EngineValue,
    LoweringContext,
    Slot,
    fill_results,
    lower,
    plan_lowering,
    read_results,
    results_data,
    write_program,
)

sys.path.insert(0, str(Path(__file__).parent))
from lines_backend import Lines, LinesBackend, LinesModule, aten, record

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def rectified(x):
    return torch.relu(x)


def squashed(x):
    return torch.tanh(x)


def lowered(program, *inputs, backend=None, strict=True):
    module = fxplug.symbolic_trace(program)
    return lower(module, backend or LinesBackend(), inputs, name="lines", strict=strict)


def reasons(program, *inputs, backend=None):
    report = plan_lowering(fxplug.symbolic_trace(program), backend or LinesBackend(), "lines", inputs)
    return {node.name: node.reason for node in report.unsupported}


def graph_of(target, *args, results=None, **kwargs):
    """Return a program of one call; texts stand for inputs."""
    graph = fxplug.Graph()
    given = [graph.placeholder(value) if isinstance(value, str) else value for value in args]
    called = graph.call_function(target, tuple(given), kwargs)
    graph.output(called if results is None else results(graph, called))
    return fxplug.GraphModule({}, graph)


def written(module, *inputs, converters, opened=()):
    build = Lines()
    table = {entry.target: entry for entry in converters}
    return LinesModule(build, write_program(AtenProgram(module, inputs, opened), build, table))


# -- a backend of engine calls only


def test_a_network_runs_as_a_whole():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()

    result = lowered(net, X)

    assert result.report.coverage == 1.0
    (part,) = result.report.partitions
    assert part.backend == "lines"
    assert torch.equal(result.module(2 * X), net(2 * X))
    assert not torch.equal(result.module(X), result.module(2 * X))


def test_what_has_no_converter_stays_in_pytorch():
    def program(x):
        return torch.relu(torch.erfinv(torch.tanh(x)))

    result = lowered(program, X, strict=False)

    (left,) = result.report.unsupported
    assert (left.name, left.reason) == ("erfinv", "there is no converter for aten.erfinv.default")
    assert len(result.report.partitions) == 2
    assert torch.equal(result.module(X), program(X))


def test_asking_changes_nothing():
    module = fxplug.symbolic_trace(lambda x: torch.relu(x) + 1)
    before = (module.graph.version, str(module.graph))

    plan_lowering(module, LinesBackend(), "lines", (X,))

    assert (module.graph.version, str(module.graph)) == before


def test_several_results_lists_and_named_tuples_come_back_as_they_were():
    def parts(x):
        first, second = torch.split(x, [1, 2], dim=1)
        return {"sum": first + second, "pair": [first, (second, 3, None)]}

    found = lowered(parts, X).module(X)
    assert list(found) == ["sum", "pair"]
    assert torch.equal(found["sum"], parts(X)["sum"])
    assert torch.equal(found["pair"][1][0], X[:, 1:])
    assert found["pair"][1][1:] == (3, None)

    values = lowered(lambda x: torch.max(x, 1), X).module(X)
    assert type(values) is torch.return_types.max
    assert torch.equal(values.indices, X.max(1).indices)


def test_a_named_tuple_among_other_results_is_left():
    # As a whole it is one result of two; its parts are tensors like any others.
    assert reasons(lambda x: (torch.max(x, 1), x + 1), X) == {}
    with pytest.raises(LoweringError, match="it returns a max as a whole instead of its parts"):
        lowered(lambda x: (torch.max(x, 1), x + 1), X)


def test_tensors_in_a_tuple_are_inputs_and_those_deeper_inside_are_refused():
    graph = fxplug.Graph()
    pair = graph.placeholder("pair")
    first = graph.call_function(operator.getitem, (pair, 0))
    graph.output(graph.call_function(aten.relu.default, (first,)))
    module = fxplug.GraphModule({}, graph)
    converters = [record(aten.relu.default)]

    assert torch.equal(written(module, (X, 2), converters=converters)((X - 1, 2)), torch.relu(X - 1))
    for deeper in ((X, (X,)), (X, {"x": X}), {"x": X}):
        with pytest.raises(
            NotConvertibleError, match="an input holds tensors in a container inside of another, or in a dict"
        ):
            written(module, deeper, converters=converters)


def test_constants_are_read_and_calls_without_inputs_are_computed_once():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            return x * self.scale + torch.arange(3)

    net = Net().eval()
    result = lowered(net, X)

    assert torch.equal(result.module(X), net(X))
    assert reasons(lambda x: x + torch.rand(3), X) == {
        "rand": "it draws random numbers; call eval() on the model before it is captured"
    }


# -- arguments


def test_arguments_come_in_the_order_of_the_operator_with_its_defaults():
    heard = []

    def convert(build, *args, **kwargs):
        heard.append(([type(value) is EngineValue or value for value in args], kwargs))
        return build.line(aten.sum.dim_IntList, *args, **kwargs)

    converters = [ConverterRecord(aten.sum.dim_IntList, convert)]
    by_name = graph_of(aten.sum.dim_IntList, "x", keepdim=True, dim=[1], dtype=torch.float64)
    found = written(by_name, X, converters=converters)(X)
    assert heard == [([True, [1], True], {"dtype": torch.float64})]
    assert torch.equal(found, X.sum(1, keepdim=True, dtype=torch.float64))

    one_left_out = graph_of(aten.clamp.default, "x", max=0.5)
    converters = [record(aten.clamp.default)]
    assert torch.equal(written(one_left_out, X, converters=converters)(X), X.clamp(max=0.5))


# -- what converters give


def test_a_check_refuses_before_anything_is_written():
    def check(build, x, other, *, alpha=1):
        return "" if other == 1 else f"it adds {other} to {tuple(build.like.shape)}"

    backend = LinesBackend(record(aten.add.Tensor, check))

    assert reasons(lambda x: torch.relu(x + 1) + 2, X, backend=backend) == {"add_1": "it adds 2 to (2, 3)"}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda build, x: None, "the converter of aten.relu.default returns a NoneType instead of a value"),
        (lambda build, x: (x, x), "the converter of aten.relu.default returns a tuple instead of a value"),
    ],
)
def test_what_is_no_value_is_refused(made, reason):
    backend = LinesBackend(ConverterRecord(aten.relu.default, made))

    assert reasons(rectified, X, backend=backend) == {"relu": reason}


def test_a_result_that_is_not_computed_may_be_left_out_unless_somebody_wants_it():
    def first_alone(build, x, dim, keep=False):
        return (build.line(operator.getitem, build.line(aten.max.dim, x, dim, keep), 0),)

    def three(build, x, dim, keep=False):
        return x, x, x

    backend = LinesBackend(ConverterRecord(aten.max.dim, first_alone))
    result = lowered(lambda x: torch.max(x, 1)[0], X, backend=backend)
    assert torch.equal(result.module(X), X.max(1)[0])
    assert reasons(lambda x: torch.max(x, 1)[1], X, backend=backend) == {
        "max_1": "result 1 of max_dim is not computed by Lines"
    }
    backend = LinesBackend(ConverterRecord(aten.max.dim, three))
    assert reasons(lambda x: torch.max(x, 1)[0], X, backend=backend) == {
        "max_1": "the converter of aten.max.dim returns 3 results, and PyTorch 2"
    }


def test_dtypes_that_the_engine_does_not_have_are_refused_before_a_converter_is_asked():
    asked = []
    backend = LinesBackend(ConverterRecord(aten.mul.Tensor, lambda *_: asked.append(1)))

    assert reasons(lambda x: x * 1j, X, backend=backend) == {"mul": "Lines has no complex numbers"}
    assert asked == []


def test_a_converter_that_fails_is_named():
    def broken(build, x):
        raise ValueError("first\nthe engine is tired")

    backend = LinesBackend(ConverterRecord(aten.tanh.default, broken))

    (reason,) = reasons(squashed, X, backend=backend).values()
    assert reason == (
        f"the converter of aten.tanh.default fails ({__name__}.{broken.__qualname__}): ValueError: the engine is tired"
    )


def test_in_a_partition_the_call_and_its_line_are_named():
    class Unwilling(LinesBackend):
        def supports(self, node, context):
            return fxplug.Support(ok=True)

    def program(x):
        return torch.relu(torch.erfinv(x))  # this line

    with pytest.raises(NotConvertibleError) as caught:
        Unwilling().compile(fxplug.symbolic_trace(program), (X,), {})

    assert caught.value.node == "erfinv_default"
    assert caught.value.message.startswith(
        "there is no converter for aten.erfinv.default ('erfinv_default', "
    )
    line = program.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in program" in caught.value.message
    assert str(caught.value).endswith("[FXP-L010]")


# -- effects


def test_effects_are_reasons():
    def program(x, y):
        torch.add(x, 1, out=y)
        return F.dropout(x, 0.5, training=True)

    found = reasons(program, X, X.clone())

    assert found["add"] == "it writes its result into another tensor"
    assert found["dropout"].startswith("it draws random numbers")


def test_writes_to_what_nobody_else_sees_are_written():
    def program(x):
        return torch.add(torch.tanh(x).view(6).relu_(), 1)

    result = lowered(program, X)

    assert torch.equal(result.module(X), program(X))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.relu_(),
        lambda x: x.view(6).relu_(),
        lambda x: (y := torch.tanh(x), y.view(6).relu_())[0],
        lambda x: (y := torch.tanh(x).view(6), y.relu_())[0],
    ],
    ids=["input", "view", "base", "result"],
)
def test_writes_to_what_others_see_are_left(program):
    given = X.clone()
    found = reasons(program, given)

    assert [name for name in found if "relu" not in name] == []
    assert found["relu_"].endswith("in place, which others may read; use the form that returns a new tensor")
    expected = program(X.clone())
    assert torch.equal(lowered(program, given, strict=False).module(X.clone()), expected)


def test_a_write_to_an_input_is_seen_outside():
    class Unwilling(LinesBackend):
        def supports(self, node, context):
            return fxplug.Support(ok=True)

    given = X.clone()
    with pytest.raises(NotConvertibleError, match="it changes x in place, which is seen outside"):
        Unwilling().compile(fxplug.symbolic_trace(lambda x: x.relu_()), (given,), {})
    assert torch.equal(given, X)


# -- sizes that are left open


def test_open_sizes_are_left_open_in_inputs_and_profile():
    backend = LinesBackend(opened=(0,))
    result = lowered(rectified, X, backend=backend)
    (part,) = fxplug.lower.lowered_partitions(result.module).values()

    assert part.engine.build.sizes == {"input_0": (-1, 3)}
    assert torch.equal(result.module(torch.ones(7, 3)), torch.ones(7, 3))
    with pytest.raises(LoweringError, match="float32 2x4, and float32 \\?x3 is expected"):
        result.module(torch.ones(2, 4))


def test_an_engine_that_computes_no_sizes_leaves_calls_that_need_them():
    backend = LinesBackend(record(aten.sym_size.int), opened=(0,))

    def program(x):
        return x.reshape(x.shape[0] * 3)

    with pytest.raises(LoweringError, match="it computes a size that is left open, which Lines cannot"):
        lowered(program, X, backend=backend)
    assert torch.equal(lowered(program, X, backend=backend, strict=False).module(X), program(X))


def test_what_stands_for_a_size_is_known_to_be_computed():
    text = ConverterRecord(aten.sym_size.int, lambda build, x, dim: "a name of the engine")
    backend = LinesBackend(text, opened=(0,))

    with pytest.raises(LoweringError, match=r"sym_size\.int returns a str instead of a number or a value"):
        lowered(lambda x: x.reshape(x.shape[0] * 3), X, backend=backend)


class Derived(nn.Module):
    """A layer whose weight is computed from what the module holds, as one that is dequantized."""

    def __init__(self, derive):
        super().__init__()
        self.derive = derive
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3).clone())
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return F.linear(torch.relu(x), self.derive(self.weight), self.bias)


def test_weights_that_are_computed_have_no_open_sizes():
    model = Derived(torch.tanh)

    result = lowered(model, X, backend=LinesBackend(opened=(0,)))

    (part,) = fxplug.lower.lowered_partitions(result.module).values()
    assert part.engine.build.sizes == {"input_0": (-1, 3)}
    assert torch.equal(result.module(torch.ones(7, 3)), model(torch.ones(7, 3)))


def test_weights_that_pytorch_computes_for_an_engine_have_no_open_sizes():
    model = Derived(torch.erfinv)

    result = lowered(model, X, backend=LinesBackend(opened=(0,)), strict=False)

    assert [node.name for node in result.report.unsupported] == ["erfinv"]
    (part,) = fxplug.lower.lowered_partitions(result.module).values()
    assert sorted(part.engine.build.sizes.values()) == [(-1, 3), (4, 3)]
    assert torch.equal(result.module(torch.ones(7, 3)), model(torch.ones(7, 3)))


def test_what_pytorch_computes_for_an_engine_in_another_size_is_no_input_of_it():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0, 0.0]))

        def forward(self, x):
            return torch.relu(x) + torch.nonzero(self.mask).tanh().sum(0)

    strict, lenient = (
        lower(fxplug.trace(Chosen(), (X,)), LinesBackend(opened=(0,)), (X,), name="lines", on_mismatch=what)
        for what in ("error", "eager")
    )
    model = Chosen()
    for module in (strict.module, lenient.module, model):
        module.get_buffer("mask").fill_(1)

    with pytest.raises(LoweringError, match=r"input . is .* 4x1, and .* 2x1 is expected"):
        strict.module(torch.ones(7, 3))
    torch.testing.assert_close(lenient.module(torch.ones(7, 3)), model(torch.ones(7, 3)))


def test_engines_for_fixed_and_for_open_inputs_are_kept_apart():
    from fxplug.lower.artefacts import artefact_key
    from fxplug.lower.backend import note_fixed_inputs

    class Kept(LinesBackend):
        def environment(self):
            return {"lines": "1"}

    def key(*, fixed):
        graph = fxplug.Graph()
        given = graph.get_attr("weight") if fixed else graph.placeholder("x")
        graph.output(graph.call_module("part", (given,)))
        root = nn.Module()
        root.weight, root.part = nn.Parameter(X.clone()), fxplug.symbolic_trace(rectified)
        module = fxplug.GraphModule(root, graph)
        note_fixed_inputs(module, ["part"])
        return artefact_key(Kept(), module.part, (X,), {})

    assert key(fixed=True) != key(fixed=False)
    assert key(fixed=True) == key(fixed=True)


# -- where nothing can be tried


ROW = CallRow(("relu",), (nn.ReLU,), (torch.relu,), ("relu",))
TABLE = CallTable("Lines", "fxplug-lines", [ROW])


class WithTable(LinesBackend):
    table = TABLE


class Missing(WithTable):
    def is_installed(self):
        return False


def test_without_inputs_or_engine_the_table_is_asked():
    module = fxplug.symbolic_trace(lambda x: torch.relu(torch.tanh(x)).relu())
    expected = ["the function torch.tanh is not in the table of fxplug-lines"]

    for backend, inputs in ((WithTable(), None), (Missing(), (X,))):
        report = plan_lowering(module, backend, "lines", inputs)
        assert [node.reason for node in report.unsupported] == expected
        assert backend.writings == 0


def test_without_a_table_it_is_said_what_is_missing():
    module = fxplug.symbolic_trace(rectified)
    report = plan_lowering(module, LinesBackend(), "lines")
    assert [node.reason for node in report.nodes] == [
        "whether it can be written is only known with example inputs"
    ]

    class Absent(LinesBackend):
        def is_installed(self):
            return False

    report = plan_lowering(module, Absent(), "lines", (X,))
    assert [node.reason for node in report.nodes] == [
        "Lines is not installed, so nobody knows whether it can be written"
    ]


def test_a_table_knows_that_a_call_writes_what_others_see():
    module = fxplug.symbolic_trace(lambda x: (torch.relu(x).relu_(), x.relu_()))
    context = LoweringContext(module)
    found = {node.name: TABLE.reason_against(node, context) for node in module.graph.nodes}

    assert found["relu_"] == ""
    assert found["relu__1"] == (
        "it changes x in place, which others may read; use the form that returns a new tensor"
    )


# -- who brings converters


def test_a_backend_that_was_asked_is_copied_and_pickled():
    """Who knows the plugins cannot be, and converters are functions of theirs."""

    class Asking(LinesBackend):
        def host(self):
            return SimpleNamespace(
                module=sys, converters=lambda hook: [("demo 1.0", record(aten.relu.default))]
            )

    backend = Asking(opened=(0,))
    assert backend.converters
    assert backend.foreign_providers() == ["demo 1.0"]

    made = copy.deepcopy(backend)
    assert made.opened == (0,)
    assert made.foreign_providers() == ["demo 1.0"]
    assert pickle.loads(pickle.dumps(backend.__getstate__()))["opened"] == (0,)


def test_operators_name_who_brings_their_converters():
    def mine(build, x):
        return build.line(torch.sigmoid, x)

    backend = LinesBackend(ConverterRecord(aten.sigmoid.default, mine))

    assert backend.operators()["aten.relu.default"] == "fxplug-lines"
    assert backend.operators()["aten.sigmoid.default"] == __name__.partition(".")[0]
    assert list(backend.operators()) == sorted(backend.operators())


def test_of_two_converters_the_last_one_counts():
    first, second = record(aten.relu.default), record(aten.relu.default)
    table = ConverterTable([("one 1.0", [first]), ("two 2.0", [second])])

    assert table[aten.relu.default] is second
    assert table.provider_of(aten.relu.default) == "two 2.0"
    assert len(table) == 1


# -- results as data


def test_results_are_kept_as_plain_data():
    pair = torch.return_types.max([Slot(0), Slot(1)])
    results = {"a": [Slot(2), (None, 1.5, "text")], "b": pair}

    again = read_results(json.loads(json.dumps(results_data(results))), 3)

    assert again["a"] == results["a"]
    assert type(again["b"]) is torch.return_types.max
    assert tuple(again["b"]) == (Slot(0), Slot(1))
    assert fill_results(again, "xyz")["a"] == ["z", (None, 1.5, "text")]


@pytest.mark.parametrize(
    "data",
    [
        {"slot": 3},
        {"slot": -1},
        {"slot": True},
        {"return_type": ["__builtins__", {"value": 1}]},
        {"return_type": ["nothing"]},
        {"call": "print"},
        {},
        [],
        None,
    ],
)
def test_data_that_is_none_is_refused(data):
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        read_results(data, 3)


def test_what_cannot_be_written_down_is_refused():
    Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - it has no types
    for value in (object(), {1: Slot(0)}, Pair(1, 2), torch.float32):
        with pytest.raises(TypeError, match="cannot be written down"):
            results_data(value)

    assert fill_results(Pair(Slot(0), 2), ["x"]) == Pair("x", 2)


class Tells(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y * 2 if y.shape[0] == 3 else y


class Squeezes(nn.Module):
    def forward(self, x):
        y = torch.relu(x).squeeze(0)
        return y if y.dim() == 2 else y * 2


class Halves(nn.Module):
    def forward(self, x):
        return [torch.relu(part) for part in x.split(2)]


@pytest.mark.parametrize(("program", "rows"), [(Tells(), 3), (Squeezes(), 1), (Halves(), 6)], ids=str)
def test_what_is_asked_of_open_sizes_is_asked_in_each_call(program, rows):
    x = torch.ones(4, 3)
    lowered = lower(
        fxplug.trace(program, (x,)),
        LinesBackend(
            record(aten.squeeze.dim), record(aten.split.Tensor), record(aten.slice.Tensor), opened=(0,)
        ),
        (x,),
        name="lines",
    )

    assert repr(lowered.module(-x)) == repr(program(-x))
    with pytest.raises(GuardError):
        lowered.module(torch.ones(rows, 3))


def test_sizes_of_tensors_in_containers_are_written_as_they_are():
    x, backend = torch.ones(2, 3), LinesBackend(opened=(0,))

    assert backend.profile(((x, x),)).is_closed
    assert not backend.profile((x, 2)).is_closed
