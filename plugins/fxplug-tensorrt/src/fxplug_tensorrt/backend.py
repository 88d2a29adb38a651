"""The backend: parts of graphs as engines of TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.errors import BackendError
from fxplug.lower import ConvertingBackend
from fxplug.plugins import default_manager
from fxplug_tensorrt._trt import find_engine, load_engine, why_engines_do_not_run
from fxplug_tensorrt.options import Precision, TensorRTOptions
from fxplug_tensorrt.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from fxplug import GraphModule
    from fxplug.lower import AtenProgram, ConverterRecord
    from fxplug.plugins import PluginManager
    from fxplug_tensorrt.conversion import Converted

__all__ = ["TensorRTBackend"]


class TensorRTBackend(ConvertingBackend):
    """Runs parts of graphs in TensorRT; each is expressed by ATen operators, and these by TensorRT's layers.

    Works where TensorRT is not installed; then it says what its table of calls says, and builds nothing. Where there is
    no GPU it builds engines for those that `targets` names.

    Args:
        precision: See `TensorRTOptions`.
        min_block_size: See `TensorRTOptions`.
        targets: See `TensorRTOptions`.
        batch_sizes: See `TensorRTOptions`.
        workspace_mib: See `TensorRTOptions`.
        optimization_level: See `TensorRTOptions`.
        timing_cache: See `TensorRTOptions`.
        cuda_graphs: See `TensorRTOptions`.
        refit: See `TensorRTOptions`.
        converters: More converters, before those of plugins; by default those of the installed plugins alone.

    Raises:
        ConfigError: A value is not allowed.
    """

    engine = "TensorRT"
    distribution = "fxplug-tensorrt"
    converter_hook = "tensorrt_converters"
    table = TABLE

    def __init__(  # noqa: PLR0913 - the options, by keyword
        self,
        precision: Precision = "fp32",
        min_block_size: int = 1,
        *,
        targets: Iterable[str] = (),
        batch_sizes: Iterable[int] = (),
        workspace_mib: int = 0,
        optimization_level: int = -1,
        timing_cache: str = "",
        cuda_graphs: bool = False,
        refit: bool = False,
        converters: Iterable[ConverterRecord] = (),
    ) -> None:
        self.options = TensorRTOptions(
            precision,
            min_block_size,
            tuple(targets),
            tuple(batch_sizes),
            workspace_mib,
            optimization_level,
            timing_cache,
            cuda_graphs,
            refit,
        )
        super().__init__(converters)

    def host(self) -> PluginManager:
        """Return who knows the plugins."""
        return default_manager()

    def is_installed(self) -> bool:
        """Return whether TensorRT is there."""
        return find_engine() is not None

    def builtin_converters(self) -> Iterable[ConverterRecord]:
        """Return the converters of this plugin."""
        from fxplug_tensorrt.converters import builtin_converters  # noqa: PLC0415 - needed here alone

        return builtin_converters().values()

    def open_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions whose size is left open: with ``batch_sizes``, the first."""
        return (0,) if self.options.batch_sizes else ()

    def written(self, program: AtenProgram) -> Converted:
        """Return the network of a program.

        Raises:
            NotConvertibleError: It cannot be written.
        """
        from fxplug_tensorrt.conversion import convert_program  # noqa: PLC0415 - nothing is written before

        return convert_program(
            program,
            self.converters,
            computed_in=self.options.computed_in,
            refits=self.options.refit,
            targets=self.options.targets,
        )

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return a module that runs `subgraph` in TensorRT.

        Raises:
            BackendError: TensorRT is missing, and the message says what to install; it refuses the network; or no
                GPU runs its engines, and `targets` names none to build for.
        """
        load_engine()
        calls = sum(node.op.startswith("call_") for node in subgraph.graph.nodes)
        if calls < self.options.min_block_size:
            raise BackendError(
                f"the partition has {calls} calls, fewer than min_block_size={self.options.min_block_size}"
            )
        self._check_machine()
        from fxplug_tensorrt.engine import build_plan  # noqa: PLC0415 - nothing is built before
        from fxplug_tensorrt.runtime import TensorRTModule  # noqa: PLC0415 - as above
        from fxplug_tensorrt.saving import EngineRecord  # noqa: PLC0415 - as above

        converted = self.converted(subgraph, example_inputs)
        plan = build_plan(converted, self.options)
        return TensorRTModule(EngineRecord.of(converted, self.options, plan))

    def _check_machine(self) -> None:
        if self.options.targets:
            return
        if reason := why_engines_do_not_run():
            raise BackendError(
                f"Cannot build with TensorRT for the GPU at hand: TensorRT finds none that it runs on ({reason}). Name "
                'the GPUs that the engine is for with targets, such as ("SM86",), or use a machine with a GPU and its '
                "driver."
            )
