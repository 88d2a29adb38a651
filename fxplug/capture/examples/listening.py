"""Hearing of what a program calls."""

from __future__ import annotations

import copy
import operator
import sys
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.capture.arrays import as_index, holds_array, index_by_numbers
from fxplug.capture.callsites import is_told_only
from fxplug.capture.closures import Closure, ClosureCall, Transformed, opened, plain_function
from fxplug.capture.examples.canonical import canonical_call
from fxplug.capture.examples.guarding import expression
from fxplug.capture.examples.made_like import MAKES_LIKE, empty_like, is_like_for, place_of_like, traits_of
from fxplug.capture.examples.numbers import FloatProxy, IntProxy, NumberProxy, Part, SizeProxy
from fxplug.capture.examples.parts import numbers_in
from fxplug.capture.examples.recording import CallRecorder
from fxplug.capture.examples.values import PLAIN
from fxplug.capture.handed import Contents, hand_over
from fxplug.capture.listeners import stop_telling, tell_again
from fxplug.capture.opaque import OpaqueCall, check_functions, is_no_module, with_functions
from fxplug.capture.randomness import ASKING_FOR_SEEDS
from fxplug.capture.root_views import only_assigns
from fxplug.capture.sources import passes_calls_on, place_in_program
from fxplug.capture.wrapping import is_wrapped_for_torch_fx
from fxplug.errors import TraceError
from fxplug.ir import Argument, Node, immutable_dict, immutable_list
from fxplug.ir.arguments import EMPTY_DICT
from fxplug.semantics.internals import (
    HigherOrderOperator,
    beneath,
    extended_sizes,
    is_fake,
    rank_of,
    with_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["KEPT", "CallListener"]

_QUESTIONS = frozenset({"dim", "ndim", "ndimension", "shape", "size"})
_INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
_FROM_NUMPY = torch.from_numpy
"""Which has a stand-in while a trace runs."""
KEPT = (
    # These read the memory of a tensor, or its values, which is not heard; that they are called is.
    *(copy.copy, copy.deepcopy, torch.from_dlpack, nn.Parameter.__new__),
    *(torch.func.jacrev, torch.func.jacfwd, torch.func.hessian, torch.func.functionalize),
    _FROM_NUMPY,  # Nothing else tells of it where nothing has data.
    torch.broadcast_shapes,  # It needs the very numbers, which would be all that it can be called with then.
)
"""Functions that stay calls."""
_GIVING_SEEDS = frozenset({torch.get_rng_state, torch.initial_seed, torch.seed})
_HOOKING = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
"""Calls by which torch runs a function of the program later."""
_TRANSFORMS = frozenset({torch.func.jacrev, torch.func.jacfwd, torch.func.hessian, torch.func.functionalize})
"""What makes a function that runs another one in several other transforms."""
_EXACT = frozenset({"__bool__", "__complex__", "__float__", "__index__", "__int__", "__len__"})
"""Methods from which Python takes nothing but a number of its own."""
_ESCAPES = frozenset(
    {
        *("numpy", "__array__", "__array_wrap__", "__dlpack__", "__cuda_array_interface__", "map_", "apply_"),
        *("untyped_storage", "storage", "_typed_storage", "__reduce_ex__", "share_memory_"),
    }
)
"""What hands out the values of a tensor, or acts on them, where torch does not tell what is done with them."""
_FRAMES_OF_ARGUMENTS = 4
"""How far up the stack, seen from `Place.origin`, what calls torch or a module stands: its record, and the hearing."""
_FRAMES_OF_A_CALL = 5
"""How far up the stack, seen from `Place.origin`, a call of torch stands: its record, and the hearing of it."""
_TEXTS = frozenset({"__format__", "__repr__"})
"""What makes a text of the values of a tensor."""
_NEEDING = "requires_grad_"
_SPECIAL = _QUESTIONS | _EXACT | _ESCAPES | _TEXTS | MAKES_LIKE | {_NEEDING}
_OPERATOR = "an operator that is given functions"
_PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter})
_DEEPEST = 3
"""How many lists and tuples may lie in each other."""


class PlainArguments(NamedTuple):
    """What most calls are given."""

    found: list[Argument]
    """For the graph: nodes, plain values, and immutable lists, tuples and slices of these."""
    real: list[Any]
    """What they are by now."""
    inputs: list[Node]
    """The nodes among the first, in order."""


