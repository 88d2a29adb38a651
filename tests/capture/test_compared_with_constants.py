"""Without examples, results that are compared by identity with a number, a text, True or False are refused."""

from __future__ import annotations

import warnings

import pytest
import torch

import fxplug
from fxplug import GuardError, TraceError

X = torch.randn(2, 3)


def _made(name, parameters, result):
    """Return a program that Python warns of when it is compiled, with the line where it stands."""
    namespace = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        source = compile(f"def {name}({parameters}): return {result}", __file__, "exec")
    exec(source, namespace)
    return namespace[name]


_is_a_number = _made("_is_a_number", "x", "x * 2 if x.dim() is 2 else x + 1")
_size_is_a_number = _made("_size_is_a_number", "x", "x * 2 if (rows := x.shape[0]) is 2 else x + rows")
_is_not_a_number = _made("_is_not_a_number", "x", "x + 1 if 2 is not x.ndim else x * 2")
_number_given = _made("_number_given", "x, n=2", "x * 2 if n is 2 else x + 1")
_text_given = _made("_text_given", "x, how='a'", "x * 2 if how is 'a' else x + 1")


def _answer_is_true(x):
    return x * 2 if x.is_contiguous() is True else x + 1


def _kept_answer_is_false(x):
    contiguous = x.is_contiguous()
    return x + 1 if contiguous is False else x * 2


def _function_is_not_false(x):
    return x * 2 if torch.is_floating_point(x) is not False else x + 1


def _comparison_is_true(x):
    return x * 2 if (x.dim() == 2) is True else x + 1


def _equal_is_true(x):
    return x * 2 if torch.equal(x, x) is True else x + 1


def _attribute_is_true(x):
    return x * 2 if x.requires_grad is True else x + 1


def _contiguous(x):
    return x.is_contiguous()


def _returned_answer_is_true(x):
    return x * 2 if _contiguous(x) is True else x + 1


_ASKING = [
    _answer_is_true,
    _kept_answer_is_false,
    _function_is_not_false,
    _comparison_is_true,
    _equal_is_true,
    _attribute_is_true,
    _returned_answer_is_true,
]
"""What asks for answers, and not for numbers."""
_PROGRAMS = [_is_a_number, _size_is_a_number, _is_not_a_number, *_ASKING]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_results_compared_with_constants_are_refused(program):
    with pytest.raises(TraceError, match="FXP-T041") as caught:
        fxplug.symbolic_trace(program)
    assert "test_compared_with_constants" in str(caught.value)


@pytest.mark.parametrize("program", [_number_given, _text_given])
def test_defaults_decide_what_inputs_are(program):
    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X), program(X))
    with pytest.raises(GuardError):
        captured(X, 3 if program is _number_given else "b")


def test_tensors_are_no_numbers():
    def program(x: torch.Tensor):
        y = torch.relu(x)
        return x * 2 if y is True or y is False else y

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X), program(X))


def test_other_results_of_such_a_program_are_captured():
    def program(x, flag: bool = False):
        y = torch.relu(x).view(x.shape[0], -1)
        return y * 2 if flag is True else y + x.shape[1]

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X), program(X))
    with pytest.raises(GuardError):
        captured(X, flag=True)


@pytest.mark.parametrize("program", _ASKING)
def test_examples_answer_for_true_and_false(program):
    captured = fxplug.trace(program, (X,))

    assert torch.equal(captured(X + 1), program(X + 1))
    for other in (torch.randn(3, 2).T, X.clone().requires_grad_(), torch.ones(2, 3, dtype=torch.int64)):
        try:
            found = captured(other)
        except GuardError:
            continue
        assert torch.equal(found, program(other))
