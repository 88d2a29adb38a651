"""What a pass is: a named transformation of a graph module, and the record by which it is offered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from fxplug.errors import AnalysisError
from fxplug.passes.analyses import AnalysisCache
from fxplug.passes.changes import NO_CHANGES, NodeChanges
from fxplug.passes.derivations import Derivation, Recipe, recipe_of
from fxplug.passes.limits import checked_limit
from fxplug.rewrite.limits import allows_rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.ir.effects import Effect
    from fxplug.passes.analyses import AnalysisResult

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
    module: GraphModule | None = None
    """What is transformed; analyses are about it."""
    analyses: AnalysisCache = field(default_factory=AnalysisCache, repr=False, compare=False)
    """What `analysis` found out and is still true."""
    derivations: list[Derivation] = field(default_factory=list[Derivation], repr=False, compare=False)
    """What the running pass said with `derive`, in order."""

    @overload
    def analysis(self, name: Literal["effects"]) -> AnalysisResult[Effect]: ...

    @overload
    def analysis(self, name: str) -> AnalysisResult[Any]: ...

    def analysis(self, name: str) -> AnalysisResult[Any]:
        """Return what an analysis finds out about the module as it is now.

        It is computed when it is first asked for, and served again as long as nothing changed. After an edit it is
        computed anew, unless all passes that edited declare that they preserve it; a result that somebody still holds
        then refuses to answer.

        Args:
            name: ``"shapes"``: nested `fxplug.analyze.TensorMetadata` for each node; ``"effects"``: a `fxplug.Effect`.

        Raises:
            UnknownNameError: There is no such analysis.
            AnalysisError: The context does not know the module, or there are no example inputs and shapes are asked
                for.
        """
        if self.module is None:
            raise AnalysisError(
                f"Cannot analyse {name!r}: this context does not know the module. Run the pass in a pipeline, or make "
                "the context with PassContext(example_inputs, module=module)."
            )
        return self.analyses.get(name, self.module, self.example_inputs)

    def derive(
        self,
        target: torch.Tensor,
        sources: Sequence[torch.Tensor],
        function: Callable[..., torch.Tensor] | Recipe,
    ) -> None:
        """Say how a tensor that the pass puts into the module comes from those that it found there.

        New weights can then be loaded into the transformed module; see `fxplug.load_original_state_dict`. It is part of
        what a pipeline keeps; outside of one, nobody hears it.

        Args:
            target: The very tensor that the module holds when the pass is done. It may be one of `sources`, written in
                place.
            sources: Tensors that the module held when the pass began, or targets of earlier calls.
            function: Takes the values of `sources`, each as an argument, and returns that of `target`. It is captured
                as a graph at once, so it must do with operations on tensors and plain numbers. A recipe that
                `fxplug.passes.recipe_of` made saves the time where many tensors have the same one.

        Raises:
            PassError: The function cannot be captured.
        """
        if self.module is not None:
            recipe = function if isinstance(function, Recipe) else recipe_of(function, len(sources))
            self.derivations.append(Derivation(target, tuple(sources), recipe))

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
    replaces_parameters: bool = False
    """Whether it may drop parameters, put others in their place, or change their shape. A pass that does not say so
    leaves the optimizer-visible objects as they are, or is undone."""
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
    example_inputs: tuple[Any, ...] | None = field(default=None, compare=False, repr=False)
    """The inputs that passes are given, the tensors themselves: to be read, never changed. None: there are none."""
