"""What it means that a captured program does what eager does."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import random
import sys
import types
import warnings
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import FxplugError, GraphError, GuardError, TraceWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from capture_corpus.corpus import Program

TOLERANCE = 1e-6
_STRUCTURE = "FXP-G020"
"""The code for inputs of another structure than those that were traced."""

_OF_MODULES = frozenset(vars(nn.Module()))


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = _Everything()


# -- taking down


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as it was at one moment."""

    kind: str
    values: torch.Tensor
    properties: tuple[Any, ...]


def record(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Return `value` in a form that keeps what it is now and can be compared part by part."""
    kind = type(value).__qualname__
    if isinstance(value, nn.UninitializedParameter):
        return (kind, None)
    if isinstance(value, torch.Tensor):
        return _record_tensor(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum)):
        return (kind, value)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return (kind, value.__qualname__)
    if id(value) in seen:
        return (kind, "itself")
    return _record_parts(value, kind, seen | {id(value)})


def _record_tensor(value: torch.Tensor) -> TensorRecord:
    with torch.no_grad():
        values = value.detach().to_dense() if value.layout != torch.strided else value.detach().clone()
    has_gradient = value.is_leaf and value.grad is not None
    properties = (
        ("shape", tuple(value.shape)),
        ("dtype", value.dtype),
        ("device", value.device),
        ("layout", value.layout),
        ("requires_grad", value.requires_grad),
        ("is_inference", value.is_inference()),
        ("has a gradient", has_gradient),
    )
    return TensorRecord(type(value).__qualname__, values, properties)


def _record_parts(value: Any, kind: str, seen: frozenset[int]) -> Any:
    if isinstance(value, dict):
        pairs = [(record(key, seen), record(part, seen)) for key, part in value.items()]
        extra = {name: record(part, seen) for name, part in getattr(value, "__dict__", {}).items()}
        return (kind, pairs, extra)
    if isinstance(value, (list, tuple)):
        return (kind, [record(part, seen) for part in value])
    if isinstance(value, (set, frozenset)):
        return (kind, sorted(map(repr, value)))
    if isinstance(value, nn.Module):
        return (kind, state_of(value, seen))
    if is_dataclass(value):
        return (kind, {field.name: record(getattr(value, field.name), seen) for field in fields(value)})
    if type(value).__module__.split(".")[0] in {"torch", "weakref", "builtins"}:
        return (kind, None)  # What torch keeps for itself.
    if hasattr(value, "__dict__"):
        return (kind, {name: record(part, seen) for name, part in vars(value).items()})
    return (kind, repr(value) if type(value).__repr__ is not object.__repr__ else None)


def state_of(
    root: Any, seen: frozenset[int] = frozenset(), only: Container[str] = EVERYTHING
) -> dict[str, Any]:
    """Return records of all that a program keeps from call to call, by path."""
    if not isinstance(root, nn.Module):
        attributes = getattr(root, "__dict__", {}) if not isinstance(root, types.FunctionType) else {}
        return {name: record(value, seen) for name, value in attributes.items() if name in only}
    found: dict[str, Any] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        plain = _plain_attributes(module)
        registered = [dict(module.named_parameters(recurse=False)), dict(module.named_buffers(recurse=False))]
        for table in (*registered, plain, {"training": module.training}):
            entries = {prefix + name: value for name, value in table.items()}
            found.update({name: record(value, seen) for name, value in entries.items() if name in only})
    return found


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    if type(module).__module__.startswith(("torch._dynamo", "torch.jit")):
        return {}  # What compilers note.
    return {name: value for name, value in vars(module).items() if name not in _OF_MODULES}


def tensors_in(
    value: Any, path: str = "", seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that `value` holds, with the path of each."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if id(value) in seen or isinstance(value, (type, types.FunctionType, types.ModuleType)):
        return
    seen |= {id(value)}
    if isinstance(value, nn.Module):
        parts = dict(value.named_parameters(recurse=False)) | dict(value.named_buffers(recurse=False))
        parts |= dict(value.named_children()) | _plain_attributes(value)
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, (list, tuple)):
        parts = dict(enumerate(value))
    elif isinstance(value, (functools.partial, types.MethodType)):
        parts = {"self": getattr(value, "__self__", None)} if isinstance(value, types.MethodType) else {}
    else:
        parts = getattr(value, "__dict__", {})
    for name, part in parts.items():
        yield from tensors_in(part, f"{path}.{name}" if path else str(name), seen)


# -- comparing


def difference(ours: Any, theirs: Any, what: str) -> str:
    """Return the first difference between two records in words, or nothing."""
    if isinstance(theirs, TensorRecord) or isinstance(ours, TensorRecord):
        return _tensor_difference(ours, theirs, what)
    if type(ours) is not type(theirs):
        return f"{what}: {_short(ours)} instead of {_short(theirs)}"
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{what}: {_short(ours)} instead of {_short(theirs)}"
        pairs = [(str(index), *both) for index, both in enumerate(zip(ours, theirs, strict=True))]
    elif isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return f"{what}: {_short(list(ours))} instead of {_short(list(theirs))}"
        pairs = [(name, ours[name], theirs[name]) for name in theirs]
    else:
        return "" if _same_scalar(ours, theirs) else f"{what}: {_short(ours)} instead of {_short(theirs)}"
    return next(filter(None, (difference(mine, other, f"{what}[{name}]") for name, mine, other in pairs)), "")


def _tensor_difference(ours: Any, theirs: Any, what: str) -> str:
    if not isinstance(ours, TensorRecord) or not isinstance(theirs, TensorRecord):
        return f"{what}: {_short(ours)} instead of {_short(theirs)}"
    if ours.kind != theirs.kind:
        return f"{what}: a {ours.kind} instead of a {theirs.kind}"
    for (name, mine), (_, other) in zip(ours.properties, theirs.properties, strict=True):
        if mine != other:
            return f"{what}: {name} is {mine} instead of {other}"
    if type(theirs.values) is not type(ours.values):
        return f"{what}: a {type(ours.values).__name__} instead of a {type(theirs.values).__name__}"
    return (
        ""
        if _same_values(ours.values, theirs.values)
        else f"{what}: {_short(ours)} instead of {_short(theirs)}"
    )


def _same_values(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if theirs.is_floating_point() or theirs.is_complex():
        return torch.allclose(ours, theirs, TOLERANCE, TOLERANCE, equal_nan=True)
    return torch.equal(ours, theirs)


def _same_scalar(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float):
        return repr(ours) == repr(theirs) or math.isclose(ours, theirs, rel_tol=TOLERANCE)
    return ours == theirs


def _short(value: Any) -> str:
    text = " ".join((str(value.values) if isinstance(value, TensorRecord) else repr(value)).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


# -- running


@dataclass
class Outcome:
    """What one call did."""

    result: Any = None
    """A record of what was returned."""
    inputs: Any = None
    """A record of the inputs after the call."""
    aliases: Any = None
    """Which results share memory with which inputs or with one another."""
    gradients: Any = None
    error: Exception | None = None
    returned: tuple[torch.Tensor, ...] = ()
    """The tensors that were returned."""
    fresh: tuple[int, ...] = ()
    """Which of these are memory of their own."""


def seed_everything(seed: int) -> None:
    """Make every source of random numbers start anew."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def call(function: Callable[..., Any], args: Any, kwargs: Any, trainable: dict[str, torch.Tensor]) -> Outcome:
    """Call `function` and take down all that came of it."""
    given = [tensor for _, tensor in tensors_in([args, kwargs])]
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return Outcome(error=error)
    returned = tuple(tensor for _, tensor in tensors_in(result))
    leaves = {f"input {index}": tensor for index, tensor in enumerate(given)} | trainable
    aliases = [
        [index for index, other in enumerate([*given, *returned]) if _share_memory(tensor, other)]
        for tensor in returned
    ]
    kept = [*given, *trainable.values()]
    fresh = [
        index
        for index, tensor in enumerate(returned)
        if not any(_share_memory(tensor, other) for other in kept)
    ]
    found = Outcome(record(result), record([list(args), kwargs]), aliases, None, None, returned, tuple(fresh))
    found.gradients = _gradients(returned, leaves)
    return found


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.strided not in {tensor.layout, other.layout} or tensor.numel() == 0:
        return tensor is other
    try:
        return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return tensor is other


def _gradients(returned: tuple[torch.Tensor, ...], leaves: dict[str, torch.Tensor]) -> dict[str, Any]:
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad and leaf.is_leaf}
    ends = [tensor for tensor in returned if tensor.requires_grad]
    if not ends or not wanted:
        return {}
    total = sum((end.abs() * (index + 1)).sum() for index, end in enumerate(ends))
    try:
        total.backward()  # Not autograd.grad(), which some programs refuse.
    except RuntimeError as error:
        return {"refused": record(type(error).__name__)}
    finally:
        found = {name: record(leaf.grad) for name, leaf in wanted.items()}
        for leaf in wanted.values():
            leaf.grad = None
    return found


