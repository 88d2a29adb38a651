"""Annotating traced values."""

from __future__ import annotations

from typing import Any

from fxplug.capture import Proxy
from fxplug.errors import TraceError

__all__ = ["annotate"]


def annotate(val: Any, type: Any) -> Any:  # noqa: A002 - torch.fx's public signature
    """Give the node of a traced value an annotation, and return the value; other values are returned as they are.

    Raises:
        TraceError: The node has one already.
    """
    if isinstance(val, Proxy):
        node = val.node
        if node.type is not None:
            raise TraceError(
                f"Cannot annotate {node.name!r} with {type!r}: it is annotated with {node.type!r} already. Annotate it "
                "once; the annotation of an input stands in the signature."
            )
        node.type = type
    return val
