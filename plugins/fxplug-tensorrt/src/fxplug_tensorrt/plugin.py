"""What this plugin answers when fxplug asks. TensorRT need not be installed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.lower import lowered_partitions
from fxplug.plugins import BackendRecord, ReportSectionRecord, hookimpl
from fxplug_tensorrt import hookspecs as PLUGIN_HOOKSPECS  # noqa: N812 - what the host looks for
from fxplug_tensorrt._trt import why_not_here
from fxplug_tensorrt.backend import TensorRTBackend
from fxplug_tensorrt.options import TensorRTOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.plugins import ReportContext

__all__ = ["PLUGIN_HOOKSPECS", "fxplug_register_backends", "fxplug_register_report_sections"]


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer the backend."""
    return [
        BackendRecord(
            "tensorrt",
            TensorRTBackend,
            "Runs parts of graphs in TensorRT.",
            options=TensorRTOptions,
            requires=("tensorrt_rtx",),
            problem=why_not_here,
        )
    ]


@hookimpl
def fxplug_register_report_sections() -> Iterable[ReportSectionRecord]:
    """Say in reports what is in the engines."""
    return [ReportSectionRecord("engines", _engine_rows, "Engines of TensorRT")]


def _engine_rows(context: ReportContext) -> list[tuple[str, ...]] | None:
    from fxplug_tensorrt.runtime import TensorRTModule  # noqa: PLC0415 - nothing runs before

    rows: list[tuple[str, ...]] = [("partition", "of", "what", "found")]
    for path, partition in lowered_partitions(context.lowered).items() if context.lowered is not None else ():
        if isinstance(partition.engine, TensorRTModule):
            rows += [(path, *fact) for fact in partition.engine.facts()]
    return rows if len(rows) > 1 else None
