"""What programs ask past comparisons of sizes: each question has a guard, which stops inputs that answer otherwise."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError, GuardWarning, StorageError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TWO = torch.arange(6.0).reshape(2, 3)
FOUR = torch.arange(12.0).reshape(4, 3)


def mapping(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["a"] * 2 if batch["a"].shape[0] > 2 else batch["a"] * 3


def flagged(batch: dict[str, torch.Tensor], flag: bool) -> torch.Tensor:
    return batch["a"] * 2 if flag else batch["a"] * 3


def squeezed(x: torch.Tensor) -> torch.Tensor:
    y = x.squeeze()
    return y.unsqueeze(0) if y.ndim == 1 else y


def lengths(x: torch.Tensor) -> torch.Tensor:
    return len(x.squeeze().shape) * x


def fails_in_torch(x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.linalg.cholesky(x)
    except torch.linalg.LinAlgError:
        return x * 100


def fails_in_python(x: torch.Tensor, n: int) -> torch.Tensor:
    try:
        return x * (6 // n)
    except ZeroDivisionError:
        return x * 100


def same_tensor(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query * 1 if query is key else query * 2


def message(x: torch.Tensor) -> torch.Tensor:
    try:
        raise KeyError(f"{x.shape[0]}")  # noqa: TRY301 - the raise is what is captured
    except KeyError as error:
        return x * len(str(error))


DIFFERENT: list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [
    ("nested inputs", mapping, ({"a": TWO, "b": TWO},), ({"a": FOUR, "b": FOUR},)),
    ("flag beside nested inputs", flagged, ({"a": TWO}, True), ({"a": TWO}, False)),
    ("dimensions after squeeze", squeezed, (torch.ones(1, 3),), (TWO,)),
    ("length of a shape after squeeze", lengths, (torch.ones(1, 3),), (TWO,)),
    ("error of torch", fails_in_torch, (-torch.eye(3),), (torch.eye(3),)),
    ("error of Python", fails_in_python, (TWO, 0), (TWO, 2)),
    ("identity of inputs", same_tensor, (TWO, TWO.clone()), (TWO, TWO)),
    ("class of tensor", lambda x: x * 2 if isinstance(x, torch.LongTensor) else x * 3, (TWO,), (TWO.long(),)),
    ("parameter", lambda x: x * 2 if isinstance(x, nn.Parameter) else x * 3, (TWO,), (nn.Parameter(TWO),)),
    ("class of number", lambda x, n: x * 2 if isinstance(n, float) else x * 3, (TWO, 3.0), (TWO, 3)),
    (
        "class of item()",
        lambda x: x * 2 if isinstance(x.sum().item(), float) else x * 3,
        (TWO,),
        (TWO.int(),),
    ),
    ("type of number", lambda x, n: x * (2 if type(n) is int else 3), (TWO, 2), (TWO, 2.0)),
    ("type of number as key", lambda x, n: x * {int: 2, float: 3}[type(n)], (TWO, 2), (TWO, 2.0)),
    ("class of a power", lambda x, n: x * 2 if isinstance(2**n, int) else x * 3, (TWO, 2), (TWO, -2)),
    (
        "length of tolist()",
        lambda x: x * sum(sum(row) for row in x.tolist()),
        (TWO,),
        (torch.arange(10.0).reshape(2, 5),),
    ),
    ("length of stride()", lambda x: x * len(x.stride()), (TWO,), (TWO[None],)),
    ("length of gradient()", lambda x: x * len(torch.gradient(x)), (torch.ones(3),), (torch.ones(3, 3),)),
    ("sign of zero", lambda x, n: x * len(f"{n}"), (TWO, 0.0), (TWO, -0.0)),
    ("text of a number", lambda x, n: x * len(str(n)), (TWO, 1), (TWO, 1.0)),
    ("text of a flag", lambda x, n: x * len(str(n)), (TWO, 1), (TWO, True)),
    ("text of an error", message, (TWO,), (torch.ones(12, 3),)),
]
STORED = {name: case for name, *case in DIFFERENT if not name.startswith(("nested", "flag", "error"))}


@pytest.mark.parametrize(
    ("program", "example", "other"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT]
)
def test_inputs_with_another_answer_are_stopped(
    program: Callable[..., Any], example: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    captured = fxplug.trace(program, example)

    assert torch.equal(captured(*example), program(*example))
    with pytest.raises(GuardError):
        captured(*other)


@pytest.mark.parametrize(
    ("program", "example", "other"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT]
)
def test_guards_hold_in_a_pickled_copy(
    program: Callable[..., Any], example: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    captured = fxplug.trace(program, example)
    again = pickle.loads(pickle.dumps(captured))

    assert torch.equal(again(*example), program(*example))
    with pytest.raises(GuardError):
        again(*other)


@pytest.mark.parametrize(("program", "example", "other"), STORED.values(), ids=STORED)
def test_guards_hold_in_a_file(
    program: Callable[..., Any], example: tuple[Any, ...], other: tuple[Any, ...], tmp_path: Path
) -> None:
    fxplug.save(fxplug.trace(program, example), tmp_path / "captured.fxp")
    again = fxplug.load(tmp_path / "captured.fxp")

    assert torch.equal(again(*example), program(*example))
    with pytest.raises(GuardError):
        again(*other)


def test_failure_that_is_checked_is_in_a_file_only_if_allowed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"allow=\['fxplug.semantics.checks:check_raises'\]"):
        fxplug.save(fxplug.trace(fails_in_python, (TWO, 0)), tmp_path / "captured.fxp")


def test_modes_around_the_program_are_guarded_if_it_asks() -> None:
    captured = fxplug.trace(lambda x: x * 2 if torch.is_grad_enabled() else x * 3, (TWO,))

    assert torch.equal(captured(TWO), TWO * 2)
    assert [guard.text for guard in captured.guards] == ["torch.is_grad_enabled() is True"]
    with torch.no_grad(), pytest.raises(GuardError, match="is_grad_enabled"):
        captured(TWO)


def test_array_of_a_traced_size_fixes_the_size() -> None:
    numpy = pytest.importorskip("numpy")
    captured = fxplug.trace(lambda x: x * numpy.zeros(x.shape[0]).size, (TWO,))

    assert torch.equal(captured(TWO), TWO * 2)
    with pytest.raises(GuardError, match="shape"):
        captured(FOUR)


def test_device_is_guarded_where_examples_have_no_data() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.device.type == "meta" else x * 3

    captured = fxplug.trace(program, (torch.empty(2, 3, device="meta"),), mode="shape")

    with pytest.raises(GuardError, match="device"):
        captured(TWO)


def test_attributes_that_the_caller_has_set_on_an_input_are_followed_or_guarded() -> None:
    one, other = TWO.clone(), TWO.clone()
    one.mask, other.mask = torch.ones(3), torch.zeros(3)
    captured = fxplug.trace(lambda x: x * x.mask, (one,), check=False)

    assert torch.equal(captured(other), other * other.mask)

    one.factor, other.factor = 2, 3
    captured = fxplug.trace(lambda x: x * x.factor, (one,), check=False)
    assert torch.equal(captured(one), one * 2)
    with pytest.raises(GuardError, match="factor"):
        captured(other)


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_copy_falls_back_on_its_own_weights(policy: str) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * len(x)

    captured = fxplug.trace(Layer(), (TWO,), on_guard_failure=policy)
    copied = copy.deepcopy(captured)
    for parameter in copied.parameters():
        parameter.data.zero_()

    assert copied(TWO).abs().sum() == 0
    assert copied(FOUR).abs().sum() == 0
    assert captured(FOUR).abs().sum() > 0


def test_traced_number_in_another_thread_is_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        with ThreadPoolExecutor(1) as executor:
            return x * executor.submit(lambda: size * 2).result()

    with pytest.raises(TraceError, match="another thread") as refused:
        fxplug.trace(program, (TWO,))
    assert refused.value.code == "FXP-T061"


def test_power_with_a_modulus_is_the_exact_number() -> None:
    captured = fxplug.trace(lambda x: x * pow(x.shape[0], 3, 5), (TWO,))

    assert torch.equal(captured(TWO), TWO * 3)
    with pytest.raises(GuardError, match="shape"):
        captured(FOUR)


def test_classes_are_guarded_only_where_they_may_differ() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        rows, _ = x.shape
        if isinstance(scale, float) and rows % 2 == 0:
            return x.reshape(rows // 2, -1) * scale
        return x

    captured = fxplug.trace(program, (TWO, 2.0))

    assert [guard.text for guard in captured.guards] == [
        "(x.shape[0] % 2) == 0",
        "type(x) is torch.Tensor",
        "type(scale) is float",
        "x.dim() == 2",
    ]


def test_type_of_sizes_is_that_of_eager_without_a_check() -> None:
    captured = fxplug.trace(
        lambda x: x * (type(x.shape[0]) is int) + (type(x.shape) is torch.Size), (TWO,), check=False
    )

    assert torch.equal(captured(FOUR), FOUR + 1)


class HasWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kinds = {torch.Tensor: 2, nn.Parameter: 3}
        return x * kinds[type(x)] + kinds[type(self.weight)] * kinds[type(x + 1)]


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_type_of_tensors_is_that_of_eager_without_a_check(mode: str) -> None:
    captured = fxplug.trace(HasWeight(), (TWO,), mode=mode, check=False)

    assert torch.equal(captured(FOUR), FOUR * 2 + 6)


def sizes_of(x: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    return x.shape[1:], {"with a batch": x.shape[:1] + (4,)}  # noqa: RUF005 - this is what is tested


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_sizes_that_were_put_together_are_sizes_in_the_result(mode: str) -> None:
    module = fxplug.trace(sizes_of, (TWO,), mode=mode)
    rest, named = module(FOUR)
    assert type(rest) is type(named["with a batch"]) is torch.Size
    assert (tuple(rest), tuple(named["with a batch"])) == ((3,), (4, 4))


def branches(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] > 2 else x - 1


class TestInterpreter:
    def test_refuses_inputs_that_the_capture_is_not_right_for(self) -> None:
        module = fxplug.trace(branches, (FOUR,))
        with pytest.raises(GuardError, match=r"x\.shape\[0\] > 2"):
            fxplug.Interpreter(module).run(TWO)
        assert torch.equal(fxplug.Interpreter(module).run(FOUR), branches(FOUR))

    def test_refuses_them_where_a_call_would_capture_again(self) -> None:
        module = fxplug.trace(branches, (FOUR,), on_guard_failure="recapture")
        with pytest.raises(GuardError, match=r"x\.shape\[0\] > 2"):
            fxplug.Interpreter(module).run(TWO)

    def test_warns_and_ignores_as_calls_do(self) -> None:
        warned = fxplug.trace(branches, (FOUR,), on_guard_failure="warn")
        with pytest.warns(GuardWarning, match=r"x\.shape\[0\] > 2"):
            assert torch.equal(fxplug.Interpreter(warned).run(TWO), TWO + 1)
        ignored = fxplug.trace(branches, (FOUR,), on_guard_failure="ignore")
        assert torch.equal(fxplug.Interpreter(ignored).run(TWO), TWO + 1)

    def test_refuses_the_other_mode_of_training(self) -> None:
        module = fxplug.trace(Switches(), (TWO,))
        with pytest.raises(GuardError, match="training"):
            fxplug.Interpreter(module.eval()).run(TWO)

    def test_takes_tensors_without_data_to_be_right(self) -> None:
        module = fxplug.trace(branches, (FOUR,))
        assert fxplug.Interpreter(module).run(TWO.to("meta")).shape == TWO.shape


class Switches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.training else x


def masked(x: torch.Tensor, mask: torch.Tensor | None = None, scale: float | None = None) -> torch.Tensor:
    if mask is not None:
        x = x * 2
    if scale is not None:
        x = x + 1
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=scale)


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_what_may_be_left_out_is_guarded_to_be_there(mode: str) -> None:
    x, mask = torch.rand(1, 2, 4, 4), torch.zeros(4, 4)
    captured = fxplug.trace(masked, (x, mask, 0.5), mode=mode)

    assert [guard.text for guard in captured.guards] == ["mask is not None", "scale is not None"]
    assert captured(x, mask, 0.25).equal(masked(x, mask, 0.25))
    for less in ((x,), (x, None, 0.5), (x, mask), (x, mask, None)):
        with pytest.raises(GuardError, match="is not None"):
            captured(*less)


def attend(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)


def is_missing(value: Any) -> bool:
    return value is None


def without_default(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return -x if mask is None else attend(x, mask)


def by_equality(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return -x if mask == None else attend(x, mask)  # noqa: E711


def by_match(x: torch.Tensor, mask: Any) -> torch.Tensor:
    match mask:
        case None:
            return -x
    return attend(x, mask)


def in_a_helper(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return -x if is_missing(mask) else attend(x, mask)


def calculated_with(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return -x if mask is None else x * mask + x[0] * mask


def in_a_pair(x: torch.Tensor, pair: tuple[torch.Tensor, Any]) -> torch.Tensor:
    mask = pair[1]
    return -x if None is mask else attend(x, mask)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    "program", [without_default, by_equality, by_match, in_a_helper, calculated_with, in_a_pair]
)
def test_what_the_program_compares_with_none_is_guarded_to_be_there(program: Any, mode: str) -> None:
    x, mask = torch.rand(2, 2), torch.rand(2, 2)
    given, less = (x, mask), (x, None)
    if program is in_a_pair:
        given, less = (x, (mask + 1, mask)), (x, (mask + 1, None))
    captured = fxplug.trace(program, given, mode=mode)

    assert captured(*given).equal(program(*given))
    with pytest.raises(GuardError, match=r"is not None|not \(mask == None\)"):
        captured(*less)
    captured = fxplug.trace(program, given, mode=mode, on_guard_failure="eager")
    assert captured(*less).equal(program(*less))


def test_a_question_that_says_so_already_is_not_asked_twice() -> None:
    def program(x: torch.Tensor, mask: Any) -> torch.Tensor:
        return -x if mask is None else attend(x, mask) * mask.shape[0] if mask.shape[0] > 1 else x

    captured = fxplug.trace(program, (torch.rand(2, 2), torch.rand(2, 2)))
    assert "mask is not None" not in [guard.text for guard in captured.guards]
    with pytest.raises(GuardError):
        captured(torch.rand(2, 2), None)


def test_an_input_that_a_question_may_find_zero_is_guarded_to_be_a_number() -> None:
    def program(x: torch.Tensor, low: Any) -> torch.Tensor:
        if low is None:
            return -x
        return x.clamp(min=low, max=5.0) if not low else x

    captured = fxplug.trace(program, (torch.rand(2, 2), 0.0))
    with pytest.raises(GuardError, match="low is not None"):
        captured(torch.rand(2, 2), None)
