"""Guards of a captured program: checked before it runs."""

from __future__ import annotations

import copy
import inspect
import operator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.codegen import CompiledFunction, compile_code
from fxplug.errors import GraphError, GuardError
from fxplug.semantics.checks import guard_failed, warning_only
from fxplug.semantics.internals import flatten_tree, is_fake, skip_frame
from fxplug.semantics.surroundings import holds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, MethodType

    from fxplug.ir import Graph
    from fxplug.ir.guards import Guard

__all__ = ["NO_GUARDS", "POLICIES", "GuardSet", "GuardedForward", "check_guards", "relies_on_state"]

POLICIES = ("error", "warn", "ignore", "eager", "recapture")
"""What happens when a guard does not hold."""


class GuardSet:
    """What a captured program relies on, and what happens when it does not hold.

    Args:
        graph: Has the inputs of the program, and gives one truth value for each guard; None when there are none that
            the inputs alone can answer.
        guards: The guards in this order; behind them, those that the program itself checks.
        on_failure: One of ``"error"``, ``"warn"``, ``"ignore"``, ``"eager"`` and ``"recapture"``.
        instead: Called with the module and the arguments of a call whose guards do not hold; None raises an error.
    """

    def __init__(
        self,
        graph: Graph | None,
        guards: tuple[Guard, ...],
        on_failure: str = "error",
        instead: Callable[..., Any] | None = None,
    ) -> None:
        self.graph = graph
        self.guards = guards
        self.on_failure = on_failure
        self.instead = instead
        self._compiled: CompiledFunction | None = None

    def failure(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the guard that does not hold for a call, as text, None when all do."""
        failed = _failing_state(module)
        if failed is not None or self.graph is None:
            return failed
        if self._compiled is None:
            self._compiled = compile_code(
                self.graph.python_code("self"), name="guards", version=self.graph.version
            )
        function = self._compiled.function
        try:
            answers = [bool(answer) for answer in function(module, *args, **kwargs)]
        except Exception as error:
            try:
                signature = inspect.signature(module.forward.__wrapped__)
                signature.bind(*args, **kwargs)
            except TypeError:
                return None  # The program itself says best what it is called with.
            if isinstance(error, GraphError) and error.code == "FXP-G020":
                return f"other inputs: {error.__cause__}"
            return f"inputs of other kinds ({type(error).__name__}: {error})"
        for number, (answer, guard) in enumerate(zip(answers, self.guards, strict=False)):
            if not answer:
                return f"{guard}{self._found(number, module, args, kwargs)}"
        return None

    def _found(self, number: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what an input is that is None in one of two captures and calls; nothing for other guards."""
        graph = copy.deepcopy(self.graph)
        output = cast("Graph", graph).output_node()
        answers: Any = output.args[0]
        predicate = answers[number] if isinstance(answers, (list, tuple)) else answers
        if predicate.target not in {operator.is_, operator.is_not} or predicate.args[1] is not None:
            return ""
        output.args = ([predicate.args[0]],)
        code = compile_code(cast("Graph", graph).python_code("self"), name="guards")
        value = code.function(module, *args, **kwargs)[0]
        kind = f"of the class {type(value).__qualname__}"
        if isinstance(value, torch.Tensor):
            kind = f"a tensor of shape {tuple(value.shape)}"
        return f", and now it is {'None' if value is None else kind}"

    def for_another_module(self) -> GuardSet:
        """Return the same guards for a module with other weights: what runs instead has those of the first one."""
        return self if self.instead is None else GuardSet(self.graph, self.guards)

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardSet:
        if self.instead is None:
            return self  # Everything in it is constant.
        # What is called instead has to use the copies of the weights, too.
        return GuardSet(self.graph, self.guards, self.on_failure, copy.deepcopy(self.instead, memo))

    def __getstate__(self) -> dict[str, Any]:
        on_failure = "error" if self.instead is not None else self.on_failure
        return {**vars(self), "_compiled": None, "instead": None, "on_failure": on_failure}


def check_guards(module: Any, args: tuple[Any, ...]) -> None:
    """Check what a program relies on where nothing can run instead of it.

    Args:
        module: The captured program.
        args: Positional inputs. Where one is a tensor without data, nothing is checked.

    Raises:
        GuardError: One does not hold, and the policy is not to warn or to ignore.
    """
    guards: GuardSet | None = getattr(module, "guard_set", None)
    if guards is None:
        if not relies_on_state(module.graph):
            return
        guards = NO_GUARDS
    if guards.on_failure == "ignore" or any(map(_is_without_data, flatten_tree(args)[0])):
        return
    failed = guards.failure(module, args, {})
    if failed is None:
        return
    with warning_only() if guards.on_failure == "warn" else nullcontext():
        guard_failed(failed)


def _is_without_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_meta or is_fake(value))


def _failing_state(module: Any) -> str | None:
    """Return what is not as the program was told when it was captured, as text; None when all is."""
    graph: Graph = module.graph
    training = graph.captured_training
    if training is not None and module.training is not training:
        return f"self.training is {training}"
    for guard in graph.state_guards:
        if not holds(guard, module):
            return str(guard.guard)
    return None


def relies_on_state(graph: Graph) -> bool:
    """Return whether the program of a graph has asked for something besides its inputs while it was captured."""
    return graph.captured_training is not None or bool(graph.state_guards)


NO_GUARDS = GuardSet(None, ())
"""For a graph whose program asked about what is around it, and nothing about its inputs."""


class GuardedForward:
    """The forward of a module with guards.

    Args:
        module: The module.
        forward: Its compiled graph, bound to it.
        guards: What it relies on.
    """

    def __init__(self, module: Any, forward: MethodType, guards: GuardSet) -> None:
        self.__wrapped__ = forward
        self.__self__ = module
        self._guards = guards

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    @property
    def __code__(self) -> CodeType:
        # torch.export says in its messages where the forward of a module stands.
        return self.__wrapped__.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check the guards, and run the graph.

        Raises:
            GuardError: A guard does not hold.
        """
        guards, forward = self._guards, self.__wrapped__
        policy, instead = guards.on_failure, guards.instead
        if policy == "ignore":
            return forward(*args, **kwargs)
        failed = guards.failure(self.__self__, args, kwargs)
        if policy == "warn":
            with warning_only():
                if failed is not None:
                    guard_failed(failed)
                return forward(*args, **kwargs)
        if instead is None:
            if failed is not None:
                guard_failed(failed)
            return forward(*args, **kwargs)
        if failed is None:
            try:
                return forward(*args, **kwargs)
            except GuardError as error:
                if not error.can_run_again:
                    raise
        return instead(self.__self__, *args, **kwargs)


# As the call of a graph module: see there. What checks the guards is not worth compiling.
skip_frame(GuardedForward.__call__.__code__)
skip_frame(GuardSet.failure.__code__, below=True)
