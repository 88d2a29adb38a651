"""Compiled engines that outlive the process: what tells them apart, and building with a cache."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import copy_values
from fxplug.errors import CacheWarning, FingerprintError, FxplugError
from fxplug.lower.backend import Backend, LoweringContext, fixed_inputs
from fxplug.lower.settled import without_checks
from fxplug.passes.fingerprints import canonical_form
from fxplug.storage import module_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.lower.cache import ArtefactCache

__all__ = ["artefact_key", "build_engine", "environment_text", "error_text", "options_of"]

_FORMAT = 1
"""Grows when what a key is made of changes."""


def options_of(backend: Backend, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a backend: what it was made with, and over these what is given to `compile`."""
    made_with = backend.options
    if made_with is None or not is_dataclass(made_with):
        return dict(given)
    return {entry.name: getattr(made_with, entry.name) for entry in fields(made_with)} | dict(given)


def environment_text(environment: Mapping[str, str]) -> str:
    """Return an environment for people."""
    return ", ".join(f"{name} {value}" for name, value in environment.items())


def artefact_key(
    backend: Backend, program: GraphModule, inputs: tuple[Any, ...], options: Mapping[str, Any]
) -> str | None:
    """Return what a compiled engine is kept under; None where it cannot be kept.

    Everything takes part that decides what is compiled: graph, weights, dtypes, sizes, strides and plain values of the
    inputs, the backend's options, and the versions of fxplug, torch, and whatever the backend names.

    Args:
        backend: Who compiles.
        program: What is compiled.
        inputs: Examples of its inputs.
        options: Given to `Backend.compile`.
    """
    environment = backend.environment()
    program_digest = None if environment is None else module_digest(program)
    if program_digest is None or environment is None:
        return None
    kind = type(backend)
    try:
        form: list[Any] = [
            ["fxplug", _FORMAT, sys.modules["fxplug"].__version__, str(torch.__version__)],
            [kind.__module__, kind.__qualname__, sorted(environment.items())],
            canonical_form(options_of(backend, options)),
            [_input_form(value) for value in inputs],
            program_digest,
        ]
        if fixed := fixed_inputs(program):  # Their sizes are not left open.
            form.append(sorted(fixed))
    except FingerprintError:
        return None
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode("ascii")).hexdigest()


def _input_form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = list(value.stride()) if value.layout is torch.strided else str(value.layout)
        return ["tensor", str(value.dtype), list(value.shape), layout, str(value.device)]
    if type(value) in {tuple, list}:
        return [type(value).__name__, *map(_input_form, value)]
    return ["value", canonical_form(value)]


def build_engine(
    backend: Backend,
    program: GraphModule,
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    name: str,
    cache: ArtefactCache | None = None,
) -> nn.Module:
    """Return the engine for a program: what the cache holds, or what the backend compiles now.

    Args:
        backend: Who compiles.
        program: What is compiled. Checks in it that the backend's profile answers are left out.
        inputs: Examples of its inputs. Not changed.
        options: Of the backend.
        name: The backend's name.
        cache: Where engines are kept.

    Raises:
        Exception: Whatever the backend raises while it compiles.
    """
    program = without_checks(program, LoweringContext(program, inputs), backend.profile(inputs))
    key = None if cache is None else artefact_key(backend, program, inputs, options)
    if cache is None or key is None:
        return backend.compile(program, copy_values(inputs), dict(options))
    kept = cache.get(key)
    if kept is not None:
        try:
            return backend.restore(kept)
        except Exception as error:  # An engine fails in any way, and can be compiled again.
            cache.remove(key)
            warnings.warn(
                f"Cannot use the cached engine {key!r} in {str(cache.folder)!r}: {name!r} refuses it "
                f"({error_text(error)}). It is compiled again.",
                CacheWarning,
                stacklevel=2,
            )
    engine = backend.compile(program, copy_values(inputs), dict(options))
    _keep(cache, key, backend, engine, name)
    return engine


def _keep(cache: ArtefactCache, key: str, backend: Backend, engine: nn.Module, name: str) -> None:
    try:
        artefact = backend.artefact(engine)
    except Exception as error:  # As above: what was compiled works, it is only not kept.
        warnings.warn(
            f"Cannot keep what {name!r} compiled: {error_text(error)}. It will be compiled again.",
            CacheWarning,
            stacklevel=3,
        )
        return
    if artefact is not None:
        about = environment_text(backend.environment() or {})
        cache.put(key, artefact, backend=name, about=about)


def error_text(error: Exception) -> str:
    """Return what an error of an engine says, on one line."""
    if isinstance(error, FxplugError):
        return error.message
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[-1]}" if text else type(error).__name__
