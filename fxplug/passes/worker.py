"""Running a pass in a process of its own, which is ended when it takes too long."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import pickle
import random
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fxplug.errors import PassError, PassWorkerError
from fxplug.ir import Graph, effects
from fxplug.ir.clone import give_back_notes
from fxplug.passes.analyses import AnalysisCache
from fxplug.passes.limits import timeout_error
from fxplug.passes.running import run_pass
from fxplug.passes.transaction import Snapshot
from fxplug.passes.transport import (
    Parcel,
    Shared,
    graphs_in,
    made_graph,
    owners_of,
    pack,
    reduced_graph,
    state_digest,
    unpack,
)
from fxplug.semantics.internals import memory_of, storage_of
from fxplug.semantics.random_state import random_state, set_random_state
from fxplug.semantics.storages import StorageJournal

if TYPE_CHECKING:
    from collections.abc import Generator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from fxplug.execute import GraphModule, GuardSet
    from fxplug.passes.base import PassContext, PassResult, PipelineStep
    from fxplug.passes.changes import NodeChanges
    from fxplug.passes.derivations import Derivation

__all__ = ["run_in_worker"]

_START_SECONDS = 300.0
"""How long the process may take to begin: it imports torch, and whatever the module needs."""
_GRACE_SECONDS = 1.0
"""The process ends itself at the limit and leaves a note where it was; it is killed when it does not."""
_NO_REPLY = "It ended before the pass was done"


@dataclass(frozen=True)
class _Surroundings:
    """What a pass finds around it besides the module."""

    random_state: Any
    torch_random_state: torch.Tensor
    default_dtype: torch.dtype
    threads: int
    gradients: bool

    @classmethod
    def here(cls) -> _Surroundings:
        return cls(
            random.getstate(),
            random_state(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
        )

    def enter(self) -> None:
        self.draw_on()
        torch.set_default_dtype(self.default_dtype)
        torch.set_num_threads(self.threads)
        torch.set_grad_enabled(self.gradients)

    def draw_on(self) -> None:
        random.setstate(self.random_state)
        set_random_state(self.torch_random_state)


@dataclass(frozen=True)
class _Outcome:
    """What the process says when the pass has returned."""

    result: Any
    changes: NodeChanges
    surroundings: _Surroundings
    notes: dict[int, tuple[Any, ...]]
    """Number -> form of graphs that were not edited; their nodes may have other notes."""
    replaced: frozenset[int]
    """Numbers of known tensors that have other memory than before, or share it with a new one."""
    derivations: tuple[Derivation, ...]
    """What the pass said of tensors."""


class _Traceback(Exception):  # noqa: N818 - shown as the cause of an error, never raised by itself
    """The traceback in the process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


# -- here ------------------------------------------------------------------------------------------------------


def run_in_worker(
    step: PipelineStep, module: GraphModule, context: PassContext, snapshot: Snapshot
) -> tuple[PassResult, NodeChanges]:
    """Run a pass in a process of its own, and take over into `module` what it did there.

    Modules and parameters that the pass left in place stay the objects that they are; values that it wrote are written
    into them. Graphs that it edited become new ones.

    Args:
        step: The pass; it has a hard limit.
        module: Transformed in place, after the pass has returned.
        context: What the pass may know besides.
        snapshot: The module as it was; hears of what is taken over.

    Returns:
        What the pass returned, unchecked, and how many nodes it changed.

    Raises:
        PassTimeoutError: It took longer than the step allows.
        PassWorkerError: The process could not do it, or what is needed cannot be sent there.
        BaseException: What the pass raised.
    """
    shared = Shared()
    limit = step.hard_time_limit or 0.0
    parcel = _packed(shared, step, module, context)
    with tempfile.TemporaryDirectory(prefix="fxplug-") as folder:
        note = Path(folder, "place")
        with _process(step, str(note), limit) as worker:
            worker.expect(_START_SECONDS)
            worker.send(parcel)
            worker.expect(_START_SECONDS)
            reply = worker.reply(limit, note)
    with snapshot.watching(), torch.no_grad():
        outcome = _take_over(shared, reply)
    context.derivations.extend(outcome.derivations)
    return outcome.result, outcome.changes


