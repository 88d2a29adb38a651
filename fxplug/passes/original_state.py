"""Loading new weights of the original into a module that passes have transformed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.errors import PassError
from fxplug.execute import GraphModule
from fxplug.execute.compiled import CompiledPart
from fxplug.passes.state_origins import NOTE, StateOrigins
from fxplug.passes.tensor_table import TensorTable, shape_of
from fxplug.semantics.storages import StorageJournal

if TYPE_CHECKING:
    from fxplug.passes.derivations import Recipe, TensorOrigin

__all__ = ["LoadedKeys", "load_original_state_dict"]

_SHOWN = 5


class LoadedKeys(NamedTuple):
    """What did not fit although everything else was loaded."""

    missing_keys: list[str]
    """Keys of the original that the state dict does not have."""
    unexpected_keys: list[str]
    """Keys of the state dict that the original does not have."""


def load_original_state_dict(
    module: GraphModule,
    state_dict: Mapping[str, Any],
    strict: bool = True,  # noqa: FBT001, FBT002 - as torch has it
) -> LoadedKeys:
    """Load weights of the original into a module that a pipeline transformed; what was folded is folded again.

    Values are written into the tensors that the module has, so that an optimizer made over it goes on. Either
    everything is loaded or nothing.

    Args:
        module: A graph module on which a pipeline has run.
        state_dict: A state dict as the original has it, e.g. a checkpoint of a later epoch; not changed.
        strict: Whether keys have to be those of the original. If not, tensors of which no key is given keep their
            values; one that is made of several still needs all of them.

    Returns:
        The keys that did not fit; there are none with `strict`.

    Raises:
        PassError: The keys or shapes are not those of the original (``FXP-P030``); or a pass made or changed a tensor
            and did not say how, or an engine was compiled with one (``FXP-P031``). Nothing was loaded.

    Example:
        >>> pipeline.run(module)  # doctest: +SKIP
        >>> fxplug.load_original_state_dict(module, torch.load("epoch-90.pt"))  # doctest: +SKIP
    """
    origins = _origins_of(module)
    if not isinstance(state_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refused([f"it is a {type(state_dict).__name__}"])
    missing = [key for key in origins.original if key not in state_dict]
    unexpected = [key for key in state_dict if key not in origins.original]
    problems = _key_problems(missing, unexpected) if strict else []
    problems += _value_problems(origins, state_dict)
    if problems:
        raise _refused(problems)
    state_dict = _with_tied_keys(origins, state_dict)
    table = _Tensors(module)
    _check_known(table.written, origins)
    _check_compiled(table, origins, state_dict)
    values = _Values(origins, state_dict)
    found: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for path, tensor in table.written.items():
            value = values.find(path, tensor)
            if value is not None:
                found.append((path, tensor, value))
        _check_values(found)
        _write(found)
    return LoadedKeys(missing, unexpected)


def _origins_of(module: GraphModule) -> StateOrigins:
    if not isinstance(module, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PassError(
            f"Cannot load original weights into a {type(module).__name__}: it is no graph module. A module that a "
            "backend took over is made anew from the transformed one, result.graph_module.",
            code="FXP-P030",
        )
    found: Any = module.meta.get(NOTE)
    if not isinstance(found, StateOrigins):
        raise PassError(
            "Cannot load original weights: no pipeline has run on this module, or what it knew of the original is "
            "lost. Where nothing was transformed, use module.load_state_dict; else transform the captured module "
            "again, with a Pipeline or fxplug.optimize.",
            code="FXP-P030",
        )
    return found


# -- what is wrong with a state dict -------------------------------------------------------------------------------


def _key_problems(missing: list[str], unexpected: list[str]) -> list[str]:
    problems: list[str] = []
    if missing:
        problems.append(f"it lacks {_listed(missing)}")
    if unexpected:
        problems.append(f"it has {_listed(unexpected)}, which the original did not have when it was captured")
    return problems


def _listed(keys: list[str]) -> str:
    more = len(keys) - _SHOWN
    return ", ".join(map(repr, keys[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _value_problems(origins: StateOrigins, state_dict: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for key, (dtype, shape) in origins.original.items():
        if key not in state_dict:
            continue
        value = state_dict[key]
        if not isinstance(value, torch.Tensor):
            problems.append(f"{key!r} is a {type(value).__name__}, not a tensor")
        elif shape_of(value) != shape:
            problems.append(f"{key!r} has the shape {list(value.shape)}, and the original had {list(shape)}")
        elif value.is_meta:
            problems.append(f"{key!r} has no data, it is on the device meta")
        elif value.is_complex() and not dtype.is_complex:
            problems.append(f"{key!r} is complex, and the original had {dtype}")
    return problems


def _with_tied_keys(origins: StateOrigins, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state dict that has all keys of each tensor of which it has one: a pass may have left the others alone.

    Raises:
        PassError: One tensor would get different values.
    """
    added: dict[str, Any] = {}
    for keys in origins.ties:
        given = [key for key in keys if key in state_dict]
        for key in given[1:]:
            first, value = state_dict[given[0]], state_dict[key]
            if first is not value and not torch.equal(first, value.to(first)):
                raise _refused([f"{given[0]!r} and {key!r} are one tensor, and would get different values"])
        if given:
            added.update((key, state_dict[given[0]]) for key in keys if key not in state_dict)
    return {**state_dict, **added} if added else state_dict


