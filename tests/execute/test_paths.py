"""Dotted attribute paths of modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxplug.errors import GraphError
from fxplug.execute import Holders, delete_path, fetch_path, has_path, set_path
from fxplug.semantics.internals import empty_module


@pytest.fixture
def root():
    root = nn.Module()
    root.stack = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    root.register_buffer("buffer", torch.ones(1))
    root.register_buffer("empty", None)
    root.plain = torch.ones(1)
    root.number = 3
    return root


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("stack", nn.Sequential),
        ("stack.0", nn.Linear),
        ("stack.0.weight", nn.Parameter),
        ("buffer", torch.Tensor),
        ("plain", torch.Tensor),
        ("number", int),
        ("empty", type(None)),
    ],
)
def test_everything_below_a_module_can_be_fetched(root, path, kind):
    assert has_path(root, path)
    assert type(fetch_path(root, path)) is kind


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", r"Cannot read 'nothing', but the root \(Module\) has no attribute 'nothing'"),
        ("stack.7", r"Cannot read 'stack\.7', but stack \(Sequential\) has no attribute '7'"),
        ("stack.0.weight.nothing", r"but stack\.0\.weight \(Parameter\) has no attribute 'nothing'"),
        ("", r"Cannot read '', but the root \(Module\) has no attribute ''"),
    ],
)
def test_what_is_missing_is_named(root, path, message):
    assert not has_path(root, path)
    with pytest.raises(GraphError, match=message):
        fetch_path(root, path)


def test_reader_is_named(root):
    with pytest.raises(GraphError, match="Node 'mul' refers to 'nothing'"):
        fetch_path(root, "nothing", reader="mul")


@pytest.mark.parametrize("name", ["a b", "class", 'a"b', "a\\b", "ä"])
def test_names_that_are_no_identifiers(root, name):
    set_path(root, f"new.{name}", nn.ReLU())

    assert isinstance(fetch_path(root, f"new.{name}"), nn.ReLU)
    assert delete_path(root, f"new.{name}")
    assert not has_path(root, f"new.{name}")


def test_set_registers_each_kind_of_value(root):
    parameter = nn.Parameter(torch.ones(1))
    set_path(root, "deep.parameter", parameter)
    set_path(root, "deep.kept", torch.ones(1))
    set_path(root, "deep.temporary", torch.ones(1), persistent=False)
    set_path(root, "deep.module", nn.ReLU())
    set_path(root, "deep.number", 5)

    assert dict(root.deep.named_parameters()) == {"parameter": parameter}
    assert sorted(dict(root.deep.named_buffers())) == ["kept", "temporary"]
    assert sorted(root.deep.state_dict()) == ["kept", "parameter"]
    assert root.deep.number == 5


def test_set_replaces_what_is_there(root):
    replacement = nn.Linear(3, 3)
    set_path(root, "stack.0", replacement)
    set_path(root, "buffer", torch.zeros(1))

    assert root.stack[0] is replacement
    assert root.buffer.item() == 0
    assert list(root.state_dict())[-1].startswith("stack")


def test_set_replaces_a_parameter_by_a_parameter(root):
    replacement = nn.Parameter(torch.zeros(2, 2))
    set_path(root, "stack.0.weight", replacement)

    assert root.stack[0].weight is replacement
    assert [name for name, _ in root.stack[0].named_parameters()] == ["weight", "bias"]


def test_set_keeps_a_plain_tensor_plain(root):
    set_path(root, "plain", torch.zeros(1))

    assert root.plain.item() == 0
    assert "plain" not in dict(root.named_buffers())


@pytest.mark.parametrize(
    "path", ["nothing", "stack.7", "stack.0.weight", "buffer", "nothing.deeper", "number"]
)
def test_delete_says_when_there_is_no_such_submodule(root, path):
    assert not delete_path(root, path)
    assert has_path(root, path) == (path in {"stack.0.weight", "buffer", "number"})


def test_copy_takes_the_very_objects(root):
    new = nn.Module()
    holders = Holders(new, root)
    for path in ("stack.0.weight", "stack.1", "buffer", "plain", "number"):
        assert holders.take(path)

    assert new.stack is not root.stack
    assert fetch_path(new, "stack.0.weight") is root.stack[0].weight
    assert fetch_path(new, "stack.1") is root.stack[1]
    assert not has_path(new, "stack.0.bias")
    assert new.plain is root.plain
    assert new.number == 3
    assert list(new.state_dict()) == ["buffer", "stack.0.weight"]


def test_copy_of_a_whole_after_its_part(root):
    new = nn.Module()
    holders = Holders(new, root)
    assert holders.take("stack.0.weight")
    assert holders.take("stack")

    assert holders.take("stack.0.bias")
    assert new.stack is root.stack


def test_copy_of_a_part_after_its_whole(root):
    new = nn.Module()
    holders = Holders(new, root)
    assert holders.take("stack")
    assert holders.take("stack.0.weight")
    assert not holders.take("stack.0.nothing")

    assert new.stack is root.stack


@pytest.mark.parametrize("path", ["nothing", "stack.7", "nothing.deeper", "number.deeper"])
def test_copy_says_when_there_is_nothing(root, path):
    new = nn.Module()

    assert not Holders(new, root).take(path)


def test_copy_changes_nothing_in_the_source(root):
    before = [name for name, _ in root.named_modules()], list(root.state_dict())
    new = nn.Module()
    Holders(new, root).take("stack.0.weight")
    set_path(new, "stack.extra", nn.ReLU())
    delete_path(new, "stack.0")

    assert ([name for name, _ in root.named_modules()], list(root.state_dict())) == before


def test_an_empty_module_is_like_a_new_one_and_shares_nothing_with_the_next():
    made, other, new = empty_module(), empty_module(), nn.Module()

    assert vars(made) == vars(new)
    assert list(map(type, vars(made).values())) == list(map(type, vars(new).values()))
    made.register_buffer("mark", torch.ones(1), persistent=False)
    made.register_forward_hook(lambda *_: None)
    made.add_module("child", nn.ReLU())
    assert vars(other) == vars(new) == vars(empty_module())


@pytest.mark.parametrize("name", ["forward", "training", "type"])
def test_a_submodule_with_the_name_of_an_attribute_takes_its_place(name):
    theirs, ours = nn.Module(), nn.Module()
    vars(theirs)["_modules"][name] = nn.Sequential(nn.Linear(2, 2))
    assert Holders(ours, theirs).take(f"{name}.0")
    assert ours._modules[name]._modules["0"] is theirs._modules[name][0]


class Lists(nn.Module):
    """Has weights of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("statistic", torch.zeros(1))
        self.register_buffer("temporary", torch.zeros(1), persistent=False)
        self.constant = 3


def test_weights_stay_what_they_are_in_modules_that_stand_in():
    theirs, ours = nn.Module(), nn.Module()
    theirs.inner = nn.Sequential(Lists(), Lists().eval())
    names = ("constant", "temporary", "statistic", "weight")
    paths = [f"inner.{place}.{name}" for place in (1, 0) for name in names]
    holders = Holders(ours, theirs)
    assert holders.take_all([*paths, "inner.0.missing"]) == "inner.0.missing"
    holders.keep_order()
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    assert [*dict(ours.named_buffers())] == [*dict(theirs.named_buffers())]
    for mine, source in zip(ours.inner.children(), theirs.inner.children(), strict=True):
        assert type(mine) is nn.Module
        assert mine.constant == 3
        assert mine.weight is source.weight
        assert mine.temporary is source.temporary
        assert mine.training is source.training
