"""Without examples, an answer that hangs on an annotation is checked when the captured program runs."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch
from torch import nn

import fxplug
from fxplug import GuardError
from fxplug.plugins import PluginManager
from fxplug.semantics.checks import class_of, is_instance

X = torch.randn(2, 3)


class Flagged(torch.Tensor):
    """Has what no tensor has."""

    flag = True


def _asks_isinstance(x, n: int):
    return x * 2 if isinstance(n, int) else x + n


def _asks_type(x, n: float):
    return x * 2 if type(n) is float else x + n


def _asks_of_a_result(x, y: torch.Tensor):
    return x * 2 if isinstance(abs(y) + 1, torch.Tensor) else x


def _asks_is_tensor(x, n: int):
    return x * 2 if torch.is_tensor(n) else x + n


def _asks_hasattr(x, y: torch.Tensor):
    return x * 2 if hasattr(y, "flag") else x + 1


def _asks_callable(x, n: int):
    return x * 2 if callable(n) else x + 1


def _asks_an_alias(x, n: int):
    return x * 2 if isinstance(n, Optional[int]) else x + 1  # noqa: UP045 - what typing has answers in another way


def _uses_as_a_key(x, y: torch.Tensor):
    return x * {y: 2}[y]


def _asks_dir(x, y: torch.Tensor):
    return x * 2 if "flag" in dir(y) else x + 1


def _compares_with_none(x, y: torch.Tensor):
    if y is None:
        return x * 2
    return x + 1


def _matches(x, n: float):
    match n:
        case float():
            return x * 2
        case _:
            return x * 3


def _asks_of_a_list(x, parts: list):
    return x * 2 if isinstance(parts, (list, tuple)) else x + parts


def _tells_bools_apart(x, n: int):
    return x * 3 if isinstance(n, bool) else x * n


@pytest.mark.parametrize(
    ("program", "right", "wrong"),
    [
        (_asks_isinstance, 3, 2.5),
        (_asks_type, 1.5, 2),
        (_asks_of_a_result, X, 2),
        (_asks_is_tensor, 2, X),
        (_asks_hasattr, X, X.as_subclass(Flagged)),
        (_asks_callable, 1, len),
        (_asks_an_alias, 1, 2.5),
        (_uses_as_a_key, X, 2),
        (_asks_dir, X, X.as_subclass(Flagged)),
        (_compares_with_none, X, None),
        (_matches, 1.0, 2),
        (_asks_of_a_list, [1], 2),
        (_tells_bools_apart, 2, True),
    ],
)
def test_what_contradicts_the_annotation_is_an_error(program, right, wrong):
    captured = fxplug.symbolic_trace(program)
    name = next(name for name in program.__annotations__)

    assert torch.equal(captured(X, right), program(X, right))
    with pytest.raises(GuardError, match=rf"(isinstance|type)\({name}\b.*test_annotations_checked"):
        captured(X, wrong)
    assert any(f"({name}" in str(guard) for guard in captured.guards)


def test_what_was_captured_with_a_contradiction_is_what_eager_gives_for_others():
    """Each of the wrong inputs goes another way in eager, or the guards would be for nothing."""
    for program, wrong in (
        (_asks_isinstance, 2.5),
        (_asks_type, 2),
        (_matches, 2),
        (_tells_bools_apart, True),
    ):
        captured = fxplug.symbolic_trace(program)
        answers = [node for node in captured.graph.nodes if node.target is is_instance]
        for node in list(captured.graph.nodes):
            if node.op == "call_function" and node in {user for one in answers for user in one.users}:
                captured.graph.erase_node(node)
        captured.recompile()
        assert not torch.equal(captured(X, wrong), program(X, wrong))


def test_an_annotated_float_may_be_an_int_where_both_are_asked_for():
    def program(x, n: float):
        return x * n if isinstance(n, (int, float)) else x + n

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X, 2), program(X, 2))
    assert torch.equal(captured(X, 2.5), program(X, 2.5))
    with pytest.raises(GuardError, match=r"isinstance\(n, float \| int\)"):
        captured(X, X)


def test_questions_that_tell_subclasses_apart_are_for_tensors_alone():
    def program(x, y: torch.Tensor):
        return x * 2 if isinstance(y, torch.nn.Parameter) else x + 1

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X, X), X + 1)
    with pytest.raises(GuardError, match=r"type\(y\) is torch.Tensor"):
        captured(X, torch.nn.Parameter(X))


def test_a_subclass_and_a_parameter_are_tensors():
    captured = fxplug.symbolic_trace(_asks_of_a_result)

    for given in (torch.nn.Parameter(X), X.as_subclass(Flagged)):
        assert torch.equal(captured(X, given), X * 2)


def test_an_input_is_checked_once_and_only_if_something_is_asked():
    def program(x: torch.Tensor, y: torch.Tensor, n: int):
        for _ in range(3):
            x = x * 2 if isinstance(x, torch.Tensor) else x
        return x + y * n

    captured = fxplug.symbolic_trace(program)

    asked = [node.args[0].target for node in captured.graph.nodes if node.target is is_instance]
    assert asked == ["x"]
    assert torch.equal(captured(X, X, 2.5), program(X, X, 2.5))  # Nothing hangs on what n is.


def test_kinds_that_are_certain_without_the_annotation_are_not_checked():
    def program(x: torch.Tensor, *rest: int, **named: int):
        y = torch.relu(x)
        return y if isinstance(y, torch.Tensor) and isinstance(rest, tuple) and isinstance(named, dict) else x

    assert fxplug.symbolic_trace(program).guards == ()


def _wrong_tensor(x, m: torch.Tensor = 2):  # type: ignore[assignment]
    return x * 2 if isinstance(m, torch.Tensor) else x + m


def _wrong_int(x, m: int = 1.5):  # type: ignore[assignment]
    return x * 2 if isinstance(m, int) else x + m


@pytest.mark.parametrize("program", [_wrong_tensor, _wrong_int])
def test_an_annotation_that_its_default_contradicts_is_not_believed(program):
    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(X), program(X))
    with pytest.raises(GuardError, match="m =="):
        captured(X, X)


def test_the_guard_is_kept_by_files_and_by_further_traces(tmp_path):
    captured = fxplug.symbolic_trace(_asks_isinstance)
    fxplug.save(captured, tmp_path / "asks.fxplug")
    loaded = fxplug.load(tmp_path / "asks.fxplug")

    for module in (loaded, fxplug.symbolic_trace(captured), fxplug.symbolic_trace(loaded)):
        assert torch.equal(module(X, 3), X * 2)
        with pytest.raises(GuardError, match=r"isinstance\(n, int\)"):
            module(X, 2.5)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_examples_say_what_inputs_are(mode):
    captured = fxplug.trace(_asks_isinstance, (X, 2.5), mode=mode)

    assert torch.equal(captured(X, 2.5), X + 2.5)
    assert not [node for node in captured.graph.nodes if node.target is is_instance]


class AsksForATensor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) if isinstance(x, torch.Tensor) else x


def test_programs_that_are_not_listened_to_are_not_checked_either():
    captured = fxplug.trace(AsksForATensor(), (X,), manager=PluginManager(candidates=()))

    assert not [node for node in captured.graph.nodes if node.target in {is_instance, class_of}]


def test_parameters_of_patterns_stand_for_any_values():
    def pattern(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y if isinstance(x, torch.Tensor) else x - y

    def replacement(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y

    captured = fxplug.symbolic_trace(lambda x, y: (x + y).relu())
    assert len(fxplug.replace_pattern(captured, pattern, replacement)) == 1
    assert torch.equal(captured(X, X), (X * X).relu())