def overwrite(outcome: Outcome, fresh: tuple[int, ...]) -> None:
    """Write over results, as callers may, so that a result that a captured module keeps for itself is noticed."""
    for index in fresh:
        if index < len(outcome.returned):
            with contextlib.suppress(RuntimeError), torch.inference_mode():
                outcome.returned[index].zero_()


def outcome_difference(ours: Outcome, theirs: Outcome) -> str:
    """Return the first difference between two calls."""
    return (
        difference(ours.result, theirs.result, "result")
        or difference(ours.inputs, theirs.inputs, "inputs after the call")
        or difference(ours.aliases, theirs.aliases, "shared memory")
        or difference(ours.gradients, theirs.gradients, "gradients")
    )


# -- judging


@dataclass(frozen=True)
class Verdict:
    """How a captured program did."""

    kind: str
    """equal, reported, refused, failed (an error when it is called), different, or killed."""
    code: str = ""
    detail: str = ""
    residue: str = ""
    """What the capture changed and did not put back."""
    message: str = ""
    """What a refusal said."""


@dataclass(frozen=True)
class Step:
    """One call of a program."""

    name: str
    make_args: Callable[[], tuple[Any, ...]]
    make_kwargs: Callable[[], dict[str, Any]]
    may_be_refused: bool = False
    """Whether a guard may stop it."""
    flips: bool = False
    """Whether the training flag changes before it."""
    has_other_values: bool = False
    """Whether the floating-point inputs have other values than those that the program names."""

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return new inputs, always the same."""
        torch.manual_seed(5)
        given = self.make_args(), self.make_kwargs()
        if self.has_other_values:
            for _, tensor in tensors_in(given):
                if tensor.is_floating_point():
                    tensor.data.mul_(1.5).add_(0.25)
        return given


def steps_of(program: Program) -> list[Step]:
    """Return the calls that are compared."""

    named = program.kwargs
    steps = [Step("first call", program.inputs, named), Step("second call", program.inputs, named)]
    steps.append(Step("other values", program.inputs, named, may_be_refused=True, has_other_values=True))
    steps += [Step("other inputs", make, named, may_be_refused=True) for make in program.others]
    steps += [
        Step("other inputs", program.inputs, make, may_be_refused=True) for make in program.other_kwargs
    ]
    if program.flips:
        steps.append(Step("other training flag", program.inputs, named, may_be_refused=True, flips=True))
    return steps


def judge(
    program: Program, capture: Callable[..., Any], *, after: Callable[[Any], None] | None = None
) -> Verdict:
    """Capture a program and compare what it does with eager.

    Args:
        program: The program.
        capture: Takes the program, positional and named inputs; returns the captured module.
        after: Given the captured module, changes it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        root, inputs = program.fresh(), steps_of(program)[0].inputs()
        before = _surroundings(root, inputs, program)
        seed_everything(0)
        generators = _generators()
        try:
            captured = capture(root, *inputs)
        except Exception as error:
            residue = difference(_surroundings(root, inputs, program), before, "left behind")
            return _judge_refusal(program, error, residue or _moved(generators))
        residue = difference(_surroundings(root, inputs, program), before, "left behind") or _moved(
            generators
        )
        if after is not None:
            after(captured)
        told = " ".join(str(entry.message) for entry in caught if issubclass(entry.category, TraceWarning))
        found = _judge_calls(program, root, captured, told)
        if found.kind == "stopped":
            found = replace(found, kind="refused" if getattr(capture, "knows_no_inputs", False) else "failed")
    return Verdict(found.kind, found.code, found.detail, residue, found.message)


