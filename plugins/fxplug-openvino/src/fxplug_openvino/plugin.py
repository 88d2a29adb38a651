"""What this plugin answers when fxplug asks. OpenVINO need not be installed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.plugins import BackendRecord, hookimpl
from fxplug_openvino import hookspecs as PLUGIN_HOOKSPECS  # noqa: N812 - what the host looks for
from fxplug_openvino.backend import OpenVINOBackend
from fxplug_openvino.options import OpenVINOOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PLUGIN_HOOKSPECS", "fxplug_register_backends"]


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer the backend."""
    return [
        BackendRecord(
            "openvino",
            OpenVINOBackend,
            "Runs parts of graphs in OpenVINO.",
            options=OpenVINOOptions,
            requires=("openvino",),
        )
    ]
