"""The JSON Schema of the configuration, for editors. Imports pydantic, so it is itself imported only when needed."""

from __future__ import annotations

import inspect
import typing
import warnings
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter

from fxplug.plugins.options import attribute_docstrings
from fxplug.plugins.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.plugins.manager import PluginManager
    from fxplug.plugins.offers import BackendOffer, PassOffer

__all__ = ["config_schema"]

Schema = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(manager: PluginManager, *, pyproject: bool = False) -> Schema:
    """Return the JSON Schema of ``fxplug.toml``, with the names and options of the passes and backends there are.

    Args:
        manager: Whose plugins offer passes and backends.
        pyproject: Whether it is for ``pyproject.toml``, where the tables stand below ``tool.fxplug``.
    """
    definitions: dict[str, Schema] = {}
    settings = _schema_of(Settings, "", definitions)
    definitions["PipelineConfig"]["properties"]["passes"]["items"] = {
        "anyOf": [
            choice for offer in manager.passes().values() for choice in _pass_choices(offer, definitions)
        ]
    }
    settings["properties"]["backends"] |= _backends(list(manager.backends().values()), definitions)
    for name, text in attribute_docstrings(Settings).items():
        settings["properties"][name]["description"] = text
    settings["title"] = "fxplug"
    if not pyproject:
        return {"$schema": _DIALECT, **settings, "$defs": definitions}
    tool = {"type": "object", "properties": {"fxplug": settings}}
    return {"$schema": _DIALECT, "type": "object", "properties": {"tool": tool}, "$defs": definitions}


def _schema_of(model: type[Any], namespace: str, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a dataclass; those that it refers to become definitions, with `namespace` in front."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A default that JSON cannot hold is left out of the schema.
        schema: Schema = TypeAdapter(model).json_schema(ref_template=f"#/$defs/{namespace}{{model}}")
    inner: dict[str, Schema] = schema.pop("$defs", {})
    _describe(schema, model)
    classes = {kind.__name__: kind for kind in _dataclasses_in(model, set())}
    for name, definition in inner.items():
        if name in classes:
            _describe(definition, classes[name])
        definitions[namespace + name] = definition
    return schema


def _describe(schema: Schema, model: type[Any]) -> None:
    """Add what the class says about itself, and that it takes no other keys."""
    schema["additionalProperties"] = False
    for name, text in attribute_docstrings(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = text
    text = inspect.getdoc(model) or ""
    if text and not text.startswith(f"{model.__name__}("):  # The one that dataclasses make up says nothing.
        schema["description"] = " ".join(text.split())


def _dataclasses_in(annotation: Any, seen: set[Any]) -> Iterator[type[Any]]:
    if is_dataclass(annotation) and isinstance(annotation, type) and annotation not in seen:
        seen.add(annotation)
        yield cast("type[Any]", annotation)
        for hint in typing.get_type_hints(annotation).values():
            yield from _dataclasses_in(hint, seen)
    for argument in typing.get_args(annotation):
        yield from _dataclasses_in(argument, seen)


# -- what plugins offer --------------------------------------------------------------------------------------


def _names_of(offer: PassOffer | BackendOffer) -> list[str]:
    return list(dict.fromkeys(name for name in (offer.alias, offer.name) if name is not None))


_PASS_SETTINGS: Schema = {
    "time_limit": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Seconds that the pass may take, instead of what the pipeline says.",
    },
    "hard_time_limit": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Seconds after which the process of the pass is ended, instead of what the pipeline says.",
    },
}


def _pass_choices(offer: PassOffer, definitions: dict[str, Schema]) -> Iterator[Schema]:
    options = _options_schema(f"pass-{offer.name}", offer, definitions)
    if not options.get("required"):
        yield {"enum": _names_of(offer), "description": options["description"]}
    name = {"enum": _names_of(offer), "description": "The pass."}
    yield {
        **options,
        "properties": {"name": name, **_PASS_SETTINGS, **options["properties"]},
        "required": ["name", *options.get("required", [])],
    }


def _backends(offers: list[BackendOffer], definitions: dict[str, Schema]) -> Schema:
    properties: dict[str, Schema] = {}
    for offer in offers:
        key = f"backend-{offer.name}"
        # Whatever is missing may be given by an argument.
        options = _options_schema(key, offer, definitions)
        options.pop("required", None)
        definitions[key] = options
        properties |= {name: {"$ref": f"#/$defs/{key}"} for name in _names_of(offer)}
    return {"properties": properties, "additionalProperties": False}


def _options_schema(key: str, offer: PassOffer | BackendOffer, definitions: dict[str, Schema]) -> Schema:
    summary = f"{offer.record.summary.rstrip('.')} ({offer.provider})."
    empty: Schema = {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
        "description": summary,
    }
    if offer.record.options is None:
        return empty
    try:
        schema = _schema_of(offer.record.options, f"{key}-", definitions)
    except Exception:  # What a plugin annotates may have no schema; it is still checked when it is used.
        return {**empty, "additionalProperties": True}
    return {"properties": {}, **schema, "description": summary}
