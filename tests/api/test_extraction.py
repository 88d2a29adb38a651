"""Intermediate values: by node, module and line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import InvalidArgumentError, UnknownNameError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.conv(x)) + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.head = nn.Linear(3, 2)
        self.unused = nn.Linear(3, 2)

    def forward(self, x):
        y = self.second(self.first(x))
        pooled = y.mean((2, 3))
        return self.head(pooled)


X = torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def heard(model, path, *inputs):
    """What a module of a model returns."""
    values = []
    hook = model.get_submodule(path).register_forward_hook(
        lambda module, given, value: values.append(value.clone())
    )
    model(*inputs)
    hook.remove()
    return values[0]


@pytest.mark.parametrize("path", ["first", "second", "first.act", "second.conv", "head"])
@pytest.mark.parametrize("inputs", [None, (X,)])
def test_the_value_of_a_module_is_what_it_returns(net, path, inputs):
    features = fxplug.extract(net, [path], inputs)

    values = features(X)

    assert list(values) == [path]
    torch.testing.assert_close(values[path], heard(net, path, X), rtol=0, atol=0)


def test_a_value_that_is_written_later_comes_as_it_was(net):
    """The activation works in place on what the convolution gives."""
    values = fxplug.extract(net, {"first.conv": "before", "first.act": "after"})(X)

    assert values["before"].min() < 0
    assert torch.equal(values["before"].relu(), values["after"])


def test_nodes_by_name_and_lines_of_the_program(net):
    lines, start = inspect.getsourcelines(Net.forward)
    number = start + next(index for index, line in enumerate(lines) if "pooled =" in line)

    values = fxplug.extract(net, {"mean": "pooled", f"test_extraction.py:{number}": "same"})(X)

    assert torch.equal(values["pooled"], values["same"])
    assert values["pooled"].shape == (2, 3)


def test_what_is_not_needed_is_left_out(net):
    features = fxplug.extract(net, "first.conv")

    assert [node.op for node in features.graph.nodes] == ["placeholder", "call_module", "output"]
    assert {name for name, _ in features.named_parameters()} == {"first.conv.weight", "first.conv.bias"}
    assert features.first.conv.weight is net.first.conv.weight


def test_a_captured_module_stays_as_it_is(net):
    captured = fxplug.symbolic_trace(net)
    code = captured.code

    fxplug.extract(captured, ["second"])

    assert captured.code == code


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, batch, *, scale=2.0):
        if batch["x"].shape[1] > 2:
            raise ValueError
        return {"out": torch.relu(self.linear(batch["x"])) * scale, "sum": batch["more"][0].sum()}


def test_nested_inputs_and_guards_stay():
    model = Nested()
    batch = {"x": torch.randn(1, 2), "more": [torch.ones(2)]}

    features = fxplug.extract(model, ["relu"], (batch,))

    assert torch.equal(features(batch)["relu"], model(batch, scale=1.0)["out"])
    with pytest.raises(fxplug.GuardError):
        features({"x": torch.randn(1, 3), "more": [torch.ones(2)]})


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.pair = Pair()

    def forward(self, x):
        a, b = self.pair(x)
        return self.layer(self.layer(x)) + a * b


class Pair(nn.Module):
    def forward(self, x):
        return x + 1, x - 1


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("layer", r"'layer': it is called more than once\. Name the node: 'layer_1', 'layer_3'"),
        ("layer.0", r"'layer\.0': it is called more than once\. Name the node: 'layer_0', 'layer_2'"),
        ("pair", r"'pair': it returns 2 values that are used\. Name the node: 'add', 'sub'"),
    ],
)
def test_a_module_with_several_values_is_refused(selector, message):
    with pytest.raises(InvalidArgumentError, match=message):
        fxplug.extract(Repeated(), selector)


def test_of_a_module_from_a_file_it_is_said_what_is_not_known(net, tmp_path):
    """Files keep where a node was made, and not in which call; leaves are calls of their own."""
    fxplug.save(fxplug.symbolic_trace(net), tmp_path / "net.fxplug")
    loaded = fxplug.load(tmp_path / "net.fxplug")

    with pytest.raises(
        InvalidArgumentError, match=r"'first': it was read from a file, .* Name the node: 'add'"
    ):
        fxplug.extract(loaded, "first")
    values = fxplug.extract(loaded, {"first.act": "leaf", "add": "node"})(X)
    torch.testing.assert_close(values["node"], heard(net, "first", X), rtol=0, atol=0)
    torch.testing.assert_close(values["leaf"], heard(net, "first.act", X), rtol=0, atol=0)


def test_a_module_from_a_file_that_is_called_twice_is_not_taken_for_one_call(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(self.block(x))

    fxplug.save(fxplug.symbolic_trace(Twice()), tmp_path / "twice.fxplug")
    loaded = fxplug.load(tmp_path / "twice.fxplug")
    with pytest.raises(InvalidArgumentError, match=r"'block': it was read from a file"):
        fxplug.extract(loaded, "block")


def test_a_name_that_could_be_two_things_is_refused_until_it_says_which():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(self.layer(x))

    model, x = Twice(), torch.randn(1, 2)

    with pytest.raises(InvalidArgumentError, match="'node:layer' is the node"):
        fxplug.extract(model, "layer")
    with pytest.raises(InvalidArgumentError, match="it is called more than once"):
        fxplug.extract(model, "module:layer")
    assert torch.equal(fxplug.extract(model, "node:layer")(x)["node:layer"], model.layer(x))


@pytest.mark.parametrize(
    ("nodes", "kind", "message"),
    [
        ("heat", UnknownNameError, "no node or module named 'heat'. Did you mean 'head'"),
        ("node:heat", UnknownNameError, "no node named 'heat'"),
        ("module:frist", UnknownNameError, "no module named 'frist'. Did you mean 'first'"),
        ("elsewhere.py:1", UnknownNameError, "no line of the program named 'elsewhere.py:1'"),
        ("line:here", InvalidArgumentError, "a line of the program is written as 'model.py:42'"),
        ([], InvalidArgumentError, "nothing is asked for"),
        ([3], InvalidArgumentError, "3 is a int"),
        (None, InvalidArgumentError, "None is a NoneType"),
        ("output", UnknownNameError, r"no node or module named 'output'\. (?!Did you mean 'output')"),
        ({"first": "a", "second": "a"}, InvalidArgumentError, "two of them would have the same name"),
    ],
)
def test_what_cannot_be_is_named(net, nodes, kind, message):
    with pytest.raises(kind, match=message):
        fxplug.extract(net, nodes)


def test_values_that_are_no_tensors_come_as_they_are_beside_writes(tmp_path):
    def program(x):
        parts = x.chunk(2)
        rows = x.size(0)
        shape = x.shape
        parts[0].add_(1)
        return parts[0] * rows, shape, parts

    module = fxplug.symbolic_trace(program)
    wanted = {"chunk": "parts", "size": "rows", "getattr_1": "shape", "add_": "written"}
    extracted = fxplug.extract(module, wanted)
    piece = fxplug.extract_subgraph(module, None, {name: node for node, name in wanted.items()})
    fxplug.save(extracted, tmp_path / "extracted.fxplug")
    for found in (extracted, piece, fxplug.load(tmp_path / "extracted.fxplug")):
        values = found(torch.zeros(4))
        assert [part.tolist() for part in values["parts"]] == [[0.0, 0.0], [0.0, 0.0]]
        assert (values["rows"], values["shape"], type(values["shape"])) == (4, (4,), torch.Size)
        assert values["written"].tolist() == [1.0, 1.0]