def _surroundings(root: Any, inputs: Any, program: Program) -> Any:
    ambient = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    more = program.state(root) if program.state is not None else None
    return [state_of(root), record(list(inputs)), record(ambient), record(more)]


def _generators() -> list[Any]:
    states: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append(repr(numpy.random.get_state()))
    return states


def _moved(before: list[Any]) -> str:
    return "" if _generators()[: len(before)] == before else "left behind: another state of random numbers"


def _judge_refusal(program: Program, error: Exception, residue: str) -> Verdict:
    if program.illegal:
        root = program.fresh()
        theirs = call(root, *steps_of(program)[0].inputs(), {})
        if theirs.error is not None and _is_the_same(error, theirs.error):
            return Verdict("equal", "", "", residue, str(error))
    code = error.code if isinstance(error, FxplugError) else ""
    return Verdict("refused", code, f"{type(error).__name__}: {_first_line(error)}", residue, str(error))


def _is_the_same(ours: Exception, theirs: Exception) -> bool:
    return type(ours) is type(theirs) and str(ours) == str(theirs)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else ""


def _judge_calls(program: Program, traced: Any, captured: Any, told: str) -> Verdict:
    eager = program.fresh()
    reported = False
    for index, step in enumerate(steps_of(program), start=1):
        if step.flips:
            eager.train(not eager.training)
            captured.train(not captured.training)
        given, own = step.inputs(), step.inputs()
        seed_everything(index)  # What was drawn while the program was captured is not drawn again.
        ours = call(captured, *given, _trainable(eager, traced, captured))
        if step.may_be_refused and _is_guard_error(ours.error):
            continue
        seed_everything(index)
        theirs = call(eager, *own, _trainable(eager, eager, eager))
        verdict = _judge_call(program, step, ours, theirs)
        if verdict is not None:
            return verdict
        found = _state_differences(program, eager, traced, captured)
        silent = [text for name, text in found.items() if repr(name) not in told]
        if silent:
            return Verdict("different", "", f"{step.name}: {silent[0]}")
        reported = reported or bool(found)
        overwrite(ours, theirs.fresh)
        overwrite(theirs, theirs.fresh)
    return Verdict("reported" if reported else "equal")