def _refused(problems: list[str]) -> PassError:
    more = len(problems) - _SHOWN
    text = "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return PassError(
        f"Cannot load the state dict: {text}. Nothing was loaded. Give a state dict of the module that was captured; "
        "strict=False takes one whose keys are others.",
        code="FXP-P030",
    )


class _Tensors:
    """The tensors of a module: those that can be written, and those that engines were compiled with."""

    def __init__(self, module: GraphModule) -> None:
        self.written = TensorTable(module).tensors
        """Path -> tensor."""
        self.compiled: dict[str, CompiledPart] = {}
        """Path of a tensor in the program of a part -> the part."""
        self._add_parts("", module)

    def _add_parts(self, prefix: str, module: torch.nn.Module) -> None:
        for path, part in module.named_modules(remove_duplicate=False):
            if not isinstance(part, CompiledPart):
                continue
            dotted = f"{prefix}{path}."
            # What its engine holds is not looked at: nobody knows what was compiled of it.
            self.written = {
                name: value for name, value in self.written.items() if not name.startswith(dotted)
            }
            self.compiled.update((dotted + name, part) for name in TensorTable(part.program).tensors)
            self._add_parts(dotted, part.program)


def _check_compiled(table: _Tensors, origins: StateOrigins, state_dict: Mapping[str, Any]) -> None:
    """Refuse new values of what an engine was compiled with: it may hold copies, or what was computed of them."""
    for path, part in table.compiled.items():
        origin = origins.get(path)
        is_constant = origin is not None and not (origin.keys or origin.unsaid)
        is_kept = origin is not None and origin.keys and not any(key in state_dict for key in origin.keys)
        if is_constant or is_kept:
            continue
        raise PassError(
            f"Cannot load original weights: {path!r} is lowered to {part.backend!r}, whose engine may go on with the "
            "old values. Nothing was loaded. Load the weights into the module that was lowered (of fxplug.optimize, "
            "result.graph_module; of a file, fxplug.load(path, engines='eager')), and lower it again.",
            code="FXP-P031",
        )


