"""The symbolic tracer: runs a program with proxies and records what it does."""

from __future__ import annotations

import copy
import inspect
import math
import sys
import time
from contextvars import copy_context
from functools import partial
from types import BuiltinFunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.answers import MIXINS
from fxplug.capture.arguments import PLAIN_TYPES as _DIRECT
from fxplug.capture.arguments import is_constant, iterate_parts
from fxplug.capture.arrays import as_index
from fxplug.capture.attempts import keep_attempts
from fxplug.capture.callforms import tells_sizes_apart
from fxplug.capture.calls import TracedCalls
from fxplug.capture.caught import errors_made_in, forget_frames, was_caught
from fxplug.capture.closures import ClosureCall, held_by
from fxplug.capture.comparisons import check_result, check_returned, check_tested
from fxplug.capture.concrete import PHBase, concrete_by_name, notes_of, record_check, record_default
from fxplug.capture.constants import ConstantKeeper, Constants
from fxplug.capture.defaults import Defaults, trace_with_defaults
from fxplug.capture.depth import deeper_calls
from fxplug.capture.entering import EnteredLeaves
from fxplug.capture.first_use import forget_values, made_at_first_use
from fxplug.capture.inputs import Given, Input, annotations_of, inputs_of, name_of
from fxplug.capture.interception import (
    active_interceptor,
    entering_module,
    entering_plainly,
    hear_of_contexts,
    hear_of_questions,
    intercept,
    let_errors_through,
    original_call,
    own_code,
)
from fxplug.capture.kinds import declare, fails_on_none
from fxplug.capture.late import ReadKeeper
from fxplug.capture.layer_records import Replayer
from fxplug.capture.lazies import lazies_among, lazy_error
from fxplug.capture.listeners import stop_telling, tell_again
from fxplug.capture.mutation import refuse_writes
from fxplug.capture.opaque import OpaqueKeeper
from fxplug.capture.outside import OutsideState
from fxplug.capture.own_calls import refuse_doubled_calls
from fxplug.capture.plain_holdings import is_layer_of_torch
from fxplug.capture.plain_programs import MissedProgramError, PlainProgram, plain_program, put_back
from fxplug.capture.policy import TraceContext, TraceEvent, TracePolicy, check_settings, is_leaf_by_class
from fxplug.capture.proxy import AS_A_RESULT, Attribute, Proxy
from fxplug.capture.proxyable import ProxyableClassMeta
from fxplug.capture.pytrees import InputPlan, NestedCall
from fxplug.capture.questions import add_place, misunderstood, refuse_cycles
from fxplug.capture.randomness import RandomStates, refuse_draws
from fxplug.capture.reached import FORWARDS
from fxplug.capture.regions import RegionKeeper, RegionStack
from fxplug.capture.roots import RootCall, function_of, refuse_backward_hooks, signature_source
from fxplug.capture.scopes import TraceViews
from fxplug.capture.sessions import active
from fxplug.capture.settings import Settings
from fxplug.capture.settling import StateSettler
from fxplug.capture.shims import record_call
from fxplug.capture.sources import Place, user_line
from fxplug.capture.state import (
    ModuleStates,
    assignment_error,
    training_error,
    updates_in_place,
)
from fxplug.capture.stateful import STATEFUL_USES
from fxplug.capture.surroundings import Surroundings
from fxplug.capture.switches import Switches, entered_switches
from fxplug.capture.unheard import left_by_call, missed_change, unheard_value
from fxplug.capture.unpacking import PureCalls, check_count, note_writes
from fxplug.capture.unseen import MissedFunctionError
from fxplug.capture.variables import Variables
from fxplug.capture.wrappers import inner_module, is_wrapper
from fxplug.errors import FxplugError, TraceError, shown
from fxplug.ir import Argument, Graph, ModuleScope, Node, immutable_dict
from fxplug.ir.arguments import EMPTY_DICT, immutable_list
from fxplug.ir.collector import paused_collection
from fxplug.semantics.internals import (
    OpOverload,
    buffers_of,
    empty_module,
    generate_code,
    has_backward_hooks,
    is_called_as_modules_are,
    parameters_of,
    paths_and_modules_below,
    storage_of,
)
from fxplug.semantics.modules import compute_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from fxplug.capture.outside import OutsideChange
    from fxplug.capture.pytrees import PlannedInput
    from fxplug.capture.sessions import Session
    from fxplug.capture.state import ModuleChange

__all__ = ["Tracer"]


_MODULES = (math,)
_NO_POLICY = TracePolicy()
_NONE_ENTERED = EnteredLeaves()


