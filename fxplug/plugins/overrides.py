"""Changing pipelines for a while: in one block of a program, for nobody else."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, did_you_mean
from fxplug.passes import Pipeline
from fxplug.plugins.settings import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["PipelineOverrides", "active_overrides", "pipeline_overrides", "without_overrides"]

_ACTIVE: ContextVar[tuple[PipelineOverrides, ...]] = ContextVar("pipeline_overrides", default=())


class PipelineOverrides:
    """Changes of pipelines that hold inside a ``with`` block; made by `pipeline_overrides`."""

    def __init__(
        self,
        pipeline: str | None,
        disable: tuple[str, ...],
        add: tuple[str | dict[str, Any], ...],
        options: dict[str, dict[str, Any]],
        settings: dict[str, Any],
        source: str,
    ) -> None:
        self.pipeline = pipeline
        """The pipeline that is changed; None for all."""
        self.disable = disable
        """Names of passes that do not run."""
        self.add = add
        """Passes that run besides."""
        self.options = options
        """Name of a pass -> values of its options."""
        self.settings = settings
        """Settings of the pipeline."""
        self.source = source
        """``"FILE:LINE"`` of the call."""
        self.shown = ""
        """What stands there, for messages; empty for the call."""

    def __enter__(self) -> Self:
        """Let the changes hold in this thread or task."""
        _ACTIVE.set((*_ACTIVE.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let them hold no more."""
        active = _ACTIVE.get()
        last = max((place for place, one in enumerate(active) if one is self), default=len(active))
        _ACTIVE.set((*active[:last], *active[last + 1 :]))

    def __str__(self) -> str:
        """Return where the call stands, and what it says."""
        if self.shown:
            return f"{self.source}: {self.shown}"
        given: dict[str, Any] = {
            "pipeline": self.pipeline,
            "disable": list(self.disable),
            "add": list(self.add),
            "options": self.options,
        }
        shown = [f"{name}={value!r}" for name, value in given.items() if value]
        shown += [f"{name}={value!r}" for name, value in self.settings.items()]
        return f"{self.source} in pipeline_overrides({', '.join(shown)})"


def pipeline_overrides(
    pipeline: str | None = None,
    *,
    disable: Iterable[str] = (),
    add: Iterable[str | Mapping[str, Any]] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> PipelineOverrides:
    """Change pipelines inside a ``with`` block: what is resolved there, in this thread or task, is what the block says.

    Blocks inside one another add up, and the inner one wins. Passes that are added stand at the end of the list, and
    are then ordered as all are. Nothing else changes: no plugin, no configuration, no other thread.

    Args:
        pipeline: Name of the pipeline that is changed; by default all, also lists of passes that have no name.
        disable: Names of passes that do not run.
        add: Passes that run besides: names, or mappings of ``name`` and options.
        options: Name of a pass -> values of its options, and its limits (``time_limit``). Other options stay.
        settings: Settings of a pipeline, as the configuration has them: ``on_error``, ``verify``, ``rtol``, ``atol``,
            ``time_limit``, ``hard_time_limit``.

    Returns:
        A context manager, which may be entered any number of times.

    Raises:
        ConfigError: A setting does not exist or has a bad value, or an argument has the wrong form. Names of passes,
            pipelines and options are checked when a pipeline is resolved inside of the block.

    Example:
        ::

            with fxplug.pipeline_overrides(disable=["fuse-conv-bn"], on_error="rollback"):
                result = fxplug.optimize(model, inputs)
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - as the standard library does
    return PipelineOverrides(
        pipeline,
        _names(disable),
        tuple(entry if isinstance(entry, str) else dict(entry) for entry in _listed(add, "add")),
        {name: dict(values) for name, values in (options or {}).items()},
        _checked(settings),
        f"{frame.f_code.co_filename}:{frame.f_lineno}",
    )


def active_overrides() -> tuple[PipelineOverrides, ...]:
    """Return the changes that hold here, the outermost first."""
    return _ACTIVE.get()


@contextmanager
def without_overrides() -> Generator[None]:
    """Look at what the configuration says, whatever is changed for a while."""
    token = _ACTIVE.set(())
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, str):
        raise ConfigError(f"Cannot use the text {values!r} as {name}: give a list, [{values!r}].")
    return list(values)


def _names(disable: Iterable[str]) -> tuple[str, ...]:
    names = _listed(disable, "disable")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"Cannot disable {name!r}: give the name of a pass.")
    return tuple(names)


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    if not settings:
        return {}
    known = [entry.name for entry in fields(PipelineConfig) if entry.name != "passes"]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"Cannot override {name!r}: a pipeline has no such setting. {did_you_mean(name, known)}"
            )
    # pydantic loads only when there is something to validate.
    from fxplug.plugins.validation import validate_options  # noqa: PLC0415

    checked = validate_options(PipelineConfig, {"passes": (), **settings}, "pipeline_overrides", None)
    chosen = {name: checked[name] for name in settings}
    Pipeline("", (), **chosen)  # It checks values further.
    return chosen