def _packed(shared: Shared, step: PipelineStep, module: GraphModule, context: PassContext) -> Parcel:
    subject = f"the module {type(module).__name__}"
    # What was found out about the module stays here: it is about the objects of this process.
    there = replace(context, analyses=AnalysisCache(), derivations=[])
    try:
        parcel = pack(
            shared,
            (module, step, there, _Surroundings.here(), _stated_effects(module)),
            (),
            graphs_in(module),
        )
    except Exception as error:
        try:
            pickle.dumps(step)
        except Exception:
            subject = "the pass"
        raise PassWorkerError(
            f"{step.title} cannot run in a process of its own, as its hard_time_limit demands: {subject} cannot be "
            f"sent there ({type(error).__name__}: {error}). Define what it is made of at the top of a module that can "
            "be imported, or leave hard_time_limit out (time_limit needs no process)."
        ) from error
    return parcel


def _stated_effects(module: GraphModule) -> dict[Any, Any]:
    """Return what is said about effects of the calls in a module, but for what fxplug itself says."""
    targets = {node.target for graph in graphs_in(module) for node in graph.nodes if callable(node.target)}
    targets |= {type(part) for part in module.modules()}
    return {
        target: entry
        for target, entry in effects.target_entries().items()
        if (target in targets or isinstance(target, str))
        and not (callable(entry) and str(getattr(entry, "__module__", "")).startswith("fxplug."))
    }


class _Process:
    """A process and the line to it."""

    def __init__(self, step: PipelineStep, process: BaseProcess, line: Any) -> None:
        self._step = step
        self._process = process
        self._line = line

    def expect(self, seconds: float) -> None:
        """Wait for a sign of the process."""
        try:
            if self._line.poll(seconds):
                self._line.recv_bytes()
                return
        except (EOFError, OSError):
            self._died("It could not begin. A script must begin its work below: if __name__ == '__main__'")
        raise PassWorkerError(
            f"{self._step.title} cannot run in a process of its own: it did not begin within {seconds:g} s. Leave "
            "hard_time_limit out."
        )

    def send(self, parcel: Parcel) -> None:
        """Send what the process is to work on."""
        try:
            self._line.send_bytes(parcel.values)
            self._line.send_bytes(parcel.tensors)
        except OSError:
            self._died(_NO_REPLY)

    def reply(self, limit: float, note: Path) -> Parcel:
        """Return what the process sends when the pass has returned; raise what it raised."""
        started = time.perf_counter()
        try:
            if not self._line.poll(limit + _GRACE_SECONDS):
                self._late(time.perf_counter() - started, limit, note)
            kind = self._line.recv_bytes()
            first, second = self._line.recv_bytes(), self._line.recv_bytes()
        except (EOFError, OSError):
            elapsed = time.perf_counter() - started
            if elapsed >= limit and note.exists() and note.stat().st_size:
                self._late(elapsed, limit, note)
            self._died(_NO_REPLY)
        if kind == b"done":
            return Parcel(first, second)
        error: BaseException = pickle.loads(first)  # noqa: S301 - from our own process
        raise error from _Traceback(second.decode("utf-8", "replace"))

    def _late(self, elapsed: float, limit: float, note: Path) -> NoReturn:
        self._process.kill()
        place = _place_in(note)
        last = f"last it was at {place}" if place else "it was inside of an extension"
        raise timeout_error(self._step.title, elapsed, limit, last, "hard_time_limit")

    def _died(self, what: str) -> NoReturn:
        self._process.join(10)
        code = self._process.exitcode
        if code is not None and code < 0:
            how = (
                f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
            )
        else:
            how = f"exit code {code}"
        raise PassWorkerError(
            f"{self._step.title} failed in a process of its own: {what} ({how}). Graph, submodules and parameters are "
            "those from before this pass."
        )


