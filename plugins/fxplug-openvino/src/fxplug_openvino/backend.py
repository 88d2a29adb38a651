"""The backend: parts of graphs as models of OpenVINO."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fxplug.errors import NotConvertibleError
from fxplug.lower import ConvertingBackend
from fxplug.plugins import default_manager
from fxplug_openvino._engine import environment, find_engine, load_engine
from fxplug_openvino.conversion import convert
from fxplug_openvino.converters import builtin_converters
from fxplug_openvino.options import Hint, OpenVINOOptions, Precision
from fxplug_openvino.ranges import input_limit
from fxplug_openvino.saturation import is_exact_in_eight_bits
from fxplug_openvino.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from fxplug import GraphModule
    from fxplug.lower import AtenProgram, ConverterRecord
    from fxplug.plugins import PluginManager
    from fxplug_openvino.conversion import Converted

__all__ = ["OpenVINOBackend"]


class OpenVINOBackend(ConvertingBackend):
    """Runs parts of graphs in OpenVINO; each is expressed by ATen operators, and these by OpenVINO's operations.

    Works where OpenVINO is not installed; then it says what its table of calls says, and builds nothing.

    Args:
        device: See `OpenVINOOptions`.
        precision: See `OpenVINOOptions`.
        hint: See `OpenVINOOptions`.
        threads: See `OpenVINOOptions`.
        dynamic_batch: See `OpenVINOOptions`.
        cache_dir: See `OpenVINOOptions`.
        converters: More converters, before those of plugins; by default those of the installed plugins alone.

    Raises:
        ConfigError: A value is not allowed.
    """

    engine = "OpenVINO"
    distribution = "fxplug-openvino"
    converter_hook = "openvino_converters"
    table = TABLE

    def __init__(
        self,
        device: str = "CPU",
        precision: Precision = "f32",
        hint: Hint = "latency",
        threads: int = 0,
        *,
        dynamic_batch: bool = False,
        cache_dir: str = "",
        converters: Iterable[ConverterRecord] = (),
    ) -> None:
        self.options: OpenVINOOptions = OpenVINOOptions(
            device, precision, hint, threads, dynamic_batch, cache_dir
        )
        super().__init__(converters)

    def host(self) -> PluginManager:
        """Return who knows the plugins."""
        return default_manager()

    def is_installed(self) -> bool:
        """Return whether OpenVINO is there."""
        return find_engine() is not None

    def builtin_converters(self) -> Iterable[ConverterRecord]:
        """Return the converters of this plugin."""
        return builtin_converters().values()

    def open_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions whose size is left open: with ``dynamic_batch``, the first."""
        return (0,) if self.options.dynamic_batch else ()

    def computes_in_eight_bits(self) -> bool:
        """Return whether what takes quantized values is computed in eight bits: where their sums are exact.

        With the precision ``"default"`` the choice is left to OpenVINO.

        Raises:
            BackendError: OpenVINO is missing.
        """
        return self.options.precision == "default" or is_exact_in_eight_bits(self.options.device)

    def written(self, program: AtenProgram) -> Converted:
        """Return the model of a program.

        Raises:
            NotConvertibleError: It cannot be written.
        """
        limit = input_limit(program.module, program.inputs)
        if limit is None:
            raise NotConvertibleError(
                "its whole numbers may need 64 bits, and OpenVINO computes them with 32; use floating point, or "
                "numbers that cannot get as large"
            )
        return replace(convert(program, self.converters, self.computes_in_eight_bits), limit=limit)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return a module that runs `subgraph` in OpenVINO.

        Raises:
            BackendError: OpenVINO is missing, and the message says what to install; or it refuses the model.
        """
        load_engine()
        from fxplug_openvino.runtime import OpenVINOModule  # noqa: PLC0415 - nothing is run before

        converted = self.converted(subgraph, example_inputs)
        return OpenVINOModule.compiled(converted, self.options.device, self.options.properties())

    def environment(self) -> Mapping[str, str] | None:
        """Return the versions and the processor that a compiled model depends on; None with converters of one's own.

        Raises:
            BackendError: OpenVINO is missing, or does not have the device.
        """
        if self.given_converters:
            return None
        found = environment(self.options.device, self.foreign_providers())
        return found | {"int8": "exact" if is_exact_in_eight_bits(self.options.device) else "saturates"}

    def artefact(self, engine: nn.Module) -> bytes | None:
        """Return a compiled model as bytes, None where what it returns besides tensors cannot be written down."""
        from fxplug_openvino.runtime import OpenVINOModule  # noqa: PLC0415 - as below

        return engine.artefact() if isinstance(engine, OpenVINOModule) else None

    def restore(self, artefact: bytes) -> nn.Module:
        """Return the module for a compiled model that was kept.

        Raises:
            BackendError: OpenVINO is missing, or refuses it.
        """
        load_engine()
        from fxplug_openvino.runtime import OpenVINOModule  # noqa: PLC0415 - as below

        return OpenVINOModule.restored(artefact, self.options.device, self.options.properties())
