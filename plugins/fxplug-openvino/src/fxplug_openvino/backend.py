"""The backend: parts of graphs as models of OpenVINO."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug import Backend, Graph, GraphModule, LoweringContext, Node, Support
from fxplug.errors import FxplugError
from fxplug.lower import Profile
from fxplug.plugins import default_manager
from fxplug_openvino._engine import environment, find_engine, load_engine
from fxplug_openvino.conversion import ConverterRecord, NotConvertibleError, convert
from fxplug_openvino.converters import builtin_converters
from fxplug_openvino.options import Hint, OpenVINOOptions, Precision
from fxplug_openvino.ranges import input_limit
from fxplug_openvino.support import reason_against, reason_against_effects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from fxplug_openvino.conversion import Converted

__all__ = ["OpenVINOBackend"]


class OpenVINOBackend(Backend):
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
        self._given = tuple(converters)
        self._known: Mapping[Any, ConverterRecord] | None = None

    @property
    def converters(self) -> Mapping[Any, ConverterRecord]:
        """Operator -> how its calls are written: those given, those of plugins, then its own."""
        if self._known is None:
            found = dict(builtin_converters())
            for answer in default_manager().ask("openvino_converters"):
                found.update({record.target: record for record in answer})
            found.update({record.target: record for record in self._given})
            self._known = found
        return self._known

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether OpenVINO can run `node`.

        With example inputs, and where OpenVINO is installed, the call is written for it; otherwise a table of calls is
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
        try:
            self._converted(part, tuple(_example(values[used]) for used in taken), alone=True)
        except FxplugError as error:
            return error.message
        return ""

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return a module that runs `subgraph` in OpenVINO.

        Raises:
            BackendError: OpenVINO is missing, and the message says what to install; or it refuses the model.
        """
        load_engine()
        from fxplug_openvino.runtime import OpenVINOModule  # noqa: PLC0415 - nothing is run before

        converted = self._converted(subgraph, example_inputs)
        return OpenVINOModule.compiled(converted, self.options.device, self.options.properties())

    def operators(self) -> Mapping[str, str]:
        """Return the name of each operator that has a converter -> the package that brings this."""
        return {
            str(target): record.function.__module__.partition(".")[0]
            for target, record in sorted(self.converters.items(), key=lambda pair: str(pair[0]))
        }

    def environment(self) -> Mapping[str, str] | None:
        """Return the versions and the processor that a compiled model depends on; None with converters of one's own.

        Raises:
            BackendError: OpenVINO is missing, or does not have the device.
        """
        if self._given:
            return None
        return environment(self.options.device, self._foreign_converters())

    def _foreign_converters(self) -> list[str]:
        """Return who writes calls besides this plugin, with distribution and version."""
        plugins = default_manager().plugin_infos()
        return [
            f"{plugin.distribution} {plugin.version}"
            for plugin in plugins
            if plugin.status == "active" and "openvino_converters" in plugin.hooks
        ]

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

    def profile(self, example_inputs: tuple[Any, ...]) -> Profile:
        """Return what inputs are accepted: with ``dynamic_batch``, of any size in the first dimension."""
        return Profile.of(example_inputs, open_dimensions=self._open_dimensions())

    def _open_dimensions(self) -> tuple[int, ...]:
        return (0,) if self.options.dynamic_batch else ()

    def _converted(self, part: GraphModule, inputs: tuple[Any, ...], *, alone: bool = False) -> Converted:
        """Return the model of a part; `alone` is a call that is asked about, whose writes are looked at elsewhere."""
        kind = _kind_of_results(part, inputs)
        dynamic: dict[int | str, dict[int, str]] | None = None
        if self.options.dynamic_batch:
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
        limit = input_limit(written, inputs)
        if limit is None:
            raise NotConvertibleError(
                "its whole numbers may need 64 bits, and OpenVINO computes them with 32; use floating point, or "
                "numbers that cannot get as large"
            )
        converted = convert(written, inputs, self.converters, self._open_dimensions())
        results = converted.results if kind is None else kind(converted.results)
        return replace(converted, limit=limit, results=results)


def _single(module: GraphModule, node: Node, taken: list[Node]) -> GraphModule:
    """Return a module that makes one call of `module`."""
    graph = Graph()
    copies = {used: graph.placeholder(used.name) for used in taken}
    for used in node.all_input_nodes:
        if used not in copies:
            copies[used] = graph.node_copy(used)
    graph.lifted.update(module.graph.lifted)
    made = graph.node_copy(node, lambda used: copies[used])
    # Of several results, those that somebody wants: OpenVINO may have no others.
    numbers = sorted({user.args[1] for user in node.users if _is_part(user, node)})
    if numbers and all(_is_part(user, node) for user in node.users):
        graph.output(tuple(graph.call_function(operator.getitem, (made, number)) for number in numbers))
    else:
        graph.output(made)
    single = GraphModule(module, graph)
    single.set_guards(None)  # They are about inputs of the whole module.
    return single


def _kind_of_results(part: GraphModule, inputs: tuple[Any, ...]) -> Any:
    """Return which of PyTorch's named tuples a part returns; None for a plain result.

    Raises:
        NotConvertibleError: A named tuple is one result of several, or of a class of its own.
    """
    values = LoweringContext(part, inputs).values
    result = part.graph.output_node().args[0]
    for node in part.graph.output_node().all_input_nodes:
        kind = type(values.get(node))
        if issubclass(kind, tuple) and kind is not tuple:
            if node is result and kind.__module__ == "torch.return_types":
                return kind
            raise NotConvertibleError(f"it returns a {kind.__name__} as a whole instead of its parts")
    return None


def _is_part(user: Node, node: Node) -> bool:
    return user.target is operator.getitem and user.args[0] is node and type(user.args[1]) is int


def _example(value: Any) -> Any:
    """Return a value with memory of its own, whatever is in it, like one without data."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    if isinstance(value, (tuple, list)):
        parts = [_example(part) for part in value]
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
