"""The inputs of a program that runs on examples."""

from __future__ import annotations

import operator
import sys
import weakref
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.arguments import is_constant, is_plain_subclass
from fxplug.capture.arrays import is_number
from fxplug.capture.compared import MissedComparisonError
from fxplug.capture.examples.acting import mark_checks_behind
from fxplug.capture.examples.attributes_asked import ANY_ATTRIBUTE, ATTRIBUTE
from fxplug.capture.examples.binding import bound_examples
from fxplug.capture.examples.finding import found_by, holds_one_of, ids_found_by, is_found
from fxplug.capture.examples.guarding import fails_for_none, guard_of
from fxplug.capture.examples.kinds import (
    ASKS_FOR_NONE,
    UNHEARD,
    asks_for_identity,
    asks_for_kinds,
    may_be_no_tensor,
    questions_of,
)
from fxplug.capture.examples.numbers import FloatProxy, IntProxy, Part
from fxplug.capture.examples.structures import (
    Whole,
    changes_of,
    copied,
    fields_of,
    holds_parts,
    is_field,
    parts_of,
)
from fxplug.capture.examples.values import ValueKeeper, another
from fxplug.capture.hazards import scan_of
from fxplug.capture.identity import IDENTITY
from fxplug.capture.inputs import Given
from fxplug.capture.keeping import unheard_question
from fxplug.capture.repeated import with_all_before
from fxplug.capture.sources import is_installed, passes_calls_on, place_in_program
from fxplug.capture.writes import is_read, with_inner
from fxplug.errors import TraceError
from fxplug.ir import Node
from fxplug.ir.guards import Guard
from fxplug.semantics.checks import (
    are_distinct,
    attribute_names,
    class_of,
    is_check,
    is_instance,
    refers_to,
    same_value,
)
from fxplug.semantics.internals import MARKS_OF_COMPILER, can_be_rebuilt, own_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from fxplug.capture.inputs import Input
    from fxplug.capture.pytrees import PlannedInput

__all__ = ["InputReceiver"]


_SURROUNDINGS: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    *(
        (function.__name__, function, ())
        for function in (
            torch.is_grad_enabled,
            torch.is_inference_mode_enabled,
            torch.is_autocast_enabled,
            torch.is_anomaly_enabled,
            torch.get_default_dtype,
            torch.get_default_device,
            torch.are_deterministic_algorithms_enabled,
            torch.is_deterministic_algorithms_warn_only_enabled,
            torch.get_deterministic_debug_mode,
            torch.is_autocast_cache_enabled,
            torch.is_warn_always_enabled,
            torch.get_float32_matmul_precision,
            torch.get_num_threads,
        )
    ),
    # Without an argument it tells of CUDA.
    ("is_autocast_enabled", torch.is_autocast_enabled, ("cpu",)),
    ("is_autocast_cpu_enabled", torch.is_autocast_enabled, ("cpu",)),
    ("get_autocast_dtype", torch.get_autocast_dtype, ("cpu",)),
    ("get_autocast_dtype", torch.get_autocast_dtype, ("cuda",)),
)
"""(Name that a program asks by, function, arguments): what tells of modes, which nobody hears of."""
_DEVICES = frozenset({"device", "is_cpu", "is_cuda", "is_meta", "get_device"})
_MOST_ABSENT = 8
"""For so many names it is asked one by one whether an input has such an attribute."""
_MOST_COMPARED = 8
_CALLS = ("call_function", "call_method", "call_module")


