"""From names to pipelines that can run, with validated options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from fxplug.api import Tolerance
from fxplug.errors import ConfigError, PassOrderError, PluginConflictError, PluginError, UnknownNameError
from fxplug.passes import Verification
from fxplug.plugins import BackendRecord, PassRecord, hookimpl


@dataclass
class Options:
    engine: Literal["x86", "qnnpack"] = "x86"
    bits: int = 8
    layers: tuple[str, ...] = ()


@dataclass
class Needy:
    path: str
    depth: int = field(default=1)


def offering(*records):
    @hookimpl
    def fxplug_register_passes():
        return [record for record in records if isinstance(record, PassRecord)]

    @hookimpl
    def fxplug_register_backends():
        return [record for record in records if isinstance(record, BackendRecord)]

    return {
        "fxplug_register_passes": fxplug_register_passes,
        "fxplug_register_backends": fxplug_register_backends,
    }


QUANT = offering(
    PassRecord("static-int8", object, "", phase="quantize", options=Options),
    PassRecord("joins", object, "", before=("fuse-conv-bn",), pipelines=("inference",)),
    PassRecord("needy", object, "", options=Needy),
    BackendRecord("engine", object, "", options=Options),
)


@pytest.fixture
def manager(manager_of):
    return manager_of({"quant": QUANT})


def names(pipeline):
    return [step.name for step in pipeline.steps]


# -- which passes, in which order --------------------------------------------------------------------------------


def test_the_built_in_pipeline_takes_in_passes_that_join_it(manager, manager_of):
    assert names(manager_of({}).resolve_pipeline("inference")) == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]

    pipeline = manager.resolve_pipeline("inference")

    assert names(pipeline) == [
        *("dead-code", "remove-identities", "quant:joins", "fuse-conv-bn", "onednn-fuse", "propagate-shapes"),
    ]
    assert [step.provider for step in pipeline.steps] == [
        "fxplug 0.1.0",
        "fxplug 0.1.0",
        "fxplug-quant 1.0",
        "fxplug 0.1.0",
        "fxplug 0.1.0",
        "fxplug 0.1.0",
    ]
    assert (pipeline.name, pipeline.on_error) == ("inference", "raise")


def test_a_configured_pipeline_holds_what_it_lists_and_takes_the_place_of_a_built_in_one(
    manager, config_file
):
    config = config_file('[tool.fxplug.pipelines.inference]\npasses = ["dead-code"]\non_error = "rollback"\n')

    pipeline = manager.resolve_pipeline("inference", config)

    assert names(pipeline) == ["dead-code"]
    assert pipeline.on_error == "rollback"
    assert manager.pipelines(config) == ["inference"]


def test_a_configured_pipeline_is_verified_as_it_says(manager, config_file):
    config = config_file(
        '[tool.fxplug.pipelines.inference]\npasses = []\nverify = "numeric"\nrtol = 1e-3\non_error = "stop"\n'
    )

    pipeline = manager.resolve_pipeline("inference", config)

    assert pipeline.on_error == "stop"
    assert pipeline.verification == Verification("numeric", Tolerance(1e-3, None))
    assert manager.resolve_pipeline("inference").verification == Verification()


def test_a_list_of_passes_is_ordered_by_what_they_declare(manager):
    assert names(manager.resolve_pipeline(["static-int8", "fuse-conv-bn", "quant:joins"])) == [
        "quant:joins",
        "fuse-conv-bn",
        "quant:static-int8",
    ]


def test_passes_that_contradict_each_other_are_an_error(manager_of):
    manager = manager_of(
        {
            "odd": offering(
                PassRecord("a", object, "", before=("b",)), PassRecord("b", object, "", before=("a",))
            )
        }
    )

    with pytest.raises(PassOrderError, match=r"odd:a -> odd:b -> odd:a|odd:b -> odd:a -> odd:b"):
        manager.resolve_pipeline(["a", "b"])


def test_an_unknown_pipeline_offers_the_nearest(manager, config_file):
    config = config_file("[tool.fxplug.pipelines.training]\npasses = []\n")

    with pytest.raises(UnknownNameError) as caught:
        manager.resolve_pipeline("trainning", config)

    assert str(caught.value) == "There is no pipeline named 'trainning'. Did you mean 'training'? [FXP-F001]"
    assert manager.pipelines(config) == ["inference", "training"]


def test_an_unknown_pass_is_named_with_the_line_where_it_stands(manager, config_file, tmp_path):
    config = config_file('[tool.fxplug.pipelines.fast]\npasses = ["ded-code"]\n')

    with pytest.raises(UnknownNameError) as caught:
        manager.resolve_pipeline("fast", config)

    assert str(caught.value) == (
        "There is no pass named 'ded-code'. Did you mean 'dead-code'? The name stands at "
        f"{tmp_path / 'pyproject.toml'}:2. [FXP-F001]"
    )


def test_a_short_name_that_two_plugins_claim_is_named_with_its_line(manager_of, config_file, tmp_path):
    manager = manager_of({name: offering(PassRecord("shared", object, "")) for name in ("a", "b")})
    config = config_file('[tool.fxplug.pipelines.fast]\npasses = ["shared"]\n')

    with pytest.raises(PluginConflictError, match=f"{tmp_path / 'pyproject.toml'}:2.* claimed by several"):
        manager.resolve_pipeline("fast", config)


@pytest.mark.parametrize("entry", [{"engine": "x86"}, {"name": 3}])
def test_an_entry_without_a_name_is_an_error(manager, entry):
    with pytest.raises(ConfigError, match=r"it does not say which one"):
        manager.resolve_pipeline([entry])


# -- options -----------------------------------------------------------------------------------------------------


def options(manager, **values):
    (step,) = manager.resolve_pipeline([{"name": "static-int8", **values}]).steps
    return step.options


def test_options_are_validated_and_defaults_filled_in(manager):
    assert options(manager) == {"engine": "x86", "bits": 8, "layers": ()}
    assert options(manager, engine="qnnpack", bits="4", layers=["a"]) == {
        "engine": "qnnpack",
        "bits": 4,
        "layers": ("a",),
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            '{ name = "static-int8", engin = "x86" }',
            "pass 'quant:static-int8' at {file}:3: there is no key 'engin'. Did you mean 'engine'?",
        ),
        (
            '{ name = "static-int8", engine = "x87" }',
            "pass 'quant:static-int8' at {file}:3: 'engine' is 'x87', but input should be 'x86' or 'qnnpack'.",
        ),
        (
            '{ name = "dead-code", level = 3 }',
            "pass 'dead-code' at {file}:3: it takes no options, but 'level' was given. Leave it out.",
        ),
        ('"needy"', "pass 'quant:needy' at {file}:3: 'path' is missing. Add it."),
    ],
    ids=["unknown", "bad-value", "none-wanted", "missing"],
)
def test_a_bad_option_is_named_with_pass_and_file(manager, config_file, tmp_path, table, message):
    config = config_file(f"[tool.fxplug.pipelines.fast]\n\npasses = [{table}]\n")

    with pytest.raises(ConfigError) as caught:
        manager.resolve_pipeline("fast", config)

    expected = message.format(file=tmp_path / "pyproject.toml")
    assert str(caught.value) == f"Cannot use the options of {expected} [FXP-F000]"


def test_options_that_cannot_be_checked_are_the_plugins_fault(manager_of):
    @dataclass
    class Broken:
        value: "NotImported" = None  # noqa: F821, UP037

    manager = manager_of({"odd": offering(PassRecord("a", object, "", options=Broken))})

    with pytest.raises(PluginError, match=r"the annotations of .*Broken do not resolve"):
        manager.resolve_pipeline(["a"])


# -- backends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["engine", '"quant:engine"'])
def test_options_of_a_backend_come_from_the_configuration_and_the_argument_prevails(
    manager, config_file, key
):
    config = config_file(f'[tool.fxplug.backends.{key}]\nengine = "qnnpack"\nbits = 4\n')

    assert manager.backend_options("engine") == {"engine": "x86", "bits": 8, "layers": ()}
    assert manager.backend_options("quant:engine", {"bits": 2}, config) == {
        "engine": "qnnpack",
        "bits": 2,
        "layers": (),
    }


def test_a_bad_option_of_a_backend_is_named_with_backend_and_file(manager, config_file, tmp_path):
    config = config_file("[tool.fxplug.backends.engine]\nbit = 4\n")

    with pytest.raises(ConfigError) as caught:
        manager.backend_options("engine", config=config)

    assert str(caught.value) == (
        f"Cannot use the options of backend 'quant:engine' at {tmp_path / 'pyproject.toml'}:2: there is no key 'bit'. "
        "Did you mean 'bits'? [FXP-F000]"
    )


def test_options_under_both_names_of_a_backend_are_refused(manager, config_file):
    config = config_file(
        '[tool.fxplug.backends.engine]\nbits = 4\n[tool.fxplug.backends."quant:engine"]\nbits = 2\n'
    )

    with pytest.raises(ConfigError, match=r"Keep one of them"):
        manager.backend_options("engine", config=config)


@dataclass(frozen=True)
class Switched:
    deep: bool = False
    most: int = 3
    share: float | None = None

    def __post_init__(self):
        if self.most < 0:
            raise ConfigError(f"Cannot keep {self.most} of them: give a number that is not negative.")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deep": "yes"}, "'deep' is 'yes', but input should be true or false."),
        ({"deep": 1}, "'deep' is 1, but input should be true or false."),
        ({"most": True}, "'most' is True, but input should be a whole number."),
        ({"share": True}, "'share' is True, but input should be a number."),
        (
            {"most": -1},
            "pass 'odd:switched': Cannot keep -1 of them: give a number that is not negative. [FXP-F000]",
        ),
    ],
    ids=["text", "number", "flag", "flag or none", "own"],
)
def test_options_that_mean_nothing_are_refused(manager_of, values, message):
    manager = manager_of({"odd": offering(PassRecord("switched", object, "", options=Switched))})

    with pytest.raises(ConfigError) as caught:
        manager.resolve_pipeline([{"name": "switched", **values}])

    assert message in str(caught.value)


def test_options_may_be_texts_of_numbers(manager_of):
    manager = manager_of({"odd": offering(PassRecord("switched", object, "", options=Switched))})
    (step,) = manager.resolve_pipeline([{"name": "switched", "most": "4", "share": "0.5"}]).steps

    assert step.options == {"deep": False, "most": 4, "share": 0.5}
