"""Checking that a captured program does what the program does: values, gradients, and what a call changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.analyze.comparison import Check, Comparison, MismatchError, Tolerance, compare, describe
from fxplug.analyze.isolation import (
    SavedState,
    copy_inputs,
    copy_values,
    forked_random_state,
    tensors_in,
    tensors_of,
)
from fxplug.analyze.runs import gradients_of
from fxplug.errors import GuardError
from fxplug.execute import GraphModule, Interpreter, fetch_path
from fxplug.semantics.random_sources import RandomSources
from fxplug.semantics.random_state import (
    kept_random_state,
    random_state,
    random_states,
    set_random_state,
    set_random_states,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fxplug.ir import Node

__all__ = ["check_capture"]


@dataclass(frozen=True)
class _Run:
    output: Any
    inputs: tuple[Any, ...]
    state: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]


def check_capture(
    root: Any,
    captured: GraphModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    values: Callable[[], dict[str, torch.Tensor]] | None = None,
    put_back: Callable[[], None] | None = None,
) -> Check:
    """Run a program and what was captured of it on the same inputs, and compare.

    Compared are results with their dtypes and whether they require gradients, the inputs and buffers that a call
    changes, and other tensors that the graph holds, and the gradients of inputs and parameters. Then the same for
    inputs with other values. Each run starts from the same state, and afterwards the modules, the tensors that the
    program keeps elsewhere, the inputs and the random state are as before.

    Args:
        root: The program.
        captured: What was captured.
        args: Positional inputs.
        kwargs: Keyword inputs.
        values: Gives what each node had for a value when the program ran, to find the first one that differs.
        put_back: Puts back what the program has changed outside of its modules.

    Returns:
        The comparisons.

    Raises:
        MismatchError: They differ; the message names the first node whose value does.
    """
    holder = root if isinstance(root, nn.Module) else captured
    state = _State(holder, captured, put_back)
    runs = _Runs(root, captured, state)
    with forked_random_state():
        check = runs.compare(args, kwargs)
        if not check.passed:
            raise _mismatch(root, check, _first_difference(captured, args, kwargs, values, state))
        other = _other_values(args, kwargs)
        if other is not None:
            runs.check_other_values(*other)
    return check


class _State:
    """What a run may change, as it is now, and the way back to it.

    Args:
        holder: The module, with everything below it.
        captured: Its graph holds the tensors that the program has found elsewhere.
        put_back: Puts back what else the program has changed.
    """

    def __init__(
        self, holder: nn.Module, captured: GraphModule, put_back: Callable[[], None] | None = None
    ) -> None:
        self.holder = holder
        lifted = captured.graph.lifted.items()
        self._lifted = {name: value for name, value in lifted if isinstance(value, torch.Tensor)}
        buffers = dict(holder.named_buffers(remove_duplicate=False))
        self._plain = {name: tensor for name, tensor in tensors_of(holder) if name not in buffers}
        self._saved = SavedState(holder, besides=self._lifted.values())
        self._put_back = put_back

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the buffers, and of the other tensors, as they are now.

        An attribute to which the program assigns another tensor is what it was: the capture has put it back, and said
        so.
        """
        buffers = self.holder.named_buffers(remove_duplicate=False)
        found = {f"buffer {name}": tensor.detach().clone() for name, tensor in buffers}
        for name, tensor in self._plain.items():
            found[f"attribute {name}"] = tensor.detach().clone()
        for name, tensor in self._lifted.items():
            found.setdefault(f"tensor {name}", tensor.detach().clone())
        return found

    def restore(self) -> None:
        """Make everything what it was."""
        self._saved.restore()
        if self._put_back is not None:
            self._put_back()


