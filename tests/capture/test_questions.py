"""What a program asks about a traced value gets the answer of eager, or an error with the user's line.

Where the kind of a value is certain, the answer is that of eager. Where it is not, the question is refused, and an
``except`` of the program does not undo that.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import logging
import numbers
import operator
import pickle
import subprocess
import sys
import threading
import types
import warnings
from functools import singledispatch
from typing import Optional

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Proxy, Tracer
from fxplug.errors import TraceError


def inputs():
    return torch.linspace(0.5, 1, 6).reshape(2, 3)


def refused(program, code, concrete_args=None):
    """Return the message with which a program is refused; it has the code, and names the line in this file."""
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(program, concrete_args)
    assert caught.value.code == code, caught.value
    assert "test_questions.py:" in str(caught.value)
    return str(caught.value)


def refused_without_defaults(program, code):
    """Return the message with which a program is refused whose inputs may have any value."""
    tracer = fxplug.Tracer()
    tracer.takes_defaults = False
    with pytest.raises(TraceError) as caught:
        tracer.trace(program)
    assert caught.value.code == code, caught.value
    assert "test_questions.py:" in str(caught.value)
    return str(caught.value)


def assert_as_eager(program, *args):
    args = args or (inputs(),)
    expected = program(*args)
    actual = fxplug.symbolic_trace(program)(*args)
    assert type(actual) is type(expected)
    assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))


# -- the class of a value


def by_isinstance(x):
    return x + 1 if isinstance(x, torch.Tensor) else x


def by_isinstance_of_several(x):
    return x + 1 if isinstance(x, (list, tuple)) else x


def by_union(x):
    return x + 1 if isinstance(x, int | torch.Tensor) else x


def by_is_tensor(x):
    return x + 1 if torch.is_tensor(x) else x


def by_is_tensor_of_each(x):
    return x + 1 if all(map(torch.is_tensor, [x])) else x


def by_type(x):
    return x + 1 if type(x) is torch.Tensor else x


def by_subclass(x):
    return x + 1 if issubclass(type(x), torch.Tensor) else x


def by_class_attribute(x):
    return x + 1 if x.__class__ is torch.Tensor else x


def by_getattr_of_class(x):
    return x + 1 if getattr(x, "__class__") is torch.Tensor else x  # noqa: B009


def by_pattern(x):
    match x:
        case torch.Tensor():
            return x + 1
        case _:
            return x


def by_abstract_class(x):
    return x + 1 if isinstance(x, collections.abc.Sequence) else x


def by_number(x):
    return x + 1 if isinstance(x, numbers.Number) else x


def by_parameter(x):
    return x + 1 if isinstance(x, nn.Parameter) else x


def by_torchscript(x):
    return x + 1 if torch.jit.isinstance(x, torch.Tensor) else x


def by_callable(x):
    return x + 1 if callable(x) else x


@singledispatch
def _dispatched(value):
    return value * 100


@_dispatched.register
def _(value: torch.Tensor):
    return value + 1


def by_dispatch(x):
    return _dispatched(x)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def by_helper(x):
    return x + 1 if _is_tensor(x) else x


def by_type_in_helper(x):
    return x + 1 if _type_of(x) is torch.Tensor else x


def _type_of(value):
    return type(value)


def by_keys(x):
    return x + 1 if hasattr(x, "keys") else x


def by_attribute(x):
    return x + 1 if hasattr(x, "no_such_attribute") else x


def by_attribute_of_tensors(x):
    return x + 1 if hasattr(x, "numel") else x


def by_default(x):
    return x * getattr(x, "no_such_attribute", 2.0)


def by_default_of_known(x):
    return x * (1 if getattr(x, "ndim", None) is None else 2)


QUESTIONS = [
    by_isinstance,
    by_isinstance_of_several,
    by_union,
    by_is_tensor,
    by_is_tensor_of_each,
    by_type,
    by_subclass,
    by_class_attribute,
    by_getattr_of_class,
    by_pattern,
    by_abstract_class,
    by_number,
    by_parameter,
    by_torchscript,
    by_callable,
    by_dispatch,
    by_helper,
    by_type_in_helper,
    by_keys,
    by_attribute,
    by_attribute_of_tensors,
    by_default,
    by_default_of_known,
]


@pytest.mark.parametrize("program", QUESTIONS)
def test_question_about_an_input_of_unknown_kind_is_refused(program):
    message = refused(program, "FXP-T040")
    assert "what kind of value is 'x' is unknown" in message
    assert "x: torch.Tensor" in message
    assert "fxplug.trace(root, example_inputs)" in message


def annotated(program, annotation):
    """Return a program that calls another one with a parameter that has an annotation."""

    def outer(x):
        return program(x)

    outer.__annotations__["x"] = annotation
    return outer


@pytest.mark.parametrize("annotation", [torch.Tensor, "torch.Tensor"], ids=["object", "text"])
@pytest.mark.parametrize("program", QUESTIONS)
def test_question_about_an_annotated_tensor_is_answered(program, annotation):
    assert_as_eager(annotated(program, annotation))


@pytest.mark.parametrize("program", QUESTIONS)
@pytest.mark.parametrize(
    "make",
    [
        torch.relu,
        lambda x: F.interpolate(x[None], 3)[0],
        lambda x: x.contiguous(),
        lambda x: x.chunk(2)[0],
        lambda x: x.topk(1).values,
        lambda x: x @ x.t(),
        lambda x: torch.cat([x, x]) * 2 + x.shape[0],
        lambda x: -x.relu()[0],
        torch.ops.aten.relu.default,
    ],
    ids=[
        "function",
        "Python function",
        "method",
        "part",
        "field",
        "operator",
        "arithmetic",
        "item",
        "overload",
    ],
)
def test_results_of_torch_are_tensors(program, make):
    assert_as_eager(lambda x: program(make(x)))


@pytest.mark.parametrize("program", QUESTIONS)
def test_results_of_modules_and_parameters_are_tensors(program):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.weight = nn.Parameter(torch.ones(2, 3))
            self.register_buffer("count", torch.ones(1))

        def forward(self, x):
            return program(self.linear(x)) + program(self.weight) + program(self.count)

    root = Root()
    module = fxplug.symbolic_trace(root)
    assert torch.equal(module(inputs()), root(inputs()))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: x.shape, torch.Size),
        (lambda x: x.shape[:1], torch.Size),
        (lambda x: x.shape[0], int),
        (lambda x: x.size(), torch.Size),
        (lambda x: x.size(0), int),
        (lambda x: x.size(0) * 2 + 1, int),
        (lambda x: x.size(0) / 2, float),
        (lambda x: x.dim(), int),
        (lambda x: x.ndim, int),
        (lambda x: x.numel(), int),
        (lambda x: x.dtype, torch.dtype),
        (lambda x: x.device, torch.device),
        (lambda x: x.requires_grad, bool),
        (lambda x: x.is_contiguous(), bool),
        (lambda x: x.is_floating_point(), bool),
        (lambda x: x.type(), str),
        (lambda x: x.split(1), tuple),
        (lambda x: torch.max(x, 0), None),
        (lambda x: x.item(), None),
    ],
    ids=[
        *(
            "shape",
            "slice of shape",
            "size",
            "size()",
            "size(0)",
            "arithmetic",
            "division",
            "dim",
            "ndim",
            "numel",
        ),
        *(
            "dtype",
            "device",
            "requires_grad",
            "is_contiguous",
            "is_floating_point",
            "type",
            "split",
            "max",
            "item",
        ),
    ],
)
def test_kinds_of_what_a_tensor_gives(make, kind):
    found = []

    def program(x: torch.Tensor):
        value = make(x)
        found.append((type(value), isinstance(value, (int, tuple)), isinstance(value, numbers.Number)))
        return x

    if kind is None:
        refused(program, "FXP-T040")
        return
    fxplug.symbolic_trace(program)
    value = make(inputs())
    assert type(value) is kind
    assert found == [(kind, isinstance(value, (int, tuple)), isinstance(value, numbers.Number))]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, 2), (float, 2.0), (bool, True), (str, "sum"), ("int", 3), (list[int], [1])],
    ids=["int", "float", "bool", "str", "text", "list"],
)
def test_kinds_of_annotated_inputs_that_are_no_tensors(annotation, value):
    def program(x, other):
        return x * 2 if isinstance(other, type(value)) and not torch.is_tensor(other) else x

    program.__annotations__["other"] = annotation
    assert_as_eager(program, inputs(), value)


@pytest.mark.parametrize(
    "annotation",
    [Optional[torch.Tensor], "torch.Tensor | None", "print(1)", object],  # noqa: UP045
    ids=["Optional", "union as text", "call as text", "object"],
)
def test_an_annotation_that_leaves_it_open_decides_nothing(annotation, capsys):
    refused(annotated(by_isinstance, annotation), "FXP-T040")
    assert capsys.readouterr().out == ""


def test_a_program_may_ask_whether_it_is_traced():
    def program(x):
        return x + 1 if isinstance(x, (torch.fx.Proxy, Proxy)) else x

    assert fxplug.symbolic_trace(program)(torch.ones(1)).item() == 2


def test_a_question_that_is_caught_is_refused_all_the_same():
    def program(x):
        try:
            return x + 1 if isinstance(x, torch.Tensor) else x
        except Exception:
            return x * 100

    assert "'except' of the program" in refused(program, "FXP-T040")


def test_an_attribute_that_no_tensor_has_is_missing_as_in_eager():
    def program(x: torch.Tensor):
        try:
            return x.no_such_attribute
        except AttributeError:
            return x + 1

    assert_as_eager(program)


def test_an_attribute_that_a_parameter_was_given_is_there():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.weight.scale = 3.0

        def forward(self, x):
            return (
                x * self.weight * (getattr(self.weight, "scale", 1.0) if hasattr(self.weight, "scale") else 5)
            )

    root = Root()
    assert torch.equal(fxplug.symbolic_trace(root)(inputs()), root(inputs()))


CLASSES = (torch.FloatTensor,)


@pytest.mark.parametrize(
    "question",
    [
        lambda x: isinstance(x, torch.FloatTensor),
        lambda x: isinstance(x, CLASSES),
        lambda x: isinstance(x, [torch.FloatTensor][0]),
        lambda x: isinstance(x, (int, torch.cuda.FloatTensor)),
    ],
    ids=["by name", "in a global", "computed", "in a tuple"],
)
def test_classes_that_would_look_for_a_tensor_in_memory_are_refused(question):
    def program(x: torch.Tensor):
        return x + 1 if question(x) else x

    assert "types as torch.FloatTensor" in refused(program, "FXP-T040")


ENTRY_POINTS = """
import torch
import fxplug

