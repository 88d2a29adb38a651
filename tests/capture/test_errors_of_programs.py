"""Errors out of a capture: a program's own come out as in eager, those that stand-ins cause are coded or avoided."""

from __future__ import annotations

import json
import sys
from itertools import islice

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.questions import add_place
from fxplug.errors import TraceError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]
MODES = ("symbolic", "value", "shape")
X = torch.ones(2, 3)


def traced(root, mode, *inputs, **options):
    if mode == "symbolic":
        return fxplug.symbolic_trace(root)
    return fxplug.trace(root, inputs or (X,), mode=mode, **options)


# -- what the program raises itself


@pytest.mark.parametrize("mode", MODES)
def test_an_error_that_reads_like_one_of_torch_is_the_programs_own(mode):
    text = "Detected that you are using FX to symbolically trace a dynamo-optimized function"

    def program(x):
        raise RuntimeError(text)

    with pytest.raises(RuntimeError) as caught:
        traced(program, mode)
    assert (type(caught.value), str(caught.value)) == (RuntimeError, text)


class OwnError(Exception):
    def __init__(self, number, text):
        super().__init__(number, text)
        self.number = number


def raises_its_own(x):
    raise OwnError(1, "two")


def raises_value_error(x):
    if x is not None:
        raise ValueError("these are no good")
    return x


def misses_a_key(x):
    return x + {}["missing"]


def asserts(x):
    raise AssertionError("nothing is wanted")


def recurses(x):
    return recurses(x)


OWN = [raises_its_own, raises_value_error, misses_a_key, asserts, recurses, lambda x: torch.relu(x, 3)]
FOUND_BY_RUNNING = {
    "shapes": lambda x: x @ x,
    "module": nn.Linear(5, 2),
    "attribute": lambda x: x.missing,
    "dimension": lambda x: x.sum(dim=9),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("root", OWN)
def test_errors_of_the_program_are_those_of_eager(root, mode):
    check_own(root, mode)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("root", FOUND_BY_RUNNING.values(), ids=FOUND_BY_RUNNING)
def test_so_are_those_that_torch_raises_for_the_inputs(root, mode):
    check_own(root, mode)


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    pytest.fail("there is no error")


def check_own(root, mode):
    wanted, found = error_of(root, X), error_of(traced, root, mode)
    assert type(found) is type(wanted)
    assert str(found) == str(wanted)
    assert vars(found).keys() - {"__notes__"} == vars(wanted).keys()
    if sys.version_info >= (3, 11):
        (note,) = found.__notes__
        assert note.startswith("fxplug: this was raised while ")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_the_note_names_the_program_and_its_line_once():
    with pytest.raises(KeyError) as found:
        traced(misses_a_key, "value")
    (note,) = found.value.__notes__
    assert "misses_a_key was traced at " in note
    assert "test_errors_of_programs.py:" in note
    assert 'return x + {}["missing"]' in note
    assert (
        error_of(traced, nn.Linear(5, 2), "value")
        .__notes__[0]
        .startswith("fxplug: this was raised while Linear was traced")
    )
    add_place(found.value, "another")
    assert found.value.__notes__ == [note]


def test_interruptions_pass_without_a_word():
    def ends(x):
        raise KeyboardInterrupt

    for mode in MODES:
        with pytest.raises(KeyboardInterrupt) as found:
            traced(ends, mode)
        assert not getattr(found.value, "__notes__", ())


# -- what takes no stand-in


def counts_text(make):
    return lambda x: x + len(make(x))


NUMBERS = {
    "json of a shape": counts_text(lambda x: json.dumps(x.shape)),
    "json of a size": counts_text(lambda x: json.dumps({"rows": x.shape[0]})),
    "json of an item": counts_text(lambda x: json.dumps(x.sum().item())),
}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_something_takes_no_stand_in_for_are_guarded_to_be_the_same(name, mode):
    root = NUMBERS[name]
    if name == "json of an item" and mode == "shape":
        pytest.skip("there are no values")
    captured = traced(root, mode)
    assert torch.equal(captured(X), root(X))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(4, 3))


