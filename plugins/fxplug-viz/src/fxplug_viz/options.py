"""How a picture is made: settings, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from fxplug.errors import ConfigError, UnknownNameError
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["COLOURINGS", "ColorBy", "Detail", "Direction", "DrawOptions", "DrawSettings", "Hidden"]

Direction = Literal["TB", "LR"]
"""Where the graph goes: from top to bottom, or from left to right."""

Detail = Literal["auto", "full", "brief"]
"""What a node shows: everything; or its name, target and shape; ``"auto"`` is brief for more than 300 nodes."""

Hidden = Literal["get_attr", "constants", "getitem"]
"""What can be left out: nodes that fetch attributes; tensor constants and the immediate values among arguments; nodes
that take an element, whose users are then connected to what holds it."""

ColorBy = Literal["op", "plugin", "partition", "dtype"] | Callable[[Node], "str | None"] | Mapping[str, str]
"""What the colour of a node tells: its opcode, who made it, the partition that it lies in, its dtype; or any group, as
a function of the node, or by the name of the node."""

COLOURINGS = ("op", "plugin", "partition", "dtype")
_BRIEF_FROM = 300
_WRAPPED_FROM = 100
_SHORTEST_COLUMN = 40


class DrawSettings(TypedDict, total=False):
    """The fields of `DrawOptions` as keywords."""

    title: str | None
    direction: Direction
    color_by: ColorBy
    hide: Collection[Hidden]
    clusters: bool
    legend: bool
    detail: Detail
    longest: int
    wrap: bool | None
    unfold: bool


@dataclass(frozen=True)
class DrawOptions:
    """How a picture is made."""

    title: str | None = None
    """Stands above the picture; None: the class of the module."""
    direction: Direction = "TB"
    color_by: ColorBy = "op"
    hide: Collection[Hidden] = ()
    clusters: bool = True
    """Whether a frame is drawn around the nodes of each module."""
    legend: bool = True
    """Whether the colours are explained."""
    detail: Detail = "auto"
    longest: int = 80
    """How many characters a text may have; what is longer is cut."""
    wrap: bool | None = None
    """Whether a long graph is broken into columns; None: where there are more than 100 nodes."""
    unfold: bool = False
    """Whether the nodes of graph modules that the graph calls are drawn too, in a frame around each."""

    def __post_init__(self) -> None:
        _check("direction", self.direction, get_args(Direction))
        _check("detail", self.detail, get_args(Detail))
        if isinstance(self.color_by, str):
            _check("colouring", self.color_by, COLOURINGS)
        elif not callable(self.color_by) and not isinstance(cast("object", self.color_by), Mapping):
            raise ConfigError(
                f"Cannot colour nodes by a {type(self.color_by).__name__}. Use one of {', '.join(COLOURINGS)}, a "
                "function that returns the group of a node, or a dict from the name of a node to its group."
            )
        if isinstance(self.hide, str):
            raise ConfigError(
                f"Cannot hide {self.hide!r}: give a collection of names, such as [{self.hide!r}]."
            )
        for name in self.hide:
            _check("kind of node to hide", name, get_args(Hidden))
        if self.longest < 1:
            raise ConfigError(f"Cannot cut texts to {self.longest} characters. Give a number from 1 on.")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> DrawOptions:
        """Return options from keywords.

        Raises:
            UnknownNameError: There is no such option, or no such choice.
            ConfigError: A value makes no sense.
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            _check("drawing option", name, known)
        return cls(**settings)

    def is_brief(self, nodes: int) -> bool:
        """Return whether the nodes of a graph of so many show less."""
        return self.detail == "brief" or (self.detail == "auto" and nodes > _BRIEF_FROM)

    def column_length(self, nodes: int) -> int | None:
        """Return how many nodes stand below each other before a new column begins; None: there is one column."""
        wraps = nodes > _WRAPPED_FROM if self.wrap is None else self.wrap
        # About as wide as high.
        length = max(_SHORTEST_COLUMN, int((4 if self.is_brief(nodes) else 3) * nodes**0.5))
        return length if wraps and nodes > length else None


def _check(kind: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise UnknownNameError(kind, str(value), known)
