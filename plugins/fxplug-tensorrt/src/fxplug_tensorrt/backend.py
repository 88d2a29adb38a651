"""The backend: parts of graphs as engines of TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug import Backend, Graph, GraphModule, LoweringContext, Node, Support
from fxplug.errors import BackendError, FxplugError
from fxplug.lower import Profile
from fxplug.plugins import default_manager
from fxplug_tensorrt._trt import find_engine, load_engine, why_engines_do_not_run
from fxplug_tensorrt.options import Precision, TensorRTOptions
from fxplug_tensorrt.support import reason_against, reason_against_effects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from fxplug_tensorrt.conversion import Converted, ConverterRecord

__all__ = ["TensorRTBackend"]


class TensorRTBackend(Backend):
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
        converters: More converters, before those of plugins; by default those of the installed plugins alone.

    Raises:
        ConfigError: A value is not allowed.
    """

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
        )
        self._given = tuple(converters)
        self._known: Mapping[Any, ConverterRecord] | None = None

    @property
    def converters(self) -> Mapping[Any, ConverterRecord]:
        """Operator -> how its calls are written: those given, those of plugins, then its own."""
        if self._known is None:
            from fxplug_tensorrt.converters import builtin_converters  # noqa: PLC0415 - needed here alone

            found = dict(builtin_converters())
            for answer in default_manager().ask("tensorrt_converters"):
                found.update({record.target: record for record in answer})
            found.update({record.target: record for record in self._given})
            self._known = found
        return self._known

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether TensorRT can run `node`.

        With example inputs, and where TensorRT is installed, the call is written for it; otherwise a table of calls is
        asked.
        """
        if not node.op.startswith("call_"):
            return Support(ok=True)
        if find_engine() is None or not context.values:
            reason = reason_against(node, context)
            return Support(ok=not reason, reason=reason)
        reason = reason_against_effects(node, context) or self._reason_against_writing(node, context)
        return Support(ok=not reason, reason=reason)

    def _reason_against_writing(self, node: Node, context: LoweringContext) -> str:
        values = context.values
        taken = [used for used in node.all_input_nodes if used.op != "get_attr"]
        if any(used not in values for used in taken):
            return "what reaches it is not known without running the program"
        if node not in values or not _has_tensor(values[node]):
            reason = reason_against(node, context)
            return "" if not reason or _is_about_numbers(values.get(node)) else reason
        part = _single(context.module, node, taken)
        device = _device_of(context)
        try:
            self._converted(part, tuple(_example(values[used], device) for used in taken), alone=True)
        except FxplugError as error:
            return error.message
        return ""

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

        converted = self._converted(subgraph, example_inputs)
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

    def profile(self, example_inputs: tuple[Any, ...]) -> Profile:
        """Return what inputs are accepted: with ``batch_sizes``, the engine looks at the first size itself."""
        return Profile.of(example_inputs, open_dimensions=self._open_dimensions())

    def _open_dimensions(self) -> tuple[int, ...]:
        return (0,) if self.options.batch_sizes else ()

    def _converted(self, part: GraphModule, inputs: tuple[Any, ...], *, alone: bool = False) -> Converted:
        """Return the network of a part; `alone` is a call that is asked about, whose writes are looked at elsewhere."""
        from fxplug_tensorrt.conversion import convert  # noqa: PLC0415 - nothing is written before
        from fxplug_tensorrt.network import NotConvertibleError  # noqa: PLC0415 - as above

        dynamic: dict[int | str, dict[int, str]] = {}
        # A size that another call reads is a plain number here: a call that is asked about has fixed sizes then.
        is_open = bool(self.options.batch_sizes) and not (alone and any(map(_is_about_numbers, inputs)))
        if is_open:
            dynamic = {
                number: {0: "batch"}
                for number, value in enumerate(inputs)
                if isinstance(value, torch.Tensor) and value.dim()
            }
        with torch.no_grad():
            written = fxplug.decompose(part, inputs, to="aten", dynamic=dynamic or None)
        for node in list(written.graph.nodes):
            if node.target is torch.ops.aten.copy_.default:
                if alone:
                    node.replace_all_uses_with(node.args[1])
                    written.graph.erase_node(node)
                    continue
                raise NotConvertibleError(f"it changes {node.args[0]!r} in place, which is seen outside")
        return convert(
            written,
            inputs,
            self.converters,
            computed_in=self.options.computed_in,
            open_dimensions=self._open_dimensions() if is_open else (),
        )


def _single(module: GraphModule, node: Node, taken: list[Node]) -> GraphModule:
    """Return a module that makes one call of `module`."""
    graph = Graph()
    copies = {used: graph.placeholder(used.name) for used in taken}
    for used in node.all_input_nodes:
        if used not in copies:
            copies[used] = graph.node_copy(used)
    graph.lifted.update(module.graph.lifted)
    graph.output(graph.node_copy(node, lambda used: copies[used]))
    part = GraphModule(module, graph)
    part.set_guards(None)  # They are about the inputs of the whole.
    return part


def _device_of(context: LoweringContext) -> torch.device:
    """Return where the program runs, as its inputs or its weights have it."""
    tensors = [value for value in context.example_inputs or () if isinstance(value, torch.Tensor)]
    return next((tensor.device for tensor in [*tensors, *context.module.parameters()]), torch.device("cpu"))


def _example(value: Any, device: torch.device) -> Any:
    """Return a value with memory of its own, whatever is in it, like one without data."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    if isinstance(value, (tuple, list)):
        parts = [_example(part, device) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def _is_about_numbers(value: Any) -> bool:
    """Return whether a value is one that a program knows before it runs."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_about_numbers, value))
    return isinstance(value, (int, float, bool, torch.dtype, torch.device, str))
