"""What a pass is: a named transformation of a graph module, and the record by which it is offered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fxplug.passes.changes import NO_CHANGES, NodeChanges
from fxplug.passes.limits import checked_limit
from fxplug.rewrite.limits import allows_rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["PHASES", "Pass", "PassContext", "PassEvent", "PassRecord", "PassResult", "Phase", "PipelineStep"]

Phase = Literal["prepare", "optimize", "quantize", "lower", "finish"]
"""The stages of a pipeline, in the order in which they run."""

PHASES: tuple[Phase, ...] = ("prepare", "optimize", "quantize", "lower", "finish")


@dataclass(frozen=True)
class PassContext:
    """What a pass may know besides the module."""

    example_inputs: tuple[Any, ...] | None = None
    """Inputs of the module as they will come in use; None when nobody gave any."""
    pipeline: str = ""
    """Name of the pipeline that runs the pass."""

    def allows(self, node: Node, what: str) -> bool:
        """Return whether the pass may do one of its rewrites; asked before each one, and obeyed.

        The answer is yes, except while `fxplug.bisect` searches for the rewrite that does harm.
        `fxplug.replace_pattern` and `fxplug.decompose` ask by themselves.

        Args:
            node: What is about to be rewritten.
            what: What is about to be done to it, in a word or two, e.g. ``"fold"``.
        """
        return allows_rewrite(node, what)


@dataclass(frozen=True)
class PassResult:
    """What a pass did."""

    modified: bool
    """Whether graph or module state changed."""
    summary: str = ""
    """One line for people, e.g. ``"folded 53 batch norms"``."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Plain values for reports, e.g. ``{"folded": 53}``."""


class Pass(ABC):
    """A transformation of a graph module, in place.

    A pass changes ``module.graph`` and, where it must, the module's submodules and parameters. It says
    truthfully whether it changed anything. It need not undo anything when it fails: the pipeline does.
    """

    @abstractmethod
    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Transform `module`.

        Args:
            module: Changed in place.
            context: What else is known.

        Returns:
            What was done.
        """


@dataclass(frozen=True)
class PassRecord:
    """Offers a pass under a name."""

    name: str
    """Lower-case words joined by hyphens, without a namespace, e.g. ``"fuse-conv-bn"``."""
    factory: Callable[..., Pass]
    """Makes the pass; receives the options as keyword arguments. Import heavy libraries in here, not earlier."""
    summary: str
    """One line for people."""
    phase: Phase = "optimize"
    """The stage in which it runs."""
    before: tuple[str, ...] = ()
    """Names of passes that must come later, where they take part."""
    after: tuple[str, ...] = ()
    """Names of passes that must come earlier, where they take part."""
    options: type[Any] | None = None
    """A dataclass whose fields are the factory's keyword arguments; values from config are validated against it."""
    preserves: frozenset[str] = frozenset()
    """Names of analyses that stay valid: ``"shapes"``, ``"effects"``."""
    pipelines: tuple[str, ...] = ()
    """Built-in pipelines that the pass joins by itself once its plugin is installed, e.g. ``("inference",)``."""
    idempotent: bool = False
    """Whether running it again on its own result changes nothing."""
    tolerance: float = 0.0
    """How far it may move an output, as a share of the largest magnitude in it; 0: by rounding alone."""


@dataclass(frozen=True)
class PipelineStep:
    """One pass of a pipeline with its options."""

    name: str
    """Full name of the pass."""
    record: PassRecord
    """What offers it."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Validated keyword arguments of the record's factory."""
    provider: str = "fxplug"
    """Distribution and version that the pass comes from."""
    time_limit: float | None = None
    """Seconds after which the pass is stopped where it edits or computes; None for what the pipeline says."""
    hard_time_limit: float | None = None
    """Seconds after which the process is ended that the pass runs in; None for what the pipeline says."""

    def __post_init__(self) -> None:
        checked_limit(self.time_limit, f"time_limit of pass {self.name!r}")
        checked_limit(self.hard_time_limit, f"hard_time_limit of pass {self.name!r}")

    @property
    def title(self) -> str:
        """Pass and provider, as the beginning of a sentence."""
        return f"Pass {self.name!r} of {self.provider}"


@dataclass(frozen=True)
class PassEvent:
    """The start or the end of one pass in a pipeline; a record handed to observers."""

    name: str
    """Full name of the pass."""
    pipeline: str
    """Name of the pipeline."""
    index: int
    """Position among the passes that run, counted from 0."""
    total: int
    """How many passes run."""
    module: GraphModule
    """The module that is transformed."""
    nodes_before: int = 0
    """Nodes in the graph when the pass started."""
    nodes_after: int = 0
    """Nodes in the graph when it ended; 0 at the start."""
    seconds: float = 0.0
    """How long it ran; 0 at the start."""
    result: PassResult | None = None
    """What it did; None at the start and after a failure."""
    error: BaseException | None = None
    """Why it failed."""
    changes: NodeChanges = NO_CHANGES
    """How many nodes it changed; none at the start, and when it was undone."""
    bytes_before: int = 0
    """Memory of parameters and buffers when the pass started, each memory counted once."""
    bytes_after: int = 0
    """Memory of parameters and buffers when it ended; 0 at the start."""