def _judge_call(program: Program, step: Step, ours: Outcome, theirs: Outcome) -> Verdict | None:
    if theirs.error is not None:
        if ours.error is None:
            return Verdict("different", "", f"{step.name}: eager raises {theirs.error!r}")
        return None
    if ours.error is not None:
        code = getattr(ours.error, "code", "")
        detail = f"{step.name}: {type(ours.error).__name__}: {_first_line(ours.error)}"
        # What was captured without inputs may say, with a code and the line, that it is not for these.
        kind = "stopped" if _is_guard_error(ours.error) else "failed"
        return Verdict(kind, str(code), detail, message=str(ours.error))
    found = outcome_difference(ours, theirs)
    return Verdict("different", "", f"{step.name}: {found}") if found else None


def _is_guard_error(error: Exception | None) -> bool:
    """Return whether an error says that the inputs are not those for which the program was captured."""
    return isinstance(error, GuardError) or (isinstance(error, GraphError) and error.code == _STRUCTURE)


def _trainable(eager: Any, traced: Any, captured: Any) -> dict[str, torch.Tensor]:
    """Return, for each trainable tensor of the program, that which the captured module uses in its place."""
    names = [name for name, tensor in tensors_in(eager) if tensor.requires_grad and tensor.is_leaf]
    of_traced = dict(tensors_in(traced))
    found = {name: _tensor_at(captured, name, of_traced.get(name)) for name in names}
    return {name: tensor for name, tensor in found.items() if tensor is not None and tensor.is_leaf}


def _tensor_at(module: Any, path: str, default: torch.Tensor | None) -> torch.Tensor | None:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module if isinstance(module, torch.Tensor) else default


def _state_differences(program: Program, eager: Any, traced: Any, captured: Any) -> dict[str, str]:
    """Return for every path at which the program's state differs how it does."""
    theirs, of_traced = state_of(eager), state_of(traced)
    of_captured = state_of(captured, only=theirs.keys())
    found: dict[str, str] = {}
    for name, value in theirs.items():
        if name.endswith("training") and name not in of_captured:
            continue  # The captured module has no module there.
        found[name] = difference(of_captured.get(name, of_traced.get(name)), value, f"state[{name}]")
    if program.state is not None:
        found[""] = difference(record(program.state(traced)), record(program.state(eager)), "state")
    return {name: text for name, text in found.items() if text}