class _Runs:
    """Runs a program and what was captured of it from the same state."""

    def __init__(self, root: Any, captured: GraphModule, state: _State) -> None:
        self._root = root
        self._captured = captured
        self._state = state
        self._random = random_states()
        self._sources = RandomSources()
        read = [fetch_path(captured, str(node.target)) for node in captured.graph.find_nodes(op="get_attr")]
        self._generators = {
            value: random_state(value) for value in read if isinstance(value, torch.Generator)
        }

    def _run(self, program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Run:
        set_random_states(self._random)
        self._sources.restore(self._sources.changed())
        try:
            return _observe(program, args, kwargs, self._state)
        finally:
            for generator, state in self._generators.items():
                set_random_state(state, generator)

    def compare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Check:
        """Run both on the examples.

        Raises:
            MismatchError: What was captured fails.
        """
        expected = self._run(self._root, args, kwargs)
        try:
            actual = self._run(self._captured, args, kwargs)
        except Exception as error:
            raise _fails(self._root, error) from error
        return Check(tuple(_compare_runs(expected, actual)))

    def check_other_values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run both on inputs that differ from the examples in their values alone.

        What does not follow the inputs shows now, such as a result that another thread has computed.

        Raises:
            MismatchError: They differ, and no guard says so.
        """
        failure: Exception | None = None
        actual: _Run | None = None
        # What was captured comes first: where its guards hold, the program goes the way that it went before, and writes
        # to nothing that is not known.
        try:
            actual = self._run(self._captured, args, kwargs)
        except GuardError:
            return
        except Exception as error:
            failure = error
        try:
            expected = self._run(self._root, args, kwargs)
        except Exception:  # The program does not take such values.
            return
        if actual is None:
            raise _fails(self._root, cast("Exception", failure)) from failure
        check = Check(tuple(_compare_runs(expected, actual)))
        if not check.passed:
            raise _mismatch(
                self._root, check, " That is so for other values of the inputs, of the same sizes."
            )


def _fails(root: Any, error: Exception) -> MismatchError:
    reason = f"it raises {type(error).__name__}: {error}"
    return MismatchError(
        f"What was captured of {_name(root)} fails where the program does not: {reason}. Make the function that it "
        "comes from a leaf (fxplug.wrap), or its module.",
        Check((Comparison("output", "a result", "an error", reason=reason),)),
    )


def _other_values(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return copies of the inputs with each number a little larger; None where no tensor has numbers for that."""
    others = (copy_inputs(tuple(args)), copy_inputs(dict(kwargs)))
    generator = torch.Generator().manual_seed(0)
    changed = False
    with torch.no_grad():
        for tensor in tensors_in(others):
            if _takes_other_values(tensor):
                factors = 1 + torch.rand(tensor.shape, generator=generator) / 16
                tensor.copy_(tensor * factors.to(tensor))
                changed = True
    return others if changed else None


def _takes_other_values(tensor: torch.Tensor) -> bool:
    is_plain = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested
    # Of one that was expanded, several elements are one.
    is_expanded = is_plain and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return is_plain and not is_expanded and not tensor.is_inference()


def _observe(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], state: _State) -> _Run:
    behind: list[torch.Tensor] = []
    inputs = (copy_inputs(tuple(args), behind), copy_inputs(dict(kwargs), behind))
    given = {
        f"input {number}": tensor for number, tensor in enumerate(tensors_in(inputs)) if _is_leaf(tensor)
    }
    given.update({f"result {number} among the inputs": leaf for number, leaf in enumerate(behind)})
    try:
        output = program(*inputs[0], **inputs[1])
        gradients = _gradients(
            output, {**given, **{f"parameter {n}": p for n, p in state.holder.named_parameters()}}
        )
        output = copy_values(output)
        left = state.tensors()
    finally:
        state.restore()
    return _Run(output, inputs, left, gradients)


def _is_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _gradients(output: Any, sources: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Return the gradients of all results with regard to what requires them."""
    try:
        return gradients_of(output, sources)
    except RuntimeError:  # Reentrant checkpoints refuse to be asked so.
        return {}


_CLOSE = Tolerance()


def _compare_runs(expected: _Run, actual: _Run) -> Iterator[Comparison]:
    yield from compare(expected.output, actual.output, _CLOSE)
    yield from _compare_flags(expected.output, actual.output)
    yield from compare(expected.inputs[0], actual.inputs[0], _CLOSE, "input")
    yield from compare(expected.inputs[1], actual.inputs[1], _CLOSE, "input")
    for name in expected.state.keys() & actual.state.keys():
        yield from compare(expected.state[name], actual.state[name], _CLOSE, name)
    for name, gradient in expected.gradients.items():
        other = actual.gradients.get(name)
        yield from compare(gradient, other, _CLOSE, f"gradient of {name}")


def _compare_flags(expected: Any, actual: Any) -> Iterator[Comparison]:
    for number, (one, other) in enumerate(zip(tensors_in(expected), tensors_in(actual), strict=False)):
        for flag in ("requires_grad", "is_inference"):
            wanted, found = getattr(one, flag), getattr(other, flag)
            wanted, found = (wanted(), found()) if callable(wanted) else (wanted, found)
            if wanted != found:
                reason = f"its {flag} is {found} and should be {wanted}"
                yield Comparison(f"output tensor {number}", describe(one), describe(other), reason=reason)


class _Comparing(Interpreter):
    """Runs a captured program, and stops at the first node whose value is not what it should be."""

    def __init__(self, module: GraphModule, values: dict[str, torch.Tensor]) -> None:
        super().__init__(module)
        self._values = values
        self.found: tuple[Node, str] | None = None

    def run_node(self, n: Node) -> Any:
        """Run one node, and compare."""
        result = super().run_node(n)
        expected = self._values.get(n.name)
        if self.found is None and isinstance(result, torch.Tensor) and expected is not None:
            for comparison in compare(expected, result, _CLOSE, n.name):
                if not comparison.passed:
                    self.found = (n, comparison.reason)
        return result


def _first_difference(
    captured: GraphModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    values: Callable[[], dict[str, torch.Tensor]] | None,
    state: _State,
) -> str:
    """Return a sentence about the first node that differs."""
    if values is None or kwargs:
        return ""
    try:
        interpreter = _Comparing(captured, values())
        with kept_random_state():
            interpreter.run(*copy_inputs(tuple(args)))
    except Exception:
        return ""
    finally:
        state.restore()
    if interpreter.found is None:
        return ""
    node, reason = interpreter.found
    origin = next(iter(node.origins), None)
    line = None if origin is None else origin.source()
    where = "" if line is None else f" at {line} ({line.text!r})"
    return f" The first node that differs is {node.name!r}{where}: {reason}."


def _mismatch(root: Any, check: Check, first: str) -> MismatchError:
    failure = check.failures[0]
    return MismatchError(
        f"What was captured of {_name(root)} is not what it computes: in {failure.path} ({failure.expected}), "
        f"{failure.reason}.{first} Make the function that the value comes from a leaf (fxplug.wrap), or its module.",
        check,
    )


def _name(root: Any) -> str:
    return type(root).__name__ if isinstance(root, nn.Module) else getattr(root, "__qualname__", repr(root))
