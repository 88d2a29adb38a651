"""Overriding pipelines inside a block."""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass

import pytest

import fxplug
from fxplug import pipeline_overrides
from fxplug.errors import ConfigError, UnknownNameError
from fxplug.passes import Pipeline
from fxplug.plugins import PassRecord, explain_pass, hookimpl, resolved_values


@dataclass
class Options:
    bits: int = 8
    engine: str = "x86"


@hookimpl
def fxplug_register_passes():
    return [
        PassRecord("round", object, "", options=Options, pipelines=("inference",)),
        PassRecord("early", object, "", phase="prepare"),
    ]


@pytest.fixture
def manager(manager_of):
    return manager_of({"quant": {"fxplug_register_passes": fxplug_register_passes}})


def names(manager, pipeline="inference"):
    return [step.name for step in manager.resolve_pipeline(pipeline).steps]


PLAIN = [
    *("dead-code", "remove-identities", "fuse-conv-bn", "quant:round", "onednn-fuse", "propagate-shapes"),
]


def options(manager):
    (step,) = [step for step in manager.resolve_pipeline("inference").steps if step.name == "quant:round"]
    return step.options


def test_passes_are_disabled_and_added_in_the_order_that_they_declare(manager):
    with pipeline_overrides(
        disable=["fuse-conv-bn", "round"], add=["early", {"name": "quant:round", "bits": 4}]
    ):
        assert names(manager) == [
            *(
                "quant:early",
                "dead-code",
                "remove-identities",
                "quant:round",
                "onednn-fuse",
                "propagate-shapes",
            ),
        ]
        assert options(manager) == {"bits": 4, "engine": "x86"}
    assert names(manager) == PLAIN
    assert options(manager) == {"bits": 8, "engine": "x86"}


def test_options_that_are_set_leave_the_others(manager, config_file):
    config = config_file(
        '[tool.fxplug.pipelines.inference]\npasses = [{ name = "round", bits = 2, engine = "arm" }]\n'
    )
    with pipeline_overrides(options={"quant:round": {"bits": 4}}):
        (step,) = manager.resolve_pipeline("inference", config).steps

    assert step.options == {"bits": 4, "engine": "arm"}


def test_settings_of_the_pipeline(manager, config_file):
    config = config_file('[tool.fxplug.pipelines.mine]\npasses = ["round"]\ntime_limit = 3\n')
    with pipeline_overrides(on_error="rollback", time_limit=None, hard_time_limit=60):
        pipeline = manager.resolve_pipeline("mine", config)

    assert (pipeline.on_error, pipeline.time_limit, pipeline.hard_time_limit) == ("rollback", None, 60)
    assert manager.resolve_pipeline("mine", config).time_limit == 3


def test_every_setting_of_a_pipeline_can_be_overridden():
    """Also one that comes later: configuration, constructor and override have the same."""
    settings = set(inspect.signature(Pipeline).parameters) - {"name", "steps"}
    known = {name for name in vars(fxplug.plugins.PipelineConfig)["__dataclass_fields__"] if name != "passes"}

    assert known == settings


def test_a_limit_of_one_pass(manager):
    with pipeline_overrides(options={"round": {"time_limit": 5, "bits": 4}}):
        steps = {step.name: step for step in manager.resolve_pipeline("inference").steps}

    assert steps["quant:round"].time_limit == 5
    assert steps["quant:round"].options["bits"] == 4
    assert steps["dead-code"].time_limit is None


def test_a_named_pipeline_is_the_only_one_that_changes(manager, config_file):
    config = config_file('[tool.fxplug.pipelines.mine]\npasses = ["round", "dead-code"]\n')
    with pipeline_overrides("mine", disable=["dead-code"], on_error="rollback"):
        assert [step.name for step in manager.resolve_pipeline("mine", config).steps] == ["quant:round"]
        assert names(manager.__class__(config=config, candidates=[], environ={}), []) == []
        other = manager.resolve_pipeline(["dead-code"], config)

    assert ([step.name for step in other.steps], other.on_error) == (["dead-code"], "raise")


