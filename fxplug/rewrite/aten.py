"""Expressing a whole program by operators of ATen: it runs on tensors without data, and what is heard is written.

Writes are made new values first, and inputs, parameters and buffers that were written to are given theirs at the end.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import DecompositionError, FxplugError
from fxplug.execute import GraphModule, Interpreter, has_path
from fxplug.execute.guards import check_guards
from fxplug.execute.paths import Holders
from fxplug.execute.shadow import state_tensors, with_other_tensors
from fxplug.ir import Graph, MadeBy, Node, RegionEntry, effects, iterate_leaves, map_aggregate, qualified_name
from fxplug.rewrite.aten_tables import take_along_dim
from fxplug.rewrite.calls import is_of_torch
from fxplug.rewrite.dropout import input_of_dropout, is_off
from fxplug.rewrite.edits import notes_of
from fxplug.rewrite.expected import (
    Description,
    as_fake,
    difference,
    expected_values,
    is_kept,
)
from fxplug.rewrite.gradients import (
    GradientsInside,
    HasGradient,
    is_detached_in_place,
    marked_tensor,
    python_gradient,
    python_gradients,
    viewed,
    written_behind_detach,
)
from fxplug.rewrite.input_guards import InputLeaf, guards_for, input_leaves
from fxplug.rewrite.recording import OperatorRecorder
from fxplug.rewrite.writes import writes_by_layout
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import (
    FakeTensorMode,
    from_functional,
    functionalisation,
    has_hooks,
    has_only_weight_hooks,
    is_about_missing_data,
    is_functional,
    storage_of,
    to_functional,
    version_of,
    writes_hidden_from_autograd,
)
from fxplug.semantics.symbols import SymbolicSizes, is_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["decompose_to_aten"]

_MADE = MadeBy("decompose")
_HOOKING = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
_COPY = torch.ops.aten.copy_.default
_CLONE = torch.ops.aten.clone.default
_REQUIRES_GRAD = torch.ops.aten.requires_grad_.default


def decompose_to_aten(
    module: GraphModule,
    inputs: Sequence[Any],
    table: Mapping[Any, Callable[..., Any]],
    *,
    core: bool,
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
) -> GraphModule:
    """Return a module whose graph calls operators of ATen only.

    Args:
        module: Not changed. Parameters and buffers are shared with the result.
        inputs: What it is called with; sizes and dtypes count.
        table: Operator -> a function that computes the same by others.
        core: Whether operators are to be core ones.
        dynamic: Position or name of an input -> dimension -> name of a size that stays open.

    Raises:
        DecompositionError: The program asks for values, or does what operators of ATen cannot express.
        GuardError: The examples are not what the program was captured for.
    """
    check_guards(module, tuple(inputs))
    for_inference = not torch.is_grad_enabled()
    with torch.inference_mode(mode=False), torch.set_grad_enabled(not for_inference):
        writer = _AtenWriter(module, inputs, table, core=core, dynamic=dynamic or {})
        writer.for_inference = for_inference
        return writer.decompose()


@dataclass
class _State:
    """A tensor that the program did not make: a parameter, buffer, constant or input."""

    stand_in: torch.Tensor
    """What the program sees."""
    fake: torch.Tensor
    """What operators see, until somebody writes to it."""
    tensor: torch.Tensor
    """The real one."""
    name: str
    """For people."""


class _AtenWriter(Interpreter):
    """Runs a graph on stand-ins for its inputs and state, and writes what is heard."""

    def __init__(
        self,
        module: GraphModule,
        inputs: Sequence[Any],
        table: Mapping[Any, Callable[..., Any]],
        *,
        core: bool,
        dynamic: Mapping[int | str, Mapping[int, str]],
    ) -> None:
        self.source = module
        self._placeholders = module.graph.find_nodes(op="placeholder")
        self.inputs = _complete(self._placeholders, module.graph.process_inputs(*inputs))
        names = [str(node.target).lstrip("*") for node in self._placeholders]
        self.sizes = SymbolicSizes(dynamic, names, self.inputs) if dynamic else None
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True) if self.sizes is None else self.sizes.mode
        self.new_graph = Graph()
        self.new_graph.generate_code_as(module.graph)
        self.new_graph.keyword_only = module.graph.keyword_only
        self.new_graph.lifted = dict(module.graph.lifted)
        self.recorder = OperatorRecorder(self.new_graph, table, self.sizes, core=core)
        self.states: dict[int, _State] = {}
        """By the ids of their stand-ins."""
        self._paths: dict[int, str] = {}
        for path, tensor in state_tensors(module):
            self._paths.setdefault(id(tensor), path)
        self._input_states: dict[int, str] = {}
        """Id of the stand-in of a part of an input -> its name."""
        self._versions: dict[int, int | None] = {}
        self._containers: dict[int, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {}
        super().__init__(with_other_tensors(module, self._state_stand_in), graph=module.graph)
        self.extra_traceback = False
        self.for_inference = False
        """Whether nobody needs gradients of the result."""
        self.expected: dict[Node, Description] = {}
        """What values are like in the program."""

    # -- what stands for what

    def _state_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = as_fake(tensor, self.fake_mode)
        path = self._paths[id(tensor)]
        self.recorder.paths[id(fake)] = path
        return self._new_state(fake, tensor, path)

    def _new_state(self, fake: torch.Tensor, tensor: torch.Tensor, name: str) -> torch.Tensor:
        state = _State(to_functional(fake), fake, tensor, name)
        self.states[id(state.stand_in)] = state
        return state.stand_in

    def _written_inputs(self) -> list[Any]:
        """Write the inputs, and return what the program runs on."""
        values: list[Any] = []
        for position, (old, value) in enumerate(zip(self._placeholders, self.inputs, strict=True)):
            node = self.new_graph.node_copy(old)
            node.meta = notes_of(old)
            text = str(old.target).lstrip("*")
            stand_ins = [
                self._input_stand_in(position, leaf)
                for leaf in input_leaves(self.new_graph, node, value, text)
            ]
            values.append(_rebuilt(value, iter(stand_ins)))
        return values

    def _input_stand_in(self, position: int, leaf: InputLeaf) -> Any:
        if not isinstance(leaf.value, torch.Tensor):
            return leaf.value
        if self.sizes is None:
            fake = as_fake(leaf.value, self.fake_mode)
        else:
            fake = self.sizes.converted(position, leaf.value)
            for dimension in self.sizes.dynamic.get(position, ()):
                self.recorder.bind_size((position, dimension), leaf.node)
        self.recorder.bind(fake, leaf.node)
        stand_in = self._new_state(fake, leaf.value, leaf.text)
        if not (stand_in.requires_grad or self.for_inference) and fake.is_floating_point():
            # Whether it will have gradients when the result is called is not known.
            stand_in = HasGradient.apply(stand_in, torch.zeros((), requires_grad=True))
        self._input_states[id(stand_in)] = leaf.text
        self._versions[id(stand_in)] = version_of(stand_in)
        return stand_in

    # -- running

    def decompose(self) -> GraphModule:
        """Run the program, and return a module with what was heard.

        Raises:
            DecompositionError: A node cannot be expressed.
        """
        self.expected = expected_values(self.source, self.inputs)
        values = dict(zip(self._placeholders, self._written_inputs(), strict=True))
        with (
            self.fake_mode,
            self.recorder,
            functionalisation(),
        ):
            self.run(initial_env=values, enable_io_processing=False)
        return self._module()

    def run_node(self, n: Node) -> Any:
        """Run a node; what it runs is written with its origins."""
        recorder = self.recorder
        recorder.current, recorder.grad_mode = n, torch.is_grad_enabled()
        count = len(self.new_graph.nodes)
        try:
            self._check_writes(n)
            self._refuse_hook(n)
            value = self._passed_on(n)
            if value is None:
                value = self._kept(n) if is_kept(n) else super().run_node(n)
            value = self._with_gradient_as_said(n, value)
            if self.sizes is not None:
                self.sizes.check_open("it")
            if n.op != "output":
                self._settle(n)
                self._annotate(n, value, count)
        except Exception as error:
            raise _failure(n, error) from error
        wrong = difference(n, value, self.expected)
        if wrong is not None:
            raise _failure(*wrong)
        return value

    def _refuse_hook(self, node: Node) -> None:
        """Refuse a call that puts a hook on a tensor.

        Raises:
            DecompositionError: It is one.
        """
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", None)
        if name in _HOOKING:
            raise DecompositionError(
                f"it puts a hook on a tensor ({name}), of which nothing would be left, and gradients would be others. "
                "Put it there outside of the program"
            )

    def _passed_on(self, node: Node) -> Any:
        """Return what a dropout that is off returns, its input itself, of which operators would make a copy.

        Returns:
            None for any other call.
        """
        target: Any = node.target
        if node.op == "call_module" and is_off(module := self.fetch_attr(target)):
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            return inspect.signature(module.forward).bind(*args, **kwargs).args[0]
        if node.op == "call_function":
            return input_of_dropout(target, *self.fetch_args_kwargs_from_env(node))
        return None

    def _enter(self, node: Node, depth: int) -> Any:
        if depth == len(node.region):
            return self.run_node(node)
        entry = node.region[depth]
        # Tensors that know no gradients at all would have operators on them heard in other places.
        is_inference = entry.context is torch.inference_mode and entry.arguments in {(), (True,)}
        with torch.no_grad() if is_inference else entry.context(*entry.arguments):
            return self._enter(node, depth + 1)

    def call_module(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the submodule.

        Raises:
            DecompositionError: Hooks of it, or of one inside, would be called now, and never again.
        """
        module = self.fetch_attr(target)
        for path, part in module.named_modules():
            if has_hooks(part) and not has_only_weight_hooks(part):
                raise DecompositionError(
                    f"{f'{target}.{path}'.rstrip('.')!r} ({type(part).__name__}) has hooks, of which nothing would be "
                    "left. Remove them first"
                )
        with nullcontext() if self.for_inference else GradientsInside():
            return super().call_module(target, args, kwargs)

    def call_method(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method of the first argument."""
        if self.sizes is not None and target == "take_along_dim" and isinstance(args[0], torch.Tensor):
            return _taken_along(args, kwargs)
        return super().call_method(target, args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function; what makes a value of a class of its own is remembered, as the output may need it."""
        if self.sizes is not None and any(target is known for known in _TAKE_ALONG_DIM):
            return _taken_along(args, kwargs)
        if target is getattr and args[1:] == ("data",) and is_functional(args[0]):
            return args[0].detach()  # Of which an operator is heard.
        is_plain = self.for_inference or not isinstance(target, FunctionType) or is_of_torch(target)
        with nullcontext() if is_plain else GradientsInside():
            value = super().call_function(target, args, kwargs)
        owner = getattr(target, "__self__", None)
        has_own = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        if has_own and not self.for_inference:
            raise python_gradient(str(getattr(owner, "__name__", owner)))
        if isinstance(target, type) and type(value) is target and not isinstance(value, torch.Tensor):
            self._containers[id(value)] = (value, target, args, kwargs)
        return value

    def _with_gradient_as_said(self, node: Node, value: Any) -> Any:
        """Write that a tensor is to have a gradient, or none, which no operator is heard of; return the value."""
        if is_detached_in_place(node):
            return self._detached(node)
        tensor = marked_tensor(node)
        if tensor is not None:
            marked = value if tensor is node else self.env[tensor]
            if is_functional(marked):
                fake = from_functional(marked)
                made = self.recorder.write_call(_REQUIRES_GRAD, (fake, marked.requires_grad), {})
                self.recorder.bind(fake, made)
        return value

    def _detached(self, node: Node) -> Any:
        """Let what is cut off from its gradient in place be another value from here on.

        Raises:
            DecompositionError: It is an input or part of the state, and has to stay what it is.
        """
        former: Any = self.env[node.all_input_nodes[0]]
        if id(former) in self.states:
            raise DecompositionError(
                f"it cuts off {self.states[id(former)].name!r} from its gradient in place, which no operator does. Use "
                "detach(), without the underscore"
            )
        value = former.detach()

        def replaced(held: Any) -> Any:
            if not any(leaf is former for leaf in iterate_leaves((held,))):
                return held
            return map_aggregate(held, lambda leaf: value if leaf is former else leaf, frozen=False)

        self.env.update({key: replaced(held) for key, held in self.env.items()})
        for key, (held, made_by, args, kwargs) in self._containers.items():
            self._containers[key] = (held, made_by, replaced(args), replaced(kwargs))
        return value

    def _kept(self, node: Node) -> Any:
        """Write a call as it is: what it does outside of the program, or checks, is no matter of operators."""
        if node.target in CHECKS:
            try:
                return super().run_node(node)
            except Exception as error:
                if not is_about_missing_data(error):
                    raise
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.users:
            raise DecompositionError("it does something outside the program, and its value is used")
        if not any(
            isinstance(leaf, torch.Tensor) or is_symbolic(leaf) for leaf in iterate_leaves((args, kwargs))
        ):
            return super().run_node(node)  # The answer is known.
        made = self.recorder.write_call(node.target, *map_aggregate((args, kwargs), _newest, frozen=False))
        made.origins = node.origins
        made.meta = notes_of(node)
        return None

    def _check_writes(self, node: Node) -> None:
        """Check that a node writes to nothing that shares its memory with a value whose gradient goes another way.

        Raises:
            DecompositionError: It does: through ``x.detach()``, ``x.data``, or a view that was made without gradients.
        """
        if marked_tensor(node) is not None:
            return
        keys = effects.effect_of(node, self.source).writes
        named = [node.kwargs.get(key) for key in keys if isinstance(key, str)]
        placed = [node.args[key] for key in keys if isinstance(key, int) and -1 < key < len(node.args)]
        targets = [self.env[argument] for argument in (*named, *placed) if isinstance(argument, Node)]
        memory = {
            storage_of(from_functional(target))
            for target in targets
            if is_functional(target) and not target.requires_grad
        }
        if not memory:
            return
        for stand_in in self._stand_ins():
            if stand_in.requires_grad and storage_of(from_functional(stand_in)) in memory:
                self._hear_hidden_write()

    def _hear_hidden_write(self) -> None:
        """Hear of a write after which gradients of operators would be others.

        Raises:
            DecompositionError: The result is not for inference alone.
        """
        if not self.for_inference:
            raise DecompositionError(
                "it writes without gradients to a tensor that has some, and what is computed from it would lose them. "
                "Write to a copy; or, if you need no gradients, call decompose inside torch.no_grad(): the result then "
                "computes none"
            )

    def _stand_ins(self) -> list[torch.Tensor]:
        """Return all that may still be used."""
        values = [
            leaf for value in self.env.values() for leaf in iterate_leaves((value,)) if is_functional(leaf)
        ]
        return [*(state.stand_in for state in self.states.values()), *values]

    def _settle(self, node: Node) -> None:
        """Let what was written to have its new value in this place, with the gradient that eager has."""
        effect = effects.effect_of(node, self.source)
        if not (effect.writes or effect.unknown or node.op == "call_module"):
            return
        for stand_in in self._stand_ins():
            before = self._versions.get(id(stand_in), 0)
            if version_of(stand_in) == before:
                continue
            self._versions[id(stand_in)] = version_of(stand_in)
            if not stand_in.requires_grad:
                continue
            newest = viewed(self.recorder.node_of(from_functional(stand_in)))
            if newest in self.recorder.without_grad:
                self._hear_hidden_write()
            if newest in self.recorder.cut_off and not self.for_inference:
                raise written_behind_detach()

    def _annotate(self, node: Node, value: Any, count: int) -> None:
        """Note at what has the value of a node that it does; the rest is inside of it."""
        made = set(self.recorder.since(count))
        for new in made:
            new.meta.setdefault("decomposed_from", _call_text(node))
        for leaf in iterate_leaves((value,)):
            if not is_functional(leaf):
                continue
            new = self.recorder.node_of(from_functional(leaf))
            if new in made and new.op != "get_attr":
                new.meta = {**notes_of(node), "decomposed_from": _call_text(node)}
                new.origins = tuple(origin.derived(_MADE) for origin in node.origins)

    # -- what comes behind the program

    def output(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write back what was written to, and write the output."""
        stand_ins = [state.stand_in for state in self.states.values()]
        self._check_gradients([*self._leaves(args), *stand_ins])
        written = self._written_states()
        memory = {storage_of(state.fake) for state, _ in written}
        copies = {id(value): self._kept_value(value, memory) for _, value in written}
        results = self._result_nodes(args[0], {id(state.stand_in) for state, _ in written}, memory)
        for state, value in written:
            results[id(state.stand_in)] = self._write_back(state, copies[id(value)])
        node = self.graph.output_node()
        made = self.new_graph.output(self._output(args[0], results), node.type)
        made.origins, made.meta = node.origins, notes_of(node)
        return None

    def _check_gradients(self, values: Sequence[Any]) -> None:
        """Check that every gradient is one that operators have.

        Raises:
            DecompositionError: One is not, and the result is not for inference alone.
        """
        names = python_gradients(values)
        if names and not self.for_inference:
            raise python_gradient(names[0])

    def _written_states(self) -> list[tuple[_State, torch.Tensor]]:
        """Return what was written to, each with its newest value.

        Raises:
            DecompositionError: More than values was changed, or memory is shared.
        """
        written: list[tuple[_State, torch.Tensor]] = []
        for state in self.states.values():
            value = from_functional(state.stand_in)
            if value is state.fake:
                continue
            if value.shape != state.fake.shape or storage_of(value) == storage_of(state.fake):
                raise DecompositionError(
                    f"the program changes the sizes or the layout of {state.name!r} in place. Let it make a new tensor"
                )
            is_parameter = state.tensor.is_leaf and state.tensor.requires_grad
            if is_parameter or (state.stand_in.requires_grad and writes_hidden_from_autograd(state.stand_in)):
                self._hear_hidden_write()
            written.append((state, value))
        memory = [storage_of(state.tensor) for state in self.states.values()]
        for state, _ in written:
            if memory.count(storage_of(state.tensor)) > 1:
                raise DecompositionError(
                    f"the program writes to {state.name!r}, which shares its memory with another parameter, buffer or "
                    "input. Give each memory of its own"
                )
        return written

    def _kept_value(self, value: torch.Tensor, memory: set[Any]) -> Node:
        """Return the node of a value, or of a copy where it lies in memory that is about to be written to."""
        node = self.recorder.node_of(value)
        if storage_of(value) not in memory:
            return node
        return self._behind(self.new_graph.call_function(_CLONE, (node,)), node)

    def _behind(self, made: Node, node: Node) -> Node:
        made.origins = node.origins or self.graph.output_node().origins
        made.meta["decomposed_from"] = node.meta.get("decomposed_from", "output")
        return made

    def _write_back(self, state: _State, value: Node) -> Node:
        target = self.recorder.node_of(state.fake)
        made = self._behind(self.new_graph.call_function(_COPY, (target, value)), value)
        if not state.stand_in.requires_grad:
            made.region = (RegionEntry(torch.no_grad),)
        return made

    def _result_nodes(self, result: Any, written: set[int], memory: set[Any]) -> dict[int, Any]:
        """Return id -> node of every tensor of the result that is no state that was written to."""
        found: dict[int, Any] = {}
        for leaf in self._leaves(result):
            if is_functional(leaf) and id(leaf) not in written:
                found[id(leaf)] = self._kept_value(from_functional(leaf), memory)
        return found

    def _leaves(self, value: Any) -> Iterator[Any]:
        for leaf in iterate_leaves((value,)):
            made = self._containers.get(id(leaf))
            yield from self._leaves((made[2], made[3])) if made else (leaf,)

    def _output(self, value: Any, results: dict[int, Any]) -> Any:
        """Return what stands for a result."""

        def convert(leaf: Any) -> Any:
            if id(leaf) in results:
                return results[id(leaf)]
            made = self._containers.get(id(leaf))
            if made is not None:
                args, kwargs = map_aggregate((made[2], made[3]), convert)
                return self.new_graph.call_function(made[1], args, dict(kwargs))
            return self.recorder.written(leaf)

        return map_aggregate(value, convert)

    def _newest_of(self, key: int) -> torch.Tensor:
        return from_functional(self.states[key].stand_in)

    def _module(self) -> GraphModule:
        source, graph = self.source, self.new_graph
        calls_modules = bool(self.graph.find_nodes(op="call_module"))
        graph.rely_on(self.graph)
        if calls_modules:
            graph.captured_training = source.training
        for node in graph.nodes if self.for_inference else ():
            if node.op == "call_function":
                node.region = (RegionEntry(torch.no_grad), *node.region)
        graph.eliminate_dead_code()
        strides = any(node.target in _OF_STRIDES for node in graph.nodes) or writes_by_layout(source)
        written = {
            name
            for key, name in self._input_states.items()
            if self.states[key].fake is not self._newest_of(key)
        }
        graph.lint()
        module = GraphModule(source, graph)
        holders = Holders(module, source)
        for path in source.state_dict(keep_vars=True):
            if not has_path(module, path):
                holders.take(path)
        holders.keep_order()
        module.train(source.training)
        module.set_guards(guards_for(source, self.inputs, self.sizes, strides=strides, written=written))
        return module


_TAKE_ALONG_DIM = (
    torch.take_along_dim,
    torch.ops.aten.take_along_dim,
    torch.ops.aten.take_along_dim.default,
)


def _taken_along(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return what a call of `torch.take_along_dim` returns, whichever way its arguments are named."""
    return take_along_dim(*args, **{_NAMED.get(name, name): value for name, value in kwargs.items()})


_NAMED = {"input": "values", "self": "values"}

_OF_STRIDES = frozenset(
    {
        torch.ops.aten.as_strided.default,
        torch.ops.aten.as_strided_scatter.default,
        torch.ops.aten.as_strided_copy.default,
    }
)
"""Operators whose result depends on where elements lie in memory."""


def _complete(placeholders: Sequence[Node], inputs: Sequence[Any]) -> list[Any]:
    """Return one value for each input: defaults where the examples end.

    Raises:
        DecompositionError: There are too many examples, or too few.
    """
    given = list(inputs)
    values: list[Any] = []
    for node in placeholders:
        target = str(node.target)
        if target.startswith("**"):
            values.append({})
        elif target.startswith("*"):
            values.append(tuple(given))
            given = []
        elif given:
            values.append(given.pop(0))
        elif node.args:
            values.append(node.args[0])
        else:
            raise DecompositionError(
                f"Cannot decompose to ATen: there is no example for the input {target!r}, which has no default."
            )
    if given:
        raise DecompositionError(
            f"Cannot decompose to ATen: there are {len(inputs)} examples for {len(placeholders)} inputs."
        )
    return values


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """Return an input with other leaves, in the order of `input_leaves`."""
    if type(value) is dict:
        return {key: _rebuilt(element, leaves) for key, element in value.items()}
    if type(value) in {tuple, list}:
        return type(value)([_rebuilt(element, leaves) for element in value])
    return next(leaves)


def _newest(leaf: Any) -> Any:
    return from_functional(leaf) if is_functional(leaf) else leaf


def _call_text(node: Node) -> str:
    target = node.target if isinstance(node.target, str) else qualified_name(node.target)
    return f"{node.name}: {target}"


def _failure(node: Node, error: Exception) -> Exception:
    what = f"Cannot decompose node {node.name!r}, a call of {_call_text(node).partition(': ')[2]}, to ATen"
    if node.op in {"output", "placeholder", "get_attr"}:
        what = "Cannot decompose the program to ATen"
    source = node.origins[0].source() if node.origins else None
    where = f" ({source.filename}:{source.line}: {source.text!r})" if source is not None else ""
    if is_about_missing_data(error):
        return DecompositionError(
            f"{what}{where}: it depends on the values of tensors, and operators for all values cannot be written then. "
            "Take it out of the program, or decompose the parts beside it."
        )
    text = error.message if isinstance(error, FxplugError) else f"{type(error).__name__}: {error}"
    code = error.code if isinstance(error, DecompositionError) else None
    return DecompositionError(f"{what}{where}: {text.rstrip('.')}.", code=code)
