"""From source to a function object: compiled once, visible to tracebacks and debuggers, freed with the function."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

from fxplug.codegen.linking import Linker
from fxplug.errors import CodegenError

if TYPE_CHECKING:
    from types import FunctionType

    from fxplug.ir import PythonCode, SourceMaker

__all__ = ["CompiledFunction", "compile_code"]

_numbers = itertools.count()
_alive: dict[str, weakref.ref[FunctionType]] = {}
"""File name -> its function."""


def _forget(filename: str, tables: Sequence[dict[str, Any]], _: object) -> None:
    """Let go of the source of a function that is gone, perhaps when Python ends, and names of modules mean nothing."""
    for table in tables:
        table.pop(filename, None)


class CompiledFunction:
    """A compiled function together with the source that it came from."""

    __slots__ = ("__weakref__", "code", "filename", "function", "version")

    def __init__(self, code: PythonCode, function: FunctionType, filename: str, version: int) -> None:
        self.code = code
        """The generated source and its globals."""
        self.function = function
        """The function; its first parameter is the root."""
        self.filename = filename
        """The name under which tracebacks show the source."""
        self.version = version
        """Version of the graph that was compiled."""


def compile_code(code: PythonCode, *, name: str = "fxplug", version: int = 0) -> CompiledFunction:
    """Compile generated source.

    The source is registered with `linecache` for as long as the function lives.

    Args:
        code: What a code generator made; text from anywhere else must not get here.
        name: Shown in the file name.
        version: Version of the graph.

    Raises:
        CodegenError: Python does not accept the source.
    """
    safe = "".join(letter if letter.isalnum() else "_" for letter in name)
    filename = f"<{safe}-generated-{next(_numbers)}>"
    # Without a __name__: Dynamo would import the module of that name to find the globals.
    namespace: dict[str, Any] = dict(code.globals)
    maker = code.maker
    if isinstance(maker, Linker) and _is_made_by(code, maker):
        function = maker.define(namespace, filename)
        lines: Any = SourceLines(maker)
    else:
        function = _compiled(code, filename, namespace)
        lines = code.src.splitlines(keepends=True)
    function.__module__ = "fxplug.generated"
    linecache.cache[filename] = (0, None, lines, filename)
    # Not by weakref.finalize, which takes ten times as long.
    _alive[filename] = weakref.ref(function, partial(_forget, filename, (linecache.cache, _alive)))
    return CompiledFunction(code, function, filename, version)


def _is_made_by(code: PythonCode, maker: Linker) -> bool:
    """Return whether source and name are those that the maker gave, and were not replaced in a copy."""
    given = vars(code).get("src")
    return code.function_name == maker.function_name and (given is None or given is maker.source())


def _compiled(code: PythonCode, filename: str, namespace: dict[str, Any]) -> FunctionType:
    try:
        compiled = compile(code.src, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CodegenError(
            f"Cannot compile the generated code: {error}. This is a fault of the graph's code generator; "
            f"graph.python_code().src shows the source."
        ) from error
    exec(compiled, namespace)  # noqa: S102 - the one place where generated source becomes a function
    function = cast("FunctionType | None", namespace.pop(code.function_name, None))
    if function is None:
        raise CodegenError(
            f"Cannot use the generated code: it defines no function {code.function_name!r}. The code generator of the "
            "graph must begin it with a 'def' of that name (gen_fn_def)."
        )
    return function


class SourceLines(Sequence[str]):  # noqa: PLW1641 - no more than a list has
    """The lines of a source, which is made when they are first asked for; it stands in `linecache` for a list.

    Args:
        maker: Makes the source.
    """

    def __init__(self, maker: SourceMaker) -> None:
        self._maker = maker
        self._lines: list[str] | None = None

    def _all(self) -> list[str]:
        if self._lines is None:
            self._lines = self._maker.source().splitlines(keepends=True)
        return self._lines

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, SourceLines) else other)

    def __add__(self, other: list[str]) -> list[str]:
        return [*self._all(), *other]

    def __radd__(self, other: list[str]) -> list[str]:
        return [*other, *self._all()]
