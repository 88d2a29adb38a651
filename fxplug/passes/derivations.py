"""How tensors of a transformed module come from the original ones: recipes, as graphs, and what passes say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.capture import GraphAppendingTracer, Proxy
from fxplug.errors import FxplugError, PassError
from fxplug.ir import PATH_OPCODES, Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

__all__ = ["Derivation", "Recipe", "TensorOrigin", "recipe_of"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the value of a tensor is computed from those of others, as data."""

    name: str
    """What people call it; the function that was captured."""
    graph: Graph
    """A program without attributes: one input for each tensor, one tensor as output."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        return self


@dataclass(frozen=True, eq=False)
class TensorOrigin:
    """Where the value of one tensor comes from.

    It is a tensor of the original (`key`), computed from such (`recipe` and `inputs`), or one that no state dict holds;
    then `pass_name` is the pass that made it without saying how, or empty for what was there from the start.
    """

    key: str = ""
    """The key in the original's state dict."""
    recipe: Recipe | None = None
    inputs: tuple[TensorOrigin, ...] = ()
    """Where the inputs of the recipe come from."""
    pass_name: str = ""
    """The pass that made the tensor, with its distribution and version; empty where none did."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the original's state dict that the value depends on, each once."""
        return tuple(dict.fromkeys(origin.key for origin in self.parts() if origin.key))

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that the value went through, the first one first."""
        return tuple(dict.fromkeys(origin.pass_name for origin in self.parts() if origin.pass_name))

    @property
    def unknown(self) -> TensorOrigin | None:
        """The first part of which nobody said how it comes from the original; None when there is none."""
        return next((origin for origin in self.parts() if not origin.key and origin.recipe is None), None)

    @property
    def unsaid(self) -> bool:
        """Whether a pass made a part of it without saying how."""
        return any(origin.pass_name and not origin.key and origin.recipe is None for origin in self.parts())

    def parts(self) -> Iterator[TensorOrigin]:
        """Yield what this one comes from and itself, inputs first, each once."""
        seen: set[int] = set()
        waiting: list[tuple[TensorOrigin, bool]] = [(self, False)]
        while waiting:
            origin, is_open = waiting.pop()
            if is_open:
                yield origin
            elif id(origin) not in seen:
                seen.add(id(origin))
                waiting.append((origin, True))
                waiting += [(entry, False) for entry in reversed(origin.inputs)]

    def __str__(self) -> str:
        """Return the origin in words."""
        if self.key:
            return self.key
        if self.recipe is not None:
            return f"{self.recipe.name}({', '.join(self.keys)}) by {', then '.join(self.passes)}"
        return f"unknown: made by {self.pass_name}" if self.pass_name else "unknown: in no state dict"

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorOrigin:
        return self


@dataclass(frozen=True, eq=False)
class Derivation:
    """What a pass said: `target` is made of `sources`."""

    target: torch.Tensor
    sources: tuple[torch.Tensor, ...]
    recipe: Recipe


def recipe_of(function: Callable[..., torch.Tensor], count: int) -> Recipe:
    """Return a function of tensors as a graph.

    Args:
        function: Does with operations on tensors and plain numbers. It is called once, with stand-ins.
        count: How many tensors it takes.

    Raises:
        PassError: It cannot be captured.
    """
    name = getattr(function, "__name__", type(function).__name__)
    graph = Graph()
    tracer = GraphAppendingTracer(graph)
    inputs = [Proxy(graph.placeholder(f"tensor_{index}"), tracer) for index in range(count)]
    try:
        result: Any = function(*inputs)
    except FxplugError as error:
        reason = error.message
    except Exception as error:  # Whatever a function of a plugin raises.
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = _fault(graph, result)
        if not reason:
            graph.output(result.node)
            return Recipe(name, graph)
    raise PassError(
        f"Cannot record the derivation {name!r}: {reason.rstrip('.')}. Hand context.derive a function that returns one "
        "tensor, made of the given ones by operations on tensors and plain numbers.",
        code="FXP-P024",
    )


def _fault(graph: Graph, result: Any) -> str:
    if not isinstance(result, Proxy):
        return f"it returns a {type(result).__name__} that does not depend on its arguments"
    if graph.lifted or any(node.op in PATH_OPCODES for node in graph.nodes):
        return "it uses a tensor or module that is none of its arguments"
    return ""
