"""Handing a module to backends, with a report that says what they can run and why the rest stays behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.comparison import describe
from fxplug.analyze.isolation import copy_values, forked_random_state
from fxplug.errors import BackendError, FxplugError, InvalidArgumentError, LoweringError
from fxplug.execute.demands import require_graph_module
from fxplug.lower.artefacts import build_engine
from fxplug.lower.backend import Backend, fixed_inputs, note_fixed_inputs
from fxplug.lower.lowered import EngineOrigin, LoweredPartition, OnMismatch, check_on_mismatch
from fxplug.lower.planning import Choices, Plan, make_plan
from fxplug.passes.kept_state import saved_before_trial
from fxplug.passes.parts import PartStyle, split_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.lower.cache import ArtefactCache
    from fxplug.lower.report import LoweringReport

__all__ = ["Lowered", "lower", "lower_to_several", "plan_lowering"]

_NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Lowered:
    """The result of lowering."""

    module: nn.Module
    """What runs: a module that calls partitions, or the unchanged one."""
    report: LoweringReport
    fallback: str = ""
    """Why the whole module stayed eager; empty when a backend runs a part of it."""


def plan_lowering(
    module: GraphModule,
    backend: Backend | Sequence[tuple[str, Backend]],
    name: str = "",
    example_inputs: tuple[Any, ...] | None = None,
    *,
    choices: Choices | None = None,
) -> LoweringReport:
    """Ask backends about every call of a module, and find partitions, without building anything.

    Args:
        module: Not changed.
        backend: Who is asked; or names and backends, where the first that supports a call runs it.
        name: The backend's name, for the report.
        example_inputs: Inputs of the module, where they are known.
        choices: What the user decides about partitions.

    Raises:
        ConfigError: `choices` names what is not there.
        InvalidArgumentError: `module` is no graph module, or `example_inputs` no tuple.
    """
    _check_arguments(module, () if example_inputs is None else example_inputs)
    backends = [(name, backend)] if isinstance(backend, Backend) else list(backend)
    return make_plan(module, backends, example_inputs, choices or Choices()).report


def lower(  # noqa: PLR0913 - all that a user may choose, by keyword
    module: GraphModule,
    backend: Backend,
    example_inputs: tuple[Any, ...],
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
    strict: bool = False,
    choices: Choices | None = None,
    on_mismatch: OnMismatch = "error",
    cache: ArtefactCache | None = None,
) -> Lowered:
    """Let a backend run the parts of a module that it supports; the rest stays eager.

    Args:
        module: Not changed; what runs in PyTorch shares its parameters.
        backend: Who runs it.
        example_inputs: Inputs of the module.
        name: The backend's name, for reports and errors.
        options: Validated options of the backend.
        strict: Whether it is an error when anything stays eager.
        choices: What the user decides about partitions.
        on_mismatch: What a partition does with inputs that it was not compiled for: ``"error"`` raises a
            `LoweringError`, ``"eager"`` runs it in PyTorch.
        cache: Where compiled engines are kept for the next time, if the backend can keep them.

    Raises:
        LoweringError: Something would stay eager and `strict` is set; or the module does not run on the example inputs.
        ConfigError: `choices` names what is not there, or `on_mismatch` is something else.
        InvalidArgumentError: `module` is no graph module, or `example_inputs` no tuple.
    """
    return lower_to_several(
        module,
        [(name, backend)],
        example_inputs,
        options={name: options or {}},
        strict=strict,
        choices=choices,
        on_mismatch=on_mismatch,
        cache=cache,
    )


def lower_to_several(  # noqa: PLR0913 - as above
    module: GraphModule,
    backends: Sequence[tuple[str, Backend]],
    example_inputs: tuple[Any, ...],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
    choices: Choices | None = None,
    on_mismatch: OnMismatch = "error",
    cache: ArtefactCache | None = None,
) -> Lowered:
    """Let several backends run the parts of a module that they support.

    Args:
        module: Not changed.
        backends: Names and backends; where several support a call, the first of them runs it.
        example_inputs: Inputs of the module.
        options: Name of a backend -> its validated options.
        strict: See `lower`.
        choices: See `lower`.
        on_mismatch: See `lower`.
        cache: See `lower`.

    Raises:
        LoweringError: See `lower`.
        ConfigError: See `lower`.
        InvalidArgumentError: See `lower`.
    """
    _check_arguments(module, example_inputs)
    check_on_mismatch(on_mismatch)
    plan = make_plan(module, backends, example_inputs, choices or Choices())
    report = plan.report
    left = [node for node in report.nodes if not node.partition]
    if left and (strict or not report.partitions):
        reason = _why_left(report)
        if strict:
            raise LoweringError(f"Cannot lower the module to {report.backend!r}: {reason}")
        return Lowered(module, report, reason)
    if not report.partitions:
        return Lowered(module, report)
    return _Builder(module, dict(backends), plan, options or {}, on_mismatch, cache).build(
        example_inputs, strict=strict
    )


def _check_arguments(module: object, example_inputs: object) -> None:
    require_graph_module(module, "lower")
    if not isinstance(example_inputs, (tuple, list)):
        raise InvalidArgumentError(
            f"Cannot lower the module with a {type(example_inputs).__name__} as example_inputs: give a tuple of the "
            "inputs of one call, (x,)."
        )


def _why_left(report: LoweringReport) -> str:
    """Return why the module, or some of it, stays eager."""
    missing = report.unsupported
    left = missing or [node for node in report.nodes if not node.partition]
    first = left[0]
    at = f" at {first.source}" if first.source else ""
    verb = "are not supported by" if missing else "are not run by"
    return (
        f"{len(left)} of {len(report.nodes)} calls {verb} {report.backend!r}, the first is {first.name!r}{at}: "
        f"{first.reason or 'no reason given'}"
    )


class _Builder:
    """Builds the partitions of a plan.

    Args:
        module: Not changed; returned where it runs as it is.
        backends: Name -> backend.
        plan: Of this module.
        options: Name of a backend -> its options.
        on_mismatch: What partitions do with inputs that they were not compiled for.
        cache: Where engines are kept.
    """

    def __init__(
        self,
        module: GraphModule,
        backends: Mapping[str, Backend],
        plan: Plan,
        options: Mapping[str, Mapping[str, Any]],
        on_mismatch: OnMismatch,
        cache: ArtefactCache | None,
    ) -> None:
        self._module = module
        self._backends = backends
        self._plan = plan
        self._options = options
        self._on_mismatch: OnMismatch = on_mismatch
        self._cache = cache
        self._failed: dict[str, str] = {}

    def build(self, example_inputs: tuple[Any, ...], *, strict: bool) -> Lowered:
        """Return the module that calls engines."""
        report = self._plan.report
        split = split_into(self._plan.module, self._plan.parts, PartStyle(keep_node_names=True), "lower")
        names = list(self._plan.backends)
        note_fixed_inputs(split, names)
        inputs = _inputs_of(split, names, example_inputs)
        for name in names:
            part: Any = split.get_submodule(name)
            try:
                built = self._compiled(name, part, inputs)
            except Exception as error:  # An engine fails in any way.
                self._failed[name] = _why_failed(error)
                if strict:
                    raise LoweringError(
                        f"Cannot lower the module to {report.backend!r}: {self._failed[name]}"
                    ) from error
                continue
            if (
                built is part
                and len(report.partitions) == 1
                and not any(not node.partition for node in report.nodes)
            ):
                return Lowered(self._module, report)  # It runs as it is.
            split.set_submodule(name, self._wrapped(name, built, part, inputs[name]))
        report = replace(
            report,
            partitions=tuple(
                replace(partition, fallback=self._failed.get(partition.name, ""))
                for partition in report.partitions
            ),
        )
        if len(self._failed) == len(names):
            return Lowered(self._module, report, "; ".join(dict.fromkeys(self._failed.values())))
        return Lowered(split, report)

    def _compiled(self, name: str, part: GraphModule, inputs: Mapping[str, tuple[Any, ...]]) -> nn.Module:
        if name not in inputs:
            raise BackendError(
                "the partition was not reached with the example inputs, which an engine is built for"
            )
        backend = self._plan.backends[name]
        return build_engine(
            self._backends[backend],
            part,
            inputs[name],
            self._options.get(backend, {}),
            name=backend,
            cache=self._cache,
        )

    def _wrapped(
        self, name: str, engine: nn.Module, part: GraphModule, inputs: tuple[Any, ...]
    ) -> LoweredPartition:
        backend = self._plan.backends[name]
        maker = self._backends[backend]
        origin = EngineOrigin.of(maker, self._options.get(backend, {}), inputs)
        profile = maker.profile(inputs)
        if profile is not None:
            profile = profile.closed(fixed_inputs(part), inputs)  # The engine leaves no size of these open.
        return LoweredPartition(name, backend, engine, part, profile, self._on_mismatch, origin)


def _why_failed(error: Exception) -> str:
    if isinstance(error, BackendError):
        return error.message
    return f"the backend failed while it compiled: {type(error).__name__}: {error}"


def _inputs_of(
    split: GraphModule, names: Iterable[str], example_inputs: tuple[Any, ...]
) -> dict[str, tuple[Any, ...]]:
    """Return what reaches each part, without leaving a mark on the module or the inputs."""
    found: dict[str, tuple[Any, ...]] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, values: tuple[Any, ...]) -> None:
            found.setdefault(name, copy_values(values))

        return hook

    state = saved_before_trial(split, split)
    handles = [split.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    try:
        with forked_random_state(), torch.no_grad():
            split(*copy_values(example_inputs))
    except FxplugError:
        raise
    except Exception as error:  # Whatever the program raises.
        raise _does_not_run(example_inputs, error) from error
    finally:
        for handle in handles:
            handle.remove()
        state.restore()
    return found


def _does_not_run(example_inputs: Sequence[Any], error: Exception) -> LoweringError:
    given = ", ".join(map(describe, example_inputs)) or "none"
    return LoweringError(
        f"Cannot lower the module: it does not run on the example inputs ({given}), which show what reaches each "
        f"partition: {type(error).__name__}: {str(error).strip()}. Give the inputs of one call, in their order.",
        code="FXP-V001",
    )
