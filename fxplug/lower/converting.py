"""The skeleton of backends that write programs for an engine operator by operator."""

from __future__ import annotations

import operator
from abc import abstractmethod
from functools import cached_property
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch

from fxplug.errors import FxplugError, NotConvertibleError, PluginError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, Node, iterate_leaves
from fxplug.lower.autograd_functions import called_function
from fxplug.lower.backend import Backend, LoweringContext, Support, fixed_inputs
from fxplug.lower.calls import CallTable
from fxplug.lower.converters import ConverterRecord, ConverterTable
from fxplug.lower.profile import Profile
from fxplug.lower.writing import AtenProgram
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS, aten_decompositions, decompose, decompose_to_aten
from fxplug.rewrite.input_guards import asked_of_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug.rewrite import DecompositionRecord

__all__ = ["ConverterHost", "ConvertingBackend"]

_KNOWN_EARLY = (int, float, bool, torch.dtype, torch.device, str, type)


class ConverterHost(Protocol):
    """Knows what plugins bring to backends; `fxplug.plugins.PluginManager` is one.

    It may have ``hook_problem(hook, distribution)`` besides, which returns why nobody can answer a hook, or an empty
    text.
    """

    def converters(self, hook: str) -> Sequence[tuple[str, ConverterRecord]]:
        """Return the converters of all plugins, each with the distribution and version that brings it."""
        ...

    def decompositions(self) -> tuple[DecompositionRecord, ...]:
        """Return how calls are expressed by simpler ones."""
        ...


