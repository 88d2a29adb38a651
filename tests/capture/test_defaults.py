"""Inputs that have a default, in a symbolic trace of a program that asks about them."""

import copy
import enum
import pickle

import pytest
import torch
from torch import nn

import fxplug
from fxplug import GuardError, TraceError
from fxplug.errors import TraceWarning


class Kind(enum.Enum):
    MEAN = 1
    SUM = 2


def by_count(x, count=3):
    for number in range(count):
        x = x + number
    return x


def by_flag(x, flag=False):
    return x * 2 if flag else x


def by_text(x, mode="mean"):
    return x.mean() if mode == "mean" else x.sum()


def by_member(x, kind=Kind.MEAN):
    return x.mean() if kind is Kind.MEAN else x.sum()


def by_dtype(x, dtype=torch.float32):
    return x * 2 if dtype is torch.float32 else x.to(dtype)


def by_what_is_made_of_it(x, count=2):
    return x * count if count * 2 > 3 else x


def by_its_text(x, count=2):
    return x * len(f"{count}")


def by_key(x, name="two"):
    return x * {"two": 2, "three": 3}[name]


def by_kind(x, device="cpu"):
    return x * 2 if isinstance(device, str) else x


def by_name(x, *, mask=None):
    return x if mask is None else x * mask


ASKING = {
    by_count: 5,
    by_flag: True,
    by_text: "sum",
    by_member: Kind.SUM,
    by_dtype: torch.float64,
    by_what_is_made_of_it: 1,
    by_its_text: 10,
    by_key: "three",
    by_kind: torch.device("cpu"),
    by_name: torch.ones(3),
}


def example():
    return torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("program", ASKING)
def test_a_program_that_asks_about_an_input_is_traced_with_its_default(program):
    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(example()), program(example()))
    assert any("its default" in str(guard) for guard in captured.guards)
    assert captured.assumptions == tuple(map(str, captured.guards))


@pytest.mark.parametrize("program", ASKING)
def test_a_call_with_another_value_is_an_error_that_says_who_asked(program):
    captured = fxplug.symbolic_trace(program)
    name = next(
        name
        for name in ("count", "flag", "mode", "kind", "dtype", "name", "device", "mask")
        if name in program.__code__.co_varnames
    )

    with pytest.raises(GuardError, match=rf"{name} (==|is) .*its default, at .*test_defaults.py") as failed:
        captured(example(), **{name: ASKING[program]})

    assert failed.value.can_run_again


@pytest.mark.parametrize("value", [True, 2.0, torch.tensor(2), "2"], ids=repr)
def test_what_equals_a_default_and_is_something_else_is_no_default(value):
    captured = fxplug.symbolic_trace(by_what_is_made_of_it)

    with pytest.raises(GuardError):
        captured(example(), value)


def test_the_default_itself_may_be_given():
    assert torch.equal(fxplug.symbolic_trace(by_count)(example(), 3), by_count(example()))
    assert torch.equal(fxplug.symbolic_trace(by_name)(example(), mask=None), example())


def test_an_input_about_which_nothing_is_asked_stays_free():
    captured = fxplug.symbolic_trace(lambda x, scale=2.0, flag=True: x * scale if flag else x)

    assert torch.equal(captured(example(), 3.0), example() * 3)
    assert len(captured.guards) == 1


def test_several_inputs_are_asked_about_one_after_the_other():
    def program(x, first=None, second=None, last=True):
        first = x if first is None else first
        second = first if second is None else second
        return second if last else x

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(example()), program(example()))
    assert len(captured.guards) == 3


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (lambda x, count=2: x if (x * count).sum() > 3 else -x, "FXP-T001"),
        (lambda x, shape=(1, 1): x if shape[0] > 0 else -x, "FXP-T001"),
        (lambda x, act=torch.relu: x if act is None else act(x), "FXP-T041"),
        (lambda x, count: x if count > 3 else -x, "FXP-T001"),
    ],
    ids=["with another input", "structure", "function", "no default"],
)
def test_a_question_that_hangs_on_more_than_plain_defaults_is_refused(program, code):
    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == code


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, count=2):
        return x if self.scale * count > 1 else -x


def test_a_question_that_hangs_on_a_weight_too_is_refused():
    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(Scaled())

    assert refused.value.code == "FXP-T001"


@pytest.mark.parametrize("value", [fxplug.PH, 5], ids=["input", "value"])
def test_what_the_caller_says_of_an_input_counts(value):
    if value == 5:
        captured = fxplug.symbolic_trace(by_count, {"count": 5})
        assert torch.equal(captured(example(), 5), by_count(example(), 5))
        assert not captured.guards
    else:
        with pytest.raises(TraceError, match="range"):
            fxplug.symbolic_trace(by_count, {"count": value})


def test_examples_say_which_inputs_are_given():
    masked = fxplug.trace(by_name, (example(),), example_kwargs={"mask": example()}, mode="symbolic")
    plain = fxplug.trace(by_name, (example(),), mode="symbolic")

    assert torch.equal(masked(example(), mask=example()), example() * example())
    with pytest.raises(fxplug.GuardError, match="captured for mask is not None at"):
        masked(example())
    assert torch.equal(plain(example()), example())
    with pytest.raises(GuardError):
        plain(example(), mask=example())


def test_an_example_of_another_value_is_not_traced_with_the_default():
    with pytest.raises(TraceError) as refused:
        fxplug.trace(by_flag, (example(), True), mode="symbolic")

    assert refused.value.code == "FXP-T001"


