"""Capturing with example inputs: the run, the check, and what happens when a guard does not hold."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.analyze.elsewhere import tensors_elsewhere
from fxplug.analyze.isolation import SavedTensors, forked_random_state, holds_itself, tensors_in
from fxplug.api.autowrapping import function_to_keep, submodule_to_keep
from fxplug.api.checking import check_capture
from fxplug.api.plain_capture import capture_plainly
from fxplug.api.user_errors import error_with_place
from fxplug.capture import TraceContext, TracePolicy, Tracer
from fxplug.capture.caught import forget_frames
from fxplug.capture.compared import MissedComparisonError
from fxplug.capture.conversions import MissedConversionError
from fxplug.capture.depth import deeper_calls
from fxplug.capture.examples import ExampleTracer
from fxplug.capture.examples.asking import MissedSizeError
from fxplug.capture.unseen import MissedFunctionError
from fxplug.codegen import PyTreeCodeGen
from fxplug.errors import FxplugError, GuardError, TraceError, did_you_mean, shown
from fxplug.execute import POLICIES, GraphModule, GuardSet
from fxplug.ir import Graph
from fxplug.ir.collector import paused_collection
from fxplug.semantics.internals import (
    is_compiler_loaded,
    is_fake,
    modules_of,
    paths_with_hooks,
    refuses_missing_data,
    without_data,
    without_kept_casts,
)
from fxplug.semantics.surroundings import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from fxplug.plugins import PluginManager

__all__ = [
    "MODES",
    "CaptureOptions",
    "Eager",
    "Recapture",
    "as_args",
    "as_kwargs",
    "capture",
    "check_options",
    "install_policy",
    "name_of_root",
    "unwrapped",
]

MODES = ("symbolic", "shape", "value")
"""How values are treated while a program is captured; see `fxplug.trace`."""


@dataclass(frozen=True)
class CaptureOptions:
    """How a program is captured."""

    mode: str
    check: bool
    on_error: str
    on_mutation: str
    autowrap: bool
    manager: PluginManager
    kept: tuple[Callable[..., Any], ...] = ()
    """Functions whose calls stay calls, besides those that the plugins name."""
    leaves: tuple[nn.Module, ...] = ()
    """Modules that stay calls, besides those that the plugins name."""
    problems: list[TraceError] | None = None
    """Where to keep what is wrong, for a capture that goes on to find everything."""
    fills_caches: bool = False
    """Whether the numbers may be fixed of which a program makes what it keeps for its next call. Each call of what is
    captured has the same then; other calls, of the program itself, may leave another state."""
    answers: TracePolicy | None = None
    """The answers of the plugins, where somebody listens to them; by default those of the manager."""

    def plugin_policy(self) -> TracePolicy:
        """Return the answers of plugins and configuration to the questions of a tracer."""
        return self.manager.trace_policy() if self.answers is None else self.answers

    def policy(self) -> TracePolicy:
        """Return the answers to the questions of a tracer."""
        policy = self.plugin_policy()
        if not self.leaves:
            return policy
        ask, leaves = policy.is_leaf_module, self.leaves

        def is_leaf(module: nn.Module, path: str, context: TraceContext) -> bool | None:
            if any(module is leaf for leaf in leaves):
                return True
            return ask(module, path, context) if ask is not None else None

        return replace(policy, is_leaf_module=is_leaf)


def as_args(example_inputs: Any) -> tuple[Any, ...]:
    """Return the positional inputs of one call.

    Raises:
        TraceError: They are no sequence, or hold themselves.
    """
    _refuse_endless(example_inputs)
    if example_inputs is None:
        return ()
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if type(example_inputs) in {tuple, list}:
        return tuple(example_inputs)
    raise TraceError(
        f"Cannot use a {type(example_inputs).__name__} as example inputs: give a tuple with the positional arguments "
        "of one call, and example_kwargs for those by name.",
        code="FXP-T064",
    )


def _refuse_endless(value: Any) -> None:
    if holds_itself(value):
        raise TraceError(
            "Cannot use example inputs that hold themselves: a list, tuple or dict in them is its own part. Give the "
            "program what it needs of them.",
            code="FXP-T064",
        )


def as_kwargs(example_kwargs: Any) -> dict[str, Any]:
    """Return the inputs of one call by name.

    Raises:
        TraceError: They are no mapping with names, or hold themselves.
    """
    _refuse_endless(example_kwargs)
    if example_kwargs is None:
        return {}
    if not isinstance(example_kwargs, Mapping):
        raise TraceError(
            f"Cannot use a {type(example_kwargs).__name__} as example_kwargs: give a dict of parameter name -> value.",
            code="FXP-T064",
        )
    named = cast("Mapping[Any, Any]", example_kwargs)
    wrong = [name for name in named if not isinstance(name, str)]
    if wrong:
        raise TraceError(
            f"Cannot use {shown(wrong[0])} as a name in example_kwargs: give a dict of parameter name -> value.",
            code="FXP-T064",
        )
    return dict(named)


def check_options(options: Mapping[str, str], has_examples: bool) -> None:  # noqa: FBT001 - one question
    """Refuse options that do not exist.

    Raises:
        TraceError: One of them does not, or its mode needs example inputs.
    """
    known = {
        "mode": MODES,
        "on_error": ("raise", "collect"),
        "on_mutation": ("keep", "error"),
        "on_guard_failure": POLICIES,
    }
    for name, value in options.items():
        if value not in known[name]:
            raise TraceError(
                f"Cannot trace with {name}={shown(value)}. {did_you_mean(shown(value), known[name])}",
                code="FXP-T064",
            )
    if options["mode"] != "symbolic" and not has_examples:
        raise TraceError(
            f"Cannot trace in mode {options['mode']!r} without example inputs. Pass example_inputs, or use "
            "mode='symbolic'.",
            code="FXP-T064",
        )


def capture(
    root: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> GraphModule:
    """Capture a program; where that is wanted, calls of functions that cannot be captured stay calls."""
    program = unwrapped(root, options.plugin_policy().unwrap_module)
    if options.on_error == "collect":
        _refuse_all(program, args, kwargs, replace(options, on_error="raise", problems=[]))
    assumptions: list[str] = []
    while True:
        try:
            if options.mode == "symbolic":
                captured = _capture_symbolically(program, args, kwargs, options)
            else:
                with deeper_calls():
                    captured = _capture_with_examples(program, args, kwargs, options)
        except TraceError as error:
            function = function_to_keep(error, program, options.kept) if options.autowrap else None
            if function is None:
                raise
            options = replace(options, kept=(*options.kept, function))
            name = f"{function.__module__}.{function.__qualname__}"
            assumptions.append(f"calls of {name} stay calls, since it cannot be captured: {error}")
            continue
        if assumptions:
            captured.meta["assumptions"] = assumptions
        return captured


def _refuse_all(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> None:
    """Find everything that stands against capturing a program.

    A condition is guessed; where that is not enough, the function or submodule around a line is left out, and the
    search goes on.

    Raises:
        TraceError: Something does; the message lists all that was found.
    """
    problems = cast("list[TraceError]", options.problems)
    while True:
        before = list(problems)
        try:
            if options.mode == "symbolic":
                _capture_symbolically(program, args, kwargs, options)
            else:
                _run_on_examples(program, args, kwargs, options, {})
        except TraceError as error:
            problems[:] = before  # What was guessed on the way is found again, unless it is left out.
            problems.append(error)
            function = function_to_keep(error, program, options.kept)
            module = submodule_to_keep(error, program, options.leaves) if function is None else None
            if function is not None:
                options = replace(options, kept=(*options.kept, function))
            elif module is not None:
                options = replace(options, leaves=(*options.leaves, module))
            else:
                break
            continue
        break
    if problems:
        raise _collected(program, problems)


def _collected(program: Any, problems: Sequence[TraceError]) -> TraceError:
    # One line may be asked about many times, as in a loop.
    problems = list(
        {(problem.code, problem.message.partition(" at ")[2]): problem for problem in problems[::-1]}.values()
    )
    problems.reverse()
    lines = [f"{number}. {problem}" for number, problem in enumerate(problems, 1)]
    count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
    text = "\n".join(lines)
    error = TraceError(f"Cannot trace {name_of_root(program)}: {count}.\n{text}\n", code=problems[0].code)
    error.problems = tuple(problems)
    return error


def _capture_symbolically(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> GraphModule:
    def make() -> Tracer:
        tracer = Tracer(autowrap_functions=options.kept, policy=options.policy())
        tracer.on_mutation = options.on_mutation
        tracer.problems = options.problems
        tracer.examples = args, kwargs
        return tracer

    return traced(make, program, None)


def traced(make: Callable[[], Tracer], program: Any, concrete_args: Any) -> GraphModule:
    """Return what a tracer records of a program without examples.

    Args:
        make: Makes the tracer.
        program: A module or function.
        concrete_args: Values of some of its inputs.
    """
    ways: dict[str, Any] = {}
    while True:
        tracer = make()
        tracer.plain_conversions = "plain_conversions" in ways
        tracer.entered_modules = ways.get("entered", frozenset())
        try:
            with paused_collection():
                graph = tracer.trace(program, concrete_args)
                return GraphModule(tracer.root, graph, name_of_root(program))
        except Exception as error:  # The program may lack what a hook leaves that has not run.
            ways["rehooked"] = tracer.modules_with_other_hooks()
            if enters_more(program, error, ways, tracer.policy):
                continue
            if not isinstance(error, MissedConversionError) or "plain_conversions" in ways:
                if (said := said_of_hooks(error, ways)) is error:
                    raise
                raise said from None
            ways["plain_conversions"] = True


def _capture_with_examples(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> GraphModule:
    checks = options.check and _has_data(args, kwargs)
    if options.mode == "value" and (plain := _capture_plainly(program, args, kwargs, options)) is not None:
        return plain
    # What is written to by a call that stays one is not heard of.
    elsewhere = SavedTensors(tensors_elsewhere(program) if checks else ())
    try:
        captured, ways, _, put_back_outside = _capture_once(program, args, kwargs, options)
    finally:
        elsewhere.restore()
    if checks:

        def put_back() -> None:
            put_back_outside()
            elsewhere.restore()

        def values() -> dict[str, torch.Tensor]:
            return _run_on_examples(program, args, kwargs, options, ways, keeps_values=True).values

        try:
            find = values if options.mode == "value" else None
            copy_context().run(check_capture, program, captured, args, kwargs, find, put_back)
        finally:
            put_back()
    return captured


def _capture_plainly(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> GraphModule | None:
    """Capture a program that does nothing but call modules and torch; return None for others.

    So it is for those that raise an error, or that are captured as something else than they are: what there is to say
    of them is found out where they are listened to.
    """
    if options.kept or options.leaves or options.problems is not None:
        return None
    captured = capture_plainly(program, args, kwargs, options.policy(), name_of_root(program))
    if captured is None or not options.check:
        return captured
    try:
        copy_context().run(check_capture, program, captured, args, kwargs)
    except Exception:
        return None
    return captured


def _capture_once(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> _Capture:
    """Run a program on its examples; once more, in another way, where something stands against the usual one."""
    ways: dict[str, Any] = {}
    avoided: list[Exception] = []
    handled = sys.exc_info()[1]
    while True:
        try:
            captured = _run_on_examples(program, args, kwargs, options, ways)
        except Exception as error:
            if not _is_avoided(error, program, args, kwargs, options, ways):
                raise
            avoided.append(error)
        else:
            for error in avoided:
                forget_frames(error, handled)
            return captured


def _is_avoided(
    error: Exception,
    program: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CaptureOptions,
    ways: dict[str, Any],
) -> bool:
    """Let a program be captured in a way that avoids an error; return whether there is one.

    Raises:
        Exception: There is none, and this is to be said in place of the error.
    """
    if isinstance(error, TraceError):
        if enters_more(program, error, ways, options.policy()) or _goes_another_way(error, ways):
            return True
        if (said := said_of_hooks(error, ways)) is not error:
            raise said from None
    elif not isinstance(error, FxplugError):
        if _goes_on_after(program, error, ways, options):
            return True
        cause = _cause_of(error, program, args, kwargs, options)
        if cause is not error:
            raise cause from (error if isinstance(cause, TraceError) else None)
    return False


def _goes_on_after(program: Any, error: Exception, ways: dict[str, Any], options: CaptureOptions) -> bool:
    """Let a program be captured without what may be to blame for its error; return whether there is anything."""
    # Tensors that are one to the program may be two to the capture: ``x in [x.contiguous()]`` asks nothing of one.
    if isinstance(error, RuntimeError) and _AMBIGUOUS in str(error) and "compares_elsewhere" not in ways:
        ways["compares_elsewhere"] = True
        return True
    # What the program calls may take no stand-in for a number (json.dumps, code in C).
    if isinstance(error, (AttributeError, TypeError)) and _fixes_more_numbers(ways):
        return True
    if "fixes_numbers" not in ways:
        ways["fixes_numbers"] = True
        return True
    # Hooks may have put tensors without data where others were.
    if options.mode != "shape" or not enters_more(program, error, ways, options.policy()):
        return False
    if ways["refusal"] is error:
        del ways["refusal"]  # It says nothing of hooks.
    del ways["fixes_numbers"]
    return True


def _goes_another_way(error: TraceError, ways: dict[str, Any]) -> bool:
    """Let a program be captured in the way that avoids an error; return whether there is one that was not gone."""
    made_of = {
        "plain_numbers": ways.pop("kept_numbers", frozenset()),
        "fixed_likes": ways.pop("kept_likes", frozenset()),
    }
    if (
        error.code == "FXP-T055"
        and ways.pop("assigns_what_is_held", False)
        and "keeps_what_is_held" not in ways
    ):
        ways["keeps_what_is_held"] = True
        ways.setdefault("refusal", error)
        return True
    if error.code == "FXP-T055" and _fixes_what_is_kept(made_of, ways):
        ways.setdefault("refusal", error)
        return True
    hiding, known = ways.pop("hiding_functions", frozenset()), ways.get("looked_through", frozenset())
    if not hiding <= known:
        # A library keeps their calls for torch.fx, which cannot follow them. Examples can.
        ways["looked_through"] = known | hiding
        return True
    way = _WAYS_OF_KINDS.get(type(error), _OTHER_WAYS.get(error.code))
    if way is None or way in ways:
        return False
    if way != "fixes_numbers" or not _fixes_more_numbers(ways):
        ways[way] = True
    return True


_MADE_OF = {"numbers": "plain_numbers", "likes": "fixed_likes"}
"""Of what a program has made what it keeps -> the way in which that is fixed."""


def _fixes_what_is_kept(made_of: dict[str, frozenset[str]], ways: dict[str, Any]) -> bool:
    """Let that be fixed of which all is made that a program keeps; return whether some of it was not."""
    known = {way: ways.get(way, frozenset[str]()) for way in made_of}
    rounds = ways.get("rounds_of_kept", 0)
    # A program that counts its runs makes it of something else in each of them.
    if rounds == _MOST_NUMBERS or all(found <= known[way] for way, found in made_of.items()):
        return False
    ways["rounds_of_kept"] = rounds + 1
    ways.update({way: known[way] | found for way, found in made_of.items()})
    return True


def enters_more(program: Any, error: Exception, ways: dict[str, Any], policy: TracePolicy) -> bool:
    """Let layers be entered whose hooks stand against a capture in which they are one call each.

    Args:
        program: A module or function.
        error: What was said of it.
        ways: How it was captured. What was said first is kept there, and how it is captured the next time.
        policy: What others say of its modules.

    Returns:
        Whether there are any that were not entered yet.
    """
    rehooked = ways.pop("rehooked", frozenset())
    known = ways.get("entered", frozenset())
    is_of_hooks = not isinstance(error, FxplugError) or error.code in _OF_HOOKS
    if not is_of_hooks or not isinstance(program, nn.Module) or len(known) > _MOST_ENTERED:
        return False
    modules = dict(program.named_modules())
    ask, context = policy.is_leaf_module, TraceContext(program)
    wanted = {
        path
        for path in rehooked or paths_with_hooks(program)
        if path in modules and (ask is None or ask(modules[path], path, context) is not True)
    }
    if wanted <= known:
        return False
    ways["entered"] = known | wanted
    ways.setdefault("refusal", error)
    return True


def said_of_hooks(error: Exception, ways: dict[str, Any]) -> Exception:
    """Return what to raise for a program that is refused with its layers entered, too: what was said of the hooks."""
    is_of_state = isinstance(error, FxplugError) and error.code in _OF_STATE
    return error if is_of_state else ways.get("refusal", error)


_OF_HOOKS = frozenset({"FXP-T010", "FXP-T061"})
"""Codes of errors which say of hooks of layers, among others, that nobody hears of what they do."""
_OF_STATE = frozenset({"FXP-T055", "FXP-T067"})
"""Codes of errors which say of what such hooks leave that it is there in the next call."""
_MOST_ENTERED = 1000


def _fixes_more_numbers(ways: dict[str, Any]) -> bool:
    """Let the number be plain that something needed before the program failed; return whether it was not before."""
    needed, known = ways.pop("needed_numbers", frozenset()), ways.get("plain_numbers", frozenset())
    if "fixes_numbers" in ways or needed <= known or len(known) > _MOST_NUMBERS:
        return False
    ways["plain_numbers"] = known | needed
    return True


_AMBIGUOUS = "Boolean value of Tensor with more than one value is ambiguous"
_MOST_NUMBERS = 8
"""With more of them, all numbers are fixed: each costs another run of the program."""


def _cause_of(
    error: Exception, program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: CaptureOptions
) -> Exception:
    """Return what to raise for an error of a program that runs without stand-ins for numbers: most often the error.

    Without data, torch finds other words for what is wrong, and refuses what it has no tensors without data for. With
    data, the program raises its own error.
    """
    if options.mode != "shape":
        return error
    if options.check and _has_data(args, kwargs):
        try:
            _run_on_examples(program, args, kwargs, replace(options, mode="value"), {"fixes_numbers": True})
        except FxplugError:
            pass
        except Exception as own:
            return own
    elif not refuses_missing_data(error):
        return error
    return TraceError(
        f"Cannot trace in shape mode: torch cannot do without data what {name_of_root(program)} does "
        f"({error_with_place(error)}). Trace in value mode (mode='value'), or make the enclosing module a leaf.",
        code="FXP-T066",
    )


def _has_data(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return not any(tensor.is_meta or is_fake(tensor) for tensor in tensors_in([*args, *kwargs.values()]))


_WAYS_OF_KINDS: dict[type, str] = {
    MissedConversionError: "plain_conversions",
    MissedComparisonError: "compares_elsewhere",
    MissedSizeError: "opens_sizes",
    MissedFunctionError: "hears_functions",
}
_OTHER_WAYS = {"FXP-T032": "keeps_structures", "FXP-T043": "keeps_identities", "FXP-T068": "fixes_numbers"}
"""Code of an error -> what avoids it, at the price of longer guards or of inputs that are not tensors."""


class _Capture(NamedTuple):
    captured: GraphModule
    ways: dict[str, Any]
    values: dict[str, torch.Tensor]
    put_back: Callable[[], None]
    """Puts back what the program has changed outside of its modules, once more after another run."""


def _run_on_examples(
    program: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CaptureOptions,
    ways: dict[str, Any],
    *,
    keeps_values: bool = False,
) -> _Capture:
    """Run a program on its examples; once more if it was the first to import the compiler of torch.

    It may have compiled something, which then did not run as it was written.
    """
    was_loaded = is_compiler_loaded()
    try:
        found = _run_once(program, args, kwargs, options, ways, keeps_values=keeps_values)
    except Exception:
        if was_loaded or not is_compiler_loaded():
            raise
    else:
        if was_loaded or not is_compiler_loaded():
            return found
    return _run_once(program, args, kwargs, options, ways, keeps_values=keeps_values)


def _run_once(
    program: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CaptureOptions,
    ways: dict[str, Any],
    *,
    keeps_values: bool,
) -> _Capture:
    context: Any = nullcontext()
    apart: Any = nullcontext()
    if options.mode == "shape":
        apart = without_kept_casts()
        context, (args, kwargs) = without_data((tuple(args), dict(kwargs)))
    tracer = ExampleTracer(args, kwargs, mode=options.mode, policy=options.policy())
    tracer.autowrap_functions = options.kept
    tracer.values = {} if keeps_values else None
    tracer.fixes_numbers = "fixes_numbers" in ways
    tracer.plain_numbers = ways.get("plain_numbers", frozenset())
    tracer.fixed_likes = ways.get("fixed_likes", frozenset())
    tracer.plain_conversions = "plain_conversions" in ways
    tracer.entered_modules = ways.get("entered", frozenset())
    tracer.looked_through = ways.get("looked_through", frozenset())
    tracer.fills_caches = options.fills_caches
    tracer.keeps_what_is_held = "keeps_what_is_held" in ways
    tracer.keeps_structures = "keeps_structures" in ways
    tracer.keeps_identities = "keeps_identities" in ways
    tracer.opens_sizes = "opens_sizes" in ways
    tracer.hears_functions = "hears_functions" in ways
    tracer.compares_elsewhere = "compares_elsewhere" in ways
    tracer.on_mutation = options.on_mutation
    tracer.find_elsewhere = partial(tensors_elsewhere, program)
    tracer.around = context
    tracer.without_data = context if options.mode == "shape" else None
    with apart, forked_random_state(), paused_collection():
        try:
            graph = tracer.trace(program)
        except Exception:
            ways["needed_numbers"] = tracer.numbers_needed()
            ways["rehooked"] = tracer.modules_with_other_hooks()
            ways["assigns_what_is_held"] = tracer.assigns_what_is_held
            ways["hiding_functions"] = tracer.hiding_functions
            ways["kept_numbers"] = tracer.numbers_left() if options.fills_caches else frozenset()
            ways["kept_likes"] = tracer.likes_left() if options.fills_caches else frozenset()
            raise
        captured = GraphModule(tracer.root, graph, name_of_root(program))
        if tracer.guards:
            captured.set_guards(GuardSet(tracer.guard_graph, tracer.guards))
        found = _Capture(captured, ways, tracer.values or {}, tracer.putting_back_outside())
        del tracer  # What it knows is not walked by the next collection any more.
        return found


def install_policy(captured: GraphModule, root: Any, options: CaptureOptions, on_guard_failure: str) -> None:
    """Let a captured program do what was chosen when a guard does not hold."""
    if on_guard_failure in {"eager", "recapture"}:
        _guard_structure(captured)
    own = captured.guard_set
    if own is None and not captured.guards:
        return
    guards = GuardSet(None, ()) if own is None else own
    guards.on_failure = on_guard_failure
    if on_guard_failure == "eager":
        guards.instead = Eager(root)
    elif on_guard_failure == "recapture":
        guards.instead = Recapture(root, replace(options, check=False))
    captured.set_guards(guards)


def _guard_structure(captured: GraphModule) -> None:
    """Let nested inputs of another structure, which a program without guards refuses itself, count as a guard."""
    graph = captured.graph
    generator = vars(graph)["_codegen"]
    if captured.guard_set is not None or not isinstance(generator, PyTreeCodeGen):
        return
    guards = Graph()
    for node in graph.find_nodes(op="placeholder"):
        guards.node_copy(node)
    guards.output(())
    guards.keyword_only = graph.keyword_only
    guards.set_codegen(PyTreeCodeGen(generator.parameters, generator.flatten))
    captured.set_guards(GuardSet(guards, ()))


class Eager:
    """Runs the original program.

    Args:
        root: The program.
    """

    def __init__(self, root: Any) -> None:
        self.root = root

    def __call__(self, module: GraphModule, /, *args: Any, **kwargs: Any) -> Any:
        """Run it, in the mode that `module` is in."""
        with _in_mode_of(module, self.root):
            return self.root(*args, **kwargs)


class Recapture(Eager):
    """Captures a program again for inputs that no capture so far is right for.

    Args:
        root: The program.
        options: How it is captured.
    """

    limit = 8
    """How many captures are kept; the one that was used longest ago goes first."""

    def __init__(self, root: Any, options: CaptureOptions) -> None:
        super().__init__(root)
        self._options = options
        self._captures: list[GraphModule] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Recapture:
        """Return one that captures a copy of the program; what was captured so far belongs to the original."""
        return Recapture(copy.deepcopy(self.root, memo), self._options)

    def __call__(self, module: GraphModule, /, *args: Any, **kwargs: Any) -> Any:
        """Run the capture whose guards hold, or capture the program for these inputs."""
        for known in self._captures:
            # Its own modules are in the modes in which it was captured; those of `module` are what is asked about.
            if known.training is not module.training or not all(
                holds(guard, module) for guard in known.graph.state_guards
            ):
                continue
            try:
                result = known(*args, **kwargs)
            except GuardError as error:
                if not error.can_run_again:
                    raise
                continue
            self._captures.remove(known)
            self._captures.append(known)
            return result
        with _in_mode_of(module, self.root):
            captured = capture(self.root, args, kwargs, self._options)
            _guard_structure(captured)
        self._captures = [*self._captures[1 - self.limit :], captured]
        return captured(*args, **kwargs)


@contextmanager
def _in_mode_of(module: nn.Module, root: Any) -> Generator[None]:
    """Put the modules of a program into the modes, of training or evaluation, that those of a captured one are in."""
    modes = _other_modes(module, root) if isinstance(root, nn.Module) else []
    for part, _, training in modes:
        part.training = training
    try:
        yield
    finally:
        for part, training, _ in modes:
            part.training = training


def _other_modes(module: nn.Module, root: nn.Module) -> list[tuple[nn.Module, bool, bool]]:
    """Return the modules of a program that a captured one has in another mode, with their modes and the other one.

    What the captured one does not have was switched together with what it is in.
    """
    found: list[tuple[nn.Module, bool, bool]] = []
    for path, part in root.named_modules():
        ours, theirs = module, root
        for name in path.split(".") if path else ():
            inner = modules_of(ours).get(name)
            if inner is None:
                break
            ours, theirs = inner, modules_of(theirs)[name]
        if ours.training is not theirs.training and part.training is not ours.training:
            found.append((part, part.training, ours.training))
    return found


def unwrapped(root: Any, unwrap: Callable[[nn.Module], nn.Module | None] | None) -> Any:
    """Return the module inside all wrappers that the plugins know."""
    while unwrap is not None and isinstance(root, nn.Module):
        inner = unwrap(root)
        if inner is None or inner is root:
            break
        root = inner
    return root


def name_of_root(root: Any) -> str:
    """Return what a captured program is named after."""
    if isinstance(root, nn.Module):
        return type(root).__name__
    return getattr(root, "__name__", type(root).__name__)