class Tracer(TraceViews, ReadKeeper, RegionKeeper, OpaqueKeeper, StateSettler, ConstantKeeper, Replayer):
    """Captures a module or function as a graph.

    Subclasses may override every public method, as in torch.fx; a `policy` customises a trace without a
    subclass, and several can be combined.

    Args:
        autowrap_modules: Python modules whose public functions stay calls when they receive a traced value.
        autowrap_functions: Further functions that do (see `wrap`).
        param_shapes_constant: Whether shapes of parameters are read as constants.
        policy: Answers of others to the tracer's questions.

    Raises:
        TraceError: One of them is not of the kind that is said here.
    """

    answers_questions = True
    """Whether what a program asks about the kind of a value is answered or refused, and not asked of its proxy."""

    hears_tensor_attributes = True
    """Whether reads of parameters and buffers matter (see `fxplug.capture.interception`)."""

    runs_leaves = False
    """Whether modules that stay calls run while the program is traced."""

    mode: str = "symbolic"
    """How values are treated (see `TraceContext.mode`)."""

    def __init__(
        self,
        autowrap_modules: tuple[Any, ...] = _MODULES,
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
        *,
        policy: TracePolicy | None = None,
    ) -> None:
        is_usual = (
            autowrap_modules is _MODULES and type(autowrap_functions) is tuple and not autowrap_functions
        )
        if not (is_usual and (policy is None or type(policy) is TracePolicy)):
            check_settings(autowrap_modules, autowrap_functions, policy)
        self.autowrap_modules = autowrap_modules
        self.autowrap_functions: tuple[Callable[..., Any], ...] = autowrap_functions
        self.param_shapes_constant = param_shapes_constant
        self.policy = policy if policy is not None else _NO_POLICY
        self._taken_defaults = Defaults()
        self._has_traced = False
        forget_values(self, ("root", "graph", "context"))
        self._reset()

    root: nn.Module = made_at_first_use(lambda _: empty_module())
    """What the graph's paths refer to; an empty module when a function is traced."""
    graph: Graph = made_at_first_use(lambda _: Graph())
    """The graph that is being recorded."""
    context: TraceContext = made_at_first_use(lambda _: TraceContext(None))
    """Handed to the policy."""
    _states: ModuleStates = made_at_first_use(lambda _: ModuleStates())
    _regions: RegionStack = made_at_first_use(lambda _: RegionStack())
    _surroundings: Surroundings = made_at_first_use(lambda tracer: Surroundings(tracer._regions))
    _settings: Settings = made_at_first_use(lambda _: Settings())
    _constants: Constants = made_at_first_use(lambda _: Constants())
    on_mutation: str = "keep"
    """What it means that the program assigns attributes of modules: a warning (``"keep"``), or an ``"error"``."""
    examples: tuple[Sequence[Any], Mapping[str, Any]] = ((), {})
    """Positional and named inputs of the calls for which a program is traced without running it on them."""
    takes_defaults: bool = True
    """Whether an input of which the program asks is taken to have its default, if the answer hangs on nothing else."""
    plain_conversions = False
    """Whether ``int`` and ``float`` are called as they are, which needs the very number."""
    entered_modules: frozenset[str] = frozenset()
    """Paths of modules that are entered though they would stay calls."""
    has_checks = False
    """Whether the program has unpacked values, or was answered."""
    has_written = False
    """Whether the program may write to something; known where there are checks, or where it is plain and reads weights.
    """
    traces_plain_alone = False
    """Whether programs are refused that do more than to call modules and torch (see `plain_functions`), or that have
    layers which do more than to compute (see `fxplug.semantics.modules.compute_alone`) or are none of torch."""
    _answer: Callable[[Node], bool | None] | None = None
    """Returns whether the value of a node is true, or None where that stays unknown, as it does by default."""
    _tell: Callable[[Node, str], Any] | None = None
    """Returns what an attribute of the value of a node says, or None where that stays unknown, as by default."""
    _plain: PlainProgram | None
    _pure_calls: PureCalls | None
    left_out: Mapping[str, Any] = MappingProxyType({})
    """Inputs that the program is traced with, and that others say something of."""
    hears_functions = False
    """Whether calls of functions are heard of that no name in the program leads to."""
    _names_inputs_by_path = False
    """Whether inputs for the parts of a structure are named after their places in it."""

    def _reset(self) -> None:
        # A subclass with its own create_arg hears of every argument; otherwise proxies are unwrapped on the spot. One
        # that leaves nodes alone too, and then the calls of modules, spares them the way through methods that it might
        # have replaced.
        replaced = self._replaced = self._replaced_methods()
        self._converts_plainly, self._reads_plainly = "create_arg" not in replaced, "getattr" not in replaced
        self._records_plainly = replaced.isdisjoint(("create_node", "proxy"))
        self._calls_plainly = replaced <= {"getattr"}
        self.may_be_plain = type(self) is Tracer and not replaced
        """Whether nothing runs in a trace but the program (see `fxplug.capture.plain_functions`)."""
        self._mixins: tuple[type, ...] = ()
        self._proxy_class = Proxy
        self._paths: dict[int, str] = {}
        self._below: list[nn.Module] = []
        self._leaf_classes: dict[type, str] = {}
        self._entered = _NONE_ENTERED
        self._lazy: frozenset[int] = frozenset()
        self.hears_every_attribute = not self._reads_plainly
        """Whether reads of submodules matter too (see `fxplug.capture.interception`)."""
        self._reading: tuple[Any, str | None] = (None, None)
        self._fresh_numbers: dict[str, int] = {}
        self._tensor_paths: dict[int, str] | None = None
        self._attribute_proxies: dict[str, Proxy] = {}
        self._first_reads = {}
        self._kept_alive: list[Any] = []
        self._place = Place(_TRACE_CODE, None, None)
        forget_values(self, _NEEDED_BY_FEW)
        self._readers, self._names_forward = [], False
        self._compares = self._looks_at_results = self._finds_weights = self._is_plain = self._is_watched = (
            self._is_lean
        ) = False
        self._is_repeated = self._ended = self.has_checks = self.has_written = self.has_made_constants = False
        self._plain = self._pure_calls = None
        self._forget_layers()
        self.new_constants = []
        self._outside: OutsideState | None = None
        self._outside_changes: list[OutsideChange] = []
        self._module_changes: list[ModuleChange] = []
        self._modes_outside: dict[int, tuple[nn.Module, bool]] = {}
        self._reads, self._hearing = [], None
        self._left, self._arrays = None, []
        self._refusals: list[TraceError] = []
        self._assumptions: list[tuple[Node, TraceError]] = []
        self.given: set[Node] = set()
        """Placeholders of which the caller says that they always have a value."""
        self.relied_on: set[tuple[Node, str]] = set()
        """Inputs with what the graph checks them to be."""
        self.told_apart: set[tuple[Node, Node]] = set()
        """Pairs of nodes that the graph checks to be two objects."""
        self.kept_functions: dict[int, Any] = {}
        """Id -> function of the program, of those whose calls are kept."""
        self._whole: dict[str, nn.Module] = {}
        """Path -> module, of those that stay calls and are no layers of torch."""
        self.hashed: list[Proxy] = []
        """Values that the program has used as keys."""

    def _replaced_methods(self) -> set[str]:
        """Return which of the methods that a trace may do without are not those that this class was made with."""
        kind, own = type(self), vars(self)
        return {name for name, made in _METHODS.items() if getattr(kind, name) is not made or name in own}

    # -- the trace

    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: Mapping[str, Any] | Sequence[Any] | None = None,
    ) -> Graph:
        """Run `root` with proxies and return what it does.

        Args:
            root: A module, whose forward is traced (see `traced_func_name`), or a function.
            concrete_args: Parameter name -> value to be used instead of a proxy, or one value for each parameter in
                order. `PH` stands for a value that stays an input. Lists, dicts and the like may hold values and `PH`
                at any depth. The parameters stay in the signature, and other values for them are errors.

        Returns:
            The graph; its paths refer to `root` (see `Tracer.root`).

        Raises:
            TraceError: Something the program asks cannot be answered without inputs. The message shows its
                line.
        """
        if not hasattr(self, "policy"):
            raise TraceError(
                f"Cannot trace: the __init__ of {type(self).__qualname__} does not set up the tracer. Call "
                "super().__init__() in it."
            )
        self._taken_defaults = Defaults(self.examples)
        handled = sys.exc_info()[1]
        try:
            attempt = partial(self._attempt, root, concrete_args)
            with deeper_calls():
                try:
                    return trace_with_defaults(self._taken_defaults, self.problems, attempt)
                except MissedFunctionError as error:
                    if self.runs_leaves or self.hears_functions:
                        raise
                    forget_frames(error, handled)
                    self.hears_functions = True
                return trace_with_defaults(self._taken_defaults, self.problems, attempt)
        finally:
            self._taken_defaults.forget()

    def _attempt(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: Mapping[str, Any] | Sequence[Any] | None,
    ) -> Graph:
        """Trace once; a program that asks about its inputs is traced again with their defaults (see `Defaults`)."""
        # Somebody may have recorded something by hand.
        is_new = not (self._has_traced or "graph" in vars(self))
        self._has_traced = True
        if not is_new or self._replaced_methods() != self._replaced:
            self._reset()
        root = generate_code(root)
        self.context = TraceContext(root)
        self.graph = Graph(tracer_cls=type(self))
        started = time.perf_counter()
        policy = self.policy
        if policy.trace_started is not None:
            policy.trace_started(TraceEvent(self.context))
        try:
            if policy.mixins_of_kind is not None:
                self._mixins = policy.mixins_of_kind(_KIND, self.context)
                self._proxy_class = _mixed_proxy_class(self._mixins, Proxy)
            if self.check_mutable_operations:
                self.graph.observers.append(self._refuse_writes)
            graph = self._trace_or_watch(root, concrete_args)
            if not self.traces_plain_alone:
                keep_attempts(graph, self.root)
        except BaseException as error:
            told = misunderstood(error) or self._first_cause(error) or self._cause_in_hooks(error)
            self._finish(started, None, told or error)
            if told is not None:
                raise told from error
            if isinstance(error, Exception) and not isinstance(error, FxplugError):
                add_place(error, type(root).__name__ if isinstance(root, nn.Module) else name_of(root))
            raise
        finally:
            self._let_go()
        self._finish(started, graph, None)
        return graph

    def _let_go(self) -> None:
        """Let go of what was needed to trace."""
        # Neither frames nor proxies outlive the trace: both would keep the user's objects alive.
        self._place = Place(_TRACE_CODE, None, None)
        self._attribute_proxies, self._first_reads = {}, {}
        self.hashed = []
        self.kept_functions, self._whole = {}, {}
        self.new_constants.clear()
        if "_states" in vars(self):
            self._states.release()
        self._module_changes = []
        if not self.traces_plain_alone:  # Who traces so asks afterwards what its calls write to.
            self._below = []
        self._ended = True
        self.forget_reads()
        if self.graph.observers:
            own = self._refuse_writes, self._settings.on_node
            self.graph.observers = [observer for observer in self.graph.observers if observer not in own]
        forget_values(self, ("_constants",))

    def _trace_or_watch(
        self, root: nn.Module | Callable[..., Any], concrete_args: Mapping[str, Any] | Sequence[Any] | None
    ) -> Graph:
        """Trace; once more, and watch what there is to be watched, if a layer is entered after all."""
        graph, mixed = self.graph, (self._mixins, self._proxy_class)
        handled = sys.exc_info()[1]
        try:
            return self._trace(root, concrete_args)
        except MissedProgramError as error:
            forget_frames(error, handled)
            self._reset()
        self._is_watched = True
        self._mixins, self._proxy_class = mixed
        self.graph = Graph(tracer_cls=type(self))
        self.graph.observers += graph.observers
        return self._trace(root, concrete_args)

    def _finish(self, started: float, graph: Graph | None, error: BaseException | None) -> None:
        if self.policy.trace_finished is not None:
            seconds = time.perf_counter() - started
            self.policy.trace_finished(TraceEvent(self.context, graph, error, seconds))

    def _trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: Mapping[str, Any] | Sequence[Any] | None,
    ) -> Graph:
        is_module = isinstance(root, nn.Module)
        if is_module:
            self.root = root
            function = function_of(root, self.traced_func_name)
            if not self._paths:
                self._paths, self._below = paths_and_modules_below(root)
            self._place = Place(_TRACE_CODE, None, ModuleScope("", type(root)))
        elif isinstance(root, type) and issubclass(root, nn.Module):
            raise TraceError(
                f"Cannot trace {root.__name__}: it is the class of a module, and calling it makes a module. Pass an "
                f"instance of it: {root.__name__}(...)."
            )
        elif callable(root):
            self.root = empty_module()
            function = root
        else:
            raise TraceError(
                f"Cannot trace {shown(root)}: pass a module or a function, not a {type(root).__name__}."
            )
        is_plain = self._converts_plainly and self._records_plainly
        self._is_lean = is_plain and self.policy.proxy_mixins is None
        may_be_plain = concrete_args is None and (is_module or self.traces_plain_alone)
        plain = self._plain_program(root) if may_be_plain else None
        self._is_plain, self._plain = plain is not None, plain
        if self.traces_plain_alone and not (self._is_plain and compute_alone(self._below)):
            raise TraceError("Cannot trace: the program does more than to call modules and torch.")
        source = signature_source(function, self.root if is_module else None)
        run, values = self.create_args_for_root(function, is_module, concrete_args)
        ask = self.policy.leaf_functions
        kept = (*self.autowrap_functions, *(ask() if ask is not None else ()))
        with intercept(self, self.autowrap_modules, kept), paused_collection():
            result = self._run(run, values)
            self._note_results_kept()
        is_nested = isinstance(run, NestedCall)
        if isinstance(run, RootCall) and not isinstance(result, (Proxy, torch.Tensor)):
            whole, result = result, NestedCall.taken_apart(run, result, self.graph)
            is_nested = result is not whole
        self.keeps_sizes = True
        try:
            returned = self.create_arg(result)
        except TraceError as error:
            raise TraceError(
                f"Cannot record what {name_of(source)!r} returns: {error.message}", code=error.code
            ) from error
        except RecursionError:
            refuse_cycles(result, f"what {name_of(source)!r} returns")
            raise
        finally:
            self.keeps_sizes = False
        # The leaves of a nested result are returned as a list, whatever was said of the result.
        annotation = None if is_nested else annotations_of(source).get("return")
        output = self.create_node("output", "output", (returned,), {}, type_expr=annotation)
        if self.new_constants:
            self.renew_results(output)
        self._judge(root, concrete_args)
        return self.graph

    def _plain_program(self, root: Any) -> PlainProgram | None:
        """Return what runs of a program that does nothing but call modules and torch (see `plain_program`)."""
        is_other = self.runs_leaves or self.hears_functions or self.entered_modules or self._is_watched
        is_usual = self.may_be_plain and self.traced_func_name == "forward" and not is_other
        if not is_usual or (is_layer_of_torch(type(root)) and not self.traces_plain_alone):
            return None
        with_methods = not (
            self._mixins or self.policy.proxy_mixins
        )  # Those of plugins may answer otherwise.
        known = _WITH_METHODS if with_methods else FORWARDS
        return plain_program(
            self._below,
            own_code,
            partial(self._is_remarkable, known=known),
            with_methods=with_methods,
            on_examples=with_methods and self.traces_plain_alone,
            function=None if isinstance(root, nn.Module) else root,
        )

    @property
    def plain(self) -> PlainProgram | None:
        """What is known of the program, if it is a plain one."""
        return self._plain

    @property
    def needs_examples(self) -> bool:
        """Whether a plain program is one on examples alone: it compares values with None, or goes through them."""
        return self._plain is not None and self._plain.needs_examples

    @property
    def pure_calls(self) -> PureCalls:
        """Knows which calls of a plain program write to nothing."""
        if self._pure_calls is None:
            self._pure_calls = PureCalls(self.root, self._below, self._paths, are_plain=True)
        return self._pure_calls

    def _judge(self, root: Any, concrete_args: Any) -> None:
        """Look, when all is recorded, whether the graph does what the program does at every call."""
        is_plain = self._is_plain
        # What shares the memory of a weight, such as an array, is looked for where a plain program may write to that.
        if not self.traces_plain_alone and (self.has_checks or (is_plain and self._attribute_proxies)):
            pure = self.pure_calls if is_plain else PureCalls(self.root, *self._states.below)
            self.has_written = note_writes(self.graph, pure)
        self.drop_unread_draws()
        if is_plain:
            if self._attribute_proxies and self.has_written and not self.traces_plain_alone:
                raise MissedProgramError
            if self._plain is not None and self._plain.asks_for_training:
                self._settle_flags(root, self._plain)
            return
        if self.policy.is_leaf_module is not None or "is_leaf_module" in self._replaced:
            refuse_doubled_calls(self.graph, *self._states.below)
        self.refuse_hooks_on_constants()
        missed = self._missed_change()
        if missed is not None:
            raise missed
        self.refuse_shared_arrays()
        self.refuse_kept_draws()
        self.refuse_changed_results()
        if (self._module_changes or self._outside_changes) and not self._is_repeated:
            self.settle(root, concrete_args)
        if isinstance(root, nn.Module) and not self._is_repeated:
            self._note_switches(root)

    def note_read(self, read: Attribute) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Hear that an attribute was read that may say something else later on, or that there may not be."""
        super().note_read(read)
        if self.traces_plain_alone and read.attr in _MATRICES:
            _ = read.node  # The run finds out whether there is one.

    def _run_plainly(self, run: Callable[..., Any], values: list[Any]) -> Any:
        """Run a program with proxies that does nothing but call modules and torch: it leaves all as it was."""
        self._place.session = session = active.get()
        if self._plain is not None:
            self._place.looked = self._plain.codes
            if self._plain.enters:
                hear_of_contexts()
            if self._plain.catching and not let_errors_through(self._plain.catching):
                raise MissedProgramError
            if self._answer is not None:
                hear_of_questions(self._plain.asking)
                self.answers_assertions = True
        if session is not None:
            session.is_plain = session.is_running = True
        context = copy_context()
        made = errors_made_in(context)
        try:
            result = context.run(run, *values)
        finally:
            self._end_in(session)
            self._refusals += filter(was_caught, made)
            if self._plain is not None and self._plain.containers:
                put_back(self._plain.containers)
        self._refuse_what_was_caught()
        return result

    def _refuse_what_was_caught(self) -> None:
        """Raise what was refused and went on, and what was to be raised if the captured program takes None."""
        if self._refusals and self.problems is None:
            first = self._refusals[0]
            raise type(first)(
                f"{first.message} (An 'except' of the program caught this error and went on; with the value it would "
                "have taken the other way.)",
                code=first.code,
            ) from first
        for node, error in self._assumptions:
            if not fails_on_none(node):
                raise error

    def _run(self, run: Callable[..., Any], values: list[Any]) -> Any:
        """Run the program with proxies and leave the user's modules as they were."""
        if self._is_plain:
            return self._run_plainly(run, values)
        regions = self._regions = RegionStack()
        surroundings = self._surroundings = Surroundings(regions)
        settings = self._settings = Settings()
        draws = self._draws = RandomStates()
        variables = Variables(self.context.root)
        outside = self._outside = OutsideState(self._paths)
        context = outside.context = copy_context()
        for variable, value in () if self._left is None else self._left.variables:
            context.run(variable.set, value)
        made = errors_made_in(context)
        told = sys.getprofile()
        states = self._states = ModuleStates(runs_leaves=self.runs_leaves)
        try:
            outside.note_root(self.context.root)
            if isinstance(self.context.root, nn.Module):
                self._remember_modules(self._below)
                draws.note_held("", self.context.root)
                surroundings.note_flags("", self.context.root)
            self._begin_in(active.get())
            result = context.run(run, *values)
            self.check_regions()
        except BaseException:
            self.leave_regions()
            for held in (variables, states, outside, draws, settings):
                held.restore()
            raise
        finally:
            self._draws = None
            self._end_in(self._place.session)
            if sys.getprofile() is not told:  # That of a trace in which this one runs goes on.
                stop_telling()
            self._refusals += filter(was_caught, made)
        self._arrays = [*states.arrays(), *outside.arrays()]
        kept = variables.restore()
        self._outside_changes = outside.restore()
        changed = draws.restore()
        changed_settings = settings.restore()
        self._module_changes = [change for change in states.restore() if not surroundings.is_recorded(change)]
        states.refuse_changes(self._module_changes, outside.codes())
        self._settle_surroundings()
        draws.refuse()
        refuse_draws(changed, draws.of_program)
        settings.report(changed_settings, warns=self.on_mutation == "keep")
        if kept is not None:
            raise kept
        self._refuse_what_was_caught()
        return result

    def _begin_in(self, session: Session | None) -> None:
        """Hear that the program begins to run in a session."""
        self._place.session = session
        if session is not None:
            session.is_running = True
        # The methods of a subclass of another one's are no functions of the program.
        is_own = str(type(self).__module__).startswith("fxplug.")
        if session is not None and is_own:
            self._place.looked = session.looked

    def _end_in(self, session: Session | None) -> None:
        """Hear that the program has ended that ran in a session."""
        self._place.session = self._place.looked = None
        if session is not None:
            session.is_running = False

    def _remember_modules(self, modules: Sequence[nn.Module]) -> None:
        """Take note of what the modules below the root hold, which stand in the order of their paths."""
        self._lazy = frozenset(map(id, lazies_among(modules)))
        self._entered = EnteredLeaves(
            modules, self._paths, self.entered_modules, runs_leaves=self.runs_leaves
        )
        self._states.remember_all(modules, self._paths)
        self._below = []
        root: Any = self.context.root
        if id(root) in self._lazy:
            raise lazy_error(root, type(root).__name__)

    def _settle_surroundings(self) -> None:
        """Let the graph know what the program was told of what is around it."""
        self._note_readers()
        asked, root = self._surroundings, self.context.root
        if (
            self._regions.refusal is not None
        ):  # Statements have set gradients to what they were: another time, not so.
            asked.note_mode("is_grad_enabled", (), self._regions.grad_mode)
        self.graph.state_guards = asked.finish(root)
        if asked.asks_for_training and isinstance(root, nn.Module):
            self.graph.captured_training = root.training

    def _settle_flags(self, root: nn.Module, plain: PlainProgram) -> None:
        """Let the graph know what the flags were that a program has read which nobody has listened to."""
        if type(root) in plain.asks_for_training:
            self._surroundings.note_flag_at("", "", root)
        self.graph.state_guards = self._surroundings.finish(root)
        if self._surroundings.asks_for_training:
            self.graph.captured_training = root.training

    def _note_switches(self, root: nn.Module) -> None:
        """Let the graph know what the classes of the program do when they are switched, which no graph does."""
        entered = entered_switches(self._states.below[0] or [root], self.graph)
        if entered:
            switches = Switches(root, entered, () if self._outside is None else self._outside.codes())
            self.graph.training_overrides = switches.overrides
            if not switches.is_known:
                self.graph.captured_training = root.training

    def note_weight(self, path: str, attribute: str, weight: torch.Tensor) -> None:
        """Hear that the program asks what a weight of the root is like, and goes on with the answer.

        Args:
            path: Where the root has it.
            attribute: What the answer hangs on: ``"shape"``, ``"dtype"``, ``"requires_grad"``, ...
            weight: The weight.
        """
        self._silently(self._surroundings.note_weight, path, attribute, weight)

    # -- the trace of the next call

    def _trace_again(self, root: Any, concrete_args: Any) -> None:
        """Trace a program and tell nobody of it."""
        Tracer._trace(self, root, concrete_args)

    def _end_again(self) -> None:
        """Let go of what was needed to trace."""
        self._place, self._below = Place(_TRACE_CODE, None, None), []
        self._ended = True

    def _take_after(self, other: Tracer, left: Any) -> None:
        """Trace as another tracer has traced, which is in the middle of it, and know what it has left."""
        self._mixins, self._proxy_class = other._mixins, other._proxy_class
        super()._take_after(other, left)
        made = other._constants.made
        for value in left.values:
            if id(value) in made and storage_of(value) not in other._constants.written:
                # A constant to this trace, too, but not one of which it may change the memory.
                self._constants.made[id(value)] = made[id(value)]
                self._constants.reads[id(value)] = []

    def _first_cause(self, error: BaseException) -> TraceError | None:
        """Return the refusal that was caught on its way, and made the program raise another error; None for others."""
        is_own = isinstance(error, FxplugError) or not isinstance(error, Exception)  # Or an interruption.
        if is_own or not self._refusals or self.problems is not None:
            return None
        first = self._refusals[0]
        return TraceError(
            f"{first.message} (What caught this error went on to raise a {type(error).__name__}.)",
            code=first.code,
        )

    def _missed_change(self) -> TraceError | None:
        """Return the refusal of a program that reads what a hook changes that did not run; None where there is none."""
        outside = self._outside
        if outside is None:
            return None
        kept = self.kept_functions.values()
        if self.runs_leaves:
            left = [
                step for change in (*self._module_changes, *self._outside_changes) for step in change.steps
            ]
            states = self._states
            constants = {
                id(tensor) for node, tensor in self._values_of_constants().items() if node.op == "get_attr"
            }
            return left_by_call(kept, states.below[0], outside.codes(), with_examples=True) or unheard_value(
                self.graph, *states.below, outside.codes(), left, states.assigned_by_calls, constants
            )
        return missed_change(self.graph, *self._states.below, outside.codes(), kept, self._whole)

    def to_bool(self, obj: Proxy) -> bool:
        """Answer whether a value is true: where the program runs besides, it may be known."""
        answer = None if self._answer is None else self._answer(obj.node)
        return super().to_bool(obj) if answer is None else answer

    def tell(self, obj: Proxy, name: str) -> Any:
        """Return what the dtype, the device or the like of a value is: where the program runs besides, it is known."""
        return None if self._tell is None else self._tell(obj.node, name)

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Answer a request to iterate: where the program runs besides, it is known of parts how many there are."""
        count = None if self._tell is None else self._tell(obj.node, "__iter__")
        return super().iter(obj) if count is None else iter([obj[index] for index in range(count)])

    def unpack(self, obj: Proxy, count: int) -> None:
        """Hear that a value is about to be unpacked into a number of names: the graph checks that it has so many."""
        check_count(self, obj, count)

    def note_kept(self, function: Any) -> None:
        """Hear that a call of a function was recorded that stays one."""
        self.kept_functions[id(function)] = function

    def _cause_in_hooks(self, error: BaseException) -> TraceError | None:
        """Return the same where the program has raised an error of its own."""
        is_own = isinstance(error, FxplugError) or not isinstance(error, Exception)
        return None if is_own else self._missed_change()

    def note_refusal(self, error: TraceError) -> None:
        """Remember an error that was raised because a value is unknown: a program that catches it does not undo it."""
        self._refusals.append(error)

    def refuse_in_the_end(self, error: TraceError) -> None:
        """Remember an error that is to be raised when the program has ended, or in the place of one that it raises."""
        self.note_refusal(error)
        self._states.refuse(error)

    def note_question(self, error: TraceError, node: Node, place: str) -> None:
        """Hear of an error that says that the program asks, at some place, about the value of a node."""
        if self.takes_defaults:
            self._taken_defaults.note_question(error, node, place)

    def note_assumption(self, node: Node, error: TraceError) -> None:
        """Remember that an input was taken not to be None; the error is raised if the captured program accepts None."""
        self._assumptions.append((node, error))

    def modules_with_other_hooks(self) -> AbstractSet[str]:
        """Return the paths of modules that could not be called for the hooks that the program has given them."""
        return self._states.rehooked

    def _refuse_writes(self, event: str, node: Node) -> None:
        if event != "created":
            return
        try:
            refuse_writes(node)
        except TraceError as error:
            self.note_refusal(error)
            raise

    # -- inputs

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,  # noqa: FBT001 - torch.fx's public signature
        concrete_args: Mapping[str, Any] | Sequence[Any] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Record one placeholder for each input, and return what is run and with which values.

        Args:
            root_fn: The function that is traced; that of a module takes the module first.
            is_module: Whether a module is traced, `root`.
            concrete_args: As in `trace`.

        Returns:
            What is called, and the values that it is called with, all of them by position: the module first if there
            is one, then a proxy or a concrete value for each input.
        """
        root = self.root if is_module else None
        source = signature_source(root_fn, root)
        inputs = inputs_of(source)
        given = self._values_of_inputs(source, inputs, concrete_args)
        defaults = self._taken_defaults
        defaults.note_inputs(inputs, given)
        if defaults.taken or self.left_out:
            given = {**given, **defaults.taken, **self.left_out}
        present = {*given, *defaults.present()}
        plan = InputPlan(inputs, given, named_by_path=self._names_inputs_by_path)
        values: list[Any] = [] if root is None else [root]
        checks: list[tuple[str, Proxy, Any]] = []
        run = RootCall(root_fn, root, inputs, self._how_given())
        for entry in plan.entries:
            value, proxy = self._receive(entry)
            values.append(value)
            if proxy is None:
                run.constants.add(entry.input.name)
                continue
            if entry.input.name in self.left_out:
                continue
            if value is not proxy:
                checks.append((entry.path, proxy, value))
            elif entry.input.name in present or entry.path != entry.input.name:
                self.given.add(proxy.node)
        by_name = frozenset(entry.input.name for entry in plan.entries if entry.input.keyword_only)
        self.graph.keyword_only = by_name | run.must_name if run.constants else by_name
        # Behind all inputs, so that these stand together.
        for path, proxy, value in checks:
            self._check_input(path, proxy, value)
        if not plan.specs:
            return run, values
        return NestedCall(run, len(values) - len(plan.entries), plan.specs, self.graph), values

    def _how_given(self) -> Given | None:
        """Return how the program is given its inputs, None where there are no examples that say so."""
        return None

    def _values_of_inputs(
        self, source: Callable[..., Any], inputs: list[Input], concrete_args: Any
    ) -> dict[str, Any]:
        """Return with what each parameter is traced that is not to be a proxy."""
        return concrete_by_name(source, inputs, concrete_args)

    def _receive(self, entry: PlannedInput) -> tuple[Any, Proxy | None]:
        """Record the placeholder of an input; return what the program gets, and the proxy of the placeholder if any."""
        proxy = self._create_input(entry.input)
        if not isinstance(entry.value, PHBase):
            return entry.value, proxy
        if notes := notes_of(entry.value):
            proxy.node.meta.update(notes)
        return proxy, proxy

    def _check_input(self, path: str, proxy: Proxy, value: Any) -> None:
        """Record that an input must be what the program was traced with."""
        place = self._taken_defaults.places.get(path)
        if place is None:
            record_check(self, path, proxy, value)
        else:
            record_default(self, path, proxy, value, place)

    def _create_input(self, entry: Input) -> Proxy:
        default: tuple[Any, ...] = ()
        if entry.default is not inspect.Parameter.empty:
            if any(isinstance(part, torch.Tensor) for part in iterate_parts(entry.default)):
                raise TraceError(
                    f"Cannot trace a function whose parameter {entry.name!r} has a tensor in its default: a default "
                    "is shared by all calls. Use None, and make the tensor in the function, or make it a buffer.",
                    code="FXP-T012",
                )
            default = (self.create_arg(entry.default),)
        proxy = self.create_proxy("placeholder", entry.target, default, {}, type_expr=entry.annotation)
        if entry.declared is not None:
            declare(proxy.node, entry.declared)
        return proxy

    # -- nodes and proxies

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Record one node; its arguments must be arguments of the graph already (see `create_arg`)."""
        origin = None if kind in _WITHOUT_LINE else self._place.origin(2)
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr, origin)
        if self.policy.node_created is not None:
            self._note(node)
        return node

    def _create_node_below(
        self, depth: int, kind: str, target: Any, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> Node:
        """Record one node as `create_node` does.

        Args:
            depth: How many frames, seen from `Place.origin`, are none of the program.
            kind: As in `create_node`, like the rest.
            target: The same.
            args: The same.
            kwargs: The same.
        """
        if not self._records_plainly:
            return self.create_node(kind, target, args, kwargs)
        node = self.graph.create_node(kind, target, args, kwargs, None, None, self._place.origin(depth))
        if self.policy.node_created is not None:
            self._note(node)
        return node

    def _create_call(
        self,
        target: Any,
        args: tuple[Argument, ...],
        inputs: list[Node],
        *,
        kind: str = "call_function",
        kwargs: immutable_dict = EMPTY_DICT,
        depth: int = 2,
    ) -> Node:
        """Record a call as `create_node` does, whose arguments were looked at (see `Graph._create_alike`).

        Args:
            target: As in `create_node`.
            args: The same.
            inputs: The nodes among the arguments, in order.
            kind: As in `create_node`: a call of a function or method.
            kwargs: The same.
            depth: How many frames, seen from `Place.origin`, are none of the program.
        """
        if not self._records_plainly:
            return self.create_node(kind, target, args, kwargs)
        node = self.graph._create_alike(kind, target, args, kwargs, inputs, self._place.origin(depth))  # pyright: ignore[reportPrivateUsage]
        if self.policy.node_created is not None:
            self._note(node)
        return node

    def _note(self, node: Node) -> None:
        """Let the policy annotate a new node."""
        hook = self.policy.node_created
        if hook is not None and (notes := hook(node, self.context)):
            node.annotate(notes)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Record one node from arguments that may hold proxies, and return the proxy that stands for it.

        Raises:
            TraceError: The trace is over.
        """
        if self._ended:
            raise _trace_is_over(kind, target)
        is_lean = self._is_lean and name is None and type_expr is None
        node = self._create_plainly(kind, target, args, kwargs) if is_lean else None
        if node is None:
            node = self._create_converted(kind, target, args, kwargs, name, type_expr)
        elif self.policy.node_created is not None:
            self._note(node)
        if proxy_factory_fn is not None:
            return proxy_factory_fn(node)
        if not self._records_plainly:
            return self.proxy(node)
        proxy = self._proxy_class(node, self) if self.policy.proxy_mixins is None else self.proxy(node)
        if self._looks_at_results:
            self._look_at_result(proxy)
        return proxy

    def _create_converted(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        type_expr: Any,
    ) -> Node:
        """Record one node from arguments of all kinds; arguments and results are those of `create_proxy`."""
        former = None
        # Written out as far as it decides about most calls.
        if (
            target.__class__ is not BuiltinFunctionType
            and (kind != "call_method" or target == "new")
            and tells_sizes_apart(kind, target)
        ):
            former, self.keeps_sizes = self.keeps_sizes, True
        try:
            if self._converts_plainly:
                node_args = self._plain_arguments(args)
                node_kwargs = (
                    {key: self.create_arg(value) for key, value in kwargs.items()} if kwargs else kwargs
                )
            else:  # It is asked about the whole first, as in torch.fx.
                node_args, node_kwargs = self.create_arg(args), self.create_arg(kwargs)
        except RecursionError:
            refuse_cycles((args, kwargs))
            raise
        finally:
            if former is not None:
                self.keeps_sizes = former
        if not self._records_plainly:
            return self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        origin = None if kind == "placeholder" else self._place.origin(3)
        node = self.graph.create_node(kind, target, node_args, node_kwargs, name, type_expr, origin)
        if self.policy.node_created is not None:
            self._note(node)
        return node

    def _create_plainly(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Node | None:
        """Record what `create_proxy` records, for arguments that are traced values and plain ones: most are.

        Returns:
            The node; None for other arguments. Attributes among them that were only read so far are recorded then.
        """
        if kind != "call_method" if target.__class__ is str else kind != "call_function":
            is_read = kind == "get_attr" and target.__class__ is str and not (args or kwargs)
            return self.graph._create_at(kind, target, None, self._place.origin(3)) if is_read else None  # pyright: ignore[reportPrivateUsage]
        taken: list[Any] = []
        inputs: list[Node] = []
        for value in args:
            own = type(value)
            if own is Proxy or own is Attribute or own in _MIXED_PROXIES:
                value = value.node  # noqa: PLW2901 - what the graph gets in its place
                inputs.append(value)
            elif own not in _DIRECT and (value := _plain_container(value, inputs)) is None:
                return None
            taken.append(value)
        named = EMPTY_DICT
        if kwargs:
            if not _TEXT.issuperset(map(type, kwargs)):
                return None
            if _DIRECT.issuperset(map(type, kwargs.values())):
                named = immutable_dict(kwargs)
            elif (values := _plain_container([*kwargs.values()], inputs)) is not None:
                named = immutable_dict(zip(kwargs, values, strict=True))
            else:
                return None
        origin = self._place.origin(3)
        return self.graph._create_alike(kind, target, tuple(taken), named, inputs, origin)  # pyright: ignore[reportPrivateUsage]

    def _look_at_result(self, proxy: Proxy) -> None:
        """Look at what a call returns in a program that compares values by identity."""
        check_tested(self, proxy)
        if self._compares:
            check_returned(self, proxy)

    def _plain_arguments(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        """Convert arguments as `create_arg` does, most of them without calling it."""
        return tuple(
            [
                value.node
                if type(value) is Proxy
                else value
                if type(value) in _DIRECT
                else value.node
                if type(value) in _MIXED_PROXIES
                else self.create_arg(value)
                for value in args
            ]
        )

    def _checked_arguments(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        self.keeps_sizes = True
        try:
            return self._plain_arguments(args)
        except RecursionError:
            refuse_cycles(args)
            raise
        finally:
            self.keeps_sizes = False

    def proxy(self, node: Node) -> Proxy:
        """Return a new proxy that stands for `node`."""
        return self._mixed(Proxy, node)(node, self)

    def _mixed(self, kind: type[Proxy], node: Node) -> Any:
        """Return a class of proxies with what the policy mixes into it for `node`."""
        ask = self.policy.proxy_mixins
        mixins = self._mixins if ask is None else ask(node, _KIND, self.context)
        return _mixed_proxy_class(mixins, kind)

    def _foreign_argument(self, a: Any) -> Argument:
        lift = self.policy.lift_constant
        prefix = lift(a) if lift is not None else None
        if prefix is not None:
            return self._lift_once(a, prefix)
        if isinstance(type(a), ProxyableClassMeta):
            return self._lift(a, f"_{type(a).__name__}_constant_")
        if isinstance(a, torch.ScriptObject):
            return self._lift(a, "_torchbind_obj")
        hook = self.policy.create_argument
        if hook is not None and not is_constant(a):
            answer = hook(a, self.context)
            if answer is not None and type(answer) is not type(a):
                return self.create_arg(answer)
        if callable(a) and not isinstance(a, _HOLDING_NOTHING):
            self._check_function(a)
        return super()._foreign_argument(a)

    def create_index(self, key: Any) -> Any:
        """Return an index with tensors in place of arrays of NumPy; the index itself if it has none."""
        return self._silently(as_index, key)

    def _check_function(self, function: Callable[..., Any]) -> None:
        """Refuse a function as a constant of the graph that holds what differs from call to call."""
        for part in held_by((function,)):
            if self._is_traced_value(part):
                found = "a traced value"
            elif self._is_part_of_root(part):
                found = f"the module that is traced, or a part of it (a {type(part).__name__})"
            else:
                continue
            name = getattr(function, "__qualname__", type(function).__qualname__)
            error = TraceError(
                f"Cannot record the function {name!r} {self._where()}: it holds {found}, by its closure or as "
                "the object of a method, and the graph cannot follow that. Pass the value as an argument, or keep the "
                "function around this line as a call (fxplug.wrap), or make the enclosing module a leaf.",
                code="FXP-T054",
            )
            self.note_refusal(error)
            raise error

    def _is_part_of_root(self, value: Any) -> bool:
        """Return whether a value is a part of the root: a copy of the captured module has another one."""
        return isinstance(value, nn.Module) and id(value) in self._paths

    def _is_traced_value(self, value: Any) -> bool:
        """Return whether a value stands for one that differs from call to call."""
        return isinstance(value, Proxy)

    def _lift_once(self, value: Any, prefix: str) -> Node:
        """Record a read of a constant that the graph has already, or of a new one."""
        for path, known in self.graph.lifted.items():
            if known is value:
                return self.create_node("get_attr", path, (), {})
        return self._lift(value, prefix)

    def _where(self) -> str:
        # Behind the forward no line of it is on the stack any more: what is refused then is its result.
        return super()._where() if self._states.is_watching else AS_A_RESULT

    # -- modules

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays one node: by default the classes that torch.nn ships, except containers."""
        return is_leaf_by_class(m)

    def path_of_module(self, mod: nn.Module) -> str:
        """Return the dotted path of a module below the root.

        Raises:
            TraceError: It is no submodule of the root.
        """
        path = self._paths.get(id(mod))
        if path is None:
            raise TraceError(
                f"Cannot trace a call of {type(mod).__name__} at {user_line()}: the module is not "
                "registered below the root. Assign it to an attribute, or put it into a "
                "torch.nn.ModuleList or ModuleDict.",
                code="FXP-T007",
            )
        return path

    def _path_of(self, module: nn.Module) -> str:
        return self.path_of_module(module)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what stands for a call of module `m`: a new node for a leaf, else what its forward returns."""
        path = self.path_of_module(m)
        if self._is_leaf(m, path):
            self._states.check_call(m, path)
            place = self._place
            former = place.scope
            place.scope = ModuleScope(path, type(m), former)
            try:
                proxy = self.create_proxy("call_module", path, args, kwargs)
                self.on_constants_read(proxy)
                if _may_give_none(type(m)):
                    check_result(self, proxy)
                    self._whole[path] = m
                return proxy
            finally:
                place.scope = former
        return self.enter_module(path, m, forward, args, kwargs)

    def enter_module(
        self,
        path: str | None,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the forward of module `m` at `path`, so that what it does is recorded.

        Args:
            path: Where the root has it; None for a module that the root does not have, whose parameters become
                constants of the graph, and which no `train` or `eval` of the root reaches.
            m: The module.
            forward: What is run.
            args: Of the call.
            kwargs: Of the call.
        """
        former = self._place
        if self._is_plain:
            if path is None or is_layer_of_torch(type(m)):
                raise MissedProgramError
            if self._plain is not None and type(m) in self._plain.asks_for_training:
                self._surroundings.note_flag_at("", path, m)
        elif path is None:
            self._surroundings.note_outside(m)
            path = f"<{type(m).__name__}>"
            self._note_entering(path, m, is_outside=True)
        else:
            self._note_entering(path, m, is_outside=False)
        # What lies between this call and the module that is being left is described once, for all nodes inside.
        place = self._place = Place(_ENTER_CODE, former.origin(), ModuleScope(path, type(m), former.scope))
        place.session, place.looked = former.session, former.looked
        try:
            return forward(*args, **kwargs)
        finally:
            self._place = former
            place.leave()

    def _note_entering(self, path: str, module: nn.Module, *, is_outside: bool) -> None:
        """Take note of what there is to know of a module whose forward is about to run."""
        told = stop_telling()
        try:
            self._look_at_entered(path, module, is_outside=is_outside)
        finally:
            tell_again(told)

    def _look_at_entered(self, path: str, module: nn.Module, *, is_outside: bool) -> None:
        is_below = id(module) in self._paths
        if id(module) in self._lazy or (not is_below and lazies_among([module])):
            raise self._refused(lazy_error(module, f"module {path!r}"))
        if not is_below:
            generate_code(module)
            self._states.remember(module, path)
        if has_backward_hooks(module):
            refuse_backward_hooks(module, f"module {path!r}")
        if self._outside is not None and type(module) not in self._outside.classes:
            self._outside.note_class(type(module))
        plainly = entering_plainly(module)
        if plainly:
            return
        if not is_outside:
            self._surroundings.note_flags(path, module)
        if self._draws is not None:
            self._draws.note_held(path, module)
        if plainly is None:
            entering_module(module)

    def _refused(self, error: TraceError) -> TraceError:
        self.note_refusal(error)
        return error

    def _is_leaf(self, module: nn.Module, path: str) -> bool:
        ask = self.policy.is_leaf_module
        answer = ask(module, path, self.context) if ask is not None else None
        is_leaf = self.is_leaf_module(module, path) if answer is None else answer
        return is_leaf and not self._entered.enters(module)

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a module (see `fxplug.capture.interception`)."""
        kind = type(module)
        treated = self._leaf_classes.get(kind)
        if treated in _DIRECT_WAYS and (path := self._paths.get(id(module))) is not None:
            if treated == "entered plainly":
                unwrap = self.policy.unwrap_module
                inner = None if unwrap is None else unwrap(module)
                if inner is not None and inner is not module:
                    return self.on_module_call(inner, args, kwargs)
                ask = self.policy.is_leaf_module
                if ask is not None and ask(module, path, self.context) and not self._entered.enters(module):
                    return self._record_other_leaf(path, module, args, kwargs)
                return self._enter_plainly(path, module, args, kwargs)
            if treated == "layer in question":
                ask = self.policy.is_leaf_module
                answer = None if ask is None else ask(module, path, self.context)
                if not (answer is None or answer):
                    return self._enter_layer(path, module, args, kwargs)
            elif not self._is_plain:  # Else nothing can have changed it.
                self._states.check_call(module, path)
            return self._record_leaf(path, module, args, kwargs)
        if not self._calls_plainly:
            return self._call_as_replaced(module, args, kwargs)
        return self._call_other(kind, treated, module, args, kwargs)

    def _call_other(
        self,
        kind: type,
        treated: str | None,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Hear of a call of a module of which there is more to ask.

        Args:
            kind: Its class.
            treated: What the modules of the class are to this tracer; None where nobody has asked.
            module: The module.
            args: Of the call.
            kwargs: Of the call.
        """
        if treated is None:
            treated = self._leaf_classes[kind] = self._treatment(module, kind)
        policy = self.policy
        # Layers of torch are nobody's wrappers: asking about them would only take time.
        if treated not in _LAYERS and (inner := self._inside(module, treated)) is not module:
            return self.on_module_call(inner, args, kwargs)
        path = self._paths.get(id(module))
        if path is not None:
            ask = policy.is_leaf_module
            answer = ask(module, path, self.context) if ask is not None else None
            is_leaf = treated in _LEAVES if answer is None else answer
            if is_leaf and not self._entered.enters(module):
                if treated not in _LAYERS:
                    return self._record_other_leaf(path, module, args, kwargs)
                self._states.check_call(module, path)
                return self._record_leaf(path, module, args, kwargs)
            if treated in _LAYERS:
                return self._enter_layer(path, module, args, kwargs)
        return self.enter_module(path, module, partial(original_call, module), args, kwargs)

    def _enter_plainly(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the forward of a module of a plain program as `enter_module` does, past what looks for hooks around it.

        Args:
            path: Of the module.
            module: One of a class that the program has, and nobody has a say in.
            args: Of the call.
            kwargs: Of the call.
        """
        if _COMPILED_CALL in module.__dict__:  # Something else runs in the place of its forward.
            return self.enter_module(path, module, partial(original_call, module), args, kwargs)
        kind = type(module)
        if self._plain is not None and kind in self._plain.asks_for_training:
            self._surroundings.note_flag_at("", path, module)
        former = self._place
        around = former.origin(_FRAMES_OF_A_LEAF)
        place = self._place = Place(_PLAINLY_CODE, around, ModuleScope(path, kind, former.scope))
        place.session, place.looked = former.session, former.looked
        try:
            return module.forward(*args, **kwargs)
        finally:
            self._place = former
            place.frame = place.inner = None  # See `Place.leave`, of which this spares the call.

    def _enter_layer(self, path: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record what a layer of torch does, in place of a call of it."""
        if self.layer_records is not None:
            return self._look_through(path, layer, args, kwargs)
        return self.enter_module(path, layer, partial(original_call, layer), args, kwargs)

    def _record_other_leaf(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Proxy:
        """Record the call of a module that stays whole and may do more than a layer.

        Raises:
            TraceError: It is none of torch, and may change what is not heard of, where plain programs alone are traced.
        """
        self._states.check_call(module, path)
        result = self._record_leaf(path, module, args, kwargs)
        if self.traces_plain_alone and not is_layer_of_torch(type(module)):
            raise TraceError(f"Cannot trace: {path!r} may do more than to compute.")
        check_result(self, result)
        self._whole[path] = module
        return result

    def _inside(self, module: nn.Module, treated: str) -> nn.Module:
        """Return what is inside of a wrapper, any other module itself."""
        unwrap = self.policy.unwrap_module
        inner = unwrap(module) if unwrap is not None else None
        if inner is None and treated == "wrapper":
            inner = inner_module(module)
        return module if inner is None else inner

    def _look_through(
        self, path: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Proxy:
        """Record what a layer does, without running it.

        Raises:
            MissedProgramError: It takes more than one value.
        """
        if kwargs or len(args) != 1 or type(args[0]) is not Proxy:
            raise MissedProgramError
        node = self._record_inside(path, layer, args[0].node, _FRAMES_OF_A_LEAF)
        if node is None:  # What there is to learn is found in one trace.
            return self._record_leaf(path, layer, args, kwargs)
        return args[0] if node is args[0].node else Proxy(node, self)

    def _treatment(self, module: nn.Module, kind: type) -> str:
        """Return what the modules of a class are to a tracer that customises nothing about it."""
        if is_wrapper(kind):
            return "wrapper"
        if not self.is_leaf_module(module, ""):
            return "entered plainly" if self._enters_plainly(kind) else "entered"
        if _may_give_none(kind):
            return "leaf"
        if self._entered.may_enter:
            return "layer that may be entered"
        if self.policy.is_leaf_module is None:
            return "layer"
        return "layer in question" if self._is_plain else "layer that may be entered"

    def _enters_plainly(self, kind: type[nn.Module]) -> bool:
        """Return whether modules of a class, which are no leaves, only have their forwards run."""
        is_own = self._is_plain and self._calls_plainly
        return is_own and is_called_as_modules_are(kind) and not is_layer_of_torch(kind)

    def _call_as_replaced(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a module in a tracer of which a subclass replaces what concerns modules."""
        if (inner := self._inside(module, "wrapper")) is not module:
            return self.on_module_call(inner, args, kwargs)
        if id(module) not in self._paths and "path_of_module" not in self._replaced:
            return self.enter_module(None, module, partial(original_call, module), args, kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            entering_module(module)  # A subclass may call this without `enter_module`.
            return original_call(module, *args, **kwargs)

        return self.call_module(module, forward, args, kwargs)

    def _record_leaf(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Proxy:
        """Record a call of a leaf as `call_module` does, for a tracer that customises nothing about it."""
        if self._ended:
            raise _trace_is_over("call_module", path)
        origin = self._place.origin_of_call(path, type(module), _FRAMES_OF_A_LEAF)
        if not kwargs and len(args) == 1 and (type(args[0]) is Proxy or type(args[0]) in _MIXED_PROXIES):
            given = args[0].node
            node = self.graph._create_at("call_module", path, given, origin)  # pyright: ignore[reportPrivateUsage]
            if self.layer_calls is not None:
                self.layer_calls.append((module, given, node, node, node))
        else:
            node_args = self._checked_arguments(args)
            node_kwargs: dict[str, Argument] | None = None
            if kwargs:
                node_kwargs = dict(zip(kwargs, self._checked_arguments((*kwargs.values(),)), strict=True))
            node = self.graph.create_node("call_module", path, node_args, node_kwargs, None, None, origin)
        policy = self.policy
        if policy.node_created is not None:
            self._note(node)
        proxy = self._proxy_class(node, self) if policy.proxy_mixins is None else self.proxy(node)
        if self.new_constants:
            self.on_constants_read(proxy)
        if self._looks_at_results:
            self._look_at_result(proxy)
        return proxy

    def torch_calls(self, session: Session) -> AbstractContextManager[Any]:
        """Return what hears of calls of torch while it is entered (see `fxplug.capture.interception`)."""
        session.calls = calls = TracedCalls(session)
        return calls

    def on_number_made(self, kind: type, value: Any) -> Any:
        """Hear of a call of ``int`` or ``float`` (see `fxplug.capture.conversions`)."""
        return (
            self.create_proxy("call_function", kind, (value,), {})
            if isinstance(value, Proxy)
            else kind(value)
        )

    def on_cached_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a function whose results are kept (``functools.lru_cache``)."""
        return function(*args, **kwargs)

    def on_function_call(
        self, target: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Hear of a call of a function that is kept as a call (see `fxplug.capture.interception`)."""
        return record_call(target, original, args, kwargs)

    def on_module_attribute(self, module: nn.Module, name: str, value: Any) -> Any:
        """Hear that a parameter or buffer was read (see `fxplug.capture.interception`)."""
        prefix = self._paths.get(id(module))
        path = None if prefix is None else f"{prefix}.{name}" if prefix else name
        if self._reads_plainly:
            return value if path is None else self._read(path, value, self._attribute_proxies)
        former, self._reading = self._reading, (value, path)
        try:
            answer = self.getattr(name, value, self._attribute_proxies)
        finally:
            self._reading = former
        if answer is value and isinstance(value, torch.Tensor):
            self.leave_constant(value)
        return answer

    def on_module_assignment(self, module: nn.Module, name: str, value: Any) -> bool:
        """Hear that an attribute is about to be assigned (see `fxplug.capture.interception`)."""
        prefix = self._paths.get(id(module))
        if prefix is None:
            return False  # A module that the program makes for itself.
        if self._is_plain:  # A container of modules was told to.
            raise MissedProgramError
        if name == "__class__":
            self.refuse_class(prefix, module, value)
        path = f"{prefix}.{name}" if prefix else name
        self.note_held(value)
        self._states.note_assignment(module, prefix)
        if name == "training":
            if value is module.training:
                self._surroundings.note_same_flag(prefix, module)
            else:
                self._states.refuse(training_error(path))
        if name in parameters_of(module) or name in buffers_of(module):
            if not (isinstance(value, Proxy) and updates_in_place(value.node, path)):
                raise assignment_error(path)
            # The update is in the graph; from now on this trace reads its result.
            self._attribute_proxies[path] = value
            return True
        # A plain attribute keeps the tensor that the graph updates.
        return isinstance(value, Proxy) and updates_in_place(value.node, path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        """Return a tracer that is configured alike; Python modules and the policy are shared."""
        memo.update({id(module): module for module in self.autowrap_modules})
        memo[id(self.policy)] = self.policy
        other = memo[id(self)] = type(self).__new__(type(self))
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other


def _plain_container(value: Any, inputs: list[Node], depth: int = 0) -> Any:
    """Return what a graph gets in place of a list, a tuple or a slice of traced values and plain ones.

    Args:
        value: Whatever a call was given.
        inputs: Receives the nodes of the traced values in it, in order.
        depth: In how many others it is.

    Returns:
        None for anything else, and where containers lie deep in others: they may be in themselves.
    """
    kind = type(value)
    if kind is slice:
        value = value.start, value.stop, value.step
    elif (kind is not list and kind is not tuple) or depth == _DEEPEST:
        return None
    taken: list[Any] = []
    for part in value:
        own = type(part)
        if own is Proxy or own is Attribute or own in _MIXED_PROXIES:
            inputs.append(part.node)
            taken.append(part.node)
        elif own in _DIRECT:
            taken.append(part)
        elif (inner := _plain_container(part, inputs, depth + 1)) is None:
            return None
        else:
            taken.append(inner)
    return tuple(taken) if kind is tuple else immutable_list(taken) if kind is list else slice(*taken)


_DEEPEST = 3
"""How many containers may lie in each other."""


def _may_give_none(kind: type) -> bool:
    """Return whether what a module of this class returns, or a part of it, may be None."""
    return kind is nn.MultiheadAttention or not str(kind.__module__).startswith("torch.nn.modules.")


def _trace_is_over(kind: str, target: Any) -> TraceError:
    return TraceError(
        f"Cannot record {kind} {target!r}: the trace is over, and a value that was traced is used behind it. "
        "Look for a traced value that the program keeps in a list, an attribute or a global.",
        code="FXP-T011",
    )


_MATRICES = frozenset({"T", "mT"})
"""Attributes of tensors that are computed, and are errors for some; plain programs read no others like that."""
_KIND = "unknown"
"""What a symbolic trace knows about the kind of a value."""

_proxy_classes: dict[tuple[type, ...], type[Proxy]] = {}
_MIXED_PROXIES: set[type] = set()
"""Classes of proxies that plugins have added to."""


def _mixed_proxy_class(mixins: tuple[type, ...], kind: type[Proxy]) -> type[Proxy]:
    if not mixins:
        return kind
    known = _proxy_classes.get((*mixins, kind))
    if known is None:
        name = "".join(mixin.__name__ for mixin in mixins) + kind.__name__
        MIXINS.update(mixins)
        known = _proxy_classes[(*mixins, kind)] = type(name, (*mixins, kind), {})
        _MIXED_PROXIES.add(known)
    return known


def is_tracing() -> bool:
    """Return whether a trace runs in this thread or task."""
    return active_interceptor() is not None


_HOLDING_NOTHING = (type, nn.Module, OpOverload, ClosureCall)
"""What can be called, and holds nothing of the program, or nothing that the graph does not follow."""
_TEXT = frozenset((str,))
_WITH_METHODS = FORWARDS | STATEFUL_USES | {"training"}
"""What is no question in a plain program: it holds nothing that has a state of its own."""
_NEEDED_BY_FEW = "_states", "_regions", "_surroundings", "_settings", "_constants"
"""Attributes that a plain program leaves alone."""
_WITHOUT_LINE = frozenset(("placeholder", "output"))
_USUAL = frozenset(("layer", "layer in question"))
_DIRECT_WAYS = _USUAL | {"entered plainly"}
_COMPILED_CALL = "_compiled_call_impl"
"""Under this name a module has what runs in place of its call, if it was compiled."""
_LAYERS = _USUAL | {"layer that may be entered"}
_LEAVES = _LAYERS | {"leaf"}
_FRAMES_OF_A_LEAF = 4
"""How far up the stack, seen from `Place.origin`, the call of a leaf stands: its record, and the interception of it."""
_METHODS: dict[str, Any] = {
    name: getattr(Tracer, name)
    for name in (
        "call_module",
        "create_arg",
        "create_node",
        "create_proxy",
        "getattr",
        "is_leaf_module",
        "path_of_module",
        "proxy",
    )
}
_TRACE_CODE = Tracer.trace.__code__
_ENTER_CODE = Tracer.enter_module.__code__
_PLAINLY_CODE = Tracer._enter_plainly.__code__  # pyright: ignore[reportPrivateUsage]
