"""What this plugin answers when fxplug asks. OpenVINO need not be installed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.plugins import BackendRecord, hookimpl
from fxplug_openvino.backend import OpenVINOBackend
from fxplug_openvino.options import OpenVINOOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fxplug_register_backends"]


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer the backend."""
    return [
        BackendRecord(
            "openvino",
            OpenVINOBackend,
            "Says what OpenVINO could run; building with it comes in a later version.",
            options=OpenVINOOptions,
            requires=("openvino",),
        )
    ]
