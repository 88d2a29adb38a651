"""How long every node takes and what memory it takes, measured."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import SavedState, copy_values, forked_random_state, tensors_in
from fxplug.analyze.layers import failing_node, failure_at
from fxplug.analyze.memory import MemoryUse, RegionInterpreter, TracksMemory
from fxplug.analyze.places import called_name, groups_of, place_of, sorted_rows
from fxplug.errors import ConfigError
from fxplug.execute import fetch_path
from fxplug.ir import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["PROFILE_COLUMNS", "NodeProfile", "Profile", "ProfileRow", "check_runs", "measure_nodes"]

_STEPS = 1000
"""Empty steps from which the cost of measuring is known."""


@dataclass(frozen=True)
class NodeProfile:
    """What one node takes."""

    name: str
    op: str
    target: str
    """What it calls, for people."""
    times: tuple[float, ...]
    """Seconds that it took in each run."""
    allocated_bytes: int
    """Memory that its result takes; none for views, and for what is written in place."""
    peak_bytes: int
    """The most memory that tensors made by the program take while it runs: those that are needed later, its own, and
    those that it makes and drops. What a kernel takes besides tensors is not seen."""
    modules: tuple[tuple[str, str], ...] = ()
    """Path and class of every module that it lies in, from the root on."""
    line: str = ""
    """``"FILE:LINE in FUNCTION"`` of the program; empty where none is known."""

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        """Half the range in which the middle half of the runs lies, as a share of the median."""
        return spread_of(self.times)


@dataclass(frozen=True)
class ProfileRow:
    """What some nodes take together: a row of a table."""

    name: str
    """The node, the path of the module (empty for the root), the class, or what is called."""
    kind: str
    """What the node calls, or the class of the module."""
    calls: int
    seconds: float
    """The median over the runs of the sum over the nodes."""
    spread: float
    """Half the range in which the middle half of these sums lies, as a share of the median."""
    share: float
    """The time as a share of that of all nodes."""
    allocated_bytes: int
    """Memory that the results take, whether or not they are alive together."""
    peak_bytes: int
    """The most memory that tensors take while one of the nodes runs."""
    line: str
    """``"FILE:LINE in FUNCTION"`` of the first node."""


PROFILE_COLUMNS = tuple(entry.name for entry in fields(ProfileRow))
"""Names by which rows can be sorted."""


@dataclass(frozen=True)
class Profile:
    """What a program takes, node by node, and how far to trust the figures."""

    nodes: tuple[NodeProfile, ...]
    """One entry for each call, in the order of the graph."""
    whole_times: tuple[float, ...]
    """Seconds of calls of the whole module, in which nothing is measured inside; they took turns with the others."""
    warm_up: int
    """Calls of either kind before the first that was measured."""
    overhead_seconds: float
    """What measuring adds to the time of each node: the median time of a step that does nothing."""
    device: str
    """Where the program ran, e.g. ``"cpu"``."""
    threads: int
    """Of PyTorch."""

    @property
    def runs(self) -> int:
        """How many runs were measured."""
        return len(self.whole_times)

    @property
    def whole_seconds(self) -> float:
        """The median time of a call of the whole module."""
        return statistics.median(self.whole_times)

    @property
    def whole_spread(self) -> float:
        """Half the range in which the middle half of these calls lies, as a share of the median."""
        return spread_of(self.whole_times)

    @property
    def sum_seconds(self) -> float:
        """The median over the runs of the sum over all nodes, the cost of measuring included."""
        sums = [sum(times) for times in zip(*(node.times for node in self.nodes), strict=True)]
        return statistics.median(sums) if sums else 0.0

    @property
    def covered(self) -> float:
        """The sum over the nodes, less the cost of measuring, as a share of a call of the whole module.

        Near 1 the times of the nodes tell where the time of the module goes. Below it, time passes between the nodes;
        above it, they take longer one by one than together, as on a GPU that has to be waited for behind each.
        """
        measuring = self.overhead_seconds * len(self.nodes)
        return max(self.sum_seconds - measuring, 0.0) / self.whole_seconds if self.whole_seconds else 0.0

    @property
    def peak_bytes(self) -> int:
        """The most memory that tensors made by the program take at one time."""
        return max((node.peak_bytes for node in self.nodes), default=0)

    def rows(self, by: str = "node", sort: str | None = None) -> list[ProfileRow]:
        """Return the figures as a table.

        Args:
            by: What a row stands for: ``"node"``; ``"module"``, with all that lies in it; ``"class"``, all modules of
                a class likewise; ``"kind"``, what is called.
            sort: A field of `ProfileRow`, from the largest number on; None: as they come in the program.

        Raises:
            UnknownNameError: There is no such grouping or field.
        """
        total = self.sum_seconds or 1.0
        rows = [_row(name, kind, nodes, total) for (name, kind), nodes in groups_of(self.nodes, by).items()]
        return sorted_rows(rows, sort, PROFILE_COLUMNS)

    def __str__(self) -> str:
        """Return the sums in a sentence."""
        return (
            f"{len(self.nodes)} calls, {self.whole_seconds * 1e3:.3g} ms as a whole, "
            f"{self.sum_seconds * 1e3:.3g} ms in sum ({self.covered:.0%} without measuring), medians of {self.runs} "
            f"runs on {self.device}"
        )


def spread_of(times: Sequence[float]) -> float:
    """Return half the range in which the middle half of the times lies, as a share of the median."""
    if len(times) < 2 or not statistics.median(times):
        return 0.0
    lower, middle, upper = statistics.quantiles(times, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def _row(name: str, kind: str, nodes: Sequence[NodeProfile], total: float) -> ProfileRow:
    sums = [sum(times) for times in zip(*(node.times for node in nodes), strict=True)]
    seconds = statistics.median(sums)
    return ProfileRow(
        name,
        kind,
        len(nodes),
        seconds,
        spread_of(sums),
        seconds / total,
        sum(node.allocated_bytes for node in nodes),
        max(node.peak_bytes for node in nodes),
        nodes[0].line,
    )


# -- measuring -------------------------------------------------------------------------------------------------------


def measure_nodes(
    module: GraphModule,
    inputs: tuple[Any, ...],
    *,
    runs: int,
    warm_up: int,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measure what every node of a module takes, without gradients.

    Runs in which every node is measured take turns with calls of the whole module. Each has copies of the inputs and
    the same random state; what they do to the module is undone.

    Args:
        module: What is measured.
        inputs: The positional arguments of one call.
        runs: How many runs of either kind are measured.
        warm_up: How many come before.
        progress: Called with (runs done, runs planned).

    Raises:
        ConfigError: There is nothing to measure.
        AnalysisError: The module fails; the message names the node and its line.
    """
    check_runs(runs, warm_up)
    places = [*module.parameters(), *module.buffers(), *tensors_in(inputs)]
    if any(tensor.is_meta for tensor in places):
        raise ConfigError(
            "Cannot profile a program on the meta device: it computes nothing there. fxplug.cost(module, inputs) "
            "tells what can be told without running it."
        )
    wait = _waiting_for(places)
    # Whoever counts on its own state, as a cache that grows, finds it again; parameters are looked at in the end.
    saved, between = SavedState(module), SavedState(module, buffers_only=True)
    job = _Measuring(module, inputs, wait, between)
    try:
        with torch.no_grad():
            memory = job.follow_memory()
            for done in range(warm_up + runs):
                job.turn(is_odd=done % 2 == 1, keeps=done >= warm_up)
                if progress is not None:
                    progress(done + 1, warm_up + runs)
    finally:
        saved.restore()
    return Profile(
        tuple(_profile_of(module, node, times, memory[node]) for node, times in job.times.items()),
        tuple(job.whole_times),
        warm_up,
        _overhead(module, wait),
        _device_text(places),
        torch.get_num_threads(),
    )