@contextlib.contextmanager
def _process(step: PipelineStep, note: str, limit: float) -> Generator[_Process]:
    """Start a process; it is gone when the context is left."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_work, args=(theirs, note, limit), name=f"fxplug pass {step.name}")
    try:
        try:
            process.start()
        except Exception as error:  # A daemonic process may not have children.
            why = f"{type(error).__name__}: {error}. Leave hard_time_limit out here."
            if "bootstrapping" in str(error):
                why = (
                    "this process is itself being started for a pass. Let the script begin its work below: "
                    "if __name__ == '__main__'."
                )
            raise PassWorkerError(f"{step.title} cannot run in a process of its own: {why}") from error
        theirs.close()  # So that the end of the process is the end of the line.
        yield _Process(step, process, ours)
    finally:
        ours.close()
        if process.pid is not None:
            process.kill()  # It has said what it has to say.
            process.join()
            process.close()


def _place_in(note: Path) -> str:
    """Return the innermost line of Python that a process was at, as it noted it."""
    lines = note.read_text("utf-8", "replace").splitlines() if note.exists() else []
    for line in lines:
        text = line.strip()
        if text.startswith("File "):
            path, _, rest = text.removeprefix("File ").rpartition(", line ")
            number, _, function = rest.partition(" in ")
            return f"{path.strip(chr(34))}:{number} in {function}"
    return ""


def _take_over(shared: Shared, parcel: Parcel) -> _Outcome:
    known = dict(shared.of_kind(Graph))
    guards = {owner: owner.guard_set for owner in owners_of(shared)}
    arrival = unpack(shared, parcel)
    for owner, former in guards.items():
        _keep_what_runs_instead(owner, former)
    outcome: _Outcome = arrival.value
    for number, content in arrival.tensors.items():
        _take_values(shared.objects[number], content, other_memory=number in outcome.replaced)
    for number, former in arrival.graphs.items():
        _replace_graph(shared, former, shared.objects[number])
    for number, form in outcome.notes.items():
        graph, copy = known[number], made_graph(form)
        give_back_notes(graph.nodes, copy.nodes, dict(zip(copy.nodes, graph.nodes, strict=True)))
    outcome.surroundings.draw_on()
    return outcome


def _take_values(tensor: torch.Tensor, content: torch.Tensor, *, other_memory: bool) -> None:
    same = tensor.shape == content.shape and tensor.dtype == content.dtype and tensor.device == content.device
    if other_memory or not same or tensor.layout != content.layout:
        tensor.data = content.detach()
    else:
        tensor.copy_(content)
    if tensor.is_leaf and tensor.requires_grad is not content.requires_grad:
        tensor.requires_grad_(content.requires_grad)


def _keep_what_runs_instead(module: GraphModule, former: GuardSet | None) -> None:
    """Give a module its guards back, where they are the same: what runs where one does not hold was not sent."""
    now = module.guard_set
    if former is not None and former.instead is not None and now is not None and now.guards == former.guards:
        module.set_guards(former)


def _replace_graph(shared: Shared, former: Graph, graph: Graph) -> None:
    for owner in owners_of(shared):
        state = vars(owner)
        if state["_graph"] is former or state["_graph"] is graph:
            state["_graph"], state["_compiled"] = graph, None
            graph.owning_module = owner


# -- there -----------------------------------------------------------------------------------------------------


def _work(line: Connection, note: str, limit: float) -> None:
    """Be the process."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Whoever interrupts us ends the process that has started us.
    line.send_bytes(b"here")
    shared = Shared()
    with Path(note).open("w", encoding="utf-8") as place:
        try:
            arrival = unpack(shared, Parcel(line.recv_bytes(), line.recv_bytes()))
            module, step, context, surroundings, stated = arrival.value
            for target, entry in stated.items():
                effects.register_target(target, entry)
            before = _Before(shared, module)
            context.analyses.begin(step.record.preserves)
            surroundings.enter()
            line.send_bytes(b"ready")
            faulthandler.dump_traceback_later(limit, file=place, exit=True)
            try:
                result, changes = run_pass(step, module, context, before.snapshot)
            finally:
                faulthandler.cancel_dump_traceback_later()
            reply = before.reply(step, result, changes, tuple(context.derivations))
        except BaseException as error:
            _send(line, b"error", _portable(error), traceback.format_exc().encode("utf-8", "replace"))
        else:
            _send(line, b"done", reply.values, reply.tensors)


