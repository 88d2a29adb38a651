"""The reference of the configuration: prose in ``tools/configuration.md``, tables from the settings classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fxplug.plugins import CacheConfig, PipelineConfig, PluginsConfig, TraceConfig
from fxplug.plugins.options import OptionInfo, describe_options
from fxplug.plugins.resolved import VARIABLES

__all__ = ["page"]

_TEXT = Path(__file__).with_name("configuration.md")
_NOTE = (
    "<!-- Made by tools/generate_docs.py from tools/configuration.md and fxplug/plugins/settings.py. Edit those files, "
    "then run the tool. -->\n\n"
)
_TYPES = {
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "str": "text",
    "tuple[str, ...]": "list of texts",
}


def page() -> str:
    """Return the page."""
    text = _NOTE + _TEXT.read_text(encoding="utf-8")
    for section in (PluginsConfig, TraceConfig, PipelineConfig, CacheConfig):
        text = text.replace(f"{{{section.__name__}}}", _table(section))
    rows = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return text.replace("{variables}", "\n".join(["| variable | |", "|---|---|", *rows]))


def _table(section: type[Any]) -> str:
    rows = [
        f"| `{option.name}` | {_type_text(option)} | {_default_text(option)} | {_prose(option.description)} |"
        for option in describe_options(section)
    ]
    return "\n".join(["| key | value | default | |", "|---|---|---|---|", *rows])


def _type_text(option: OptionInfo) -> str:
    kind = option.type.removesuffix(" | None")
    if kind.startswith("Literal["):
        choices = kind.removeprefix("Literal[").removesuffix("]").replace("'", '"').split(", ")
        return ", ".join(f"`{choice}`" for choice in choices)
    return _TYPES.get(kind, "list of names and tables")


def _default_text(option: OptionInfo) -> str:
    if option.required:
        return "required"
    return "" if option.default is None else f"`{json.dumps(option.default)}`"


def _prose(text: str) -> str:
    return text.replace("``", "`")
