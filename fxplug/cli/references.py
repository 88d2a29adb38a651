"""From ``package.module:callable`` or ``path.py:callable`` to a model, an example, or a clear message.

A file is imported by its location. While a command runs, the folder of the file (for a module: the working
directory) is the first place where Python looks for modules, as if the program had been started there: models
import their neighbours. Plugins are discovered before that.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.api.user_errors import error_with_place
from fxplug.errors import FxplugError, UnresolvedReferenceError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    import click

__all__ = ["Reference", "UserProgramError", "build_model", "call_reference", "importable", "load_model"]


class UserProgramError(FxplugError, RuntimeError):
    """The program that a reference leads to failed."""

    code = "FXP-F003"


@dataclass(frozen=True)
class Reference:
    """A parsed reference."""

    text: str
    what: str
    """What it is to lead to, for messages: ``"model"``."""
    place: str
    """The file or the module."""
    attribute: str
    """Dotted path inside it."""

    @classmethod
    def parse(cls, text: str, what: str) -> Reference:
        """Read a reference.

        Raises:
            UnresolvedReferenceError: It has another form.
        """
        place, colon, attribute = text.rpartition(":")
        parts = attribute.split(".")
        if not colon or not place or not all(part.isidentifier() for part in parts):
            raise UnresolvedReferenceError(
                f"Cannot read {text!r} as a {what}: write package.module:callable or path.py:callable, for example "
                f"examples/resnet50.py:resnet50."
            )
        reference = cls(text, what, place, attribute)
        if not reference.is_file and not all(part.isidentifier() for part in place.split(".")):
            raise UnresolvedReferenceError(
                f"Cannot read {text!r} as a {what}: {place!r} is neither a Python file (its name ends in "
                f".py) nor the dotted name of a module."
            )
        return reference

    @property
    def is_file(self) -> bool:
        """Whether it names a file."""
        return self.place.endswith(".py")

    @property
    def folder(self) -> Path:
        """Where Python looks for modules first."""
        return Path(self.place).resolve().parent if self.is_file else Path.cwd()

    def load(self) -> Any:
        """Return what the reference leads to.

        Raises:
            UnresolvedReferenceError: There is no such file, module or attribute.
            UserProgramError: The file or module raises when it is imported.
        """
        found: Any = self._import_file() if self.is_file else self._import_module()
        walked = self.place
        for part in self.attribute.split("."):
            if not hasattr(found, part):
                known = [name for name, value in vars(found).items() if _is_candidate(name, value, found)]
                raise UnresolvedReferenceError(
                    f"Cannot find the {self.what} {self.text!r}: {walked} has no {part!r}. {did_you_mean(part, known)}"
                )
            found = getattr(found, part)
            walked = f"{walked}:{part}"
        return found

    def _import_module(self) -> ModuleType:
        try:
            return importlib.import_module(self.place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.place}.".startswith(f"{error.name}."):
                raise self._broken(error) from error
            raise UnresolvedReferenceError(
                f"Cannot find the {self.what} {self.text!r}: there is no module {error.name!r}. Install it, or run the "
                f"command in the folder that holds it (the working directory is {Path.cwd()})."
            ) from error
        except (Exception, SystemExit) as error:
            raise self._broken(error) from error

    def _import_file(self) -> ModuleType:
        path = Path(self.place)
        if not path.is_file():
            folder = path.parent
            nearby = [str(folder / entry.name) for entry in folder.glob("*.py")] if folder.is_dir() else []
            hint = did_you_mean(str(path), nearby) if nearby else f"The working directory is {Path.cwd()}."
            raise UnresolvedReferenceError(
                f"Cannot find the {self.what} {self.text!r}: there is no file {self.place!r}. {hint}"
            )
        path = path.resolve()
        name = _free_module_name(path)
        module = sys.modules.get(name)
        if module is not None:
            return module
        spec = importlib.util.spec_from_file_location(name, path, loader=_ScriptLoader(name, str(path)))
        if spec is None or spec.loader is None:  # pragma: no cover - a loader was given
            raise UnresolvedReferenceError(
                f"Cannot find the {self.what} {self.text!r}: Python cannot import it."
            )
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise self._broken(error) from error
        return module

    def _broken(self, error: BaseException) -> UserProgramError:
        return UserProgramError(
            f"Cannot load the {self.what} {self.text!r}: importing {self.place} raised {error_with_place(error)}."
        )


class _ScriptLoader(importlib.machinery.SourceFileLoader):
    """Leaves no compiled file beside a file that is named on the command line, as Python does with scripts."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


def _free_module_name(path: Path) -> str:
    """Return the name under which a file is imported: its own unless that belongs to another module."""
    name = path.stem.replace(".", "_")  # A dot would make it a module of a package.
    while True:
        loaded = sys.modules.get(name)
        if loaded is not None:
            if getattr(loaded, "__file__", None) == str(path):
                return name
        elif not _belongs_elsewhere(name, path):
            return name
        name = f"{name}_"


def _belongs_elsewhere(name: str, path: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is not None and spec.origin != str(path)


def _is_candidate(name: str, value: Any, holder: Any) -> bool:
    """Return whether `name` may have been meant: something public that can be called and was defined there."""
    if name.startswith("_") or not (callable(value) or isinstance(value, nn.Module)):
        return False
    defined_in = getattr(value, "__module__", None)
    return defined_in == getattr(holder, "__name__", None) or isinstance(value, nn.Module)


@contextmanager
def importable(folder: Path) -> Generator[None]:
    """Let Python look for modules in `folder` first."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def call_reference(reference: Reference) -> Any:
    """Return what a reference leads to, called without arguments if it is a function or class.

    Raises:
        UnresolvedReferenceError: It leads nowhere, or to what cannot be called without arguments.
        UserProgramError: The program failed.
    """
    found = reference.load()
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UnresolvedReferenceError(
            f"Cannot use {reference.text!r} as a {reference.what}: it is a {type(found).__name__}. Name a function "
            f"without arguments that returns the {reference.what}."
        )
    missing = _missing_arguments(found)
    if missing:
        raise UnresolvedReferenceError(
            f"Cannot use {reference.text!r} as a {reference.what}: it needs the arguments {', '.join(missing)}. Name a "
            f"function without arguments that returns the {reference.what}."
        )
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise UserProgramError(
            f"Cannot make the {reference.what} {reference.text!r}: {reference.attribute}() raised "
            f"{error_with_place(error)}."
        ) from error


def _missing_arguments(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # A builtin whose signature is not known.
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]


def build_model(reference: Reference) -> nn.Module:
    """Return the model that a reference leads to: a module, or what a function or class gives.

    Raises:
        UnresolvedReferenceError: It leads nowhere, or to no module.
        UserProgramError: The program failed.
    """
    model = call_reference(reference)
    if not isinstance(model, nn.Module):
        raise UnresolvedReferenceError(
            f"Cannot use {reference.text!r} as a model: {reference.attribute}() returned a "
            f"{type(model).__name__}, not a torch.nn.Module."
        )
    return model


def load_model(context: click.Context, text: str) -> nn.Module:
    """Return the model that a text refers to; while the command runs, its neighbours can be imported.

    Raises:
        UnresolvedReferenceError: It is no reference, or leads nowhere, or to no module.
        UserProgramError: The program failed.
    """
    reference = Reference.parse(text, "model")
    context.with_resource(importable(reference.folder))
    return build_model(reference)
