"""Methods and functions of what a program holds and makes, kept by their names until code that it reaches names them.

Which object a name in a function is an attribute of is not known before the function runs: ``block.act(x)`` may stand
in a helper that is given the block, and ``sampler().draw(x)`` beside one that makes the sampler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.containers import PLAIN, is_of_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["MethodsByName"]


class MethodsByName:
    """What classes and objects of a program hold under names that no code has named yet."""

    def __init__(self) -> None:
        self._classes: set[type] = set()
        self._implied: set[type] = set()
        self._named: set[str] = {"__init__", "__new__"}  # They are looked at where a class is called.
        self._waiting: dict[str, list[tuple[Any, Any]]] = {}

    def add_class(self, kind: type, owner: Any) -> Iterator[tuple[Any, Any]]:
        """Take in what a class holds; yield what of it has been named.

        Args:
            kind: The class.
            owner: An object of it; None for one that the program makes.

        Yields:
            What the class holds under the name, and the object.
        """
        if kind in self._classes:
            return
        self._classes.add(kind)
        for base in kind.__mro__:
            if base is nn.Module or base is object:
                break
            if is_of_library(base.__module__):
                continue
            for name, value in vars(base).items():
                if type(value) not in PLAIN and not name[:2] == "__" == name[-2:]:
                    yield from self.add(name, value, owner)

    def implied(
        self, kind: type, owner: Any, find: Callable[[type, Any], Iterator[tuple[Any, Any]]]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield, once for a class, what `find` yields of one of its objects that code has a name for."""
        if kind not in self._implied:
            self._implied.add(kind)
            yield from find(kind, owner)

    def add(self, name: str, value: Any, owner: Any) -> Iterator[tuple[Any, Any]]:
        """Take in what is held under a name; yield it, with the object whose method it is, if that has been named."""
        if name in self._named:
            yield value, owner
        else:
            self._waiting.setdefault(name, []).append((value, owner))

    def name(self, names: Iterable[str]) -> Iterator[tuple[Any, Any]]:
        """Hear of names in code; yield what is held under one of them and was not yielded before."""
        new = self._waiting.keys() & names
        self._named.update(names)
        for name in new:
            yield from self._waiting.pop(name)