@pytest.mark.parametrize("default", [None, "3"])
def test_a_program_that_fails_with_the_default_is_refused_for_its_question(default):
    def program(x, count=default):
        return x * 2 if count > 3 else x

    with pytest.raises(TraceError, match="'gt' is unknown") as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == "FXP-T001"


def test_an_input_without_which_the_program_fails_is_taken_to_be_given():
    def program(ids=None, mask=None, embeds=None):
        if (ids is None) == (embeds is None):
            raise ValueError("give one of them")
        found = ids * 2 if embeds is None else embeds
        return found if mask is None else found * mask

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(example()), example() * 2)
    assert [str(guard).partition(" at ")[0] for guard in captured.guards] == [
        "mask is None, its default,",
        "embeds is None, its default,",
        "ids is not None",
    ]
    for inputs in ((), (None, None, example()), (example(), None, example()), (example(), example())):
        with pytest.raises(GuardError):
            captured(*inputs)


def test_all_problems_are_collected_but_those_that_defaults_solve():
    def program(x, flag=False, mask=None):
        if flag:
            x = x + 1
        if x.sum() > 0:
            x = x + 2
        return x if mask is None else x * mask

    with pytest.raises(TraceError) as refused:
        fxplug.trace(program, on_error="collect")

    assert [problem.code for problem in refused.value.problems] == ["FXP-T001"]
    assert "x.sum() > 0" in refused.value.problems[0].message


def test_patterns_stand_for_any_values():
    captured = fxplug.symbolic_trace(lambda x, y: x + y)

    with pytest.raises(TraceError) as refused:
        fxplug.replace_pattern(captured, by_flag, by_flag)

    assert refused.value.code == "FXP-T001"


def test_a_call_with_another_value_may_run_the_program_instead():
    captured = fxplug.trace(by_flag, mode="symbolic", on_guard_failure="eager")

    assert torch.equal(captured(example(), True), example() * 2)


def test_what_a_first_attempt_has_changed_is_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = []

        def forward(self, x, flag=False):
            self.calls.append(1)
            return -x if flag else x

    model = Counting()
    with pytest.warns(TraceWarning, match="calls"):
        captured = fxplug.symbolic_trace(model)

    assert model.calls == []
    assert torch.equal(captured(example()), example())


def test_plugins_hear_of_each_attempt_as_of_a_trace():
    heard = []
    policy = fxplug.capture.TracePolicy(
        trace_started=lambda event: heard.append("started"),
        trace_finished=lambda event: heard.append(event.error is None),
    )

    fxplug.Tracer(policy=policy).trace(by_flag)

    assert heard == ["started", False, "started", True]


@pytest.mark.parametrize(
    "program",
    [Scaled(), lambda x, count=2: x if (x * count).sum() > 3 else -x],
    ids=["a weight", "another input"],
)
def test_a_program_is_not_traced_again_where_defaults_do_not_decide(program):
    started = []
    policy = fxplug.capture.TracePolicy(trace_started=started.append)

    with pytest.raises(TraceError):
        fxplug.Tracer(policy=policy).trace(program)

    assert len(started) == 1


def copied(module, tmp_path):
    return copy.deepcopy(module)


def pickled(module, tmp_path):
    return pickle.loads(pickle.dumps(module))


def stored(module, tmp_path):
    fxplug.save(module, tmp_path / "module.fxplug")
    return fxplug.load(tmp_path / "module.fxplug")


def traced_again(module, tmp_path):
    return fxplug.symbolic_trace(module)


@pytest.mark.parametrize("way", [copied, pickled, stored, traced_again])
@pytest.mark.parametrize("program", [by_count, by_text, by_name, by_dtype])
def test_the_guard_stays_with_what_was_captured(program, way, tmp_path):
    other = way(fxplug.symbolic_trace(program), tmp_path)
    name = program.__code__.co_varnames[1]

    assert torch.equal(other(example()), program(example()))
    with pytest.raises(GuardError):
        other(example(), **{name: ASKING[program]})


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask=None, is_causal=False):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if mask is not None and is_causal:
            raise ValueError("one of them")
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal)


def test_an_attention_is_captured_without_its_mask():
    model = Attention().eval()
    captured = fxplug.symbolic_trace(model)
    x, mask = torch.randn(2, 5, 8), torch.zeros(5, 5)

    assert torch.equal(captured(x), model(x))
    assert captured(torch.randn(3, 7, 8)).shape == (3, 7, 8)
    with pytest.raises(
        GuardError, match=r"mask is None.*now it is a tensor of torch.float32 and shape \(5, 5\)"
    ):
        captured(x, mask)


def test_an_attention_inside_of_another_program_is_captured_again():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fxplug.symbolic_trace(Attention())

        def forward(self, x, mask=None):
            return self.inner(x, mask)

    outer, x = Outer(), torch.randn(2, 5, 8)
    captured = fxplug.symbolic_trace(outer)

    assert torch.equal(captured(x), outer(x))
    with pytest.raises(GuardError, match="mask is None"):
        captured(x, torch.zeros(5, 5))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_what_was_captured_for_defaults_is_scripted_without_these_inputs():
    captured = fxplug.symbolic_trace(
        lambda x, mask=None, flag=False: x * 2 if mask is None and not flag else x
    )

    scripted = torch.jit.script(captured)

    assert torch.equal(scripted(example()), example() * 2)
    with pytest.raises(RuntimeError, match="expected at most 2"):
        scripted(example(), example())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_inputs_that_stand_before_others_are_not_left_out_of_a_script():
    captured = fxplug.symbolic_trace(lambda x, flag=False, scale=None: x if flag else x * scale)

    with pytest.raises(fxplug.GraphError, match=r"Cannot script .* it relies on flag == False, its default"):
        torch.jit.script(captured)
