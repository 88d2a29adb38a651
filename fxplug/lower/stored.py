"""Partitions that engines run, as files hold them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import nn

from fxplug.errors import BackendError, FxplugError, LoweringError
from fxplug.lower.artefacts import build_engine, environment_text, error_text, options_of
from fxplug.lower.lowered import EngineOrigin, LoweredPartition, OnMismatch, Pending, TensorExample
from fxplug.lower.profile import InputProfile, Profile
from fxplug.storage import StoredEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.lower.backend import Backend

__all__ = ["Engines", "restored_partition", "stored_partition"]

Engines = Literal["stored", "rebuild", "eager"]
"""What is done with compiled engines in a file: they are used, compiled anew, or left out so that PyTorch runs it."""


def stored_partition(partition: LoweredPartition, provider: Mapping[str, str]) -> StoredEngine:
    """Return what a file holds for a partition.

    Args:
        partition: Not changed.
        provider: Full name of the backend, plugin, distribution and version: who can load it.

    Raises:
        LoweringError: Nobody knows how its engine was made.
    """
    origin = partition.origin
    if origin is None:
        raise LoweringError(
            f"Cannot store partition {partition.name!r}: it was not made by fxplug.lower.lower, which notes how its "
            "engine was compiled. Lower the module again."
        )
    engine = partition.engine
    about: dict[str, Any] = {
        "partition": partition.name,
        **provider,
        "options": options_of(origin.maker, origin.options),
        "inputs": [_example_data(value) for value in origin.inputs],
        "profile": _profile_data(partition.profile),
        "on_mismatch": partition.on_mismatch,
    }
    try:
        artefact, environment = _artefact_of(engine, origin.maker)
    except FxplugError:
        raise
    except Exception as error:  # An engine fails in any way.
        raise LoweringError(
            f"Cannot store partition {partition.name!r}: its engine cannot be kept ({error_text(error)})."
        ) from error
    about["environment"] = dict(environment)
    return StoredEngine(partition.program, artefact, about)


def _artefact_of(engine: nn.Module, maker: Backend) -> tuple[bytes | None, Mapping[str, str]]:
    """Return an engine as bytes, None where it cannot be kept, and in which environment it was compiled."""
    if isinstance(engine, _LateEngine):
        artefact = engine.artefact
        if artefact is not None:  # It was loaded, and not used yet.
            return artefact, engine.environment
        engine = engine.engine()
    environment = maker.environment()
    if environment is None:
        return None, {}
    return maker.artefact(engine), environment


def restored_partition(stored: StoredEngine, maker: Backend, engines: Engines) -> LoweredPartition:
    """Return the partition that a file holds; its engine is made when it is first called.

    Args:
        stored: What a file holds.
        maker: The backend, made with the options in the file.
        engines: Whether the engine in the file is used.

    Raises:
        LoweringError: The engine was compiled elsewhere, and cannot be used here.
        Refusal: What is in the file is damaged.
    """
    facts = stored.facts()
    artefact = stored.content() if engines == "stored" else None
    name = str(facts["partition"])
    if artefact is not None:
        try:
            here = maker.environment()
        except BackendError as error:
            raise LoweringError(f"partition {name!r} cannot run here: {error.message}") from error
        if here != facts["environment"]:
            raise LoweringError(_foreign(facts, here))
    examples = tuple(map(_example_of, facts["inputs"]))
    origin = EngineOrigin(maker, facts["options"], examples)
    engine = _LateEngine(origin, stored.program, name, artefact, facts["environment"])
    return LoweredPartition(
        name,
        str(facts["backend"]),
        engine,
        stored.program,
        _profile_of(facts["profile"]),
        _mismatch_of(facts["on_mismatch"]),
        origin,
    )


def _foreign(facts: Mapping[str, Any], here: Mapping[str, str] | None) -> str:
    there: Mapping[str, str] = facts["environment"]
    known = here or {}
    differing = {name: value for name, value in there.items() if known.get(name) != value}
    found = environment_text({name: known.get(name, "is missing") for name in differing})
    more = f"there is more: {environment_text(known)}"
    return (
        f"the engine of partition {facts['partition']!r} was compiled by {facts['distribution']} {facts['version']} "
        f"with {environment_text(differing or there)}; here {found and 'it is '}{found or more}. Compile it anew: "
        "load(..., engines='rebuild'); or run it in PyTorch: engines='eager'."
    )


class _LateEngine(nn.Module):
    """An engine that is made when it is first called: bytes of a file reach no engine before somebody wants to run it.

    Args:
        origin: How it was made.
        program: What it was compiled from.
        name: The path of the partition.
        artefact: What the file holds; None where it is compiled anew.
        environment: In which `artefact` was compiled.
    """

    def __init__(
        self,
        origin: EngineOrigin,
        program: GraphModule,
        name: str,
        artefact: bytes | None,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.artefact = artefact
        self.environment = environment
        self._origin = origin
        self._name = name
        self.__dict__["program"] = program
        self.__dict__["made"] = None
        self._lock = threading.Lock()

    def forward(self, *inputs: Any) -> Any:
        """Run the engine.

        Raises:
            LoweringError: It cannot be made.
        """
        return self.engine()(*inputs)

    def problem_with(self, inputs: tuple[Any, ...]) -> str:
        """Return why the engine cannot compute with inputs; empty when it can."""
        ask = getattr(self.engine(), "problem_with", None)
        return "" if ask is None else ask(inputs)

    def submit(self, *inputs: Any) -> Pending:
        """Begin to run the engine."""
        engine = self.engine()
        submit = getattr(engine, "submit", None)
        if submit is not None:
            return submit(*inputs)
        done: Future[Any] = Future()
        done.set_result(engine(*inputs))
        return done

    def engine(self) -> nn.Module:
        """Return the engine, making it where nobody has.

        Raises:
            LoweringError: It cannot be made.
        """
        made: nn.Module | None = self.__dict__["made"]
        if made is not None:
            return made
        with self._lock:
            if self.__dict__["made"] is None:
                self.__dict__["made"] = self._make()
                self.artefact = None  # The engine gives it when it is wanted.
            return self.__dict__["made"]

    def _make(self) -> nn.Module:
        maker = self._origin.maker
        try:
            if self.artefact is not None:
                self._check_environment(maker.environment() or {})  # A pickle may come from elsewhere.
                return maker.restore(self.artefact)
            inputs = tuple(map(_zeros, self._origin.inputs))
            return build_engine(
                maker, self.__dict__["program"], inputs, self._origin.options, name=self._name
            )
        except Exception as error:
            what = "restored" if self.artefact is not None else "compiled"
            raise LoweringError(
                f"Cannot run partition {self._name!r}: its engine cannot be {what}: {error_text(error)}. Load the file "
                f"with engines={'rebuild' if self.artefact is not None else 'eager'!r}."
            ) from error

    def _check_environment(self, here: Mapping[str, str]) -> None:
        if here != self.environment:
            there = environment_text(self.environment)
            raise BackendError(f"it was compiled with {there}; here it is {environment_text(here)}")

    def __deepcopy__(self, memo: dict[int, Any]) -> _LateEngine:
        # A lock cannot be copied, and an engine is never changed.
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, which belongs to this process."""
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` kept."""
        super().__setstate__(state)
        self._lock = threading.Lock()


# -- as data -----------------------------------------------------------------------------------------------------


def _example_data(value: Any) -> Any:
    if isinstance(value, TensorExample):
        return {"tensor": [value.dtype, list(value.sizes), list(value.strides), str(value.device)]}
    if type(value) in {tuple, list}:
        return {type(value).__name__: list(map(_example_data, value))}
    return {"value": value}


def _example_of(data: Any) -> Any:
    ((kind, content),) = cast("dict[str, Any]", data).items()
    if kind == "tensor":
        dtype, sizes, strides, device = content
        return TensorExample(dtype, tuple(sizes), tuple(strides), _device_of(device))
    if kind in {"tuple", "list"}:
        parts = list(map(_example_of, content))
        return tuple(parts) if kind == "tuple" else parts
    return content


def _mismatch_of(word: Any) -> OnMismatch:
    if word not in get_args(OnMismatch):
        raise ValueError(f"on_mismatch is {word!r}")
    return word


def _device_of(name: Any) -> torch.device:
    if type(name) is not str:
        raise ValueError(f"a device is {name!r}")
    try:
        return torch.device(name)
    except RuntimeError as error:  # What torch says of a name that is none.
        raise ValueError(str(error).partition("\n")[0]) from None


def _zeros(value: Any) -> Any:
    if isinstance(value, TensorExample):
        return value.tensor()
    if type(value) in {tuple, list}:
        return type(value)(map(_zeros, value))
    return value


def _profile_data(profile: Profile | None) -> Any:
    if profile is None:
        return None
    return list(map(_input_data, profile.inputs))


def _input_data(entry: InputProfile) -> dict[str, Any]:
    data = {field.name: _plain_device(getattr(entry, field.name)) for field in fields(InputProfile)}
    if entry.parts is None:  # As files were written before there were parts.
        del data["parts"]
    else:
        data["parts"] = list(map(_input_data, entry.parts))
    return data


def _plain_device(value: Any) -> Any:
    return str(value) if isinstance(value, torch.device) else value


def _profile_of(data: Any) -> Profile | None:
    if data is None:
        return None
    return Profile(tuple(map(_input_profile, data)))


def _input_profile(data: Any) -> InputProfile:
    fields: dict[str, Any] = dict(data)
    device, sizes = fields.pop("device"), fields.pop("sizes", ())
    parts, dtype = fields.pop("parts", None), fields.get("dtype")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ValueError(f"the dtype of an input is {dtype!r}")
    if type(sizes) not in {tuple, list} or not all(size is None or type(size) is int for size in sizes):
        raise ValueError(f"the sizes of an input are {sizes!r}")
    return InputProfile(
        **fields,
        sizes=tuple(sizes),
        device=None if device is None else _device_of(device),
        parts=None if parts is None else tuple(map(_input_profile, parts)),
    )