class ConvertingBackend(Backend):
    """Runs parts of graphs on an engine; each part is expressed by ATen operators, and these by the engine's.

    What derives from it gives the names below, `builtin_converters`, `written` and `compile`, and maybe `is_installed`,
    `open_dimensions` and `host`.

    Args:
        converters: More converters, before those of plugins.
    """

    engine: ClassVar[str]
    """Name of the engine, for people."""
    distribution: ClassVar[str]
    """The distribution that brings the backend."""
    table: ClassVar[CallTable | None] = None
    """The calls that are supported where nothing can be tried: no example inputs are known, or the engine is
    missing; None for no calls at all."""
    converter_hook: ClassVar[str] = ""
    """The hook that other plugins bring converters by; empty for none. A plugin declares it: one that is missing there
    is a `PluginError`."""

    def __init__(self, converters: Iterable[ConverterRecord] = ()) -> None:
        self.given_converters: tuple[ConverterRecord, ...] = tuple(converters)
        """Those of this very backend, which is what nobody else knows."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was asked of plugins: it belongs to this process, and copies ask again."""
        kinds = (vars(kind) for kind in type(self).__mro__)
        asked = {name for kind in kinds for name, value in kind.items() if isinstance(value, cached_property)}
        return {name: value for name, value in self.__dict__.items() if name not in asked}

    # -- what an engine is

    @abstractmethod
    def builtin_converters(self) -> Iterable[ConverterRecord]:
        """Return the backend's own converters."""

    @abstractmethod
    def written(self, program: AtenProgram) -> Any:
        """Return a program as the engine has it, mostly by `write_program`.

        Raises:
            NotConvertibleError: It cannot be written.
        """

    def is_installed(self) -> bool:
        """Return whether the engine is there; nothing is imported for it."""
        return True

    def open_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions of all inputs whose size is left open: by default none, ``(0,)`` for open batches."""
        return ()

    def host(self) -> ConverterHost | None:
        """Return who knows the plugins: ``fxplug.plugins.default_manager()``; by default nobody, and none is asked."""
        return None

    # -- converters

    @cached_property
    def converters(self) -> ConverterTable:
        """Operator -> how its calls are written: those given, those of plugins, then the backend's own.

        Of plugins that convert the same operator, the last one in their order counts.
        """
        groups: list[tuple[str, Iterable[ConverterRecord]]] = [(self._provider(), self.builtin_converters())]
        groups += [(provider, (record,)) for provider, record in self._of_plugins]
        return ConverterTable([*groups, ("", self.given_converters)])

    @cached_property
    def _of_plugins(self) -> Sequence[tuple[str, ConverterRecord]]:
        host = self._asked
        return () if host is None else host.converters(self.converter_hook)

    @cached_property
    def _asked(self) -> ConverterHost | None:
        """Who is asked for converters of plugins, None for nobody.

        Raises:
            PluginError: No plugin declares the hook; what plugins bring by the right one would be left out without a
                word.
        """
        host = self.host()
        if host is None or not self.converter_hook:
            return None
        ask = getattr(host, "hook_problem", None)
        # Who names the hook brings it; a class that derives from a backend has that from elsewhere.
        owner: Any = next(kind for kind in type(self).__mro__ if "converter_hook" in vars(kind))
        problem = ask(self.converter_hook, owner.distribution) if ask is not None else ""
        if problem:
            raise PluginError(
                f"Cannot ask plugins for converters of {self.engine} (backend class {owner.__qualname__} of "
                f"{self._provider()}): {problem} Correct `converter_hook`, or declare the hook in the module that "
                "PLUGIN_HOOKSPECS of the plugin names."
            )
        return host

    def _provider(self) -> str:
        try:
            return f"{self.distribution} {metadata.version(self.distribution)}"
        except metadata.PackageNotFoundError:  # Run from a checkout that is not installed.
            return self.distribution

    def foreign_providers(self) -> list[str]:
        """Return the plugins that bring converters, with distribution and version: part of an `environment`."""
        return sorted({provider for provider, _ in self._of_plugins})

    def operators(self) -> Mapping[str, str]:
        """Return the name of each operator that has a converter -> the distribution that brings it."""
        known = self.converters
        return {str(target): known.provider_of(target) for target in sorted(known, key=str)}

    # -- what is supported

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether the engine can run `node`.

        With example inputs, and where the engine is installed, the call is written for it; otherwise a table of calls
        is asked.
        """
        if not node.op.startswith("call_"):
            return Support(ok=True)
        _ = self._asked  # That nobody can be asked is no reason for a call to stay in PyTorch, but an error.
        if not self.is_installed() or not context.values:
            reason = self._reason_of_table(node, context)
        else:
            reason = self._table.reason_against_effects(node, context) or self._reason_against_writing(
                node, context
            )
        return Support(ok=not reason, reason=reason)

    @cached_property
    def _table(self) -> CallTable:
        return self.table or CallTable(self.engine, self.distribution, ())

    def _reason_of_table(self, node: Node, context: LoweringContext) -> str:
        if self.table is not None:
            return self.table.reason_against(node, context)
        if not self.is_installed():
            return f"{self.engine} is not installed, so nobody knows whether it can be written"
        return "whether it can be written is only known with example inputs"

    def _reason_against_writing(self, node: Node, context: LoweringContext) -> str:
        values = context.values
        taken = [used for used in node.all_input_nodes if used.op != "get_attr"]
        if any(used not in values for used in taken):
            return "what reaches it is not known without running the program"
        if node not in values or not _has_tensor(values[node]):
            return "" if _is_known_early(values.get(node)) else self._reason_without_tensor(node, context)
        if node.target is operator.getitem and isinstance(values[taken[0]], (tuple, list)):
            return ""  # A part of several results, however they are nested.
        part, device = _single(context.module, node, taken), _device_of(context)
        inputs = tuple(_example(values[used], device) for used in taken)
        result = part.graph.output_node().args[0]
        kinds = {result: type(values[node])} if isinstance(result, Node) else {}
        # A weight that is computed, as one that is dequantized, has no batch although it is an input here.
        fixed = frozenset(number for number, used in enumerate(taken) if used in context.constants)
        try:
            self._written(part, inputs, kinds, fixed, alone=True)
        except FxplugError as error:
            return error.message
        return ""

    def _reason_without_tensor(self, node: Node, context: LoweringContext) -> str:
        if self.table is not None:
            return self.table.reason_against(node, context)
        return "it returns no tensor, and nothing that is known before it runs"

    # -- what is written

    def converted(self, part: GraphModule, inputs: tuple[Any, ...]) -> Any:
        """Return a part of a graph as the engine has it: what `written` returns.

        Args:
            part: Not changed.
            inputs: Examples.

        Raises:
            NotConvertibleError: A call cannot be written; the message names it and its line.
            DecompositionError: It cannot be expressed by ATen operators.
        """
        values = LoweringContext(part, inputs).values
        kinds = {node: type(values.get(node)) for node in part.graph.output_node().all_input_nodes}
        try:
            return self._written(part, inputs, kinds, fixed_inputs(part))
        except NotConvertibleError as error:
            if not error.node:
                raise
            place = f"{error.node!r}, {error.source}" if error.source else repr(error.node)
            error.message = f"{error.message} ({place})"
            error.args = (error.message,)
            raise

    def _written(
        self,
        part: GraphModule,
        inputs: tuple[Any, ...],
        kinds: Mapping[Node, type[Any]],
        fixed: frozenset[int] = frozenset(),
        *,
        alone: bool = False,
    ) -> Any:
        """Return a part as the engine has it.

        Args:
            part: Not changed.
            inputs: Examples.
            kinds: Node that the part returns -> type of its value.
            fixed: Positions of inputs none of whose sizes is left open.
            alone: Whether it is a call that is asked about, whose writes are looked at elsewhere.
        """
        returns = _named_tuple(part, kinds)
        opened = self._opened_for(inputs)
        if alone and any(map(_is_known_early, inputs)):
            opened = ()  # A size that another call reads is a plain number here, so that sizes have to be fixed.
        dynamic: dict[int | str, dict[int, str]] = {
            number: {dim: _size_name(dim) for dim in opened if dim < value.dim()}
            for number, value in enumerate(inputs)
            if opened and number not in fixed and isinstance(value, torch.Tensor) and value.dim()
        }
        with torch.no_grad():
            program = decompose_to_aten(
                decompose(part, self._decompositions()),
                inputs,
                aten_decompositions(),
                core=False,
                dynamic=dynamic or None,
            )
        asked = asked_of_sizes(program.guard_set) if opened and program.guard_set is not None else []
        if asked:
            raise NotConvertibleError(
                f"it would be written for sizes with {asked[0]} alone, and sizes are left open"
            )
        # What the forward of an autograd.Function writes, nobody has looked at yet.
        applied = any(called_function(node) is not None for node in part.graph.nodes)
        _take_out_writes(program, alone=alone and not applied)
        return self.written(AtenProgram(program, inputs, opened, returns, fixed))

    def _decompositions(self) -> Iterable[DecompositionRecord]:
        host = self.host()
        return BUILTIN_DECOMPOSITIONS if host is None else host.decompositions()

    def profile(self, example_inputs: tuple[Any, ...]) -> Profile | None:
        """Return what inputs are accepted: those like the examples, and any size in open dimensions.

        No size is open of a part that takes tensors in containers.
        """
        return Profile.of(example_inputs, open_dimensions=self._opened_for(example_inputs))

    def _opened_for(self, inputs: tuple[Any, ...]) -> tuple[int, ...]:
        """Return the open dimensions of a part; sizes of tensors in containers are written as they are."""
        inside = any(not isinstance(value, torch.Tensor) and _has_tensor((value,)) for value in inputs)
        return () if inside else self.open_dimensions()


