"""What the graph knows about code generation: the result it hands out and the protocol of whoever makes it.

The generator itself lives in a higher layer, which installs it here when it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fxplug.errors import CodegenError

if TYPE_CHECKING:
    from fxplug.ir.graph import Graph

__all__ = ["CodeGenerator", "PythonCode", "default_generator", "install_generator"]


@dataclass(frozen=True)
class PythonCode:
    """Generated source with everything needed to run it."""

    src: str
    """Source of one function."""
    globals: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of the free names in `src`."""
    function_name: str = "forward"
    """The name that `src` defines."""
    lines: dict[int, str] = field(default_factory=dict[int, str])
    """Line of `src` (counted from 1) -> name of the node that it computes."""


class CodeGenerator(Protocol):
    """Turns a graph into source."""

    def generate(self, graph: Graph, root_module: str = "self") -> PythonCode:
        """Return the source of a function that computes the graph.

        Args:
            graph: The graph to be emitted; it is not changed.
            root_module: Name of the parameter that holds the root.
        """
        ...


class _Installed:
    generator: CodeGenerator | None = None


def install_generator(generator: CodeGenerator) -> None:
    """Make `generator` the one that graphs use unless they were given their own."""
    _Installed.generator = generator


def default_generator() -> CodeGenerator:
    """Return the installed generator.

    Raises:
        CodegenError: The code generation layer was never imported.
    """
    if _Installed.generator is None:
        raise CodegenError(
            "Cannot generate code: no generator is installed. Import fxplug or fxplug.codegen first."
        )
    return _Installed.generator