def _send(line: Connection, *parts: bytes) -> None:
    with contextlib.suppress(OSError):  # Nobody waits any more.
        for part in parts:
            line.send_bytes(part)


def _portable(error: BaseException) -> bytes:
    """Return an error as bytes, or else one that says the same."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 - our own
    except Exception:
        return pickle.dumps(PassError(f"{type(error).__name__}: {error}"))
    return data


class _Before:
    """What a module was before the pass, to tell what has to go back."""

    def __init__(self, shared: Shared, module: GraphModule) -> None:
        self.snapshot = Snapshot(module)
        self._module = module
        self._shared = shared
        self._states = {
            number: state_digest(part) for number, part in shared.of_kind(torch.nn.Module).items()
        }
        self._versions = {number: graph.version for number, graph in shared.of_kind(Graph).items()}
        tensors = shared.of_kind(torch.Tensor)
        self._memory = {number: _memory(tensor) for number, tensor in tensors.items()}
        # Those in lists and among the inputs; what is written to others is heard of.
        self._journal = StorageJournal(tensors.values())
        self._journal.save_all()

    def reply(
        self, step: PipelineStep, result: Any, changes: NodeChanges, derivations: tuple[Derivation, ...]
    ) -> Parcel:
        """Return what goes back."""
        try:
            return self._packed(result, changes, derivations)
        except Exception as error:
            raise PassWorkerError(
                f"{step.title} ran in a process of its own, as its hard_time_limit demands, and what it put into the "
                f"module cannot be sent back ({type(error).__name__}: {error}). Graph, submodules and parameters are "
                "those from before this pass. Leave hard_time_limit out (time_limit needs no process)."
            ) from error

    def _packed(self, result: Any, changes: NodeChanges, derivations: tuple[Derivation, ...]) -> Parcel:
        known = self._shared.objects
        edited = {number for number, version in self._versions.items() if known[number].version != version}
        new = [graph for graph in graphs_in(self._module) if self._shared.number_of(graph) is None]
        new += [entry.recipe.graph for entry in derivations]
        parts = {number for number, digest in self._states.items() if state_digest(known[number]) != digest}
        notes = {number: reduced_graph(known[number]) for number in self._versions if number not in edited}
        replaced = self._replaced()
        outcome = _Outcome(result, changes, _Surroundings.here(), notes, frozenset(replaced), derivations)
        graphs = [*new, *(known[number] for number in sorted(edited))]
        return pack(self._shared, outcome, sorted(self._changed_tensors() | replaced | parts), graphs)

    def _changed_tensors(self) -> set[int]:
        changed = {id(tensor) for tensor in self._journal.changed()}
        return {number for number in self._memory if id(self._shared.objects[number]) in changed}

    def _replaced(self) -> set[int]:
        """Return the known tensors with other memory than before, and those that share memory with new ones."""
        known = {number: self._shared.objects[number] for number in self._memory}
        memory = {number: _memory(tensor) for number, tensor in known.items()}
        moved = {number for number, keys in memory.items() if keys != self._memory[number]}
        numbers = {id(tensor) for tensor in known.values()}
        fresh = [
            tensor
            for part in self._module.modules()
            for value in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values())
            if isinstance(tensor := value, torch.Tensor) and id(tensor) not in numbers
        ]
        touched = {key for number in moved for key in memory[number]}
        touched |= {key for tensor in fresh for key in _memory(tensor)}
        return {number for number, keys in memory.items() if not touched.isdisjoint(keys)}


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(storage_of(plain) for plain in memory_of(tensor))
