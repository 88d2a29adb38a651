"""Values that are in force, the options of settings classes, and the schema."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import pytest

from fxplug.execute import POLICIES
from fxplug.passes import LEVELS
from fxplug.passes.pipeline import OnError
from fxplug.plugins import (
    BackendRecord,
    PassRecord,
    PipelineConfig,
    PluginsConfig,
    Settings,
    TraceConfig,
    hookimpl,
    resolved_values,
)
from fxplug.plugins.options import OptionInfo, describe_options
from fxplug.plugins.schema import config_schema


@dataclass
class Depth:
    levels: int = 2
    """How deep."""


@dataclass
class Options:
    """What the pass takes."""

    engine: Literal["x86", "qnnpack"] = "x86"
    """Who computes."""
    layers: tuple[str, ...] = ()
    depth: Depth = field(default_factory=Depth)


@dataclass
class Needy:
    path: str


@dataclass
class Odd:
    value: "NotImported" = None  # noqa: F821, UP037


@hookimpl
def fxplug_register_passes():
    return [
        PassRecord("int8", object, "Makes it small.", options=Options),
        PassRecord("needy", object, "Reads a file.", options=Needy),
        PassRecord("odd", object, "Cannot be described.", options=Odd),
    ]


@hookimpl
def fxplug_register_backends():
    return [BackendRecord("engine", object, "Runs.", options=Needy)]


@pytest.fixture
def manager(manager_of):
    def make(config=None):
        return manager_of(
            {
                "quant": {
                    "fxplug_register_passes": fxplug_register_passes,
                    "fxplug_register_backends": fxplug_register_backends,
                }
            },
            config=config,
        )

    return make


CONFIG = """
[tool.fxplug.plugins]
disable = []
[tool.fxplug.trace]
mode = "shape"
[tool.fxplug.pipelines.fast]
passes = [
  "dead-code",
  { name = "int8", engine = "qnnpack" },
]
[tool.fxplug.backends.engine]
path = "p"
"""


def test_every_value_in_force_says_where_it_came_from(manager, config_file, tmp_path):
    values = resolved_values(
        manager(config_file(CONFIG)), {"FXPLUG_STRICT": "1", "FXPLUG_DISABLE_PLUGINS": "viz"}
    )
    file = tmp_path / "pyproject.toml"

    found = {
        value.key: (value.value, value.source.replace(str(file), "FILE"), value.note) for value in values
    }

    assert found == {
        "plugins.disable": ((), "FILE:3", "besides FXPLUG_DISABLE_PLUGINS=viz"),
        "plugins.require": ((), "default", ""),
        "plugins.strict": (True, "FXPLUG_STRICT", ""),
        "trace.leaf_modules": ((), "default", ""),
        "trace.through_modules": ((), "default", ""),
        "trace.leaf_functions": ((), "default", ""),
        "trace.mode": ("shape", "FILE:5", ""),
        "trace.autowrap": (False, "default", ""),
        "trace.check": (True, "default", ""),
        "trace.on_error": ("raise", "default", ""),
        "trace.on_mutation": ("keep", "default", ""),
        "trace.on_guard_failure": ("error", "default", ""),
        "pipelines.fast.passes": (["dead-code", "quant:int8"], "FILE:7", ""),
        "pipelines.fast.passes.1.engine": ("qnnpack", "FILE:9", ""),
        "pipelines.fast.passes.1.layers": ((), "default of fxplug-quant 1.0", ""),
        "pipelines.fast.passes.1.depth": (Depth(), "default of fxplug-quant 1.0", ""),
        "pipelines.fast.on_error": ("raise", "default", ""),
        "pipelines.fast.time_limit": (None, "default", ""),
        "pipelines.fast.hard_time_limit": (None, "default", ""),
        "pipelines.fast.verify": ("structure", "default", ""),
        "pipelines.fast.rtol": (None, "default", ""),
        "pipelines.fast.atol": (None, "default", ""),
        "pipelines.inference.passes": (
            ["dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes"],
            "default",
            "",
        ),
        "pipelines.inference.passes.3.linear": (True, "default of fxplug 0.1.0", ""),
        "pipelines.inference.passes.3.reuse_memory": (True, "default of fxplug 0.1.0", ""),
        "pipelines.inference.on_error": ("raise", "default", ""),
        "pipelines.inference.time_limit": (None, "default", ""),
        "pipelines.inference.hard_time_limit": (None, "default", ""),
        "pipelines.inference.verify": ("structure", "default", ""),
        "pipelines.inference.rtol": (None, "default", ""),
        "pipelines.inference.atol": (None, "default", ""),
        "backends.engine.path": ("p", "FILE:12", ""),
        "cache.folder": ("", "default", ""),
        "cache.size_limit": (10_000_000_000, "default", ""),
        "backends.inductor.dynamic": (None, "default", ""),
        "backends.inductor.mode": ("default", "default", ""),
    }


def test_a_list_that_an_environment_variable_overrules_says_so(manager, config_file):
    values = resolved_values(manager(config_file(CONFIG)), {"FXPLUG_LOAD_PLUGINS": "quant"})

    assert values[0].note == "does not count: FXPLUG_LOAD_PLUGINS decides"


@pytest.mark.parametrize(
    ("section", "name", "known"),
    [
        (TraceConfig, "on_guard_failure", POLICIES),
        (PipelineConfig, "on_error", get_args(OnError)),
        (PipelineConfig, "verify", LEVELS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_policies_of_the_configuration_are_those_there_are(section, name, known):
    kind = section.__annotations__[name].replace('"', "'")

    assert kind == f"Literal[{', '.join(repr(policy) for policy in known)}]"


# -- options -----------------------------------------------------------------------------------------------------


def test_options_are_described_by_their_class():
    assert describe_options(Options) == (
        OptionInfo("engine", "Literal['x86', 'qnnpack']", "x86", False, "Who computes."),
        OptionInfo("layers", "tuple[str, ...]", (), False, ""),
        OptionInfo("depth", "Depth", Depth(), False, ""),
    )
    assert describe_options(Needy) == (OptionInfo("path", "str", None, True, ""),)
    assert describe_options(None) == ()


def test_a_class_without_source_has_no_descriptions():
    namespace: dict[str, Any] = {}
    exec(
        "from dataclasses import dataclass\n@dataclass\nclass Made:\n    a: int = 1\n    '''A.'''\n",
        namespace,
    )

    assert describe_options(namespace["Made"]) == (OptionInfo("a", "int", 1, False, ""),)


@pytest.mark.parametrize("section", [PluginsConfig, TraceConfig, PipelineConfig, Settings])
def test_every_setting_is_described(section):
    described = {option.name: option.description for option in describe_options(section)}

    # Tables are described by their classes.
    assert [name for name, text in described.items() if not text] == (
        ["plugins", "trace"] if section is Settings else []
    )
    assert list(described) == [entry.name for entry in fields(section)]


# -- the schema --------------------------------------------------------------------------------------------------


def accepts(schema: Any, value: Any, root: Any = None) -> bool:
    """Return whether a value is valid by the part of JSON Schema that is used here."""
    root = root or schema
    if "$ref" in schema:
        definition = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            definition = definition[part]
        return accepts(definition, value, root)
    if "anyOf" in schema:
        return any(accepts(choice, value, root) for choice in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, list):
        return all(accepts(schema["items"], element, root) for element in value)
    if isinstance(value, dict):
        extra = schema.get("additionalProperties", True)
        known = schema.get("properties", {})
        return set(schema.get("required", ())) <= set(value) and all(
            accepts(known[key], inner, root)
            if key in known
            else extra is True or (extra is not False and accepts(extra, inner, root))
            for key, inner in value.items()
        )
    return True


GOOD = [
    {},
    {"plugins": {"disable": ["viz"], "strict": True}, "trace": {"mode": "value", "leaf_modules": ["a.*"]}},
    {"pipelines": {"fast": {"passes": ["dead-code", "int8", "quant:int8"], "on_error": "rollback"}}},
    {"pipelines": {"fast": {"passes": [{"name": "int8", "engine": "x86", "depth": {"levels": 3}}]}}},
    {"pipelines": {"fast": {"passes": [{"name": "needy", "path": "p"}, {"name": "odd", "value": 1}]}}},
    {"backends": {"engine": {"path": "p"}, "eager": {}}},
    {"backends": {"quant:engine": {}}},
]
BAD = [
    {"plugin": {}},
    {"trace": {"mode": "valu"}},
    {"trace": {"leaf_module": []}},
    {"pipelines": {"fast": {}}},
    {"pipelines": {"fast": {"passes": ["ded-code"]}}},
    {"pipelines": {"fast": {"passes": ["needy"]}}},
    {"pipelines": {"fast": {"passes": [{"name": "int8", "engin": "x86"}]}}},
    {"pipelines": {"fast": {"passes": [{"name": "int8", "engine": "x87"}]}}},
    {"pipelines": {"fast": {"passes": [{"name": "int8", "depth": {"level": 3}}]}}},
    {"pipelines": {"fast": {"passes": [{"name": "dead-code", "level": 3}]}}},
    {"backends": {"engin": {}}},
    {"backends": {"engine": {"pth": "p"}}},
]


@pytest.mark.parametrize("value", GOOD)
def test_the_schema_accepts_what_is_right(manager, value):
    assert accepts(config_schema(manager()), value)
    assert accepts(
        config_schema(manager(), pyproject=True), {"project": {}, "tool": {"fxplug": value, "x": 1}}
    )


@pytest.mark.parametrize("value", BAD)
def test_the_schema_refuses_what_is_wrong(manager, value):
    assert not accepts(config_schema(manager()), value)
    assert not accepts(config_schema(manager(), pyproject=True), {"tool": {"fxplug": value}})


def test_the_schema_describes_settings_and_options_by_their_classes(manager):
    schema = config_schema(manager())
    definitions = schema["$defs"]

    assert (
        definitions["TraceConfig"]["properties"]["mode"]["description"]
        == {option.name: option.description for option in describe_options(TraceConfig)}["mode"]
    )
    choices = definitions["PipelineConfig"]["properties"]["passes"]["items"]["anyOf"]
    (int8,) = [choice for choice in choices if "engine" in choice.get("properties", {})]
    assert int8["description"] == "Makes it small (fxplug-quant 1.0)."
    assert int8["properties"]["engine"]["description"] == "Who computes."
    assert json.loads(json.dumps(schema)) == schema
