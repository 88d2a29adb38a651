"""Pages that stand alone: every script, style and datum is inside, and nothing else may be loaded or run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fxplug.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["asset", "embedded_json", "page", "write_page"]

_PICTURES = {".dot", ".gif", ".gv", ".jpeg", ".jpg", ".pdf", ".png", ".svg"}
_ASSETS = files("fxplug_viz") / "assets"


def asset(name: str) -> str:
    """Return the text of a file that the plugin brings along."""
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def embedded_json(data: Any) -> Markup:
    """Return data as JSON that can stand in a script element: no text in it ends the element or begins another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # What HTML gives a meaning to is escaped.


def page(template: str, *, scripts: dict[str, str], style: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: Name of the template, a file that the plugin brings along.
        scripts: The scripts by the name that the template has for them. No other may run.
        style: The style sheet.
        values: What else the template shows; text is escaped.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts.values()))}" if scripts else "script-src 'none'",
        f"style-src {_hash(style)}",
        "worker-src blob:",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # Files that the plugin brings along are no text to be escaped.
    return environment.from_string(asset(template)).render(
        **values,
        scripts={name: Markup(text) for name, text in scripts.items()},
        style=Markup(style),
        policy="; ".join(policy),
        licences=asset("vendor/LICENSES.txt"),
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_page(path: Path, text: str) -> None:
    """Write a file completely, or leave what was there.

    Raises:
        ConfigError: The name is that of a picture.
        StorageError: It cannot be written.
    """
    if path.suffix.lower() in _PICTURES:
        raise ConfigError(
            f"Cannot write a page to {str(path)!r}: the name is that of a picture, and a browser would not open it. "
            f"Let it end in .html; 'fxplug draw' and 'fxplug_viz.draw' make pictures."
        )
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8", newline="\n")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise StorageError(
            f"Cannot write the page to {str(path)!r}: {error.strerror or error}. Name a file in a folder that exists "
            f"and can be written to."
        ) from error