def _size_name(dim: int) -> str:
    return "batch" if dim == 0 else f"size_{dim}"


def _take_out_writes(program: GraphModule, *, alone: bool) -> None:
    """Take writes to inputs out of a program, of which an engine computes what is returned alone.

    Raises:
        NotConvertibleError: There is one, and it is seen outside.
    """
    for node in list(program.graph.nodes):
        if node.target is not torch.ops.aten.copy_.default:
            continue
        if not alone:
            raise NotConvertibleError(f"it changes {node.args[0]!r} in place, which is seen outside")
        node.replace_all_uses_with(cast("Node", node.args[1]))
        program.graph.erase_node(node)


def _named_tuple(part: GraphModule, kinds: Mapping[Node, type[Any]]) -> type[Any] | None:
    """Return which of PyTorch's named tuples a part returns; None for a plain result.

    Raises:
        NotConvertibleError: A named tuple is one result of several, or of a class of its own.
    """
    result = part.graph.output_node().args[0]
    for node, kind in kinds.items():
        if issubclass(kind, tuple) and kind is not tuple:
            if node is result and kind.__module__ == "torch.return_types":
                return kind
            raise NotConvertibleError(f"it returns a {kind.__name__} as a whole instead of its parts")
    return None


def _single(module: GraphModule, node: Node, taken: list[Node]) -> GraphModule:
    """Return a module that makes one call of `module`."""
    graph = Graph()
    copies = {used: graph.placeholder(used.name) for used in taken}
    for used in node.all_input_nodes:
        if used not in copies:
            copies[used] = graph.node_copy(used)
    graph.lifted.update(module.graph.lifted)
    made = graph.node_copy(node, lambda used: copies[used])
    # Of several results, those that somebody wants: the engine may have no others.
    numbers = sorted({cast("int", user.args[1]) for user in node.users if _is_part(user, node)})
    if numbers and all(_is_part(user, node) for user in node.users):
        graph.output(tuple(graph.call_function(operator.getitem, (made, number)) for number in numbers))
    else:
        graph.output(made)
    single = GraphModule(module, graph)
    single.set_guards(None)  # They are about inputs of the whole module.
    return single


def _is_part(user: Node, node: Node) -> bool:
    return user.target is operator.getitem and user.args[0] is node and type(user.args[1]) is int


def _device_of(context: LoweringContext) -> torch.device:
    """Return where the program runs, as its inputs or its weights have it."""
    given = (value for value in context.example_inputs or () if isinstance(value, torch.Tensor))
    tensors = chain(given, context.module.parameters(), context.module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _example(value: Any, device: torch.device) -> Any:
    """Return a value with memory of its own, whatever is in it, like one without data."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    if isinstance(value, (tuple, list)):
        parts = [_example(part, device) for part in cast("Sequence[Any]", value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves(value))


def _is_known_early(value: Any) -> bool:
    """Return whether a value is one that a program knows before it runs."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_known_early, cast("Sequence[Any]", value)))
    return isinstance(value, _KNOWN_EARLY)