def run(function):
    def program(x: torch.Tensor):
        y = x + 1
        isinstance(y, torch.Tensor)
        return function(y)
    try:
        fxplug.symbolic_trace(program)
    except Exception as error:
        print(type(error).__name__)
    else:
        print("captured")

t = torch.ones(2)
for function in (
    torch.tensor, torch.Tensor, torch.as_tensor, torch.from_numpy, torch.FloatTensor, torch.nn.Parameter,
    lambda x: torch.sparse_coo_tensor(x, x), lambda x: t.set_(x), lambda x: t[x], lambda x: torch.ones(x),
    lambda x: torch.Tensor._make_subclass(torch.Tensor, x), lambda x: torch._C._nn.gelu(x),
    lambda x: torch.autograd.backward(x), lambda x: torch.autograd.grad(x, x),
    lambda x: torch.utils.dlpack.to_dlpack(x),
    lambda x: torch.Size(x), lambda x: torch.Generator().set_state(x), lambda x: torch.jit.annotate(torch.Tensor, x),
):
    run(function)
print("alive")
"""


def test_no_entry_point_of_torch_takes_a_traced_value_for_a_tensor_in_memory():
    done = subprocess.run([sys.executable, "-c", ENTRY_POINTS], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("alive\n")


def test_stand_ins_go_away_with_the_trace_and_leave_other_code_alone():
    namespace = globals()
    seen, some = [], []

    def program(x: torch.Tensor):
        seen.append("type" in namespace)
        assert type(len(some)) is int
        assert type("Made", (), {}).__name__ == "Made"
        assert isinstance(int, type)
        assert callable(print)
        assert not callable(1)
        assert id(some) > 0
        assert getattr(some, "nope", 3) == 3
        return x + 1 if type(x) is torch.Tensor else x

    assert_as_eager(program)
    assert seen == [False, True]
    assert not {"type", "callable", "id", "getattr"} & namespace.keys()


# -- comparisons by identity


def optional(x, mask=None):
    if mask is not None:
        x = x * mask
    return x


def optional_in_an_expression(x, mask=None):
    return x if mask is None else x * mask


def optional_as_a_value(x, mask=None):
    is_missing = mask is None
    return x if is_missing else x * mask


def optional_the_other_way_round(x, mask=None):
    return x if None is mask else x * mask


def optional_under_another_name(x, mask=None):
    other = mask
    return x if other is None else x * other


def optional_in_a_walrus(x, mask=None):
    return x if (other := mask) is None else x * other


def optional_in_an_inner_function(x, mask=None):
    def is_missing():
        return mask is None

    return x if is_missing() else x * mask


def optional_in_a_pattern(x, mask=None):
    match mask:
        case None:
            return x
        case _:
            return x * mask


def exists(value):
    return value is not None


def default(value, other):
    return value if exists(value) else other


def optional_in_a_helper(x, mask=None):
    return x * default(mask, 1)


def optional_by_keyword(x, *, mask=None):
    return x if mask is None else x * mask


def optional_with_annotation(x, mask: torch.Tensor | None = None):
    return x if mask is None else x * mask


def optional_in_spite_of_its_annotation(x, mask: torch.Tensor = None):
    return x if mask is None else x * mask


def optional_in_a_local_function(x, mask=None):
    def helper(value):
        return x if value is None else x * value

    return helper(mask)


def optional_in_a_generator(x, mask=None):
    return x * mask if all(part is not None for part in (x, mask)) else x


class Helper:
    def masked(self, x, mask):
        return x if mask is None else x * mask

    @staticmethod
    def masked_by_all(x, mask):
        return x if mask is None else x * mask


def optional_in_a_method_of_a_class(x, mask=None):
    return Helper().masked(x, mask)


def optional_in_a_static_method(x, mask=None):
    return Helper.masked_by_all(x, mask)


OPTIONAL = [
    optional,
    optional_in_a_local_function,
    optional_in_a_generator,
    optional_in_a_method_of_a_class,
    optional_in_a_static_method,
    optional_in_an_expression,
    optional_as_a_value,
    optional_the_other_way_round,
    optional_under_another_name,
    optional_in_a_walrus,
    optional_in_an_inner_function,
    optional_in_a_pattern,
    optional_in_a_helper,
    optional_by_keyword,
    optional_with_annotation,
    optional_in_spite_of_its_annotation,
]


@pytest.mark.parametrize("program", OPTIONAL)
def test_an_input_that_may_be_left_out_is_refused_where_no_default_is_taken(program):
    message = refused_without_defaults(program, "FXP-T041")
    assert "concrete_args={'mask': None}" in message
    assert "concrete_args={'mask': fxplug.PH}" in message
    assert "is None is asked at" in message


@pytest.mark.parametrize("program", OPTIONAL)
def test_an_input_that_may_be_left_out_is_taken_to_be_left_out_where_the_program_asks(program):
    module = fxplug.symbolic_trace(program)
    assert torch.equal(module(inputs()), inputs())
    with pytest.raises(
        fxplug.GuardError, match=r"captured for mask is None, its default, at .*test_questions.py"
    ):
        module(inputs(), mask=inputs())


@pytest.mark.parametrize("program", OPTIONAL)
def test_an_input_that_is_left_out_is_fixed(program):
    module = fxplug.symbolic_trace(program, {"mask": None})
    assert torch.equal(module(inputs()), inputs())
    with pytest.raises(AssertionError, match="mask was fixed to None"):
        module(inputs(), mask=inputs())


@pytest.mark.parametrize("program", OPTIONAL)
def test_an_input_that_is_always_given_is_checked_when_it_runs(program):
    module = fxplug.symbolic_trace(program, {"mask": fxplug.PH})
    assert torch.equal(module(inputs(), mask=inputs()), inputs() * inputs())
    with pytest.raises(fxplug.GuardError, match="captured for mask is not None at"):
        module(inputs())


class Attention(nn.Module):
    def forward(self, x, mask=None):
        return self.masked(x, mask)

    def masked(self, x, mask):
        return x if mask is None else x * mask


class Layer(nn.Module):
    def __init__(self, *, is_masked):
        super().__init__()
        self.attention = Attention()
        self.is_masked = is_masked

    def forward(self, x, mask=None):
        return self.attention(x, torch.relu(x) if self.is_masked else mask)


def test_an_input_that_is_handed_on_to_a_method_of_a_submodule_is_asked_about():
    assert "'mask' is None is asked at" in refused_without_defaults(Layer(is_masked=False), "FXP-T041")


def test_what_torch_computes_is_never_none():
    root = Layer(is_masked=True)
    assert torch.equal(fxplug.symbolic_trace(root)(inputs()), root(inputs()))


def test_a_layer_with_a_forward_of_its_own_is_looked_at_although_its_class_was_met():
    class Block(nn.Module):
        def forward(self, x):
            return x * 3

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), Block()
            self.second.forward = lambda x: x + 1 if type(x) is torch.Tensor else x - 1

        def forward(self, x):
            return self.second(self.first(x))

    refused(Root(), "FXP-T040")


def test_only_what_torch_has_written_of_its_containers_is_not_looked_at(tmp_path):
    # Somebody may have put something around it before fxplug is there.
    script = tmp_path / "patched.py"
    script.write_text(_PATCHED)
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "FXP-T040"


_PATCHED = """
import torch
from torch import nn