def check_runs(runs: Any, warm_up: Any) -> None:
    """Refuse numbers of runs that cannot be.

    Raises:
        ConfigError: One of them is none, or too small.
    """
    for name, value, least in (("runs", runs, 1), ("warm_up", warm_up, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"Cannot profile with {name}={value!r}: give a whole number from {least} on.")


def _profile_of(module: GraphModule, node: Node, times: Sequence[float], use: MemoryUse) -> NodeProfile:
    called = fetch_path(module, str(node.target)) if node.op == "call_module" else None
    return NodeProfile(
        node.name, node.op, called_name(node, called), tuple(times), use.allocated, use.peak, **place_of(node)
    )


def _device_text(places: Iterable[torch.Tensor]) -> str:
    return ", ".join(sorted({str(tensor.device) for tensor in places})) or "cpu"


def _waiting_for(places: Iterable[torch.Tensor]) -> Callable[[], Any]:
    """Return what waits until a device has done all that it was told; Python goes ahead of a GPU."""
    devices = sorted({tensor.get_device() for tensor in places if tensor.is_cuda})
    if not devices:
        return _do_nothing

    def wait() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    return wait


def _do_nothing(value: Any = None) -> Any:
    return value


class _Timer(RegionInterpreter):
    """Runs a graph and notes how long each call takes; fetching arguments and dropping values does not count."""

    def __init__(self, module: GraphModule, wait: Callable[[], Any], graph: Graph | None = None) -> None:
        super().__init__(module, graph=graph)
        self.extra_traceback = False
        self.node: Node | None = None
        """The one that runs."""
        self.times: dict[Node, float] = {}
        self._wait = wait

    def run_node(self, n: Node) -> Any:
        """Run one node and note how long it takes."""
        self.node = n
        self.move_to(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target: Any = n.target
        if n.op == "call_function":
            call = target
        elif n.op == "call_module":
            call = self.fetch_attr(target)
        elif n.op == "call_method":
            call = getattr(args[0], target)
            args = args[1:]
        else:
            return getattr(self, n.op)(target, args, kwargs)
        wait = self._wait
        wait()
        started = time.perf_counter()
        value = call(*args, **kwargs)
        wait()
        self.times[n] = time.perf_counter() - started
        return value


class _MemoryRun(TracksMemory):
    """Follows tensors; what kernels take besides is not measured, and not made up."""

    estimates = False

    node: Node | None = None
    """The one that runs."""

    def run_node(self, n: Node) -> Any:
        """Run one node and note what memory it takes."""
        self.node = n
        return super().run_node(n)


class _Measuring:
    """The runs of one module, each from the same start."""

    def __init__(
        self, module: GraphModule, inputs: tuple[Any, ...], wait: Callable[[], Any], between: SavedState
    ) -> None:
        self._module, self._inputs, self._wait, self._between = module, inputs, wait, between
        self.times: dict[Node, list[float]] = {
            node: [] for node in module.graph.nodes if node.op.startswith("call_")
        }
        """What was measured of every call."""
        self.whole_times: list[float] = []

    def follow_memory(self) -> Mapping[Node, MemoryUse]:
        """Run the module once; return what memory its nodes take."""
        run = _MemoryRun(self._module)
        run.extra_traceback = False
        self._run(run)
        return run.memory

    def turn(self, *, is_odd: bool, keeps: bool) -> None:
        """Run the module twice, once of either kind; who goes second finds warmer caches."""
        for is_whole in (is_odd, not is_odd):
            if is_whole:
                seconds = self._whole()
                if keeps:
                    self.whole_times.append(seconds)
                continue
            timer = _Timer(self._module, self._wait)
            self._run(timer)
            for node, seconds in timer.times.items() if keeps else ():
                self.times[node].append(seconds)

    def _run(self, interpreter: Any) -> None:
        arguments = copy_values(self._inputs)
        try:
            with forked_random_state():
                interpreter.run(*arguments)
        except Exception as error:
            raise failure_at("The module", interpreter.node, error) from error
        finally:
            self._between.restore()

    def _whole(self) -> float:
        arguments = copy_values(self._inputs)
        try:
            with forked_random_state():
                self._wait()
                started = time.perf_counter()
                self._module(*arguments)
                self._wait()
                return time.perf_counter() - started
        except Exception as error:
            failure = failing_node(self._module, self._inputs)
            raise failure or failure_at("The module", None, error) from error
        finally:
            self._between.restore()


def _overhead(module: GraphModule, wait: Callable[[], Any]) -> float:
    """Return the median time that is measured of a step that does nothing."""
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(_STEPS):
        node = graph.call_function(_do_nothing, (node,))
    graph.output(node)
    timer = _Timer(module, wait, graph)
    timer.run(None)
    return statistics.median(timer.times.values())