def _check_known(tensors: Mapping[str, torch.Tensor], origins: StateOrigins) -> None:
    """Refuse a module that holds a tensor of which nobody knows how it comes from the original."""
    for path in tensors:
        origin = origins.get(path)
        if origin is None:
            raise _unknown(path, "was added outside of a pipeline")
        gap = origin.unknown
        if gap is None or not (origin.keys or origin.unsaid):
            continue  # A constant of the program, or made of such, which no weights change.
        if not gap.pass_name:
            raise _unknown(
                path, f"was made by pass {origin.pass_name}, from a tensor that no state dict holds"
            )
        raise _unknown(
            path, f"was made or changed by pass {gap.pass_name}, which does not say how (context.derive)"
        )


def _unknown(path: str, what: str) -> PassError:
    return PassError(
        f"Cannot load original weights: {path!r} {what}, so it would keep its old values. Nothing was loaded. Load the "
        "weights into the original, and capture and transform it again.",
        code="FXP-P031",
    )


# -- new values ----------------------------------------------------------------------------------------------------


class _Values:
    """The tensors of a module, computed from a state dict of its original."""

    def __init__(self, origins: StateOrigins, state_dict: Mapping[str, Any]) -> None:
        self._origins, self._state_dict = origins, state_dict
        self._programs: dict[int, GraphModule] = {}
        self._made: dict[tuple[int, torch.device], torch.Tensor] = {}

    def find(self, path: str, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the new value of a tensor; None where it keeps its own."""
        origin = self._origins[path]
        keys = origin.keys
        given = [key for key in keys if key in self._state_dict]
        if not given:
            return None
        if len(given) < len(keys):
            lacking = [key for key in keys if key not in self._state_dict]
            raise _refused([f"{path!r} is made of {_listed(list(keys))}, and it lacks {_listed(lacking)}"])
        if not origin.recipe:
            return self._state_dict[origin.key]
        return self._make(path, origin, tensor.device)

    def _make(self, path: str, origin: TensorOrigin, device: torch.device) -> torch.Tensor:
        if origin.recipe is None:
            dtype, _ = self._origins.original[origin.key]
            # As the original would hold it, whatever the state dict is saved in.
            return self._state_dict[origin.key].detach().to(device=device, dtype=dtype)
        key = id(origin), device
        if key not in self._made:
            inputs = [self._make(path, entry, device) for entry in origin.inputs]
            try:
                self._made[key] = self._program(origin.recipe)(*inputs)
            except Exception as error:  # Whatever an operation raises.
                raise PassError(
                    f"Cannot load the state dict: {path!r} could not be made from {_listed(list(origin.keys))} by "
                    f"{origin.recipe.name!r} of pass {origin.pass_name}: {type(error).__name__}: {error}. Nothing was "
                    "loaded.",
                    code="FXP-P030",
                ) from error
        return self._made[key]

    def _program(self, recipe: Recipe) -> GraphModule:
        if id(recipe) not in self._programs:
            # A copy: a graph knows the last module that ran it, and others may be running this one.
            self._programs[id(recipe)] = GraphModule({}, copy.deepcopy(recipe.graph), recipe.name)
        return self._programs[id(recipe)]


def _check_values(found: list[tuple[str, torch.Tensor, torch.Tensor]]) -> None:
    """Refuse values that do not fit, before the first one is written."""
    problems: list[str] = []
    first: dict[int, tuple[str, torch.Tensor]] = {}
    for path, tensor, value in found:
        if shape_of(tensor) != shape_of(value):
            problems.append(
                f"{path!r} has the shape {list(tensor.shape)}, and its new value {list(value.shape)}"
            )
            continue
        other, known = first.setdefault(id(tensor), (path, value))
        if known is not value and not torch.equal(known, value.to(known)):
            problems.append(f"{path!r} and {other!r} are one tensor, and would get different values")
    if problems:
        raise _refused(problems)


def _write(found: list[tuple[str, torch.Tensor, torch.Tensor]]) -> None:
    journal = StorageJournal(tensor for _, tensor, _ in found)
    try:
        with journal:
            for _, tensor, value in found:
                tensor.copy_(value)
    except BaseException:
        journal.restore()
        raise