def test_lists_of_passes_are_pipelines_too(manager):
    with pipeline_overrides(disable=["dead-code"]):
        assert names(manager, ["dead-code", "round"]) == ["quant:round"]


def test_blocks_add_up_and_the_inner_one_wins(manager):
    with pipeline_overrides(disable=["dead-code"], options={"round": {"bits": 4}}, on_error="rollback"):
        with pipeline_overrides(
            options={"round": {"bits": 2, "engine": "arm"}}, on_error="raise", add=["dead-code"]
        ):
            assert names(manager) == [
                *("remove-identities", "fuse-conv-bn", "quant:round", "dead-code", "onednn-fuse"),
                "propagate-shapes",
            ]
            assert options(manager) == {"bits": 2, "engine": "arm"}
            assert manager.resolve_pipeline("inference").on_error == "raise"
        assert names(manager) == PLAIN[1:]
        assert options(manager) == {"bits": 4, "engine": "x86"}
        assert manager.resolve_pipeline("inference").on_error == "rollback"


def test_a_block_may_be_entered_again_and_inside_itself(manager):
    override = pipeline_overrides(disable=["round"])
    for _ in range(2):
        with override, override:
            assert "quant:round" not in names(manager)
        assert names(manager) == PLAIN


def test_blocks_that_end_in_another_order_leave_nothing(manager):
    first, second = pipeline_overrides(disable=["round"]), pipeline_overrides(disable=["dead-code"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert names(manager) == PLAIN[1:]
    second.__exit__(None, None, None)
    assert names(manager) == PLAIN


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_an_error_ends_the_block(manager, error):
    with pytest.raises(error), pipeline_overrides(disable=["round"]):
        raise error
    assert names(manager) == PLAIN


def test_a_generator_that_is_closed_ends_its_block(manager):
    def inside():
        with pipeline_overrides(disable=["round"]):
            yield names(manager)

    running = inside()
    assert next(running) == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]
    running.close()
    assert names(manager) == PLAIN


def test_other_threads_see_nothing_of_it(manager):
    found = []
    with pipeline_overrides(disable=["round"]):
        thread = threading.Thread(target=lambda: found.append(names(manager)))
        thread.start()
        thread.join()
    assert found == [PLAIN]


def test_tasks_have_blocks_of_their_own(manager):
    async def disabling(name, ready, go_on):
        with pipeline_overrides(disable=[name]):
            ready.set()
            await go_on.wait()
            return names(manager)

    async def both():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(
            disabling("dead-code", first, second), disabling("round", second, first)
        ), names(manager)

    (first, second), outside = asyncio.run(both())

    assert first == PLAIN[1:]
    assert second == ["dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes"]
    assert outside == PLAIN


@pytest.mark.parametrize(
    "changes",
    [
        {"disable": ["round"]},
        {"add": ["early"]},
        {"options": {"round": {"bits": 4}}},
        {"on_error": "rollback"},
        {"time_limit": 5},
        {"options": {"round": {"hard_time_limit": 5}}},
    ],
)
def test_another_pipeline_has_another_fingerprint(manager, changes):
    before = manager.resolve_pipeline("inference").fingerprint()
    with pipeline_overrides(**changes):
        assert manager.resolve_pipeline("inference").fingerprint() != before
    assert manager.resolve_pipeline("inference").fingerprint() == before


def test_an_override_that_says_what_holds_anyway_has_the_same_fingerprint(manager):
    before = manager.resolve_pipeline("inference").fingerprint()
    with pipeline_overrides(options={"round": {"bits": 8}}, on_error="raise"):
        assert manager.resolve_pipeline("inference").fingerprint() == before


# -- mistakes ----------------------------------------------------------------------------------------------------

HERE = r"\S*test_overrides.py:\d+ in pipeline_overrides"


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"disable": ["fuse-conv"]},
            UnknownNameError,
            rf"no pass named 'fuse-conv'. Did you mean 'fuse-conv-bn'\? The name stands at {HERE}\(disable=.*\)\.",
        ),
        (
            {"add": ["nothing"]},
            UnknownNameError,
            rf"no pass named 'nothing'.* The name stands at {HERE}\(add=",
        ),
        ({"add": [{"bits": 3}]}, ConfigError, "it does not say which one"),
        ({"options": {"nothing": {}}}, UnknownNameError, rf"no pass named 'nothing'.* at {HERE}\(options="),
        (
            {"options": {"round": {"bit": 4}}},
            ConfigError,
            rf"options of pass 'quant:round' \(given at {HERE}\(options=.*\)\): there is no key 'bit'. Did you mean",
        ),
        ({"options": {"round": {"bits": "x"}}}, ConfigError, rf"given at {HERE}.*'bits'"),
        (
            {"options": {"round": {"time_limit": 0}}},
            ConfigError,
            rf"time_limit of pass 'quant:round' \(given at {HERE}",
        ),
        (
            {"pipeline": "inferense", "disable": ["round"]},
            UnknownNameError,
            rf"no pipeline named 'inferense'. Did you mean 'inference'\? The name stands at {HERE}\(pipeline=",
        ),
        (
            {"pipeline": "inference", "options": {"early": {"time_limit": 3}}},
            ConfigError,
            rf"Cannot set options of pass 'quant:early' at {HERE}.*: the pipeline 'inference' does not hold it.",
        ),
    ],
)
def test_a_name_that_is_wrong_is_an_error_that_says_where_it_stands(manager, changes, kind, text):
    with pipeline_overrides(**changes), pytest.raises(kind, match=text):
        manager.resolve_pipeline("inference")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"on_eror": "raise"},
            "Cannot override 'on_eror': a pipeline has no such setting. Did you mean 'on_error'?",
        ),
        ({"passes": []}, "Cannot override 'passes': a pipeline has no such setting."),
        ({"on_error": "ignore"}, "Cannot use the options of pipeline_overrides: 'on_error'"),
        ({"time_limit": -1}, "Cannot use -1.0 as time_limit: give a number of seconds above 0."),
        ({"disable": "round"}, "Cannot use the text 'round' as disable: give a list, ['round']."),
        ({"add": "round"}, "Cannot use the text 'round' as add: give a list, ['round']."),
        ({"disable": [3]}, "Cannot disable 3: give the name of a pass."),
    ],
)
def test_a_setting_that_is_wrong_is_an_error_at_once(changes, text):
    with pytest.raises(ConfigError) as caught:
        pipeline_overrides(**changes)
    assert str(caught.value).startswith(text)


