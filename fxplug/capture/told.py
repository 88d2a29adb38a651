"""Texts that people are told of traced values, which have no digits yet."""

from __future__ import annotations

import re
from typing import Any, cast

from fxplug.capture.proxy import Proxy

__all__ = ["told_text"]

_CONVERSION = re.compile(r"%(\(\w*\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlL]?([A-Za-z%])")
"""How ``%`` is told where to put a value, and as what."""


def told_text(message: Any, values: Any) -> str | None:
    """Return the text of a message about values, in which a traced one is shown as its node is called.

    Args:
        message: With the conversions of ``%``.
        values: A tuple of them, or a dict.

    Returns:
        None where no value is traced, or the conversions take widths from the values.
    """
    held = dict.values(cast("dict[Any, Any]", values)) if isinstance(values, dict) else values
    if not isinstance(held, (tuple, type({}.values()))) or not any(isinstance(one, Proxy) for one in held):
        return None
    text = str(message)
    if any("*" in found.group() for found in _CONVERSION.finditer(text)):
        return None
    plain = _CONVERSION.sub(lambda found: "%%" if found[2] == "%" else f"%{found[1] or ''}s", text)
    return plain % values