class InputReceiver(ValueKeeper):
    """A tracer that hands examples to the program."""

    _names_inputs_by_path = True
    keeps_structures: bool = False
    """Whether inputs that hold others are one input each, because the program changes them."""
    keeps_identities: bool = False
    """Whether a tensor that is given twice is one tensor for the program, too, because it asks."""
    _examples: tuple[tuple[Any, ...], Mapping[str, Any]]

    def _reset(self) -> None:
        super()._reset()
        self._inputs: list[Node] = []
        self._scalar_inputs: set[Node] = set()
        self._other_inputs: list[tuple[Node, Any]] = []
        self._tensor_inputs: list[tuple[Node | Part, torch.Tensor]] = []
        self._weight_given = ""
        """The first input that is a parameter or buffer of the root."""
        self._number_inputs: list[tuple[Node, type]] = []
        self._compared_with_others: set[Node | Part] = set()
        """Those that were compared by ``==`` with what is no tensor."""
        self._optional_inputs: list[Node] = []
        self._compared: Container[str] = ()
        self._compared_inputs: set[Node] = set()
        self._around: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
        """What the program may ask for by name: who tells, of what, and what was told before it ran."""
        self._wholes: list[tuple[Node, Any, Any, dict[int, Any]]] = []
        self._left_out: set[Node] = set()
        """Those of the inputs that are what the program takes by default, which the graph has in classes of its own."""
        self._defaults: dict[Node, str] = {}
        """The inputs that no example was given for, and the names of their parameters."""
        self._constant_defaults: dict[int, str] = {}
        """Id of a tensor that is the default of a parameter without an example -> the name of the parameter."""
        self._code: CodeType | None = None
        self._found: Container[int] = ()
        """The ids of tensors that the root finds by itself."""
        self._own: set[int] | None = None
        """The ids of the parameters and buffers below the root, once an example may be one."""
        self._is_split = False
        self._hash_is_asked = False

    def _look_around(self) -> None:
        """Take note of the modes that are on around the program, and that it may ask for."""
        self._around = [
            (ask, arguments, ask(*arguments))
            for name, ask, arguments in _SURROUNDINGS
            if f"{UNHEARD}{name}" in self._names
        ]

    def _how_given(self) -> Given:
        args, kwargs = self._examples
        return Given(len(args), kwargs.keys())

    def _values_of_inputs(
        self, source: Callable[..., Any], inputs: list[Input], concrete_args: Any
    ) -> dict[str, Any]:
        given = bound_examples(source, inputs, *self._examples)
        plain = getattr(source, "__func__", source)
        code = getattr(plain, "__code__", None)
        if isinstance(code, CodeType):
            self._code = code
            if isinstance(plain, FunctionType) and self.without_data is None:
                self._found = ids_found_by(plain, scan_of(code).names, getattr(source, "__self__", None))
            self._compared = {name for name, test in scan_of(code).tests.items() if not test.is_indirect}
        for entry in inputs:
            value = given[entry.name]
            if isinstance(entry.default, torch.Tensor) and value is entry.default:
                self._constant_defaults[id(value)] = entry.name
            stays = self.keeps_structures and not entry.stars and isinstance(value, (dict, tuple, list))
            if stays or (isinstance(value, (dict, tuple, list)) and not can_be_rebuilt(value)):
                given[entry.name] = Whole(value)
        return given

    def _receive(self, entry: PlannedInput) -> tuple[Any, Any]:
        value = entry.value.value if isinstance(entry.value, Whole) else entry.value
        if isinstance(entry.input.default, torch.Tensor) and value is entry.input.default:
            return value, None  # A constant, which callers cannot replace.
        proxy = self._create_input(entry.input)
        node: Node = proxy.node
        self._inputs.append(node)
        if entry.input.default is None and isinstance(value, (torch.Tensor, int, float)):
            self._optional_inputs.append(node)
        # What is in a list or dict has no name of its own by which it could be compared.
        if entry.input.name in self._compared or entry.path != entry.input.name:
            self._compared_inputs.add(node)
        if isinstance(value, torch.Tensor):
            self._refuse_default(value, entry.path)
            is_twice = id(value) in self._known and not self._tells_apart()
            is_weight = self._is_of_root(value)
            self._weight_given = self._weight_given or (entry.path if is_weight else "")
            if is_twice or id(value) in self._found or is_weight:
                value = another(value)  # In the graph they are two.
                self._is_split = True
            self._known.setdefault(id(value), (value, node))
            self._snapshots.add(value)
            self._tensor_inputs.append((node, value))
            self._receive_attributes(value, node, entry.path)
        elif type(value) is int or type(value) is float:
            self._scalar_inputs.add(node)
            self._number_inputs.append((node, type(value)))
            if self.fixes_numbers or node.name in self.plain_numbers:
                self._other_inputs.append((node, value))
            else:
                value = (IntProxy if type(value) is int else FloatProxy)(node, self, value)
        else:
            value = self._receive_other(value, entry, node)
        return value, proxy

    def _receive_other(self, value: Any, entry: PlannedInput, node: Node) -> Any:
        """Return what the program gets for an input that is neither a tensor nor a number of Python."""
        if value is entry.input.default:
            self._left_out.add(node)
        elif is_number(value):
            self._tuples[id(value)] = (value, node)
        self._other_inputs.append((node, value))
        self._receive_fields(value, node, entry.path, set())
        if not holds_parts(value):
            return value
        copies: dict[int, Any] = {}
        whole = copied(value, copies)
        self._wholes.append((node, value, whole, copies))
        if value is entry.input.default:
            self._defaults[node] = entry.input.name
        return whole

    def _is_of_root(self, value: torch.Tensor) -> bool:
        """Return whether an example is a parameter or buffer of what is traced, which other calls give another one."""
        if self.without_data is not None:
            return False
        if self._own is None:
            tables = (table for module in self._below for table in own_tables(module)[:2])
            self._own = {id(tensor) for table in tables for tensor in table.values()}
        return id(value) in self._own

    def on_function_reached(self, function: Any, code: CodeType, names: frozenset[str], owner: Any) -> None:
        """Hear of a function that the program may call (see `StateKeeper.on_function_reached`).

        Raises:
            TraceError: It finds an example elsewhere than among what it is given.
        """
        super().on_function_reached(function, code, names, owner)
        # Few functions are further away than those whose names are known by now.
        if isinstance(function, FunctionType) and not asks_for_kinds(self._names):
            self._names |= frozenset[str]() if is_installed(code.co_filename) else questions_of(function)
        if self.without_data is not None or not self._tensor_inputs:
            return
        given = {id(value) for _, value in self._tensor_inputs}
        for where, name, value in found_by(function, names, owner):
            if holds_one_of(value, given) and is_found(code, where, name):
                error = TraceError(
                    f"Cannot trace with an example that the program finds by itself, too: it is in the {where} "
                    f"{name!r}, which {code.co_name} names ({code.co_filename}:{code.co_firstlineno}). Other "
                    "calls give another one. Give a copy of it (clone()).",
                    code="FXP-T061",
                )
                self.note_refusal(error)
                raise error

    def on_plain_function(self, function: FunctionType, code: CodeType, owner: Any) -> bool:
        """Hear of a function that the program may call (see `StateKeeper`): it may find an example, too."""
        self.on_function_reached(function, code, scan_of(code).names, owner)
        return False

    def is_input(self, value: Any) -> bool:
        """Return whether an object is one of the inputs of the program."""
        return any(value is one for _, before, after, _ in self._wholes for one in (before, after))

    def on_question_found(self, function: FunctionType, code: CodeType, question: Any) -> None:
        """Hear that a function finds what asks something that no value hears of (see `StateKeeper`).

        Examples answer it, but for the class of a number, and of a tensor without data; and which tensors are one is to
        be guarded.

        Raises:
            TraceError: It was not so far; or the class of what stands for a number may be asked for.
        """
        self._names |= {question.__name__}
        if question is type and not self.fixes_numbers:
            error = unheard_question(code, question, "FXP-T068")
        elif question is type and self.without_data is not None:
            error = unheard_question(code, question, "FXP-T066")
        elif question is not id and question not in IDENTITY:
            return
        elif not self.compares_elsewhere and any(map(self.graph.distinct_targets, _CALLS)):
            error = MissedComparisonError(
                unheard_question(code, question, "FXP-T043").message, code="FXP-T043"
            )
        elif not self.keeps_identities and self._is_split:
            error = unheard_question(code, question, "FXP-T043")
        else:
            self.compares_elsewhere = self.keeps_identities = True
            return
        self.note_refusal(error)
        raise error

    def _refuse_default(self, value: torch.Tensor, path: str) -> None:
        """Refuse an example that is the constant which another parameter stands for.

        Raises:
            TraceError: It is.
        """
        name = self._constant_defaults.get(id(value))
        if name is not None:
            raise TraceError(
                f"Cannot trace with the input {path!r}: it is the very tensor that the parameter {name!r} has by "
                "default, and other calls give another one. Give a copy of it (clone()).",
                code="FXP-T012",
            )

    def _receive_attributes(self, value: torch.Tensor, node: Node, path: str) -> None:
        """Let tensors that the caller has set on an input be known as parts of it."""
        for name, held in vars(value).items() if type(value) is torch.Tensor else ():
            if isinstance(held, torch.Tensor) or holds_parts(held):
                self._receive_fields(held, Part(node, f".{name}"), f"{path}.{name}", set())

    def _record_changes(self) -> None:
        """Record what the program has done to inputs that hold others."""
        calls: list[tuple[Any, Node, Any]] = []
        for node, before, after, copies in self._wholes:
            for change in changes_of(before, after, copies):
                self._check_default(node)
                source: Node | Part = node
                for key in change.path:
                    source = Part(source, key)
                changed = self.node_of_part(source) if isinstance(source, Part) else source
                calls.append((change.function, changed, self.create_arg(change.args)))
        # Everything has been read by now that one of the changes may take away.
        for function, changed, args in calls:
            kind = "call_method" if isinstance(function, str) else "call_function"
            self.create_node(kind, function, (changed, *args), {})

    def _check_default(self, node: Node) -> None:
        """Refuse a change of a default by which the next call of the program would answer.

        Raises:
            TraceError: The program reads it, too.
        """
        name, code = self._defaults.get(node), self._code
        if name is None or code is None or not is_read(with_inner(code), name, "default", contents=True):
            return
        raise TraceError(
            f"Cannot trace: the program changes what is in the default of the parameter {name!r} of {code.co_name} "
            f"({code.co_filename}:{code.co_firstlineno}), and its next call would answer by it. The graph has no place "
            f"for it, and would answer every call as the first one. Give {name!r} among the examples, so that it is an "
            "input, or keep the state in a buffer of a module that is updated in place.",
            code="FXP-T055",
        )

    def _receive_fields(self, value: Any, source: Node | Part, path: str, seen: set[int]) -> None:
        """Let the tensors in the fields of an input be known as parts of it.

        Raises:
            TraceError: The input is of a kind whose parts are not known.
        """
        if isinstance(value, torch.Tensor):
            self._refuse_default(value, path)
            self._known.setdefault(id(value), (value, source))
            self._snapshots.add(value)
            self._tensor_inputs.append((source, value))
            return
        if id(value) in seen and holds_parts(value):
            return
        seen.add(id(value))
        self._refuse_open_size(value, path)
        parts = parts_of(value)
        if parts is not None:
            for key, part in parts:
                step = key if is_field(key) else f"[{key!r}]"
                self._receive_fields(part, Part(source, key), f"{path}{step}", seen)
        elif not (value is None or isinstance(value, bool) or is_constant(value) or is_plain_subclass(value)):
            raise TraceError(
                f"Cannot trace with the input {path!r}: it is a {type(value).__module__}.{type(value).__qualname__}, "
                "and which tensors it holds is not known. Pass tensors, plain values, or lists, dicts and dataclasses "
                "of them.",
                code="FXP-T065",
            )

    def _refuse_open_size(self, value: Any, path: str) -> None:
        """Refuse a size that nobody knows, as compilers hand them to their backends.

        Raises:
            TraceError: It is one.
        """
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise TraceError(
                f"Cannot trace with the input {path!r}: it is an open size ({type(value).__name__} {value}), which has "
                "no value that the program could be run on. Trace without examples (fxplug.symbolic_trace), or let the "
                "compiler fix the sizes (torch.compile(..., dynamic=False)).",
                code="FXP-T065",
            )

    def _check_input(self, path: str, proxy: Any, value: Any) -> None:
        """Inputs are checked by guards."""

    def _guard_inputs(self) -> None:
        """Guard inputs that are neither tensors nor numbers, and the number of dimensions if it was asked."""
        with self.graph.inserting_before(self.graph.output_node()):
            for node, value in self._other_inputs:
                self._guard_value(node, value, {})
            for node in self._optional_inputs:
                # Nobody hears of the question `x is None`, and what x is given to may take None as well.
                self._add_entry_guard(operator.is_not, (node, None))
            for source, value in self._tensor_inputs:
                self._guard_tensor(source, value)
            if self._number_inputs:
                self._guard_numbers()
            if self._tells_apart():
                self._guard_identities()
            self._guard_surroundings()
            asked = self._rank_asked
            for source, value in self._tensor_inputs if asked is not None else ():
                rank = self._aside("call_method", "dim", (self._entry_node(source),))
                self._guards.hear(rank, nothing_written=False)
                self._add_entry_guard(operator.eq, (rank, torch.Tensor.dim(value)), asked)
            if ASKS_FOR_NONE in self._names:
                self._guard_presence()
        if self._has_written:
            mark_checks_behind(self.graph.nodes, None, self.root)

    def _guard_numbers(self) -> None:
        """Guard that inputs are numbers, where the program may ask, and that no tensor decides in their place."""
        asked = [*self._guards.predicates(), *filter(is_check, self.graph.nodes)]
        deciding = with_all_before(node for node in asked if not _is_exact(node))
        for node, kind in self._number_inputs:
            if asks_for_kinds(self._names) or self._may_be_no_tensor(node):
                self._guard_kind(node, kind)
            elif node in deciding:  # What is asked of a tensor is one, too, and may go on into something.
                found = self._aside("call_function", is_instance, (node, torch.Tensor))
                self._guards.hear(found, nothing_written=True)
                self._add_entry_guard(operator.not_, (found,))

    def _guard_presence(self) -> None:
        """Guard that no input, or part of one, is None instead, where the program may ask and nothing else says so.

        Of what the program does not compare by its name, only what it may do without: None has no methods, and cannot
        be calculated with.
        """
        present = self._guards.not_for_none()
        sources = [source for source, _ in self._tensor_inputs] + [node for node, _ in self._number_inputs]
        for source in sources:
            whole = source
            while isinstance(whole, Part):
                whole = whole.whole
            node = self._entry_node(source)
            may_be_compared = source is not whole or whole in self._compared_inputs
            is_needed = not may_be_compared and any(fails_for_none(user, node) for user in node.users)
            if node not in present and not is_needed:
                self._add_entry_guard(operator.is_not, (node, None))

    def _guard_tensor(self, source: Node | Part, value: torch.Tensor) -> None:
        """Guard that an input is a tensor, where the program may ask, and what the caller has set on it."""
        names = self._names
        asks = asks_for_kinds(names)
        if asks or source in self._compared_with_others or self._may_be_no_tensor(source):
            self._guard_kind(source, type(value) if self.without_data is None else torch.Tensor)
        if asks and any(name.endswith("Tensor") and name != "Tensor" for name in names):  # torch.LongTensor
            self._guard_attribute(source, "dtype", value.dtype)
        if self.without_data is not None and not _DEVICES.isdisjoint(names):
            self._guard_attribute(source, "device", value.device)  # Those without data answer by themselves.
        for name, held in vars(value).items() if type(value) is torch.Tensor else ():
            if not isinstance(held, torch.Tensor) and not name.startswith(MARKS_OF_COMPILER):
                self._guard_attribute(source, name, held, None)
        self._guard_absence(source, value)

    def _may_be_no_tensor(self, source: Node | Part) -> bool:
        """Return whether the program may compare an input, or what it is a part of, with what is no tensor."""
        while isinstance(source, Part):
            source = source.whole
        own, *inputs = (str(node.target).lstrip("*") for node in (source, *self._inputs))
        return may_be_no_tensor(self._names, own, inputs)

    def _guard_absence(self, source: Node | Part, value: torch.Tensor) -> None:
        """Guard that an input has no attribute which the program may ask for and the example has not."""
        held = vars(value) if type(value) is torch.Tensor else {}
        asked = sorted(name.removeprefix(ATTRIBUTE) for name in self._names if name.startswith(ATTRIBUTE))
        absent = [
            name for name in asked if f"{ATTRIBUTE}{name}" != ANY_ATTRIBUTE and not hasattr(value, name)
        ]
        is_any_asked = ANY_ATTRIBUTE in self._names
        if not held and (len(absent) > _MOST_ABSENT or (is_any_asked and asks_for_kinds(self._names))):
            # One without attributes of its own has those of its class. Each guard is evaluated in each call.
            if not asks_for_kinds(self._names):
                self._guard_kind(source, type(value) if self.without_data is None else torch.Tensor)
            is_any_asked, absent = True, []
        if is_any_asked:
            self._guard_number_of_attributes(source, len(held))
        for name in absent:
            found = self._aside("call_function", hasattr, (self._entry_node(source), name))
            self._guards.hear(found, nothing_written=True)
            self._add_entry_guard(operator.not_, (found,))

    def _guard_number_of_attributes(self, source: Node | Part, count: int) -> None:
        table = self._aside("call_function", attribute_names, (self._entry_node(source),))
        self._guards.hear(table, nothing_written=True)
        number = self._aside("call_function", len, (table,))
        self._guards.hear(number, nothing_written=True)
        self._add_entry_guard(operator.eq, (number, count))

    def _guard_attribute(self, source: Node | Part, name: str, held: Any, *default: Any) -> None:
        read = self._aside("call_function", getattr, (self._entry_node(source), name, *default))
        self._guards.hear(read, nothing_written=True)
        self._add_entry_guard(same_value, (read, held))

    def _guard_kind(self, source: Node | Part, kind: type) -> None:
        found = self._aside("call_function", class_of, (self._entry_node(source),))
        self._guards.hear(found, nothing_written=True)
        self._add_entry_guard(operator.is_, (found, kind))

    def _guard_identities(self) -> None:
        """Guard which inputs are one tensor: the program may compare them.

        Raises:
            TraceError: One is a weight of the root, which the program may compare it with as well.
        """
        if self._weight_given:
            error = TraceError(
                f"Cannot trace with a parameter or buffer of the program as the example {self._weight_given!r}: the "
                "program may ask whether two values are one object, and other calls give another one. Give a copy of "
                "it (clone()).",
                code="FXP-T061",
            )
            self.note_refusal(error)
            raise error
        first: dict[int, Node] = {}
        for source, value in self._tensor_inputs:
            node = self._entry_node(source)
            known = first.setdefault(id(value), node)
            if known is not node:
                self._add_entry_guard(operator.is_, (node, known))
        nodes = list(first.values())
        if len(nodes) > _MOST_COMPARED:
            self._add_entry_guard(are_distinct, tuple(nodes))
            return
        for number, node in enumerate(nodes):
            for other in nodes[:number]:
                self._add_entry_guard(operator.is_not, (node, other))

    def _tells_apart(self) -> bool:
        """Return whether the program may ask whether two of its inputs are one tensor."""
        return self.keeps_identities or self._hash_is_asked or asks_for_identity(self._names)

    def on_hash(self, value: torch.Tensor) -> None:
        """Hear that the program uses a tensor as a key, or puts it into a set.

        Raises:
            TraceError: It was given twice, and the program has received two.
        """
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if passes_calls_on(caller.f_code.co_filename):
            return
        self._look_at_key(value)
        if self._hash_is_asked or not any(value is given for _, given in self._tensor_inputs):
            return
        self._hash_is_asked = True
        if self._is_split:
            error = TraceError(
                f"Cannot trace: a tensor that was given as two inputs is used as a key{place_in_program()}.",
                code="FXP-T043",
            )
            self.note_refusal(error)
            raise error

    def _guard_surroundings(self) -> None:
        """Guard the modes that are on around the program, and that it may ask for."""
        for ask, arguments, found in self._around:
            self._add_entry_guard(same_value, (self._aside("call_function", ask, arguments), found))

    def _entry_node(self, source: Node | Part) -> Node:
        """Return the node for an input or a part of one, which guards may ask."""
        node = self.node_of_part(source) if isinstance(source, Part) else source
        if node.op != "placeholder":
            self._guards.hear(node, nothing_written=True)
        return node

    def _guard_value(self, source: Node | Part, value: Any, seen: dict[int, Node | Part]) -> None:
        """Guard that an input, or a part of one, is what it was."""
        if isinstance(value, torch.Tensor) or (id(value) in seen and holds_parts(value)):
            return
        seen[id(value)] = source
        parts = parts_of(value)
        if parts is not None:
            self._guard_structure(self._entry_node(source), value)
            for key, part in parts:
                self._guard_value(Part(source, key), part, seen)
            return
        node = self._entry_node(source)
        if type(value) is weakref.ref and id(value()) in seen:
            # Which whole it is a part of, and not which object that was.
            self._add_entry_guard(refers_to, (node, self._entry_node(seen[id(value())])))
            return
        if is_number(value):
            self._guard_number_of_numpy(node, value)
            return
        is_same = value is None or value is True or value is False or callable(value)
        self._add_entry_guard(operator.is_ if is_same else same_value, (node, self.create_arg(value)))

    def _guard_number_of_numpy(self, node: Node, value: Any) -> None:
        """Guard that an input is a number of NumPy, for which the graph has the one of Python's."""
        number = value.item()
        if node not in self._left_out:
            self._guard_kind(node, type(value))
        found = self._aside("call_function", type(number), (node,))
        self._guards.hear(found, nothing_written=True)
        self._add_entry_guard(same_value, (found, number))

    def _guard_structure(self, node: Node, value: Any) -> None:
        """Guard that there is something of the same class, with parts under the same keys."""
        if fields_of(value) is not None:
            kind = self._aside("call_function", class_of, (node,))
            self._guards.hear(kind, nothing_written=True)
            self._add_entry_guard(operator.is_, (kind, type(value)))
            if not isinstance(value, nn.Module):
                self._guard_fields(node, value)
            return
        asks, found = (list, list(value)) if isinstance(value, dict) else (len, len(value))
        answer = self._aside("call_function", asks, (node,))
        self._guards.hear(answer, nothing_written=True)
        self._add_entry_guard(operator.eq, (answer, self.create_arg(found)))
        # A ``torch.Size`` is a tuple, but its text is another one, and so may be what is returned.
        if node not in self._left_out:
            self._guard_kind(node, type(value))

    def _guard_fields(self, node: Node, value: Any) -> None:
        """Guard that an object has no attribute of its own which the program may find, and the example has not."""
        asked = {name.removeprefix(ATTRIBUTE) for name in self._names if name.startswith(ATTRIBUTE)}
        # What the class has is found under the same name as what an object has in its place.
        shadowed = {
            name
            for kind in type(value).__mro__[:-1]
            for name, held in vars(kind).items()
            if _is_data(name, held)
        }
        absent = sorted((asked | shadowed) - vars(value).keys())
        if not absent:
            return
        names = self._aside("call_function", attribute_names, (node,))
        self._guards.hear(names, nothing_written=True)
        if ANY_ATTRIBUTE in self._names or len(absent) > _MOST_ABSENT:
            self._add_entry_guard(operator.eq, (names, self.create_arg(list(vars(value)))))
            return
        for name in absent:
            found = self._aside("call_function", operator.contains, (names, name))
            self._guards.hear(found, nothing_written=True)
            self._add_entry_guard(operator.not_, (found,))

    def _add_entry_guard(self, function: Any, args: tuple[Any, ...], asked: Guard | None = None) -> None:
        node = self._aside("call_function", function, args)
        guard = guard_of(node)
        if asked is not None:
            guard = Guard(guard.text, asked.line, asked.source)
        self._guards.add(node, guard)


def _is_data(name: str, held: Any) -> bool:
    """Return whether what a class has under a name is a value that its objects share, and no method or the like."""
    return not (name.startswith("__") or callable(held) or hasattr(type(held), "__get__"))


def _is_exact(asked: Node) -> bool:
    """Return whether a tensor does not answer as the number of an input that is asked for itself."""
    is_direct = any(isinstance(value, Node) and value.op == "placeholder" for value in asked.args[:1])
    return is_direct and (asked.target in {operator.is_, operator.is_not, same_value} or is_check(asked))
