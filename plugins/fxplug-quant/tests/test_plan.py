"""The plan: who decided what, rules, edits, text and JSON."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fxplug_quant
from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant import Plan, Rule


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 2)
    ).eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8)


def test_every_call_weight_and_value_has_a_row_that_says_who_decided(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)

    rows = [(entry.node, entry.what, entry.mode or entry.dtype, entry.decided_by) for entry in plan.entries]
    assert rows == [
        ("input_1", "edge", "uint8", "default"),
        ("_0", "call", "static-int8", "default"),
        ("_0", "weight", "int8", "default"),
        ("_0", "edge", "float32", "flow"),
        ("_1", "edge", "uint8", "default"),
        ("_2", "edge", "uint8", "flow"),
        ("_3", "call", "static-int8", "default"),
        ("_3", "weight", "int8", "default"),
        ("_3", "edge", "uint8", "default"),
        ("_4", "call", "static-int8", "default"),
        ("_4", "weight", "int8", "default"),
        ("_4", "edge", "float32", "flow"),
    ]
    assert plan.edges()["_2"].reason == "the steps of '_1'"
    assert str(plan).splitlines()[0].split() == [
        "node", "what", "operation", "mode", "dtype", "scheme", "observer", "decided_by", "reason", "line"
    ]  # fmt: skip


def test_rules_select_by_path_type_and_node_and_the_last_word_counts(model, inputs):
    rules = (
        Rule(type="Linear", mode="dynamic-int8"),
        Rule(path="4", mode="float"),
        Rule(node="input_1", observer="min-max"),
    )
    plan = fxplug_quant.plan(model, {"rules": rules}, inputs)

    calls = plan.calls()
    assert (calls["_3"].mode, calls["_3"].decided_by) == ("dynamic-int8", "rule 0")
    assert (calls["_4"].mode, calls["_4"].decided_by) == ("float", "conflict")
    assert calls["_4"].reason == "rule 1 is the last word over rule 0"
    assert plan.left_in_float() == {"_4": "rule 1 is the last word over rule 0"}
    assert (plan.edges()["input_1"].observer, plan.edges()["input_1"].decided_by) == ("min-max", "rule 2")


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8", "weight-int8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_one_scale_for_all_weights_is_planned_where_it_can_be(model, inputs, mode, per_channel):
    plan = fxplug_quant.plan(
        model[2:].eval(), {"mode": mode, "per_channel": per_channel}, torch.randn(4, 144)
    )

    schemes = {entry.scheme for entry in plan.entries if entry.what == "weight"}
    assert schemes == {f"per-{'channel' if per_channel or mode == 'weight-int8' else 'tensor'} symmetric"}


def test_what_the_engine_cannot_do_is_said(model, inputs):
    plan = fxplug_quant.plan(model, {"mode": "dynamic-int8"}, inputs)

    assert plan.left_in_float() == {"_0": "dynamic-int8 is for linear layers alone"}
    assert plan.calls()["_0"].decided_by == "backend"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(path="5", mode="float"), "There is no called module named '5'."),
        (
            Rule(type="Linaer", mode="float"),
            "There is no class of called modules named 'Linaer'. Did you mean",
        ),
        (Rule(node="_33", mode="float"), "There is no node named '_33'."),
        (Rule(function="addd", mode="float"), "There is no called function named 'addd'."),
        (Rule(line="nowhere.py:1", mode="float"), "There is no line named 'nowhere.py:1'."),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error(model, inputs, rule, message):
    with pytest.raises(UnknownNameError) as caught:
        fxplug_quant.plan(model, {"rules": [rule]}, inputs)

    assert message in str(caught.value)
    assert "which matches nothing" in str(caught.value)


def test_a_rule_selects_by_function_and_by_line(inputs):
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x)
            return self.second(y) + y

    model, given = Adds().eval(), torch.randn(2, 8)
    line = fxplug_quant.plan(model, None, given).calls()["first"].line

    by_line = fxplug_quant.plan(model, {"rules": [{"line": line[-25:], "mode": "float"}]}, given)
    by_function = fxplug_quant.plan(model, {"rules": [{"function": "add", "mode": "float"}]}, given)

    assert list(by_line.left_in_float()) == ["first"]
    assert list(by_function.left_in_float()) == ["add"]


def test_an_edited_plan_is_followed_and_the_difference_shown(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)

    edited = plan.with_mode("_3", "float", "it is small").with_observer("_1", "percentile:99.9")
    prepared = fxplug_quant.prepare(model, Plan.from_json(edited.to_json()), inputs).calibrate([inputs])
    result = fxplug_quant.convert(prepared)

    assert plan.diff(plan) == ""
    changed = plan.diff(edited).splitlines()
    assert [line[0] for line in changed] == ["-", "+", "-", "+"]
    assert "it is small" in changed[1] + changed[3]
    assert type(result.get_submodule("3")) is nn.Linear
    assert type(result.get_submodule("4")) is fxplug_quant.Int8Linear


def test_a_plan_survives_json(model, inputs):
    plan = fxplug_quant.plan(model, {"rules": [{"path": "4", "mode": "float"}]}, inputs)

    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x", "version": 1}'])
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(ConfigError, match="Cannot read a plan"):
        Plan.from_json(text)


def test_edits_that_cannot_be_are_refused(model, inputs):
    plan = fxplug_quant.plan(model, {"mode": "dynamic-int8"}, inputs)

    with pytest.raises(ConfigError, match="Cannot make node '_0' dynamic-int8: dynamic-int8 is for linear"):
        plan.with_mode("_0", "dynamic-int8")
    with pytest.raises(UnknownNameError, match="no call in the plan named '_9'"):
        plan.with_mode("_9", "float")


@pytest.mark.parametrize(
    "config",
    [{"mode": "int8"}, {"observer": "max"}, {"engine": "gemm"}, {"modes": 1}, {"rules": [{"paths": "x"}]}],
)
def test_names_that_are_unknown_are_refused(config):
    with pytest.raises(UnknownNameError):
        fxplug_quant.QuantConfig.of(config)


def test_nearest_names_are_told_for_every_selector(model, inputs):
    captured_line = fxplug_quant.plan(model, None, inputs).calls()["_0"].line
    wrong = {
        "path": ("33", "'3'"),
        "type": ("Conv2", "'Conv2d'"),
        "node": ("_33", "'_3'"),
        "line": (f"{captured_line}9", f"{captured_line}'"),
    }
    for selector, (name, nearest) in wrong.items():
        with pytest.raises(UnknownNameError) as caught:
            fxplug_quant.plan(model, {"rules": [{selector: name, "mode": "float"}]}, inputs)
        assert "Did you mean" in str(caught.value), selector
        assert nearest in str(caught.value), selector


def test_a_function_that_is_misspelt_is_told_the_nearest_one():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.add(self.layer(x), x)

    with pytest.raises(UnknownNameError, match=r"no called function named 'ad'\. Did you mean 'add'"):
        fxplug_quant.plan(Adds().eval(), {"rules": [{"function": "ad", "mode": "float"}]}, torch.randn(2, 8))


def test_selectors_that_agree_with_nothing_together_are_an_error(model, inputs):
    rule = {"type": "Linear", "path": "0", "mode": "float"}

    with pytest.raises(ConfigError, match=r"no call agrees with all of it\. Take a selector away"):
        fxplug_quant.plan(model, {"rules": [rule]}, inputs)


def test_a_glob_selects_several_modules_and_a_rule_needs_something_to_say(model, inputs):
    plan = fxplug_quant.plan(model, {"rules": [{"path": "[34]", "mode": "float"}]}, inputs)

    assert list(plan.left_in_float()) == ["_3", "_4"]
    with pytest.raises(ConfigError, match="it selects nothing"):
        Rule(mode="float")
    with pytest.raises(ConfigError, match="it says nothing"):
        Rule(path="3")


def test_sums_that_stay_float_say_so_and_follow_when_a_plan_is_edited():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x)
            return self.second(self.second(y) + y)

    model, given = Adds().eval(), torch.randn(2, 8)

    plan = fxplug_quant.plan(model, {"rules": [{"path": "first", "mode": "float"}]}, given)
    edited = fxplug_quant.prepare(model, plan.with_mode("first", "static-int8"), given).plan

    row = plan.calls()["add"]
    assert (row.mode, row.decided_by, row.reason) == ("float", "flow", "not all it takes are steps")
    assert list(plan.left_in_float()) == ["first"]
    assert (edited.calls()["add"].mode, edited.calls()["add"].decided_by) == ("static-int8", "default")


def test_a_plan_that_was_edited_as_text_is_followed_and_unknown_words_are_refused(model, inputs):
    text = fxplug_quant.plan(model, None, inputs).to_json()

    data = json.loads(text)
    for row in data["entries"]:
        row["observer"] = row["observer"].replace("histogram", "percentile:99.9")
    edited = Plan.from_json(json.dumps(data))
    prepared = fxplug_quant.prepare(model, edited, inputs)

    assert {type(observer).__name__ for observer in prepared.observers.values()} == {"Percentile"}
    observed = [entry for entry in prepared.plan.edges().values() if entry.observer]
    assert {entry.decided_by for entry in observed} == {"edited"}
    for old, new in (
        ('"mode": "static-int8"', '"mode": "static-int9"'),
        ('"observer": "histogram"', '"observer": "x"'),
    ):
        with pytest.raises(UnknownNameError):
            Plan.from_json(text.replace(old, new))
