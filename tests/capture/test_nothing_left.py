"""What a trace needs is gone when it is over: it leaves no cycles behind, which only a collection would free."""

from __future__ import annotations

import contextlib
import gc
import json
import traceback
import weakref
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.caught import forget_frames
from fxplug.plugins import PluginManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Nested(nn.Module):
    """Plain, with modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.Sequential(Block(), nn.Dropout()), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x) + x


class Compares(Nested):
    """Listened to on examples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(x)
        return y if y is not x else x


class Helped(Nested):
    """Traced once more: a function that it calls compares what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _first_if_other(self.blocks(x), x.contiguous())


def _first_if_other(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one if one is not other else other + 1


class AsksForAMask(Nested):
    """Traced with the default of an input of which it asks."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.blocks(x)
        return y if mask is None else y * mask


class Counts(Nested):
    """Numbers that it computes become numbers of the examples in a further trace."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x) * int(format(x.shape[0]))


class WithHooks(Nested):
    """Has functions of its own around a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].register_forward_hook(_doubled)


def _doubled(module: nn.Module, args: tuple[torch.Tensor, ...], result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.exp() * 2


@pytest.fixture
def left() -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Return what calls a function, and returns what only a collection has freed then, while it keeps the result."""
    was_enabled, former = gc.isenabled(), gc.get_debug()
    gc.disable()

    def found(run: Callable[[], object]) -> list[object]:
        run()  # What is made once for all is no garbage of one call.
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        result = run()
        gc.collect()
        gc.set_debug(former)
        kept = [one for one in gc.garbage if one is not result]
        gc.garbage.clear()
        return kept

    try:
        yield found
    finally:
        gc.set_debug(former)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()


_OF_A_GRAPH = {"Graph", "ModuleScope", "Namespace", "Node", "Origin", "Ring"}
"""What the graphs of given up attempts consist of: their nodes know each other."""


def _own(left: list[object]) -> set[str]:
    """Return the names of the classes of what fxplug has left; torch leaves something itself, such as fake tensors."""
    named = {type(one).__name__ for one in left if type(one).__module__.startswith("fxplug.")}
    frames = {type(one).__name__ for one in left if isinstance(one, (FrameType, TracebackType))}
    return (named | frames) - _OF_A_GRAPH


@pytest.mark.parametrize("kind", [Nested, Compares, Helped, AsksForAMask, Counts, WithHooks])
@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_nothing_is_left_to_a_collection(
    kind: type[nn.Module], mode: str, left: Callable[[Callable[[], object]], list[object]]
) -> None:
    program = kind().eval()
    if mode == "symbolic" and kind in {Compares, Helped, Counts}:
        pytest.skip("refused without examples")
    examples = None if mode == "symbolic" else (torch.randn(2, 4),)
    plain = PluginManager(candidates=())  # With some plugins, modules are entered in another way.
    for manager in (None, plain):
        assert (
            _own(left(lambda manager=manager: fxplug.trace(program, examples, mode=mode, manager=manager)))
            == set()
        )


@pytest.mark.parametrize("kind", [Nested, Compares, Helped, WithHooks])
@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.usefixtures("left")
def test_examples_are_freed_with_the_last_reference(kind: type[nn.Module], mode: str) -> None:
    program = kind().eval()
    example = torch.randn(2, 4)
    captured = fxplug.trace(program, (example,), mode=mode)
    watch = weakref.ref(example)
    del example
    assert watch() is None
    assert captured(torch.ones(3, 4)).shape == (3, 4)


def test_generating_code_leaves_nothing(left: Callable[[Callable[[], object]], list[object]]) -> None:
    short = fxplug.symbolic_trace(Nested().eval())
    in_a_region = fxplug.symbolic_trace(_without_gradients)  # Its code is not linked.
    assert left(short.recompile) == []
    assert left(in_a_region.recompile) == []


def test_asking_whether_a_call_is_wrapped_fills_in_no_notes() -> None:
    captured = fxplug.trace(Compares().eval(), (torch.randn(2, 4),))
    assert all(node._meta is None for node in captured.graph.nodes)  # pyright: ignore[reportPrivateUsage]
    node = next(iter(captured.graph.nodes))
    assert not node.has_note("is_wrapped")
    node.annotate({"is_wrapped": True})
    assert node.has_note("is_wrapped")
    assert node.meta["is_wrapped"]


def _with_a_mask(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return x if mask is None else x * mask


def _counts(x: torch.Tensor) -> torch.Tensor:
    return x * int(format(x.shape[0]))


def _captures() -> None:
    """Capture in ways that avoid an error: by a default, with fixed numbers, and not plainly."""
    fxplug.symbolic_trace(_with_a_mask)
    fxplug.trace(_counts, (torch.ones(2, 4),))
    fxplug.trace(Compares().eval(), (torch.ones(2, 4),))


def _fails(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("kind", [RuntimeError, fxplug.TraceError])
def test_what_the_caller_handles_keeps_its_traceback(kind: type[Exception]) -> None:
    error = kind("of the caller")
    try:
        _fails(error)
    except kind:
        _captures()
    assert [entry.name for entry in traceback.extract_tb(error.__traceback__)][-1] == "_fails"


@dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818 - what matters is that nothing can be assigned to it
    why: str


def test_errors_of_others_that_cannot_be_changed_are_left_alone() -> None:
    error = Frozen("of the caller")
    try:
        _fails(error)
    except Frozen:
        _captures()
    assert error.__traceback__ is not None


def _raises_from_itself(x: torch.Tensor) -> torch.Tensor:
    try:
        json.dumps({"a": x.shape[0]})
    except TypeError as error:
        raise error from error
    return x + 1


def test_errors_of_others_behind_an_avoided_one_keep_their_frames() -> None:
    error, behind = fxplug.TraceError("avoided"), ValueError("of the program")
    for raised in (error, behind):
        with contextlib.suppress(type(raised)):
            _fails(raised)
    error.__cause__ = behind

    forget_frames(error, None)

    assert error.__traceback__ is None
    assert behind.__traceback__ is not None


def _raises_what_avoids_it_from_itself(x: torch.Tensor) -> torch.Tensor:
    try:
        return _first_if_other(x + 1, x)
    except fxplug.TraceError as error:
        raise error from error


def test_an_avoided_error_that_is_its_own_cause_ends() -> None:
    captured = fxplug.trace(_raises_what_avoids_it_from_itself, (torch.ones(3),))
    assert torch.equal(captured(torch.ones(3)), torch.ones(3) + 1)


def test_errors_that_are_their_own_cause_end() -> None:
    captured = fxplug.trace(_raises_from_itself, (torch.ones(3),))
    assert torch.equal(captured(torch.ones(3)), torch.ones(3) + 1)
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    try:
        _fails(one)
    except ValueError:
        _captures()


def test_an_error_that_is_said_in_the_end_has_its_traceback() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = x if mask is None else x * mask
        return y if y.sum() > 0 else -y

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.symbolic_trace(program)
    assert "program" in [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