forward = nn.Sequential.forward
nn.Sequential.forward = lambda self, x: forward(self, x)

class Block(nn.Module):
    def forward(self, x):
        return x * 3 if type(x) is torch.Tensor else x - 1

import fxplug

try:
    fxplug.symbolic_trace(Block())
except fxplug.TraceError as error:
    print(error.code)
"""


def test_an_input_that_is_only_handed_on_stays_one():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x, mask=None):
            return self.attention(x, x, x, attn_mask=mask)[0]

    root, x = Root(), torch.ones(1, 3, 4)
    module = fxplug.symbolic_trace(root)
    for mask in (None, torch.zeros(3, 3)):
        assert torch.equal(module(x, mask), root(x, mask))


def test_an_input_without_default_may_be_asked_for_if_none_would_fail_anyway():
    def program(x, y):
        if y is None:
            y = x
        return x + y

    module = fxplug.symbolic_trace(program)
    assert torch.equal(module(inputs(), inputs()), inputs() * 2)
    with pytest.raises(TypeError):
        module(inputs(), None)


def test_an_input_without_default_that_nothing_needs_is_refused():
    def program(x, y):
        return x if y is None else -x

    refused(program, "FXP-T041")


@pytest.mark.parametrize("constant", [True, False])
def test_a_flag_that_is_compared_by_identity_is_refused(constant):
    if constant:

        def program(x, flag: bool = True):
            return x if flag is True else -x

    else:

        def program(x, flag=False):
            return x if flag is False else -x

    assert f"'flag' is {constant} is asked at" in refused_without_defaults(program, "FXP-T041")
    assert torch.equal(fxplug.symbolic_trace(program, {"flag": constant})(inputs()), inputs())


@pytest.mark.parametrize(
    "program",
    [
        lambda batch: _part(batch, batch["mask"]),
        lambda batch: _part(batch, batch.get("mask")),
    ],
    ids=["item", "get"],
)
def test_a_part_of_an_input_that_may_be_none_is_refused(program):
    refused(program, "FXP-T041")


def _part(batch, mask):
    return batch["x"] if mask is None else batch["x"] * mask


def test_a_part_that_is_kept_in_a_variable_is_refused():
    def by_item(batch):
        mask = batch["mask"]
        return batch["x"] if mask is None else batch["x"] * mask

    def by_get(batch):
        mask = batch.get("mask")
        return batch["x"] if mask is None else batch["x"] * mask

    for program in (by_item, by_get):
        assert "a part of 'batch' is None" in refused(program, "FXP-T041")


def test_a_pattern_for_mappings_is_refused():
    def program(batch):
        match batch:
            case {"x": x}:
                return x
            case _:
                return batch

    assert "'batch' is a mapping is asked" in refused(program, "FXP-T041")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x if x.grad_fn is None else -x,
        lambda x: x if getattr(x, "grad_fn", None) is None else -x,
        lambda x: x if x.grad is None else -x,
        lambda x: x if x.dtype is torch.float32 else -x,
        lambda x: x if x.layout is not torch.strided else -x,
    ],
    ids=["grad_fn", "getattr", "grad", "dtype", "layout"],
)
def test_an_attribute_that_is_compared_by_identity_is_refused(program):
    def outer(x: torch.Tensor):
        return program(x)

    refused(outer, "FXP-T045")


def test_a_gradient_that_is_kept_is_refused():
    def program(x: torch.Tensor):
        gradient = x.grad
        return x if gradient is None else -x

    refused(program, "FXP-T045")


def test_a_dtype_that_is_used_otherwise_is_recorded():
    assert_as_eager(lambda x: torch.ones(3).to(x.dtype) + torch.zeros(3, dtype=x.dtype))


# -- text


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * len(f"{x.shape[0]}"),
        lambda x: x * len(f"{x.shape[0]:>10}"),
        lambda x: x * (2 if "float" in str(x.dtype) else 3),
        lambda x: x * len("%s" % x.shape[0]),  # noqa: UP031
        lambda x: x * len("{}".format(x.shape[0])),  # noqa: UP032
        lambda x: x * len(format(x.shape[0])),
        lambda x: x * len(str(x)),
        lambda x: x * len(repr(x)),
        lambda x: x * len(f"{x.ndim!r}"),
        lambda x: x * len("%r" % x.ndim),  # noqa: UP031
        lambda x: {"[2]": x * 2}.get(str([x.ndim]), x),
        lambda x: x * len(f"{(x.ndim, 3)}"),
    ],
    ids=[
        *("f-string", "with a width", "str of dtype", "percent", "format of text", "format", "str", "repr"),
        *("f-string of repr", "percent of repr", "str of a list", "f-string of a tuple"),
    ],
)
def test_text_of_a_value_is_refused(program):
    assert "Only what is printed, logged or the message of an error" in refused(program, "FXP-T042")


def test_text_that_is_kept_is_refused():
    def program(x):
        name = f"head_{x.shape[0]}"
        return {"head_2": x + 1}.get(name, x)

    refused(program, "FXP-T042")


def test_people_may_be_shown_a_traced_value(capsys, caplog):
    logger = logging.getLogger("test_questions")

    def program(x):
        print(x, f"{x.shape}", x.shape[0])  # noqa: T201
        print("wide:", f"{x.shape[0]:>10}")  # noqa: T201
        logger.warning("seen %s", x)
        logger.warning(f"formatted {x.dtype}")  # noqa: G004
        warnings.warn(f"about {x}", UserWarning, stacklevel=1)
        torch._assert(x.dim() == 2, f"wrong number of dimensions: {x.dim()}")
        print(repr(x), [x], {"x": x})  # noqa: T201
        return x

    with pytest.warns(UserWarning, match=r"about Proxy\(x\)"):
        module = fxplug.symbolic_trace(program)
    printed = capsys.readouterr().out
    assert "Proxy(x) Attribute(Proxy(x).shape)" in printed
    assert "Proxy(x) [Proxy(x)] {'x': Proxy(x)}" in printed
    assert "seen Proxy(x)" in caplog.text
    assert "formatted Attribute(Proxy(x).dtype)" in caplog.text
    assert torch.equal(module(inputs()), inputs())


def test_the_message_of_an_error_may_show_a_traced_value():
    class MineError(Exception):
        pass

    def program(x):
        if isinstance(x, Proxy):
            raise MineError(f"cannot work with {x}")
        return x

    with pytest.raises(MineError, match=r"cannot work with Proxy\(x\)"):
        fxplug.symbolic_trace(program)


# -- keys, ids, copies, numbers


@pytest.mark.parametrize(
    "program",
    [
        lambda x: {torch.float32: x + 1}.get(x.dtype, x),
        lambda x: x + 1 if x.shape[0] in {2, 3} else x,
        lambda x: {x: 1}[x] * x,
        lambda x: x * len({x.shape[0], x.shape[1]}),
        lambda x: x * hash(x.shape[0]),
    ],
    ids=["get", "in a set", "item", "elements", "hash"],
)
def test_a_value_that_is_no_tensor_for_certain_is_no_key(program):
    refused(program, "FXP-T043")


def test_tensors_are_keys_by_what_object_they_are():
    def program(x: torch.Tensor):
        y = x + 1
        scales = {x: 2, y: 3}
        return x * scales[x] + y * scales[y] + len({x, x, y})

    assert_as_eager(program)


def test_ids_are_refused():
    def program(x: torch.Tensor):
        return x * id(x)

    refused(program, "FXP-T044")


def test_pickling_a_traced_value_is_refused():
    def program(x: torch.Tensor):
        return x * len(pickle.dumps(x))

    refused(program, "FXP-T046")


def test_copies_are_recorded():
    assert_as_eager(lambda x: copy.copy(x) + copy.deepcopy(x))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (lambda x: x * int(x.sum()), "FXP-T002"),
        (lambda x: x * complex(x.sum()), "FXP-T002"),
        (lambda x: x * round(x.shape[0]), "FXP-T002"),
        (lambda x: x * operator.index(x.shape[0]), "FXP-T002"),
        (lambda x: x * len(range(x.shape[0])), "FXP-T002"),
        (lambda x: x * len(x), "FXP-T003"),
        (lambda x: x if 0 in x else -x, "FXP-T004"),
        (lambda x: x * len([*x]), "FXP-T005"),
        (lambda x: x * len(dict(**x)), "FXP-T005"),
        (lambda x: x * sum(x), "FXP-T005"),
        (lambda x: x if any(x) else -x, "FXP-T005"),
        (lambda x: x if all(x) else -x, "FXP-T005"),
        (lambda x: x or -x, "FXP-T001"),
        (lambda x: -x if x in (None, 0) else x, "FXP-T001"),
        (lambda x: sorted([x, x + 1])[0], "FXP-T001"),
        (lambda x: max(x, x + 1), "FXP-T001"),
        (lambda x: min(x, x + 1), "FXP-T001"),
        (lambda x: x if x == None else -x, "FXP-T001"),  # noqa: E711
        (lambda x: x if not x.shape[0] else -x, "FXP-T001"),
    ],
    ids=[
        *(
            "int",
            "complex",
            "round",
            "index",
            "range",
            "len",
            "in",
            "star",
            "two stars",
            "sum",
        ),
        *("any", "all", "or", "in a tuple", "sorted", "max", "min", "equal to None", "not"),
    ],
)
def test_questions_that_need_a_value_stay_refused_when_they_are_caught(program, code):
    def caught(x):
        try:
            return program(x)
        except Exception:
            return x * 100

    refused(program, code)
    assert "'except' of the program" in refused(caught, code)


def times_its_sum(x):
    return x * float(x.sum())


def times_its_sum_or_caught(x):
    try:
        return x * float(x.sum())
    except Exception:
        return x * 100


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")
@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize("program", [times_its_sum, times_its_sum_or_caught])
def test_a_float_of_a_tensor_is_that_of_each_call(program, mode):
    captured = fxplug.trace(program, (inputs(),), mode=mode)
    for values in (
        inputs(),
        -inputs()[0],
        torch.tensor([torch.inf]),
        torch.tensor([torch.nan]),
        torch.ones(2, 0),
    ):
        torch.testing.assert_close(captured(values), program(values), equal_nan=True)
    leaf = inputs().requires_grad_()
    gradients = (torch.autograd.grad(one(leaf).sum(), leaf) for one in (captured, program))
    torch.testing.assert_close(*gradients)


def test_a_float_of_a_tensor_stays_refused_where_code_beside_it_needs_the_class():
    beside = {}
    exec(compile("def to_double(x): return x.to(float)", __file__, "exec"), beside)
    program, caught = (
        types.FunctionType(one.__code__, beside) for one in (times_its_sum, times_its_sum_or_caught)
    )
    refused(program, "FXP-T002")
    assert "'except' of the program" in refused(caught, "FXP-T002")


@pytest.mark.parametrize("program", [times_its_sum, times_its_sum_or_caught])
def test_a_float_of_a_tensor_needs_values_in_shape_mode(program):
    for check in (True, False):
        with pytest.raises(TraceError, match=r"float\(x\.sum\(\)\) needs the values") as caught:
            fxplug.trace(program, (inputs(),), mode="shape", check=check)
        assert caught.value.code == "FXP-T066"


def test_arrays_of_traced_values_stay_refused_when_they_are_caught():
    numpy = pytest.importorskip("numpy")

    def caught(x):
        try:
            return x * numpy.asarray(x).sum()
        except Exception:
            return x * 10

    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(caught)
    assert refused.value.code == "FXP-T002"


def test_a_pattern_with_a_length_is_refused():
    def program(x: torch.Tensor):
        match x.shape:
            case (_, _):
                return x + 1
            case _:
                return x

    assert "a pattern asks how many elements there are" in refused(program, "FXP-T003")
    assert not issubclass(Proxy, collections.abc.Sequence)


def test_a_comparison_with_none_is_recorded():
    module = fxplug.symbolic_trace(lambda x: [x == None, x != None])  # noqa: E711
    assert module(inputs()) == [False, True]


def test_reversing_is_recorded():
    def program(x):
        return reversed(x)

    assert_as_eager(program)


def test_what_runs_no_script_is_answered():
    assert_as_eager(lambda x: x + 1 if torch.jit.is_scripting() else x * 2)


def test_json_of_a_traced_value_fails_as_it_does_for_a_tensor():
    def program(x: torch.Tensor):
        return x * len(json.dumps(x))

    with pytest.raises(TypeError, match="Object of type Tensor is not JSON serializable"):
        fxplug.symbolic_trace(program)


# -- containers


class Stack(list):
    pass


class Named(dict):
    def __init__(self, values=(), **others):
        super().__init__(values, **others)
        self.__dict__ = self


class Counted(dict):
    def __init__(self, values, count):
        super().__init__(values)
        self.count = count


@fxplug.wrap
def class_of(container):
    return torch.tensor(len(type(container).__name__))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: collections.OrderedDict(first=x, second=1),
        lambda x: collections.defaultdict(list, first=x),
        lambda x: collections.Counter({"first": 2, "second": x}),
        lambda x: Stack([x, 2]),
        lambda x: Named(first=x),
    ],
    ids=["OrderedDict", "defaultdict", "Counter", "list", "with attributes"],
)
def test_containers_keep_their_class(make):
    module = fxplug.symbolic_trace(make)
    result, expected = module(5), make(5)
    assert type(result) is type(expected)
    assert result == expected
    assert getattr(result, "default_factory", None) is getattr(expected, "default_factory", None)

    assert fxplug.symbolic_trace(lambda x: class_of(make(x)))(5) == len(type(expected).__name__)


def test_a_container_that_cannot_be_made_anew_is_refused():
    with pytest.raises(TraceError, match=r"a dict of the class .*Counted: made anew .*FXP-T006"):
        fxplug.symbolic_trace(lambda x: Counted({"x": x}, 3))


# -- hand-made proxies and tracers of others


def test_methods_of_a_tracer_may_ask_what_they_like():
    asked = []

    class Own(Tracer):
        def create_arg(self, a):
            asked.append(isinstance(a, torch.Tensor))
            return super().create_arg(a)

    Own().trace(lambda x: x + 1)
    assert not any(asked)


def test_a_hand_made_proxy_answers_for_itself():
    graph = fxplug.Graph()
    proxy = Proxy(graph.placeholder("x"))
    assert type(proxy) is Proxy
    assert proxy.__class__ is Proxy
    assert not isinstance(proxy, torch.Tensor)
    assert str(proxy) == f"{proxy}" == "Proxy(x)"
    assert proxy in {proxy}
    assert hasattr(proxy, "anything")


def test_a_mapping_with_an_order_is_kept_in_a_file(tmp_path):
    module = fxplug.symbolic_trace(lambda x: collections.OrderedDict(first=x, sizes=torch.Size([1, 2])))
    fxplug.save(module, tmp_path / "module.fxp")
    result = fxplug.load(tmp_path / "module.fxp")(torch.ones(1))
    assert [type(result), *map(type, result.values())] == [collections.OrderedDict, torch.Tensor, torch.Size]


# -- other threads, and other traces


def test_other_threads_are_answered_as_always_while_a_trace_runs():
    started, done = threading.Event(), threading.Event()
    found = []

    def outside():
        started.wait(10)
        value = torch.ones(1)
        found.append((type(value), callable(value), hasattr(value, "keys"), optional(value), _type_of(1)))
        done.set()

    def program(x: torch.Tensor, mask=None):
        started.set()
        assert done.wait(10)
        kind = type(x)
        x = optional(x, torch.relu(x))
        return x if kind is torch.Tensor and not callable(x) and not hasattr(x, "keys") else -x

    thread = threading.Thread(target=outside)
    thread.start()
    module = fxplug.symbolic_trace(program)
    thread.join()
    assert found == [(torch.Tensor, False, False, torch.ones(1), int)]
    assert torch.equal(module(inputs()), inputs() * inputs())


def test_functions_are_as_before_when_a_trace_fails():
    before = optional.__code__, exists.__code__, _type_of.__globals__.get("type")

    def program(x, mask=None):
        return optional(x, default(mask, 1)) * (type(x) is torch.Tensor)

    refused_without_defaults(program, "FXP-T041")
    assert (optional.__code__, exists.__code__, _type_of.__globals__.get("type")) == before


@fxplug.wrap
def kept(x, mask=None):
    return x if mask is None else x * mask


def test_a_function_that_is_kept_as_a_call_may_ask_what_it_likes():
    def program(x, mask=None):
        return kept(x, mask)

    module = fxplug.symbolic_trace(program)
    assert torch.equal(module(inputs()), inputs())
    assert torch.equal(module(inputs(), inputs()), inputs() * inputs())


def test_decorated_functions_partials_and_objects_are_looked_into():
    class Callable:
        def __call__(self, x, mask=None):
            return optional(x, mask)

    decorated = functools.wraps(optional)(lambda x, mask=None: optional(x, mask))
    for program in (Callable(), functools.partial(optional), Attention().forward, decorated):
        refused_without_defaults(program, "FXP-T041")


WANT_A_NUMBER = {
    "islice": (lambda x: sum(itertools.islice([x, x, x], x.shape[0])), "FXP-T002"),
    "islice from": (lambda x: sum(itertools.islice([x, x, x], 0, x.shape[0])), "FXP-T002"),
    "repeat": (lambda x: sum(itertools.repeat(x, x.shape[0])), "FXP-T002"),
    "deque": (lambda x: len(collections.deque([1, 2, 3], x.shape[0])), "FXP-T068"),
    "permutations": (lambda x: len(list(itertools.permutations([1, 2, 3], x.shape[0]))), "FXP-T068"),
}


@pytest.mark.parametrize("case", WANT_A_NUMBER)
def test_what_wants_a_number_and_says_so_in_its_own_words_is_refused_with_a_code(case):
    program, code = WANT_A_NUMBER[case]

    with pytest.raises(fxplug.TraceError) as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == code
