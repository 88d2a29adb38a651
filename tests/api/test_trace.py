"""Capturing with example inputs: results, guards, what a failing guard does, the check, and wrong arguments."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import operator
import pickle
import random
import warnings
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxplug
from fxplug.analyze.comparison import compare
from fxplug.analyze.isolation import tensors_in
from fxplug.api import MismatchError, Tolerance
from fxplug.errors import GuardError, GuardWarning, TraceError, TraceWarning

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = torch.arange(8.0).reshape(2, 4)


def texts(module: fxplug.GraphModule) -> list[str]:
    return [guard.text for guard in module.guards]


def branching(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    rows, _ = x.shape
    if rows > 1:
        x = x + 1
    if mask is not None:
        x = x * mask
    return x.reshape(rows, -1) * rows


def by_value(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x - 1


@functools.cache
def scripted() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    return torch.jit.script(function)


# -- guards


def test_questions_become_guards_that_name_their_lines() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    assert texts(captured) == ["x.shape[0] > 1", "mask is None", "x.dim() == 2"]
    line = inspect.getsourcelines(branching)[1] + 2
    assert (
        str(captured.guards[0]) == f"x.shape[0] > 1 (asked at {__file__}:{line} in branching: 'if rows > 1:')"
    )


def test_sizes_that_are_computed_with_stay_free() -> None:
    captured = fxplug.trace(branching, (ROWS,))
    others = torch.rand(5, 3)

    assert torch.equal(captured(others), branching(others))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((ROWS[:1],), "x.shape[0] > 1"),
        ((torch.rand(3, 4, 1),), "x.dim() == 2"),
        ((ROWS, ROWS), "mask is None"),
    ],
)
def test_inputs_that_would_take_another_way_are_refused(inputs: tuple[Any, ...], text: str) -> None:
    captured = fxplug.trace(branching, (ROWS,))

    with pytest.raises(GuardError) as refused:
        captured(*inputs)

    assert refused.value.code == "FXP-T060"
    assert text in str(refused.value)
    assert "on_guard_failure" in str(refused.value)


def test_input_of_another_kind_is_refused() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    with pytest.raises(GuardError, match="inputs of other kinds"):
        captured([1, 2])


def test_wrong_number_of_arguments_is_what_python_says_of_it() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    with pytest.raises(TypeError, match="positional argument"):
        captured()


def test_a_condition_on_values_is_checked_where_it_is_computed() -> None:
    captured = fxplug.trace(by_value, (ROWS,))

    assert torch.equal(captured(ROWS + 3), by_value(ROWS + 3))
    with pytest.raises(GuardError, match=r"x.sum\(\) > 0 \(asked at .*by_value"):
        captured(-ROWS)


def test_a_number_that_python_needs_is_an_equality_guard() -> None:
    def repeated(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[index] for index in range(x.shape[0])]

    captured = fxplug.trace(repeated, (ROWS,))

    assert "x.shape[0] == 2" in texts(captured)


def test_text_for_people_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    def telling(x: torch.Tensor) -> torch.Tensor:
        print(f"{x.shape[0]} rows, {x.shape}")  # noqa: T201 - that is what is tested
        torch._assert(x.dim() == 2, f"not {x.shape}")
        return x * 2

    captured = fxplug.trace(telling, (ROWS,), check=False)

    assert capsys.readouterr().out == "2 rows, torch.Size([2, 4])\n"
    assert torch.equal(captured(ROWS[:1]), ROWS[:1] * 2)


def test_text_that_is_used_is_a_question() -> None:
    captured = fxplug.trace(lambda x: {f"rows{x.shape[0]}": x}, (ROWS,))

    with pytest.raises(GuardError, match=r"x.shape\[0\] == 2"):
        captured(ROWS[:1])


def test_the_same_question_is_one_guard() -> None:
    def asked_often(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + 1 if x.shape[1] > 0 else x
        for _ in range(2):
            x = x * 2 if x.shape[0] > 1 else x
        return x

    captured = fxplug.trace(asked_often, (ROWS,))

    assert len(texts(captured)) == len(set(texts(captured)))


def test_what_hangs_on_no_input_is_no_guard() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(4.0, dtype=torch.float32, device="cpu")
        return x + table if table.sum() > 0 and len(table) == 4 else x

    captured = fxplug.trace(constant, (ROWS,))

    assert captured.guards == ()


def test_what_hangs_on_what_torch_makes_by_default_guards_that_alone() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(4.0)
        return x + table if table.sum() > 0 and len(table) == 4 else x

    captured = fxplug.trace(constant, (ROWS,))

    assert [guard.text.partition(" ")[0] for guard in captured.guards] == [
        "torch.get_default_device()",
        "torch.get_default_dtype()",
    ]


def test_sizes_of_what_hangs_on_no_input_are_no_guard() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(4.0)
        return x + table if len(table) == 4 and table.shape[0] * 2 == 8 else x

    assert fxplug.trace(constant, (ROWS,)).guards == ()


def test_questions_leave_nothing_in_the_graph() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    assert not any(node.target == "dim" for node in captured.graph.nodes)
    assert all(node.users or node.op in {"placeholder", "output"} for node in captured.graph.nodes)


def test_program_without_questions_has_no_guards() -> None:
    captured = fxplug.trace(lambda x: x.relu(), (ROWS,))

    assert captured.guards == ()
    assert captured.guard_set is None


def test_number_of_parts_is_guarded() -> None:
    captured = fxplug.trace(lambda x: sum(part.sum() for part in x.unbind(0)), (ROWS,))

    assert captured(ROWS + 1) == (ROWS + 1).sum()
    with pytest.raises(GuardError, match="now there are 3"):
        captured(torch.rand(3, 4))


def test_numbers_given_as_inputs_stay_inputs() -> None:
    def scaled(x: torch.Tensor, factor: float, power: int = 2) -> torch.Tensor:
        return x * factor if power > 1 else x

    captured = fxplug.trace(scaled, (ROWS, 0.5))

    assert torch.equal(captured(ROWS, 3.0, 5), ROWS * 3.0)
    with pytest.raises(GuardError, match="power > 1"):
        captured(ROWS, 0.5, 1)


def test_other_values_given_as_inputs_are_guarded() -> None:
    def chosen(x: torch.Tensor, how: str, flag: bool) -> torch.Tensor:
        return x.sum() if how == "sum" and flag else x

    captured = fxplug.trace(chosen, (ROWS, "sum", True))

    assert texts(captured) == ["how == 'sum'", "flag is True"]
    with pytest.raises(GuardError, match="flag is True"):
        captured(ROWS, "sum", False)


# -- what a failing guard does


def test_warning() -> None:
    captured = fxplug.trace(by_value, (ROWS,), on_guard_failure="warn")

    with pytest.warns(GuardWarning, match="x.sum"):
        assert torch.equal(captured(-ROWS), -ROWS * 2)


def test_warning_before_the_program_runs() -> None:
    captured = fxplug.trace(branching, (ROWS,), on_guard_failure="warn")

    with pytest.warns(GuardWarning, match="shape"):
        assert torch.equal(captured(ROWS[:1]), ROWS[:1] + 1)


def test_ignored() -> None:
    captured = fxplug.trace(branching, (ROWS,), on_guard_failure="ignore")

    assert torch.equal(captured(ROWS[:1]), ROWS[:1] + 1)


@pytest.mark.parametrize("policy", ["eager", "recapture"])
@pytest.mark.parametrize("inputs", [(ROWS[:1],), (ROWS, ROWS), (torch.rand(3, 2),)])
def test_program_itself_or_a_new_capture_answers(policy: str, inputs: tuple[Any, ...]) -> None:
    captured = fxplug.trace(branching, (ROWS,), on_guard_failure=policy)

    assert torch.equal(captured(*inputs), branching(*inputs))
    assert torch.equal(captured(ROWS), branching(ROWS))


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_also_when_it_is_found_out_on_the_way(policy: str) -> None:
    captured = fxplug.trace(by_value, (ROWS,), on_guard_failure=policy)

    assert torch.equal(captured(-ROWS), by_value(-ROWS))


def test_program_that_has_written_already_is_not_run_again() -> None:
    def writes_first(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2 if x.sum() > 0 else x

    captured = fxplug.trace(writes_first, (ROWS.clone(),), on_guard_failure="eager")

    with pytest.raises(GuardError) as refused:
        captured(-ROWS * 5)
    assert not refused.value.can_run_again


def test_recapture_keeps_its_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dim())
        return x.sum() if x.dim() == 1 else x

    captured = fxplug.trace(noted, (ROWS,), on_guard_failure="recapture", check=False)
    calls.clear()
    for _ in range(3):
        captured(ROWS[0])

    assert calls == [1]


def test_recapture_keeps_at_most_eight() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(range(len(x)))

    captured = fxplug.trace(program, (ROWS,), on_guard_failure="recapture", check=False)

    for size in range(3, 20):
        assert torch.equal(captured(torch.ones(size)), torch.full((size,), float(size)))
    assert len(captured.guard_set.instead._captures) == 8


# -- copies and files


def copied_by_file(module: fxplug.GraphModule, folder: Any) -> fxplug.GraphModule:
    fxplug.save(module, folder / "module.fxp")
    return fxplug.load(folder / "module.fxp")


@pytest.mark.parametrize(
    "copied",
    [
        lambda module, _: copy.copy(module),
        lambda module, _: copy.deepcopy(module),
        lambda module, _: pickle.loads(pickle.dumps(module)),
        copied_by_file,
        lambda module, _: fxplug.GraphModule(module, module.graph),
    ],
    ids=["copy", "deepcopy", "pickle", "file", "module"],
)
def test_copies_have_the_guards(copied: Any, tmp_path: Any) -> None:
    captured = copied(fxplug.trace(branching, (ROWS,)), tmp_path)

    assert texts(captured) == ["x.shape[0] > 1", "mask is None", "x.dim() == 2"]
    with pytest.raises(GuardError, match="shape"):
        captured(ROWS[:1])


def test_signature_is_that_of_the_program() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    assert list(inspect.signature(captured.forward).parameters) == ["x", "mask"]


def test_guarded_module_can_be_compiled() -> None:
    captured = fxplug.trace(branching, (ROWS,))

    assert torch.equal(torch.compile(captured, backend="eager")(ROWS), branching(ROWS))


# -- inputs


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    scale: float = 2.0


@pytest.mark.parametrize(
    ("program", "inputs", "names"),
    [
        (lambda batch: batch["a"] * 2 + batch["b"][0], ({"a": ROWS, "b": [ROWS]},), ["batch_a", "batch_b_0"]),
        (lambda pair: pair.first - pair.second, (Pair(ROWS, ROWS + 1),), ["pair_first", "pair_second"]),
        (lambda *parts: torch.cat(parts), (ROWS, ROWS + 1), ["parts_0", "parts_1"]),
        (lambda batch: batch.image * batch.scale, (Batch(ROWS),), ["batch"]),
    ],
    ids=["dict", "namedtuple", "starred", "dataclass"],
)
def test_structured_inputs_have_readable_names(program: Any, inputs: Any, names: list[str]) -> None:
    captured = fxplug.trace(program, inputs)

    assert [node.name for node in captured.graph.find_nodes(op="placeholder")] == names
    assert torch.equal(captured(*inputs), program(*inputs))


def test_fields_of_a_dataclass_are_inputs_and_not_constants() -> None:
    captured = fxplug.trace(lambda batch: batch.image * 2, (Batch(ROWS),))

    assert torch.equal(captured(Batch(ROWS + 5)), (ROWS + 5) * 2)


class _Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return [Batch(y, 3.0)], {"sum": Batch(y.sum(0))}


@pytest.mark.parametrize("check", [True, False])
def test_results_in_dataclasses_may_need_gradients(check: bool) -> None:
    model = _Answering()

    captured = fxplug.trace(model, (torch.rand(2, 3),), check=check)

    x = torch.rand(4, 3)
    ([expected], named), ([actual], same) = model(x), captured(x)
    assert (type(actual), actual.scale, type(same["sum"])) == (Batch, 3.0, Batch)
    assert torch.equal(actual.image, expected.image)
    assert torch.equal(same["sum"].image, named["sum"].image)
    actual.image.sum().backward()
    assert torch.equal(captured.linear.weight.grad, x.sum(0).expand(3, 3))


def test_tensors_in_dataclasses_are_found_once_each_way() -> None:
    batch: Any = Batch(ROWS)
    batch.scale = [batch, ROWS + 1]

    assert [tensor is ROWS for tensor in tensors_in((batch, {"again": batch}))] == [True, False, True, False]


def test_the_check_changes_the_values_in_dataclasses_too() -> None:
    made: list[torch.Tensor] = []

    def program(batch: Batch) -> torch.Tensor:
        made.append(batch.image.detach().clone())
        return batch.image * 2

    fxplug.trace(program, (Batch(torch.ones(3)),))

    assert any(not torch.equal(image, torch.ones(3)) for image in made)


def test_keyword_inputs() -> None:
    captured = fxplug.trace(branching, (ROWS,), example_kwargs={"mask": ROWS})

    assert torch.equal(captured(ROWS, mask=ROWS + 1), branching(ROWS, ROWS + 1))


def test_one_tensor_given_twice_is_two_inputs() -> None:
    captured = fxplug.trace(lambda x, y: x - y, (ROWS, ROWS))

    assert torch.equal(captured(ROWS, ROWS * 3), ROWS * -2)


def test_example_inputs_are_as_before() -> None:
    given = ROWS.clone()
    fxplug.trace(lambda x: x.add_(1).mul_(2), (given,))

    assert torch.equal(given, ROWS)


def test_input_that_is_reshaped_in_place_is_as_before() -> None:
    given = ROWS.clone()
    captured = fxplug.trace(lambda x: x.unsqueeze_(0) + 1, (given,))

    assert given.shape == (2, 4)
    assert captured(ROWS.clone()).shape == (1, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"example_inputs": (ROWS, ROWS, ROWS)}, "too many positional arguments"),
        ({"example_inputs": ()}, "missing a required argument: 'x'"),
        (
            {"example_inputs": (ROWS,), "example_kwargs": {"masks": ROWS}},
            "unexpected keyword argument 'masks'",
        ),
        ({"example_inputs": "abc"}, "Cannot use a str as example inputs"),
        ({"example_inputs": (ROWS,), "mode": "values"}, "Did you mean 'value'"),
        ({"mode": "shape"}, "without example inputs"),
        ({"example_inputs": (ROWS,), "on_guard_failure": "raise"}, "on_guard_failure='raise'"),
        ({"example_inputs": (ROWS,), "on_error": "stop"}, "on_error='stop'"),
        ({"example_inputs": (ROWS,), "on_mutation": "undo"}, "on_mutation='undo'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError) as refused:
        fxplug.trace(branching, **arguments)

    assert refused.value.code == "FXP-T064"
    assert said in str(refused.value)


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: torch.Tensor) -> None:
        self.content = content


def test_input_of_an_unknown_class_is_refused() -> None:
    with pytest.raises(TraceError, match=r"the input 'box'.*Slotted") as refused:
        fxplug.trace(lambda box: box.content, (Slotted(ROWS),))
    assert refused.value.code == "FXP-T065"


class Box:
    def __init__(self, content: torch.Tensor, scale: float) -> None:
        self.content = content
        self.scale = scale


def test_attributes_of_an_object_are_inputs() -> None:
    captured = fxplug.trace(lambda box: box.content * box.scale, (Box(ROWS, 2.0),))

    assert torch.equal(captured(Box(ROWS + 1, 2.0)), (ROWS + 1) * 2)
    with pytest.raises(GuardError, match=r"box.scale == 2.0"):
        captured(Box(ROWS, 3.0))


def test_object_of_another_class_is_refused() -> None:
    captured = fxplug.trace(lambda box: box.content * 2, (Box(ROWS, 2.0),))

    with pytest.raises(GuardError, match="type"):
        captured(Batch(ROWS))


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (lambda batch: batch.setdefault("extra", batch["x"] * 2), {"x": ROWS}),
        (lambda batch: batch.pop("x") + len(batch), {"x": ROWS, "y": ROWS}),
        (lambda batch: batch.append(batch[0] + 1), [ROWS]),
        (lambda batch: setattr(batch, "content", batch.content * 2), Box(ROWS, 1.0)),
        (lambda batch: batch["inner"].append(batch["inner"][0]), {"inner": [ROWS]}),
    ],
    ids=["dict", "deleted", "list", "object", "nested"],
)
def test_what_a_program_does_to_its_inputs_is_done_by_the_captured_one(program: Any, given: Any) -> None:
    captured = fxplug.trace(program, (copy.deepcopy(given),))
    expected, actual = copy.deepcopy(given), copy.deepcopy(given)

    program(expected)
    captured(actual)

    assert all(entry.passed for entry in compare(expected, actual, Tolerance()))


def test_examples_that_a_program_changes_are_as_before() -> None:
    given = {"x": ROWS}
    fxplug.trace(lambda batch: batch.clear(), (given,))

    assert given == {"x": ROWS}


def test_tensor_as_a_default_is_a_constant() -> None:
    def weighted(x: torch.Tensor, weight: torch.Tensor = ROWS) -> torch.Tensor:
        return x * weight

    captured = fxplug.trace(weighted, (ROWS + 1,))

    assert torch.equal(captured(ROWS + 1), weighted(ROWS + 1))
    with pytest.raises(TypeError):
        captured(ROWS, ROWS)


def _shifted(x: torch.Tensor, weight: torch.Tensor = ROWS, shift: float = 1.0) -> torch.Tensor:
    return x * weight + shift


def _shifted_part(parts: dict[str, torch.Tensor], weight: torch.Tensor = ROWS, shift: float = 1.0) -> Any:
    return {"shifted": parts["x"] * weight + shift}


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def _paired(x: torch.Tensor, weight: torch.Tensor = ROWS, shift: float = 1.0) -> _Pair:
    return _Pair(x * weight + shift, x)


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("program", "example"), [(_shifted, ROWS), (_shifted_part, {"x": ROWS}), (_paired, ROWS)]
)
def test_parameters_behind_one_that_is_a_constant_are_given_by_name(
    program: Callable[..., Any], example: Any, mode: str, *, check: bool
) -> None:
    """By its place, a value would be taken for that of another parameter than the program takes it for."""
    captured = fxplug.trace(program, (copy.deepcopy(example),), mode=mode, check=check)

    for given in ({}, {"shift": 3.0}):
        found, expected = captured(example, **given), program(example, **given)
        assert all(map(torch.equal, pytree.tree_leaves(found), pytree.tree_leaves(expected)))
    with pytest.raises(TypeError):
        captured(example, ROWS + 1)
    with pytest.raises(TypeError):
        captured(example, weight=ROWS + 1)


@pytest.mark.parametrize(("program", "example"), [(_shifted, ROWS), (_shifted_part, {"x": ROWS})])
def test_example_that_is_the_default_of_another_parameter_is_refused(
    program: Callable[..., Any], example: Any
) -> None:
    with pytest.raises(
        TraceError, match=r"is the very tensor that the parameter 'weight' has by default"
    ) as caught:
        fxplug.trace(program, (example,))
    assert caught.value.code == "FXP-T012"


class Unsized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()
        self.register_buffer("mean", nn.UninitializedBuffer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize(
    ("layer", "names"),
    [(functools.partial(nn.LazyLinear, 3), "0.weight, 0.bias"), (Unsized, "0.weight, 0.mean")],
)
def test_module_without_sizes_is_refused(layer: Callable[[], nn.Module], names: str, mode: str) -> None:
    with pytest.raises(TraceError) as refused:
        fxplug.trace(nn.Sequential(layer()), (ROWS,), mode=mode)
    assert str(refused.value) == (
        f"Cannot trace Sequential with example inputs: {names} have no size yet, and would get one from the examples. "
        "Run the module once on inputs first. [FXP-T069]"
    )


def test_compiled_functions_and_modules_are_looked_into() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    captured = fxplug.trace(lambda x: compiled(x).relu(), (ROWS,))

    assert {node.target for node in captured.graph.nodes} >= {operator.mul, "relu"}
    assert torch.equal(captured(ROWS), compiled(ROWS).relu())


def test_error_of_the_program_comes_through() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise LookupError(f"no {x.shape[0]}")

    with pytest.raises(LookupError, match="no 2"):
        fxplug.trace(fails, (ROWS,))


# -- what a capture leaves behind


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + x.mean(0)
        return self.norm(x) - self.mean


def test_module_is_as_before() -> None:
    model = Stateful()
    before = copy.deepcopy(model.state_dict())

    fxplug.trace(model, (ROWS,))

    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_assigned_buffer_is_updated_by_the_captured_program() -> None:
    model = Stateful()
    captured, reference = fxplug.trace(model, (ROWS,)), copy.deepcopy(model)

    for _ in range(3):
        assert torch.allclose(captured(ROWS), reference(ROWS))

    assert torch.allclose(captured.mean, reference.mean)
    assert torch.allclose(captured.norm.running_mean, reference.norm.running_mean)


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = "nothing"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = "something"
        return x + 1


def test_assigned_attribute_is_put_back_and_reported() -> None:
    model = Noting()

    with pytest.warns(TraceWarning, match="'last'"):
        fxplug.trace(model, (ROWS,), check=False)

    assert model.last == "nothing"


def test_assigned_attribute_may_be_an_error() -> None:
    with pytest.raises(TraceError, match="'last'") as refused:
        fxplug.trace(Noting(), (ROWS,), on_mutation="error", check=False)
    assert refused.value.code == "FXP-T067"


def test_random_states_are_as_before() -> None:
    torch.manual_seed(1)
    random.seed(1)
    states = torch.get_rng_state(), random.getstate()

    fxplug.trace(lambda x: x + torch.rand(4), (ROWS,))

    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_random_numbers_are_drawn_in_every_call() -> None:
    captured = fxplug.trace(lambda x: x + torch.rand(4), (ROWS,))

    assert not torch.equal(captured(ROWS), captured(ROWS))


def test_number_that_outlives_the_capture_says_so() -> None:
    kept: list[Any] = []

    def leaking(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.shape[0])
        return x * 2

    fxplug.trace(leaking, (ROWS,), check=False)

    with pytest.raises(TraceError, match="the trace is over"):
        _ = kept[0] + 1


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_what_a_function_keeps_for_its_next_call_is_refused(mode: str) -> None:
    kept: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        kept.append(1)
        return x * len(kept)

    with pytest.raises(TraceError, match="'kept', which it keeps for its next call") as refused:
        fxplug.trace(counting, (ROWS,), mode=mode)
    assert refused.value.code == "FXP-T055"
    assert kept == []


def test_variable_that_a_function_assigns_for_its_next_call_is_refused() -> None:
    count = 0

    def counting(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x * count

    with pytest.raises(TraceError, match="'count'"):
        fxplug.trace(counting, (ROWS,))
    with pytest.raises(TraceError, match="'count'"):
        fxplug.symbolic_trace(counting)
    assert count == 0


# -- the check


def test_difference_is_found_with_its_first_node(count_calls: Callable[[], int]) -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = y * count_calls()
        return z - 2

    with pytest.raises(MismatchError) as found:
        fxplug.trace(changes, (ROWS,))

    assert found.value.code == "FXP-V002"
    assert "the first node that differs is 'mul'" in str(found.value).lower()
    assert "z = y * count_calls()" in str(found.value)


def test_what_does_not_follow_the_inputs_is_found() -> None:
    given: SimpleQueue[torch.Tensor | None] = SimpleQueue()
    found: SimpleQueue[float] = SimpleQueue()

    def serve() -> None:
        while (rows := given.get()) is not None:
            found.put(rows.sum().item())

    def by_another_thread(x: torch.Tensor) -> torch.Tensor:
        """The kind of thing that nobody hears of: the thread ran before."""
        given.put(x.detach().clone())
        return x + found.get(timeout=60)

    thread = Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(MismatchError, match="other values of the inputs"):
            fxplug.trace(by_another_thread, (ROWS + 1,))
    finally:
        given.put(None)
        thread.join()


def test_check_can_be_left_out(count_calls: Callable[[], int]) -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        return x * count_calls()

    assert torch.equal(fxplug.trace(changes, (ROWS,), check=False)(ROWS), ROWS)


def test_gradients_are_compared(count_calls: Callable[[], int]) -> None:
    def detached_the_second_time(x: torch.Tensor) -> torch.Tensor:
        return (x if count_calls() == 1 else x.detach() + 0 * x) * 2

    with pytest.raises(MismatchError, match="gradient of input 0"):
        fxplug.trace(detached_the_second_time, (ROWS.clone().requires_grad_(),))


# -- shape mode


def test_shape_mode_needs_no_data() -> None:
    captured = fxplug.trace(branching, (ROWS,), mode="shape")

    assert texts(captured) == ["x.shape[0] > 1", "mask is None", "x.dim() == 2"]
    assert torch.equal(captured(ROWS + 1), branching(ROWS + 1))


def test_shape_mode_takes_inputs_without_data() -> None:
    captured = fxplug.trace(branching, (torch.empty(2, 4, device="meta"),), mode="shape")

    assert torch.equal(captured(ROWS), branching(ROWS))


@pytest.mark.parametrize(
    "program", [by_value, lambda x: x[x > 0], lambda x: x * x.max().item()], ids=["condition", "mask", "item"]
)
def test_shape_mode_refuses_questions_about_values(program: Any) -> None:
    with pytest.raises(TraceError, match="only their sizes") as refused:
        fxplug.trace(program, (ROWS,), mode="shape")
    assert refused.value.code == "FXP-T066"


def test_swallowed_refusal_is_an_error_all_the_same() -> None:
    def swallows(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * x.max().item()
        except Exception:
            return x

    with pytest.raises(TraceError, match="caught this error"):
        fxplug.trace(swallows, (ROWS,), mode="shape")


def test_values_that_leave_torch_are_refused() -> None:
    with pytest.raises(TraceError, match=r"numpy\(\) of a traced tensor") as refused:
        fxplug.trace(lambda x: torch.from_numpy(x.numpy() * 2), (ROWS,))
    assert refused.value.code == "FXP-T063"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor,
        nn.Parameter,
        lambda x: scripted()(x),  # noqa: PLW0108 - made when the test runs
        lambda x: torch.Tensor(2, 4).copy_(x),
        lambda x: x + torch.Tensor([1.0, 2.0, 3.0, 4.0]),
        lambda x: torch.zeros(2, 4).set_(x * 2),
    ],
    ids=["Tensor", "Parameter", "scripted", "sizes", "values", "set"],
)
def test_operators_that_no_function_of_torch_tells_of_are_recorded(make: Any) -> None:
    captured = fxplug.trace(lambda x: make(x) * 2, (ROWS,))

    assert torch.equal(captured(ROWS - 3), make(ROWS - 3) * 2)


def test_constant_that_a_constructor_makes_is_new_in_every_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor([1.0, 2.0, 3.0, 4.0]).add_(x[0])

    captured = fxplug.trace(program, (ROWS,))

    first = captured(ROWS).clone()
    assert torch.equal(first, program(ROWS))
    assert torch.equal(captured(ROWS), first)


def test_tensor_that_torch_does_not_tell_of_is_refused() -> None:
    with pytest.raises(TraceError, match="torch does not tell of") as refused:
        fxplug.trace(lambda x: x.as_subclass(torch.Tensor) * 2, (ROWS,))
    assert refused.value.code == "FXP-T061"


def test_object_that_nothing_is_known_of_is_refused() -> None:
    def foreign(x: torch.Tensor) -> torch.Tensor:
        return x if Opaque(x) is None else x * 2

    fxplug.wrap(Opaque)
    with pytest.raises(TraceError, match="what the program does with that is not seen") as refused:
        fxplug.trace(foreign, (ROWS,))
    assert refused.value.code == "FXP-T062"


class Opaque:
    def __init__(self, content: torch.Tensor) -> None:
        self.content = content


def test_a_class_that_asks_for_the_class_of_a_number_is_answered() -> None:
    class Wants:
        def __init__(self, number: Any) -> None:
            if type(number) is not int:
                raise TypeError(f"an int is needed, not a {type(number).__name__}")
            self.number = number

    captured = fxplug.trace(lambda x: x * Wants(x.shape[0]).number, (ROWS,))

    assert torch.equal(captured(ROWS), ROWS * 2)
    assert torch.equal(captured(torch.ones(3, 4)), torch.full((3, 4), 3.0))


def test_where_only_a_number_is_taken_the_number_of_the_example_is_given() -> None:
    captured = fxplug.trace(lambda x: x * len(json.dumps([0] * int(json.dumps(x.shape[0])))), (ROWS,))

    assert torch.equal(captured(ROWS), ROWS * 6)
    with pytest.raises(GuardError, match="shape"):
        captured(torch.rand(3, 4))


def test_symbolic_mode_is_chosen_without_inputs() -> None:
    captured = fxplug.trace(lambda x: x + 1)

    assert captured.guards == ()
    assert torch.equal(captured(ROWS), ROWS + 1)


def test_no_warning_is_left_over() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxplug.trace(branching, (ROWS,))


class _Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.register_buffer("mean", torch.arange(4.0))
        self.listed = [torch.arange(4.0)]


class _WithWeight(_Holding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class _WithMean(_Holding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mean


class _WithListed(_Holding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.listed[0]


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [_WithWeight, _WithMean])
def test_example_may_be_a_tensor_of_the_root(kind: type[nn.Module], mode: str, *, check: bool) -> None:
    root: Any = kind()
    captured = fxplug.trace(
        root, (root.weight if kind is _WithWeight else root.mean,), mode=mode, check=check
    )

    assert torch.equal(captured(torch.full((4,), 5.0)), root(torch.full((4,), 5.0)))


def _by_global(x: torch.Tensor) -> torch.Tensor:
    return x * ROWS


_CYCLE: list[Any] = [ROWS]
_CYCLE.append(_CYCLE)


def _by_helper(x: torch.Tensor) -> torch.Tensor:
    return _by_global(x) + 1


def _by_branch_not_taken(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 1 else ROWS


def _by_part_of_global(x: torch.Tensor) -> torch.Tensor:
    return x * _CYCLE[0]


def _by_attribute_of_that_name(x: Any) -> torch.Tensor:
    return x.ROWS * 2


@pytest.mark.parametrize("check", [True, False])
def test_example_that_the_program_finds_by_itself_is_refused(*, check: bool) -> None:
    root = _WithListed()
    closed_over = torch.arange(4.0)
    found: list[tuple[Any, torch.Tensor]] = [
        (_by_global, ROWS),
        (_by_part_of_global, ROWS),
        (_by_helper, ROWS),
        (root, root.listed[0]),
        (lambda x: x * closed_over, closed_over),
    ]
    for program, example in found:
        with pytest.raises(TraceError, match=r"finds? (it )?by itself.* [Gg]ive a copy of it") as caught:
            fxplug.trace(program, (example,), check=check)
        assert caught.value.code == "FXP-T061"
        captured = fxplug.trace(program, (example.clone(),), check=check)
        assert torch.equal(captured(example + 1), program(example + 1))


def test_example_that_the_program_names_and_does_not_come_to() -> None:
    captured = fxplug.trace(_by_branch_not_taken, (ROWS,))

    assert torch.equal(captured(ROWS + 1), (ROWS + 1) * 2)


def test_example_in_a_global_that_has_the_name_of_an_attribute() -> None:
    @dataclasses.dataclass
    class Batch:
        ROWS: torch.Tensor

    captured = fxplug.trace(_by_attribute_of_that_name, (Batch(ROWS),))

    assert torch.equal(captured(Batch(ROWS + 1)), (ROWS + 1) * 2)