# -- explanations ------------------------------------------------------------------------------------------------


def test_explanations_say_that_an_override_did_it(manager):
    with pipeline_overrides(disable=["round"]), pipeline_overrides(add=["early"], options={"dead-code": {}}):
        gone, new = explain_pass("round", manager), explain_pass("early", manager)
        other = explain_pass("fuse-conv-bn", manager)
    line = inspect.currentframe().f_lineno - 3

    assert gone.places == ()
    assert gone.overrides == (
        f"in 'inference': disabled at {__file__}:{line} in pipeline_overrides(disable=['round'])",
    )
    added = f"added at {__file__}:{line} in pipeline_overrides(add=['early'], options={{'dead-code': {{}}}})"
    assert (new.places[0].listed_by, new.overrides) == (added, (f"in 'inference': {added}",))
    assert other.overrides == ()
    assert explain_pass("round", manager).overrides == ()


def test_options_that_are_set_are_explained(manager):
    with pipeline_overrides("inference", options={"round": {"bits": 4}}):
        (text,) = explain_pass("round", manager, "inference").overrides

    assert text.startswith("in 'inference': bits = 4 set at ")


def test_what_the_configuration_says_is_shown_as_it_is(manager):
    plain = resolved_values(manager, {})
    with pipeline_overrides(disable=["round"], add=["early"], on_error="rollback"):
        assert resolved_values(manager, {}) == plain