@pytest.mark.parametrize("name", ["json of a shape", "json of a size"])
def test_without_examples_such_calls_are_refused_at_their_line(name):
    with pytest.raises(TraceError, match=r"takes no traced value at .*test_errors_of_programs.py") as caught:
        traced(NUMBERS[name], "symbolic")
    assert caught.value.code == "FXP-T068"


def test_errors_of_libraries_of_python_about_other_things_are_not():
    with pytest.raises(TypeError, match="not JSON serializable"):
        traced(lambda x: x + len(json.dumps(object())), "symbolic")
    with pytest.raises(ValueError, match="islice"):
        traced(lambda x: x + len(list(islice([1], -1))), "symbolic")


def test_powers_with_a_modulus_are_recorded():
    def root(n, x):
        return x + pow(n, 2, 3)

    captured = fxplug.symbolic_trace(root)
    assert torch.equal(captured(4, X), root(4, X))
    assert torch.equal(fxplug.symbolic_trace(lambda x: x**2)(X * 3), X * 9)


# -- tensors of other kinds


class Plain(torch.Tensor):
    pass


def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantized():
    return torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)


def doubles(x):
    return x * 2


KINDS = {
    "subclass": (doubles, lambda: X.as_subclass(Plain)),
    "csr": (doubles, lambda: torch.eye(3).to_sparse_csr()),
    "made csr": (lambda x: x.to_sparse_csr(), lambda: X),
    "made csc": (lambda x: x.to_sparse_csc(), lambda: X),
    "values": (lambda x: x.coalesce().values() * 2, lambda: torch.eye(3).to_sparse()),
    "coo": (doubles, lambda: torch.eye(3).to_sparse()),
    "expanded": (doubles, lambda: torch.ones(1).expand(3)),
    "complex": (lambda x: torch.fft.fft(x) * float("nan"), lambda: X),
}
WITHOUT_SHAPES = {
    "nested": (doubles, nested),
    "padded": (lambda x: torch.nested.to_padded_tensor(x, 0.0), nested),
    "jagged": (doubles, jagged),
    "values of jagged": (lambda x: (x * 2).values().sum(), jagged),
    "made nested": (lambda x: torch.nested.as_nested_tensor([x[0], x[1] * 2]), lambda: X),
    "quantized": (lambda x: x.dequantize() + 1, quantized),
    "mkldnn": (lambda x: x.to_mkldnn(), lambda: X),
}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(("root", "make"), KINDS.values(), ids=KINDS)
def test_tensors_of_other_kinds_are_copied_and_compared(root, make, mode):
    given = make()
    captured = traced(root, mode, given)
    found, wanted = captured(given), root(given)
    assert found.layout is wanted.layout
    assert type(found) is type(wanted)


@pytest.mark.parametrize(("root", "make"), WITHOUT_SHAPES.values(), ids=WITHOUT_SHAPES)
def test_what_torch_cannot_do_without_data_is_captured_in_value_mode(root, make):
    given = make()
    traced(root, "value", given)
    for check in (True, False):
        with pytest.raises(TraceError, match="in shape mode") as caught:
            traced(root, "shape", given, check=check)
        assert caught.value.code == "FXP-T066"


@pytest.mark.parametrize("make", [str, repr, "{:.2f}".format], ids=["str", "repr", "format"])
def test_texts_of_tensors_have_no_values_in_shape_mode(make):
    with pytest.raises(TraceError) as caught:
        traced(lambda x: x + len(make(x.sum())), "shape")
    assert caught.value.code == "FXP-T066"


def test_without_a_check_an_error_of_shapes_is_what_torch_says_of_them():
    with pytest.raises(RuntimeError) as found:
        traced(lambda x: x @ x, "shape", check=False)
    assert not isinstance(found.value, TraceError)


def test_a_program_that_fails_runs_once_more_and_no_more():
    runs = []

    def fails(x):
        runs.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        traced(fails, "value")
    assert runs == [1, 1]