class CallListener(CallRecorder):
    """A tracer that hears of calls of torch, and of functions that stay calls."""

    _is_noting = False
    """Whether a hook is being recorded that notes what it sees in the root, wherever the captured module is then."""

    fixed_likes: frozenset[str] = frozenset()
    """Expressions for tensors of which the dtype, or the sizes, are those of the examples where others are made like
    them."""
    looked_through: frozenset[Any] = frozenset()
    """Functions whose calls are not kept, although ``torch.fx.wrap`` has been told of them."""

    def _reset(self) -> None:
        super()._reset()
        self.hiding_functions = frozenset[Any]()
        """Those whose calls could not be recorded."""
        self._sizes: dict[Node | Part, SizeProxy] = {}

    def on_torch_call(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a call of torch, make it, and return its result."""
        if self._read_numbers:
            self._settle_reads(getattr(function, "__name__", ""), args, kwargs)
        if types:
            foreign = _foreign_handler(types)
            if foreign is not None:  # What it does is heard, one call after the other.
                with self._calls:
                    return foreign.__torch_function__(function, types, args, kwargs)
        told = stop_telling()
        try:
            name = _special_name(function)
            if name:
                if self.fixed_likes and name in MAKES_LIKE:
                    args, kwargs = self._with_empty_like(name, args, kwargs)
                answer = (
                    self._call_operator(function, args, kwargs)
                    if name == _OPERATOR
                    else self._answer_or_refuse(name, args, kwargs)
                )
                if answer is not None:
                    return answer
            plain = self._plain_arguments_of((*args, *kwargs.values()) if kwargs else args)
            if plain is not None:
                result = self._call_plainly(function, args, kwargs, plain)
                return self.exact(result) if name in _EXACT else result
            result = self._call_with_others(function, args, kwargs)
            return self.exact(result) if name in _EXACT else result
        finally:
            tell_again(told)

    def record_call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call of a function of Python on numbers."""
        told = stop_telling()
        try:
            plain = None
            if not (self.paused or self._ended or self._read_numbers):
                plain = self._plain_arguments_of(args)
            if plain is None:
                return super().record_call(function, args)
            self.check_thread()
            node = self._create_call(function, tuple(plain.found), plain.inputs)
            return self._make(node, function, tuple(plain.real), {})
        finally:
            tell_again(told)

    def _call_with_others(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call whose arguments are not all tensors and plain values, and record it."""
        if function in _INDEXING and any(map(holds_array, args)):
            return self._index_by_arrays(function, args)
        real_args, real_kwargs = self._real(args), self._real(kwargs)
        if not self._holds_traced(args) and not self._holds_traced(kwargs):
            return self._call_aside(function, args, kwargs)
        node = self._record_hooking(function, args) if function in _HOOKING and len(args) > 1 else None
        if node is None:
            kind, target, node_args, node_kwargs = canonical_call(function, args, kwargs)
            node = self._record(kind, target, node_args, node_kwargs)
        result = self._make(node, function, real_args, real_kwargs)
        if type(result) is SizeProxy and len(args) == 1:
            self._sizes[self._known[id(args[0])][1]] = result
        return result

    def _with_empty_like(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call that makes a tensor like another one, with an empty one in the place of that.

        The traits that it takes of the other one are guarded, where they are to be fixed; then no input has a say in
        what is made.
        """
        place = place_of_like(name, args, kwargs, torch.Tensor)
        if place is None:
            return args, kwargs
        like: torch.Tensor = args[place] if isinstance(place, int) else kwargs[place]
        source = self._known.get(id(like), (None, None))[1]
        if source is None or not self._aloof(is_like_for, like):
            return args, kwargs
        node = self.node_of_part(source) if isinstance(source, Part) else source
        if node in self._constant or expression(node) not in self.fixed_likes:
            return args, kwargs
        traits = self._aloof(traits_of, name, like)
        for trait, found in traits.items():
            is_method = trait == "stride"
            read = ("call_method", trait, (node,)) if is_method else ("call_function", getattr, (node, trait))
            asked = self._aside_of(*read)
            if trait == "shape":  # Each by itself, as programs ask for them.
                self._ask_rank(source, len(found))
                for index, size in enumerate(found):
                    self._fix_value(self._aside_of("call_function", operator.getitem, (asked, index)), size)
            else:
                self._fix_value(asked, found)
        empty = self._call_aside(*empty_like(traits))
        if isinstance(place, int):
            return (*args[:place], empty, *args[place + 1 :]), kwargs
        return args, {**kwargs, place: empty}

    def _index_by_arrays(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record and make an indexing with constants of the graph in place of the arrays in the index."""
        with with_data():
            key = self._aloof(as_index, args[1])
            made = key if self.without_data is None else self._aloof(index_by_numbers, key)
        for part in key if type(key) is tuple else (key,):
            if isinstance(part, torch.Tensor) and id(part) not in self._known:
                self._know_constant(part)
        node = self._record(*canonical_call(function, (args[0], key, *args[2:]), {}))
        return self._make(node, function, self._real((args[0], made, *args[2:])), {})

    def _record_hooking(self, function: Any, args: tuple[Any, ...]) -> Node | None:
        """Record that a hook is put on a tensor which holds values of the program; None for one that is a constant."""
        closure = self._opened(args[1])
        if closure is None and self._only_notes(args[1]):
            self._is_noting = True
            try:
                return self._record(*canonical_call(function, args, {}))
            finally:
                self._is_noting = False
        # It runs when nobody looks any more at what it does to a list.
        if closure is None or closure.is_constant or closure.has_containers:
            return None
        target = ClosureCall(function.__name__, closure, partial(_hooking, function), ())
        return self._record("call_function", target, (closure.held, args[0]), {})

    def _only_notes(self, hook: Any) -> bool:
        """Return whether a hook is a method that does nothing with the root but to assign attributes of it."""
        if not isinstance(hook, MethodType) or hook.__self__ is not self.context.root:
            return False
        function = hook.__func__
        return isinstance(function, FunctionType) and only_assigns(
            function.__code__, function.__code__.co_varnames[0]
        )

    def _check_function(self, function: Callable[..., Any]) -> None:
        if not self._is_noting:
            super()._check_function(function)

    def _answer_or_refuse(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer to a question that is known, None where there is none; refuse what hands out values."""
        if name in _QUESTIONS and len(args) == 1 and not kwargs:
            return self._known_answer(name, args[0])
        if name in _TEXTS and _is_text_told():
            if self.mode == "shape":
                return self.run_unheard(repr, args[0])  # There are no values to be formatted.
            return self.run_unheard(getattr(torch.Tensor, name), *args, **kwargs)
        if name in _TEXTS and self.mode == "shape":
            raise self._refusal_of_values(f"the text of a tensor ({name})")
        if name == _NEEDING:
            return args[0] if self._needs_no_gradient(*args, **kwargs) else None
        if name in _ESCAPES and self._is_traced(args[0] if args else None):
            error = self._escape(name)
            self.note_refusal(error)
            raise error
        return self._new_of_array(*args, **kwargs) if name == "new_tensor" else None

    def _needs_no_gradient(self, tensor: Any, requires_grad: Any = None) -> bool:
        """Return whether a tensor that hangs on no input is said to need no gradient, and needs none in any call."""
        source = self._known.get(id(tensor), (None, None))[1]
        is_constant = isinstance(source, Node) and source in self._constant
        return is_constant and requires_grad is False and not self._aloof(_requires_gradient, tensor)

    def _new_of_array(self, tensor: torch.Tensor, data: Any = None, **kwargs: Any) -> torch.Tensor | None:
        """Record ``tensor.new_tensor(data)`` of an array of NumPy as a copy of a constant that is like the tensor.

        Returns:
            The new tensor; None where there is no array, or one beside numbers that hang on the inputs.
        """
        if not holds_array(data) or self._holds_traced(data):
            return None
        with with_data():
            values = self._aloof(torch.tensor, data)
        self._know_constant(values)
        options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
        with self._calls:
            like = tensor.new_empty((0,), **options) if options else tensor
            made = values.to(like, copy=True)
            return made.requires_grad_() if kwargs.get("requires_grad") else made

    def _call_plainly(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plain: PlainArguments,
    ) -> Any:
        """Record and make a call.

        Args:
            function: What is called.
            args: By the program.
            kwargs: The same.
            plain: The same, positional and then named ones.
        """
        found, real, inputs = plain
        named = EMPTY_DICT
        if kwargs:
            count = len(args)
            named = immutable_dict(zip(kwargs, found[count:], strict=True))
            kwargs = dict(zip(kwargs, real[count:], strict=True))
            found, real = found[:count], real[:count]
        given = tuple(found)
        op, target, node_args, node_kwargs = canonical_call(function, given, named)
        if (node_args is given or target is getattr) and node_kwargs is named:
            node = self._create_call(
                target, node_args, inputs, kind=op, kwargs=named, depth=_FRAMES_OF_A_CALL
            )
        else:  # They are in another order.
            node = self._create_node_below(_FRAMES_OF_A_CALL, op, target, node_args, node_kwargs)
        result = self._make(node, function, tuple(real), kwargs)
        if result.__class__ is SizeProxy:
            source = self._known.get(id(args[0]), (None, None))[1]
            is_part = isinstance(source, Part) and len(args) == 1
            if source is not None and (args[0].__class__ is nn.Parameter or is_part):
                self._sizes[source] = result
        return result

    def exact(self, result: Any) -> Any:
        """Return the very number, which is guarded to be what it is, for a result that may stand for one."""
        if not isinstance(result, NumberProxy):
            return result
        self.fix(result)
        return result.value

    def _plain_arguments_of(self, args: tuple[Any, ...]) -> PlainArguments | None:
        """Return arguments of a graph, and what they are by now, for what most calls are given; None for anything else.

        That is tensors, numbers, plain values, and lists, tuples and slices of these. One at least hangs on the inputs.
        """
        if self.without_data is not None:
            return None
        found: list[Any] = []
        real: list[Any] = []
        inputs: list[Node] = []
        known = self._known
        origin = None
        for value in args:
            kind = type(value)
            if kind in _PLAIN_TENSORS:
                entry = known.get(id(value))
                if entry is None:
                    # Weights that one call reads are read in one place.
                    origin = origin or self._place.origin(_FRAMES_OF_ARGUMENTS)
                    source: Any = self._lift_tensor(value, origin)
                else:
                    source = entry[1]
                    if source.__class__ is not Node:
                        source = self.node_of_part(source)
                inputs.append(source)
                found.append(source)
                real.append(value)
            elif kind in PLAIN:
                found.append(value)
                real.append(value)
            elif (pair := self._plain_part_of(value, kind, inputs)) is not None:
                found.append(pair[0])
                real.append(pair[1])
            else:
                return None
        return PlainArguments(found, real, inputs) if inputs else None

    def _plain_part_of(
        self, value: Any, kind: type, inputs: list[Node], depth: int = 0
    ) -> tuple[Argument, Any] | None:
        """Return the same for a number, or a list, tuple or slice.

        Args:
            value: It.
            kind: Its class.
            inputs: Receives the nodes in it.
            depth: In how many others it is.

        Returns:
            The argument of the graph, and what it is by now.
        """
        if kind is IntProxy or kind is FloatProxy:
            inputs.append(value.node)
            return value.node, value.value
        if kind is slice:
            parts: Any = (value.start, value.stop, value.step)
        elif (kind is tuple or kind is list) and depth < _DEEPEST:
            parts = value
        else:
            return None
        found: list[Any] = []
        real: list[Any] = []
        for part in parts:
            own = type(part)
            if own in PLAIN:
                found.append(part)
                real.append(part)
            elif own in _PLAIN_TENSORS:
                entry = self._known.get(id(part))
                if entry is None:
                    return None
                source: Any = entry[1]
                source = source if source.__class__ is Node else self.node_of_part(source)
                inputs.append(source)
                found.append(source)
                real.append(part)
            elif (pair := self._plain_part_of(part, own, inputs, depth + 1)) is not None:
                found.append(pair[0])
                real.append(pair[1])
            else:
                return None
        return _both_of(kind, found, real, value)

    def _known_answer(self, name: str, tensor: Any) -> Any:
        """Return the number of dimensions of a traced tensor, or its sizes if they were asked for before."""
        known = self._known.get(id(tensor))
        if known is None or not self._is_traced(tensor):
            return None
        source = known[1]
        if name in {"shape", "size"}:
            return self._sizes.get(source)
        self.paused += 1
        rank: int = rank_of(tensor) if tensor.__class__ is torch.Tensor else torch.Tensor.dim(tensor)
        self.paused -= 1
        self._ask_rank(source, rank)
        return rank

    def on_operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of an operator that none of torch's functions has told of: scripted code runs it, or a constructor."""
        if function is torch.ops.aten.lift_fresh.default:
            # Made of values of Python: a new tensor in every call.
            self._lift_fresh(args[0])
            return args[0]
        if not (self._holds_traced(args) or self._holds_traced(kwargs)):
            return self._call_aside(function, args, kwargs)
        if any(type(value) is int for value in args):
            # Torch counts dimensions from the front by then: ``x.imag = y`` selects in the last one.
            for value in args:
                source = self._known.get(id(value), (None, None))[1]
                if source is not None:
                    self._ask_rank(source, self._aloof(torch.Tensor.dim, value))
        return self._make(self._record("call_function", function, args, kwargs), function, args, kwargs)

    def on_number_made(self, kind: type, value: Any) -> Any:
        """Hear of a call of ``int`` or ``float``, whose result hangs on the inputs where the value does."""
        if self.paused or self._ended:
            return kind(value)
        if type(value) in _PLAIN_TENSORS or is_fake(value):
            is_recorded = self._aloof(torch.numel, value) == 1
        else:
            is_recorded = isinstance(value, NumberProxy)
            if is_recorded and type(value.value) is kind:
                return value
        return self.record_call(kind, (value,)) if is_recorded else kind(value)

    def on_function_call(
        self, target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Hear of a call of a function that stays a call."""
        if self.paused:
            return original(*args, **kwargs)
        if target is _FROM_NUMPY:
            return self._call_aside(target, args, kwargs)
        if target in _TRANSFORMS:
            function, *others = map(plain_function, args)
            plain = self.run_unheard(original, function, *others, **kwargs)
            return Transformed(
                plain, partial(self._call_transformed, target, plain, function, others, kwargs)
            )
        if target in self.looked_through or not (self._holds_traced(args) or self._holds_traced(kwargs)):
            return original(*args, **kwargs)
        if target is nn.Parameter.__new__ and args[0] is nn.Parameter:
            target, args, original = nn.Parameter, args[1:], partial(original, nn.Parameter)
        try:
            return self._call_kept(target, original, args, kwargs)
        except TraceError:
            if is_wrapped_for_torch_fx(target):
                self.hiding_functions |= frozenset([target])
            raise

    def _call_kept(self, target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record and make a call of a function that stays a call; refuse it if it changes a list of the program."""
        real_args, real_kwargs = self._real(args), self._real(kwargs)
        if isinstance(target, FunctionType):
            self.note_kept(target)
        handed = hand_over(target, args, kwargs)
        run = partial(self.run_kept, original)
        if handed is None:
            call = self._with_functions(target, partial(self.run_drawing, original), args, kwargs)
            if call is not None:
                return self.on_opaque_call(call)
            return self._make(
                self._record("call_function", target, args, kwargs), run, real_args, real_kwargs
            )
        contents = Contents((args, kwargs), (real_args, real_kwargs))
        handed.give_names(self)
        node = self._record("call_function", target, handed.args, handed.kwargs)
        result = self._make(node, run, real_args, real_kwargs)
        contents.refuse_changes(self, target)
        handed.record_checks(self, target)
        return result

    def _with_functions(
        self, target: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OpaqueCall | None:
        """Return a call whose functions are made again around what they hold; None where they need not, or cannot."""

        def make(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

        call = with_functions(partial(make, *args, **kwargs), target, args, kwargs, is_no_module)
        # What becomes of them is not known.
        call.runs_later = True
        call.name = str(getattr(target, "__name__", target))
        return None if self._closure_of(call, has_modes=False) is None else call

    def _call_operator(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator whose functions hold values of the program; return None for another one."""
        call = self._with_functions(operator, operator, args, kwargs)
        if call is None:
            return None
        self._refuse_gradients(call)
        return self.on_opaque_call(call)

    def _refuse_gradients(self, call: OpaqueCall) -> None:
        """Refuse an operator, such as that of ``flex_attention``, whose functions hold what may require gradients.

        Raises:
            TraceError: They do: it is torch.compile that hands that over, and nothing is compiled here.
        """
        closure = self._closure_of(call, has_modes=False)
        if closure is None or not torch.is_grad_enabled():
            self.on_mode_asked("is_grad_enabled", (), answer=False)
            return
        for part in closure.held:
            weights = part.parameters() if isinstance(part, nn.Module) else (part,)
            if self._is_traced_value(part) or any(
                isinstance(one, torch.Tensor) and one.requires_grad for one in weights
            ):
                error = TraceError(
                    f"Cannot record a call of {call.name}{place_in_program()}: the function that it is given holds a "
                    f"{type(part).__name__} that may require gradients, and the captured program would compute none. "
                    "Keep the function around this line as a call (fxplug.wrap) and give it that as an argument, or "
                    "call it under torch.no_grad().",
                    code="FXP-T054",
                )
                self.note_refusal(error)
                raise error

    def _call_transformed(
        self,
        transform: Any,
        transformed: Any,
        function: Any,
        others: Sequence[Any],
        options: Mapping[str, Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Record a call of what a transform of torch has made of a function as one call."""
        again = partial(_transformed, transform, tuple(others), dict(options))
        run = partial(transformed, *args, **kwargs)
        call = OpaqueCall(transformed, args, kwargs, (function,), run, again)
        call.is_compound = True
        call.name = f"torch.func.{transform.__name__}"
        return self.on_opaque_call(call)

    def _call_derivative(self, function: Any, source: Node, /, *args: Any, **kwargs: Any) -> Any:
        """Record a call of a function that a call has given: the second result of ``torch.func.vjp``."""
        if self.paused:
            return function(*args, **kwargs)
        given = cast("tuple[Argument, ...]", self.create_arg(args))
        named = cast("dict[str, Argument]", self.create_arg(kwargs))
        node = self.create_node("call_method", "__call__", (source, *given), named)
        return self._make(node, partial(self._run_beneath, function), self._real(args), self._real(kwargs))

    def on_seeding(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear that the random numbers of torch are set, or asked for: the captured program does so, too."""
        if self.paused:
            return original(*args, **kwargs)
        target = getattr(torch, original.__name__)
        node = self._record("call_function", target, args, kwargs)
        with with_data():
            result = self.run_unheard(original, *args, **self._real(kwargs))
            if original.__name__ not in ASKING_FOR_SEEDS:
                self._has_acted = True
            return self._stand_in(result, node, writes=False) if target in _GIVING_SEEDS else result

    def on_extended_shape(
        self, original: Callable[..., Any], distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the sizes of samples of a distribution of torch, in which numbers of the program stay."""
        wanted: Any = args[0] if args else kwargs.get("sample_shape", ())
        sizes = extended_sizes(distribution, wanted)
        if not any(True for _ in numbers_in(sizes)):
            return original(distribution, *args, **kwargs)
        return SizeProxy(sizes)

    def on_opaque_call(self, call: OpaqueCall) -> Any:
        """Hear of a call that stays whole.

        Raises:
            TraceError: A function that it is given holds traced values, which the graph cannot follow.
        """
        run = cast("partial[Any]", call.run)
        if self.paused:
            return run()
        check_functions(call, call.kinds, self._is_of_program)
        with beneath(self._calls) as modes:
            closure = self._closure_of(call, has_modes=bool(modes) or call.is_compound)
        if closure is None or call.transform is None:
            check_functions(call, self._not_below(call.functions), self._is_of_program)
            node = self._record("call_function", call.target, call.args, call.kwargs)
        else:
            if closure.asks_for_mode:
                self.on_mode_kept("", self.context.root)
            target = ClosureCall(call.target.__name__, closure, call.transform, modes)
            node = self._record("call_function", target, (closure.held, *call.others), call.kwargs)
        args, kwargs = self._real(run.args), self._real(run.keywords)
        result = self._make(node, partial(self._run_beneath, run.func), args, kwargs)
        if closure is not None and closure.has_changed():
            raise self._refusal_of_changes(call)
        return result

    def _refusal_of_changes(self, call: OpaqueCall) -> TraceError:
        error = TraceError(
            f"Cannot record a call of {call.name}{place_in_program()}: the function that it is given changes a list or "
            "dict that it shares with the program, and the graph cannot follow that. Return what is new from it, or "
            "keep the function around this line as a call (fxplug.wrap).",
            code="FXP-T054",
        )
        self.note_refusal(error)
        return error

    def _run_beneath(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function as if nothing were traced, in the modes that the program has entered."""
        with beneath(self._calls), self.hearing_writes():
            return self.run_unheard(function, *args, **kwargs)

    def must_stay_whole(self, call: OpaqueCall) -> bool:
        """Return whether the function of a checkpoint does other things when it runs again for the gradients."""
        closure = self._closure_of(call, has_modes=False) if torch.is_grad_enabled() else None
        if closure is None:
            return False
        if call.kwargs.get("preserve_rng_state", True) is not True:
            return True
        buffers = {id(buffer) for buffer in self.root.buffers()} if self.root.training else ()
        return any(
            any(one.training and any(True for _ in one.buffers(recurse=False)) for one in part.modules())
            if isinstance(part, nn.Module)
            else id(part) in buffers
            for part in closure.held
        )

    def _closure_of(self, call: OpaqueCall, *, has_modes: bool) -> Closure | None:
        """Return how to make the function of a call again, None where it can be a constant of the graph, or has to."""
        if call.transform is None:
            return None
        (function,) = call.functions
        if call.others is not call.args:
            # Submodules that are arguments are handed over as they are.
            function = self._not_below(function if isinstance(function, tuple) else call.functions)
            if not function:
                return None
        closure = self._opened(function)
        if closure is None or (closure.is_constant and not has_modes):
            return None
        return None if call.runs_later and closure.has_containers else self._opened(call.functions[0])

    def _not_below(self, functions: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return those functions that are no modules of the root."""
        found = [
            self._not_below(cast("tuple[Any, ...]", one)) if isinstance(one, tuple) else one
            for one in functions
        ]
        return tuple([one for one in found if id(one) not in self._paths])

    def _opened(self, function: Any) -> Closure | None:
        root = self.context.root
        return opened(function, self._is_handed_over, root if isinstance(root, nn.Module) else None)

    def _is_handed_over(self, part: Any) -> bool:
        """Return whether a graph hands a value over to a function that holds it: tensors, numbers, submodules."""
        if isinstance(part, nn.Module):
            return bool(self._paths.get(id(part)))
        if isinstance(part, Transformed):
            return part.node is not None
        return isinstance(part, torch.Tensor) or self._is_of_program(part)

    def _is_of_program(self, part: Any) -> bool:
        return isinstance(part, NumberProxy) or id(part) in self._known

    def _escape(self, name: str) -> TraceError:
        return TraceError(
            f"Cannot trace: {name}() of a traced tensor hands its values to something that torch does not hear of"
            f"{place_in_program()}. Keep to operations of torch, or make the enclosing function a leaf (fxplug.wrap).",
            code="FXP-T063",
        )


def _requires_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


def _is_text_told() -> bool:
    """Return whether the text that is being made of a tensor is for people alone: printed or logged."""
    frame: Any = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and passes_calls_on(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_told_only(frame, strictly=True)


def _hooking(function: Any, hook: Any) -> Callable[[torch.Tensor], Any]:
    """Return what puts a hook on a tensor."""

    def put_on(tensor: torch.Tensor) -> Any:
        return function(tensor, hook)

    return put_on


def _transformed(transform: Any, others: tuple[Any, ...], options: dict[str, Any], function: Any) -> Any:
    return transform(function, *others, **options)


@lru_cache(maxsize=4096)
def _special_name(function: Callable[..., Any]) -> str:
    """Return the name of a function or attribute that more is to be done about than about most; else nothing."""
    if isinstance(function, HigherOrderOperator):
        return _OPERATOR
    name: str = getattr(function, "__name__", "")
    if name == "__get__":
        name = cast("Any", function).__self__.__name__
    elif name == "__set__" and cast("Any", function).__self__.__name__ == "requires_grad":
        name = _NEEDING
    return name if name in _SPECIAL else ""


def _foreign_handler(types: Any) -> Any:
    """Return the class of an argument that is no tensor, but takes calls of torch upon itself; else None."""
    for kind in types:
        if not issubclass(kind, (torch.Tensor, NumberProxy)):
            return kind
    return None


def _both_of(kind: type, found: list[Any], real: list[Any], value: Any) -> tuple[Argument, Any]:
    """Return a slice, tuple or list of arguments of a graph, and one of what these are by now.

    Args:
        kind: Its class.
        found: The first.
        real: The second.
        value: What the program has given.
    """
    if kind is slice:
        return slice(*found), slice(*real)
    if kind is tuple:
        return tuple(found), tuple(real)
    # What is given a list may change it.
    is_plain = all(map(operator.is_, found, value))
    return immutable_list(found), value if is_plain else real
