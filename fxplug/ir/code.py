"""What the graph knows about code generation: the result it hands out and the protocol of whoever makes it.

The generator itself lives in a higher layer, which installs it here when it is imported.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.errors import CodegenError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from fxplug.ir.graph import Graph

__all__ = [
    "PLAIN_STYLE",
    "CodeGenerator",
    "CodeOwner",
    "CodeTransformer",
    "PythonCode",
    "SourceMaker",
    "SourceStyle",
    "Transformation",
    "default_generator",
    "install_generator",
]

CodeTransformer = Callable[[list[str]], list[str]]
"""Given the lines of a function's body, each ending in a newline, returns those that take their place."""


class SourceMaker(Protocol):
    """Knows what the source of a function will be, for code that can be run before anybody has asked for it."""

    def source(self) -> str:
        """Return the source, the same object each time."""
        ...

    def lines(self) -> dict[int, str]:
        """Return `PythonCode.lines`."""
        ...


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
    maker: SourceMaker | None = field(default=None, repr=False, compare=False)
    """What gives `src` and `lines` when they are first asked for, None where they were given."""

    @classmethod
    def made_by(cls, maker: SourceMaker, values: dict[str, Any], function_name: str) -> PythonCode:
        """Return code whose source is made when it is first asked for.

        Args:
            maker: Makes it.
            values: The globals.
            function_name: The name that the source defines.
        """
        code = cls.__new__(cls)
        vars(code).update(globals=values, function_name=function_name, maker=maker)
        return code

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles hold: the source, which another Python may compile otherwise."""
        return {**vars(self), "src": self.src, "lines": self.lines, "maker": None}

    def __getattr__(self, name: str) -> Any:
        maker = vars(self).get("maker")
        if maker is None or name not in {"src", "lines"}:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        made = vars(self)[name] = maker.source() if name == "src" else maker.lines()
        return made


@dataclass(frozen=True)
class SourceStyle:
    """What is added to generated source for people who read it."""

    verbose: bool = False
    """Whether comments name the lines of the program that nodes came from, and values their types and sizes."""
    include_stride: bool = False
    """Whether sizes are followed by strides."""
    include_device: bool = False
    """Whether sizes are followed by the device."""
    colored: bool = False
    """Whether comments, types and constants are colored for a terminal. Such source cannot be compiled."""
    expanded_def: bool = False
    """Whether each parameter has a line of its own."""
    additional_meta: tuple[str, ...] = ()
    """Notes of nodes that are shown in comments, by their keys."""


PLAIN_STYLE = SourceStyle()
"""Source as it is run."""


class CodeGenerator(Protocol):
    """Turns a graph into source."""

    def generate(self, graph: Graph, root_module: str = "self") -> PythonCode:
        """Return the source of a function that computes the graph.

        A generator that can write source for people takes a `SourceStyle` as ``style`` besides.

        Args:
            graph: The graph to be emitted; it is not changed.
            root_module: Name of the parameter that holds the root.
        """
        ...


class Transformation:
    """A code transformer that a graph applies; used as a context, it is taken back at the end.

    It knows its graph weakly, and several may end in any order: each takes back itself alone.
    """

    __slots__ = ("_graph", "transformer")

    def __init__(self, graph: CodeOwner, transformer: CodeTransformer | None) -> None:
        self._graph = weakref.ref(graph)
        self.transformer = transformer
        """What is applied; None leaves the body as it is."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        graph = self._graph()
        if graph is not None:
            graph.remove_transformer(self)


class CodeOwner:
    """What a graph knows about its code: who generates it, and what is changed in the result."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every edit."""
        self._codegen: CodeGenerator | None = None
        self._transformations: tuple[Transformation, ...] = ()

    def set_codegen(self, codegen: CodeGenerator) -> None:
        """Use another code generator for this graph. It is code that you trust: what it writes is run."""
        self._codegen = codegen
        self.version += 1

    def generate_code_as(self, other: CodeOwner) -> None:
        """Generate code as another graph does now: with its code generator and its transformers."""
        self._codegen, self._transformations = other._codegen, other._transformations
        self.version += 1

    @property
    def code_transformer(self) -> CodeTransformer | None:
        """What changes the body of the generated function, None when nothing does (see `on_generate_code`)."""
        return self._transformations[-1].transformer if self._transformations else None

    def on_generate_code(
        self, make_transformer: Callable[[CodeTransformer | None], CodeTransformer | None]
    ) -> Transformation:
        r"""Change the body of the function that is generated from now on. The graph stays as it is.

        What a transformer writes is run, so it is code that you trust; it never comes from a graph or a file.

        Args:
            make_transformer: Given the transformer in force, or None, returns the new one, which may call the former.
                A transformer takes the lines of the body, each ending in a newline and not indented beyond what
                ``with`` blocks ask for, and returns those that are to stand in their place.

        Returns:
            A context that takes the change back at its end. Without one it stays.

        Example:
            Stopping in the debugger at the start of each call, while the context lasts::

                with graph.on_generate_code(lambda former: lambda body: ["breakpoint()\n", *body]):
                    module(x)
        """
        registered = Transformation(self, make_transformer(self.code_transformer))
        self._transformations = (*self._transformations, registered)
        self.version += 1
        return registered

    def remove_transformer(self, registered: Transformation) -> None:
        """Take back what `on_generate_code` returned; nothing is done when it was taken back before."""
        if registered in self._transformations:
            self._transformations = tuple(one for one in self._transformations if one is not registered)
            self.version += 1

    def process_inputs(self, *args: Any) -> Any:
        """Return the inputs of the graph for the inputs of its generated function: its code generator relates them."""
        process = getattr(self._codegen, "process_inputs", None)
        return args if process is None else process(*args)

    def process_outputs(self, out: Any) -> Any:
        """Return what the generated function returns for what the graph returns (see `process_inputs`)."""
        process = getattr(self._codegen, "process_outputs", None)
        return out if process is None else process(out)

    def python_code(
        self,
        root_module: str = "self",
        *,
        verbose: bool = False,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        expanded_def: bool = False,
        additional_meta: Iterable[str] | None = None,
    ) -> PythonCode:
        """Return Python source that computes this graph, with the globals it needs.

        Everything but the first argument adds to the text for people who read it.

        Args:
            root_module: Name of the parameter that stands for the root.
            verbose: Whether comments name the lines of the program that nodes came from, and values their types and
                sizes where they are known (``node.meta``).
            include_stride: Whether sizes are followed by strides; implies `verbose`, as the following do.
            include_device: Whether sizes are followed by the device.
            colored: Whether the text is colored for a terminal. It cannot be compiled then.
            expanded_def: Whether each parameter gets a line of its own.
            additional_meta: Keys of notes that comments show.
        """
        keys = tuple(additional_meta or ())
        verbose = verbose or include_stride or include_device or colored or bool(keys)
        style = SourceStyle(verbose, include_stride, include_device, colored, expanded_def, keys)
        generator = self._codegen or default_generator()
        graph = cast("Graph", self)
        if style == PLAIN_STYLE or "style" not in inspect.signature(generator.generate).parameters:
            return generator.generate(graph, root_module)
        return cast("Any", generator).generate(graph, root_module, style=style)


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
