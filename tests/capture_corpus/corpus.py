"""What a program of the corpus is, and where all of them are."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from capture_corpus.inputs import one

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ("symbolic", "shape", "value")
"""The ways in which fxplug captures a program."""

EQUAL = ""
"""Expected by default: the captured module does what eager does."""

REPORTED = "TraceWarning"
"""Expected where a warning names an attribute of Python that the captured module does not assign."""


@dataclass(frozen=True)
class Program:
    """A program, its inputs, and what is expected of each mode."""

    name: str
    theme: str
    make: Callable[[], Any]
    """Makes the program anew: a module, or any other callable."""
    inputs: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict
    others: tuple[Callable[[], tuple[Any, ...]], ...] = ()
    """Further positional inputs: another batch size, or such that the program takes another branch."""
    other_kwargs: tuple[Callable[[], dict[str, Any]], ...] = ()
    """Further named inputs, passed beside the first positional ones."""
    flips: bool = False
    """Whether the captured module is called with the other training flag, too."""
    rows: tuple[int, ...] = ()
    """Numbers of the known pains that this program is an example of."""
    symbolic: str = EQUAL
    shape: str = EQUAL
    value: str = EQUAL
    state: Callable[[Any], Any] | None = None
    """Given the program, returns what it changes besides its inputs and attributes."""
    illegal: bool = False
    """Whether eager raises an error itself."""
    outside: bool = False
    """Whether it keeps something outside of its modules, for which a graph has no place: it is counted apart."""
    isolated: bool = False
    """Whether it could end the process."""
    without_dead_code: bool = False
    """Whether it is compared after the removal of dead code, too."""
    needs: str = ""
    """A package without which it cannot run."""

    def expected(self, mode: str) -> str:
        """Return the error code that is expected in `mode`, or `EQUAL` or `REPORTED`."""
        return {"symbolic": self.symbolic, "shape": self.shape, "value": self.value}[mode]

    def fresh(self) -> Any:
        """Return the program, as if it had never run."""
        torch.manual_seed(0)
        return self.make()


_registry: dict[str, Program] = {}


def program(
    inputs: Callable[[], tuple[Any, ...]] = one, /, *, factory: bool = False, **options: Any
) -> Callable[[Any], Any]:
    """Register what is decorated: a function, a class of modules, or, with `factory`, what makes the program.

    Args:
        inputs: Makes the positional inputs.
        factory: Whether a function returns the program.
        options: Fields of `Program`; a single maker of other inputs needs no tuple around it.
    """

    def register(thing: Any) -> Any:
        is_class = inspect.isclass(thing) and issubclass(thing, nn.Module)
        make = thing if factory or is_class else lambda: thing
        for option in {"others", "other_kwargs"} & set(options):
            given = options[option]
            options[option] = given if isinstance(given, tuple) else (given,)
        name, theme = thing.__name__, thing.__module__.rpartition(".")[2]
        if name in _registry:
            raise ValueError(f"There are two programs called {name!r}.")
        _registry[name] = Program(name, theme, make, inputs, **options)
        return thing

    return register


def all_programs() -> dict[str, Program]:
    """Return every program of the folder `programs`, by name."""
    for path in sorted((Path(__file__).parent / "programs").glob("*.py")):
        importlib.import_module(f"capture_corpus.programs.{path.stem}")
    return dict(_registry)
