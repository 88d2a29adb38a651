"""The plan: who decided what, rules, edits, text and JSON."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fxplug_quant
import fxplug_quant.calls
import fxplug_quant.planning
from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant import Plan, QuantizationError, Rule


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

    by_line = fxplug_quant.plan(model, {"rules": [{"line": line.rpartition("/")[2], "mode": "float"}]}, given)
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


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(x)
        return self.second(self.second(y) + y)


def test_sums_that_stay_float_say_so_and_follow_when_a_plan_is_edited():
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


# -- plans of other modules, and edits that are not followed -----------------------------------------------------


def rows_of(plan: Plan) -> dict[str, object]:
    """Return a plan as what its JSON holds."""
    return json.loads(plan.to_json())


def followed(model: nn.Module, data: object, inputs: torch.Tensor) -> fxplug_quant.Prepared:
    return fxplug_quant.prepare(model, Plan.from_json(json.dumps(data)), inputs)


def row(data: dict, what: str, node: str) -> dict:
    return next(entry for entry in data["entries"] if (entry["what"], entry["node"]) == (what, node))


def test_a_plan_of_another_module_with_the_same_names_is_refused():
    dense = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    plan = fxplug_quant.plan(dense, None, torch.randn(2, 8))

    with pytest.raises(QuantizationError) as caught:
        fxplug_quant.prepare(convolutions, plan, torch.randn(2, 3, 8, 8))

    assert "its call '_0' has operation = 'Linear', and in the module that is 'Conv2d'" in str(caught.value)
    assert caught.value.code == "FXP-Q006"


@pytest.mark.parametrize(
    ("what", "node", "column", "text", "message"),
    [
        ("weight", "_3", "dtype", "int4", "'_3' has dtype = 'int4', and a plan for this module would say 'int8'"),
        ("weight", "_3", "scheme", "per-tensor symmetric", "would say 'per-channel symmetric'"),
        ("weight", "_3", "observer", "histogram", "weight '_3' has observer = 'histogram'"),
        ("edge", "_1", "dtype", "float32", "'_1' has dtype = 'float32', and a plan for this module would say 'uint8'"),
        ("edge", "_1", "observer", "", "edge '_1' has observer = '', and a plan for this module would say 'histogram'"),
        ("edge", "_2", "observer", "min-max", "edge '_2' has observer = 'min-max'"),
        ("edge", "_1", "what", "weight", "it has an entry weight '_1', and a plan for this module would have none"),
        ("edge", "_1", "node", "_9", "it has an entry edge '_9'"),
        ("call", "_3", "dtype", "int8", "call '_3' has dtype = 'int8'"),
        ("call", "_3", "what", "edge", "it has no entry call '_3' (Linear), which the module has"),
    ],
)  # fmt: skip
def test_an_edit_that_is_not_followed_is_an_error_that_says_what_can_be(
    model, inputs, what, node, column, text, message
):
    data = rows_of(fxplug_quant.plan(model, None, inputs))
    row(data, what, node)[column] = text

    with pytest.raises(QuantizationError) as caught:
        followed(model, data, inputs)

    assert message in str(caught.value)
    assert "The modes of calls and the observers of edges that have one can be edited" in str(caught.value)
    assert caught.value.code == "FXP-Q006"


@pytest.mark.parametrize(("what", "node"), [("call", "_3"), ("weight", "_3"), ("edge", "_1")])
def test_entries_that_are_missing_or_twice_in_a_plan_are_an_error(model, inputs, what, node):
    data = rows_of(fxplug_quant.plan(model, None, inputs))
    fewer = [entry for entry in data["entries"] if (entry["what"], entry["node"]) != (what, node)]
    twice = [*data["entries"], row(data, what, node)]

    for entries, message in (
        (fewer, f"it has no entry {what} {node!r}"),
        ([], "it has no entry call '_0'"),
        (twice, "it has several entries for the same call, weight or edge"),
    ):
        with pytest.raises(QuantizationError, match=r"Cannot follow the plan.*\[FXP-Q006\]") as caught:
            followed(model, {**data, "entries": entries}, inputs)
        assert message in str(caught.value)


def test_a_mode_that_was_edited_in_text_is_followed_or_refused(model, inputs):
    data = rows_of(fxplug_quant.plan(model, {"rules": [{"path": "4", "mode": "float"}]}, inputs))
    row(data, "call", "_4")["mode"] = "dynamic-int8"
    assert followed(model, data, inputs).plan.calls()["_4"].mode == "dynamic-int8"

    row(data, "call", "_0")["mode"] = "dynamic-int8"
    with pytest.raises(
        ConfigError, match="Cannot make node '_0' dynamic-int8, as the plan says: dynamic-int8 is for"
    ):
        followed(model, data, inputs)

    data = rows_of(fxplug_quant.plan(model, {"mode": "dynamic-int8"}, inputs))
    row(data, "call", "_0")["mode"] = "dynamic-int8"  # What it says beside that is that the backend cannot.
    with pytest.raises(
        ConfigError, match="Cannot make node '_0' dynamic-int8, as the plan says: dynamic-int8 is for"
    ):
        followed(model, data, inputs)


def test_a_sum_that_was_edited_in_text_is_computed_with_steps_or_refused():
    model, given = Adds().eval(), torch.randn(2, 8)
    data = rows_of(fxplug_quant.plan(model, {"rules": [{"path": "first", "mode": "float"}]}, given))
    row(data, "call", "add")["mode"] = "static-int8"

    with pytest.raises(
        ConfigError, match="Cannot make node 'add' static-int8, as the plan says: not all it takes"
    ):
        followed(model, data, given)
    row(data, "call", "first")["mode"] = "static-int8"
    assert followed(model, data, given).plan.calls()["add"].mode == "static-int8"


def test_what_a_module_does_not_allow_is_left_in_float_unless_somebody_asked_for_it(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)
    model[0].register_forward_hook(lambda *_: None)

    assert fxplug_quant.prepare(model, plan, inputs).plan.left_in_float() == {
        "_0": "hooks or a forward of its own"
    }
    with pytest.raises(
        ConfigError, match="Cannot make node '_0' static-int8, as the plan says: hooks or a forward"
    ):
        fxplug_quant.prepare(model, plan.with_mode("_0", "static-int8"), inputs)


def test_edits_upon_edits_are_followed_although_rows_are_those_of_an_older_plan(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)
    once = fxplug_quant.prepare(model, plan.with_mode("_3", "float"), inputs).plan
    data = rows_of(once)
    row(data, "call", "_3")["mode"] = "static-int8"  # Its weight and its input are written as float32 still.
    row(data, "call", "_4")["mode"] = "float"

    found = followed(model, data, inputs).plan

    assert {name: entry.mode for name, entry in found.calls().items()} == {
        "_0": "static-int8", "_3": "static-int8", "_4": "float"
    }  # fmt: skip
    again = once.with_mode("_3", "weight-int8").with_mode("_4", "float").with_observer("input_1", "min-max")
    assert fxplug_quant.prepare(model, again, inputs).plan.edges()["input_1"].observer == "min-max"


def test_a_plan_without_a_checksum_is_compared_with_the_module(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)
    data = rows_of(plan.with_mode("_4", "float"))
    del data["checksum"]
    assert followed(model, data, inputs).plan.calls()["_4"].mode == "float"

    row(data, "weight", "_3")["dtype"] = "int4"
    with pytest.raises(QuantizationError, match="weight '_3' has dtype = 'int4'"):
        followed(model, data, inputs)


# -- values that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"per_channel": "false"}, "Cannot use per_channel = 'false' in a config: give True or False"),
        ("dynamic-int8", "Cannot quantize with 'dynamic-int8': it is a str. Give a QuantConfig, or a mapping"),
        ({"rules": ("head",)}, "Cannot use 'head' as a rule: it is a str. Give a Rule, or a mapping"),
        ({"rules": {"path": "head", "mode": "float"}}, "give a list of rules, also for a single one"),
        ({"rules": [{"path": 0, "mode": "float"}]}, "Cannot use path = 0 in a rule: it has to be text"),
        ({"rules": [{"line": 5, "mode": "float"}]}, "Cannot use line = 5 in a rule: it has to be text"),
        ({"rules": [{"type": "", "mode": "float"}]}, "Cannot use type = '' in a rule: it has to be text that is not"),
        ({"rules": [{"path": "0", "observer": 3}]}, "Cannot use observer = 3 in a rule"),
        ({"observer": None}, "Cannot use observer = None in a config: it has to be text that is not empty"),
        ({"mode": None}, "Cannot use mode = None in a config"),
        ({"engine": 1}, "Cannot use engine = 1 in a config"),
        ({"group_size": "64"}, "Cannot use group_size = '64' in a config: give a whole number"),
    ],
)  # fmt: skip
def test_config_values_of_another_type_are_refused(config, message):
    with pytest.raises(ConfigError) as caught:
        fxplug_quant.QuantConfig.of(config)

    assert message in str(caught.value)


def test_plan_entries_of_another_type_and_deep_text_are_refused(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)
    for what, node, column, value in (("call", "_3", "mode", None), ("edge", "_1", "observer", 5)):
        data = rows_of(plan)
        row(data, what, node)[column] = value
        with pytest.raises(ConfigError) as caught:
            Plan.from_json(json.dumps(data))
        assert f"its entry {what} {node!r} has {column} = {value!r}, and that has to be text" in str(
            caught.value
        )

    data = rows_of(plan)
    row(data, "edge", "_1")["what"] = "egde"
    with pytest.raises(
        ConfigError, match="its entry '_1' has what = 'egde', and that has to be one of call, weight"
    ):
        Plan.from_json(json.dumps(data))
    for text in ("[" * 100_000, json.dumps({**rows_of(plan), "config": None})):
        with pytest.raises(ConfigError, match="Cannot read a plan"):
            Plan.from_json(text)


# -- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "wanted", "agrees"),
    [
        ("/home/me/pkg/model.py:12", "model.py:12", True),
        ("/home/me/pkg/model.py:12", "pkg/model.py:12", True),
        ("/home/me/pkg/model.py:12", "/home/me/pkg/model.py:12", True),
        ("C:\\me\\pkg\\model.py:12", "pkg/model.py:12", True),
        ("/home/me/pkg/model.py:12", "./pkg/model.py:12", True),
        ("/home/me/pkg/model.py:12", "el.py:12", False),
        ("/home/me/pkg/model.py:12", "kg/model.py:12", False),
        ("/home/me/pkg/model.py:12", "model.py:2", False),
        ("/home/me/pkg/model.py:2", "model.py:12", False),
        ("model.py:12", "pkg/model.py:12", False),
        ("", "model.py:12", False),
    ],
)  # fmt: skip
def test_a_line_is_a_file_and_a_whole_number(model, inputs, found, wanted, agrees):
    captured = fxplug_quant.planning.capture(model, (inputs,))
    call = next(iter(fxplug_quant.calls.read_calls(captured).values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fxplug_quant.config.place_of", lambda _: found)
        assert Rule(line=wanted, mode="float").selects(call) is agrees


@pytest.mark.parametrize("line", ["0", ":12", "12", "model.py", "model.py:", "model.py:x", "pkg/:12"])
def test_a_line_without_file_or_number_is_refused(line):
    with pytest.raises(ConfigError, match=r"its line is no file and number\. Write it as 'model\.py:12'"):
        Rule(line=line, mode="float")


def test_an_observer_rule_on_a_layer_is_for_what_its_call_gives(model, inputs):
    plan = fxplug_quant.plan(model, {"rules": [{"path": "0", "observer": "min-max"}]}, inputs)

    found = plan.edges()["_1"]  # The ReLU is done with the convolution.
    assert (found.observer, found.decided_by) == ("min-max", "rule 0")
    assert [entry.observer for entry in plan.edges().values() if entry.observer] == [
        "histogram", "min-max", "histogram"
    ]  # fmt: skip
    kinds = [
        type(observer).__name__ for observer in fxplug_quant.prepare(model, plan, inputs).observers.values()
    ]
    assert kinds == ["Histogram", "MinMax", "Histogram"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"type": "Flatten", "mode": "float"}, "its mode changes nothing. What it selects (_2) has no mode of its own"),
        ({"type": "Flatten", "observer": "min-max"}, "its observer changes nothing. No value that it selects (_2) is"),
        ({"path": "4", "observer": "min-max"}, "its observer changes nothing. No value that it selects (_4) is"),
    ],
)  # fmt: skip
def test_a_rule_that_changes_nothing_is_an_error(model, inputs, rule, message):
    with pytest.raises(ConfigError) as caught:
        fxplug_quant.plan(model, {"rules": [rule]}, inputs)

    assert message in str(caught.value)
    assert "rule 0" in str(caught.value)


def test_a_value_that_is_not_observed_gets_no_observer(model, inputs):
    plan = fxplug_quant.plan(model, None, inputs)

    for node, reason in (
        ("_0", "never made"),
        ("_2", "the steps of '_1'"),
        ("_4", "no int8 call takes steps"),
    ):
        with pytest.raises(ConfigError) as caught:
            plan.with_observer(node, "min-max")
        assert f"Cannot observe the value of node {node!r} with 'min-max'" in str(caught.value)
        assert reason in str(caught.value)
        assert "Observed are: input_1, _1, _3" in str(caught.value)
