"""Why a module is a leaf or not, and what made a node what it is: asked of those who decide it in a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.analyze.isolation import copy_module
from fxplug.api.capturing import CaptureOptions, as_args, as_kwargs, capture, name_of_root, unwrapped
from fxplug.api.tracing import chosen_options
from fxplug.capture import TraceContext, TracePolicy, Tracer
from fxplug.capture.sources import line_of_program
from fxplug.capture.wrappers import inner_module
from fxplug.errors import UnknownNameError
from fxplug.ir import node_rows
from fxplug.ir.effects import effects
from fxplug.plugins import PluginManager, default_manager
from fxplug.plugins.answers import AnswerLog
from fxplug.plugins.effects import holds_effect
from fxplug.plugins.explanations import Decision, configured_decision
from fxplug.plugins.leaf_functions import pattern_of
from fxplug.plugins.policy import ModuleGlobs
from fxplug.semantics.internals import paths_below

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Effect, Node
    from fxplug.plugins.answers import HookAnswer

__all__ = [
    "KeptCall",
    "LeafExplanation",
    "Mixin",
    "NodeExplanation",
    "NodeNote",
    "explain_leaf",
    "explain_node",
]

_TRACER_RULE = "the classes that torch.nn ships are leaves, except containers"
_WHOLE_RULE = "with example inputs, modules that are scripted or have hooks on gradients are leaves"


@dataclass(frozen=True)
class LeafExplanation:
    """Whether a module stays one node of the graph, and who decided it."""

    path: str
    """Dotted path below the root; the first one where the module has several."""
    kind: str
    """Module and name of its class."""
    is_leaf: bool
    decided_by: Decision
    asked_before: tuple[Decision, ...] = ()
    """Who was asked earlier and had no opinion, in order."""
    unwrapped_by: tuple[Decision, ...] = ()
    """Who said that the module at the path is only a wrapper of the one that is spoken of, from outside inwards."""


@dataclass(frozen=True)
class Mixin:
    """A class that was mixed into the proxy of a node."""

    name: str
    """Module and name of the class."""
    by: Decision


@dataclass(frozen=True)
class NodeNote:
    """A note that a plugin made on a node."""

    key: str
    value: Any
    by: Decision
    counts: bool
    """Whether it is in ``node.meta``: where several plugins use one key, the first one has the say."""


@dataclass(frozen=True)
class KeptCall:
    """Who had a function kept as a call."""

    function: str
    decided_by: Decision


@dataclass(frozen=True)
class NodeExplanation:
    """What a node is, and who made it so."""

    name: str
    opcode: str
    target: str
    args: str
    kwargs: str
    source: str
    """``"FILE:LINE in FUNCTION"``, the innermost line of the program outside torch; empty where none is known."""
    source_text: str
    """The line itself."""
    calls: tuple[str, ...]
    """All lines that were being run, also those inside torch, from the innermost one outward."""
    module_stack: tuple[tuple[str, str], ...]
    """Path and class of each module around it, from the root inwards."""
    leaf: LeafExplanation | None
    """Of the module that a ``call_module`` node calls."""
    kept: KeptCall | None
    """Who had the function of a ``call_function`` node kept; None when no configuration and no plugin did."""
    mixins: tuple[Mixin, ...]
    notes: tuple[NodeNote, ...]
    effect: str
    """What running it does besides computing its value."""
    effect_by: tuple[Decision, ...]
    history: tuple[str, ...] = ()
    """The passes that made or changed it since it was captured, each with its provider, oldest first."""


# -- leaf modules --------------------------------------------------------------------------------------------


def explain_leaf(root: Any, path: str, *, manager: PluginManager | None = None) -> LeafExplanation:
    """Say who decides whether a module stays one node, by asking as a trace does.

    Args:
        root: A module; it is not traced.
        path: Dotted path of a module below it.
        manager: Plugins and configuration; by default those that are installed and selected.

    Raises:
        UnknownNameError: There is no module at the path.
        PluginError: A plugin fails when it is asked.
    """
    plugins = default_manager() if manager is None else manager
    questions = _Questions(plugins)
    program = unwrapped(root, questions.policy.unwrap_module)
    paths = paths_below(program)
    modules = {name: part for name, part in program.named_modules(remove_duplicate=False) if name}
    if path not in modules:
        raise UnknownNameError("module", path, modules, note=f"The root is {name_of_root(program)}.")
    module = modules[path]
    wrappers: list[Decision] = []
    while True:
        inner, decision = questions.unwrap(module)
        if inner is None or inner is module:
            break
        wrappers.append(decision)
        module = inner
    if id(module) not in paths:
        decided = Decision("tracer", False, "a module that the root does not hold is always traced")
        return LeafExplanation(path, _class_name(module), False, decided, (), tuple(wrappers))
    tracer = Tracer(policy=questions.policy)
    tracer.context = TraceContext(program)
    ask = questions.policy.is_leaf_module
    known = paths[id(module)]
    answer = None if ask is None else ask(module, known, tracer.context)
    is_leaf = tracer.is_leaf_module(module, known) if answer is None else answer
    return replace(questions.about_leaf(module, known, is_leaf=is_leaf), unwrapped_by=tuple(wrappers))


class _Questions:
    """The answers of plugins and configuration, and a record of them.

    Args:
        manager: Plugins and configuration.
    """

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager
        self._log = AnswerLog()
        self._globs = ModuleGlobs(manager.config.trace.leaf_modules, manager.config.trace.through_modules)
        self.policy: TracePolicy = manager.trace_policy(log=self._log)

    def unwrap(self, module: nn.Module) -> tuple[nn.Module | None, Decision]:
        """Return the module inside a wrapper and who says so."""
        unwrap = self.policy.unwrap_module
        inner = unwrap(module) if unwrap is not None else None
        if inner is None:
            return inner_module(module), Decision("fxplug", True, f"{type(module).__name__} is a wrapper")
        answers = [
            entry for entry in self._log.about("fxplug_unwrap_module", module) if entry.answer is inner
        ]
        return inner, _decision(answers[-1])

    def about_leaf(self, module: nn.Module, path: str, *, is_leaf: bool) -> LeafExplanation:
        """Return who decided, of those who were asked about a module."""
        answers: dict[str, Decision] = {}
        for entry in self._log.about("fxplug_is_leaf_module", module):
            answers[entry.plugin] = _decision(entry)  # A module that is called twice is asked about twice.
        found = self._globs.deciding_glob(module, path)
        asked = list(answers.values())
        said = found[0] if found is not None else asked[-1].answer if asked else None
        if said is not None and said is not is_leaf:
            return LeafExplanation(
                path, _class_name(module), is_leaf, Decision("tracer", is_leaf, _WHOLE_RULE)
            )
        if found is not None:
            key = "leaf_modules" if found[0] else "through_modules"
            decided = configured_decision(self._manager.config, key, found[1], found[0])
        elif asked and asked[-1].answer is not None:
            decided = asked.pop()
        else:
            decided = Decision("tracer", is_leaf, _TRACER_RULE)
        before = (
            [Decision("configuration", None, "the globs of trace")] if self._globs and found is None else []
        )
        return LeafExplanation(path, _class_name(module), is_leaf, decided, (*before, *asked))

    def about_function(self, function: object, assumptions: Sequence[str]) -> KeptCall | None:
        """Return who had calls of a function kept.

        Args:
            function: The target of a node.
            assumptions: What the capture says about functions that it could not go through.
        """
        config = self._manager.config
        position = pattern_of(function, config.trace.leaf_functions)
        name = _qualified(function)
        if position is not None:
            return KeptCall(name, configured_decision(config, "leaf_functions", position, True))
        for entry in self._log.of_hook("fxplug_leaf_functions"):
            if any(kept is function for kept in entry.answer or ()):
                return KeptCall(name, _decision(entry))
        for text in assumptions:
            if text.startswith(f"calls of {name} stay calls"):
                return KeptCall(name, Decision("tracer", True, text))
        return None

    def mixins_of(self, node: Node) -> tuple[Mixin, ...]:
        """Return what was mixed into the proxy of a node, in order."""
        answers = self._log.about("fxplug_create_proxy", node)
        mixins = {entry.answer: _decision(entry) for entry in reversed(answers) if entry.answer is not None}
        return tuple(Mixin(_qualified(mixin), by) for mixin, by in reversed(mixins.items()))

    def notes_of(self, node: Node) -> tuple[NodeNote, ...]:
        """Return what plugins noted on a node, in the order in which they were asked."""
        notes: list[NodeNote] = []
        counted: set[str] = set()
        for entry in self._log.about("fxplug_node_created", node):
            for key, value in (entry.answer or {}).items():
                notes.append(NodeNote(key, value, _decision(entry), key not in counted))
                counted.add(key)
        return tuple(notes)

    def effect_of(self, node: Node, root: nn.Module) -> tuple[str, tuple[Decision, ...]]:
        """Return the effect of a node in words, and who says so."""
        text = _effect_text(effects.effect_of(node, root))
        if effects.target_decides(node, root):
            target: Any = (
                type(root.get_submodule(str(node.target))) if node.op == "call_module" else node.target
            )
            stated = tuple(
                Decision("plugin", text, info.name, f"{info.distribution} {info.version}")
                for info, record in self._manager.effects_by_plugin()
                if record.target == target and holds_effect(record)
            )
            if stated:
                return text, stated
        return text, (Decision("fxplug", text, "what it knows of this call"),)


def _decision(entry: HookAnswer) -> Decision:
    return Decision("plugin", entry.answer, entry.plugin, entry.provider)


def _class_name(module: nn.Module) -> str:
    return _qualified(type(module))


def _qualified(value: Any) -> str:
    return f"{value.__module__}.{getattr(value, '__qualname__', value)}"


def _effect_text(effect: Effect) -> str:
    if effect.unknown:
        return "unknown, so anything is expected"
    parts = [f"writes to argument {key!r}" for key in sorted(effect.writes, key=str)]
    parts += [
        text
        for holds, text in (
            (effect.reads_state, "reads state that others may write"),
            (effect.random, "draws random numbers"),
            (effect.outside, "acts outside of the program"),
        )
        if holds
    ]
    return ", ".join(parts) or "none"


# -- nodes ---------------------------------------------------------------------------------------------------


def explain_node(
    root: nn.Module | Callable[..., Any],
    name: str,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    mode: str | None = None,
    pipeline: str | None = None,
    manager: PluginManager | None = None,
) -> NodeExplanation:
    """Capture a program as `trace` does, while every answer is recorded, and say what made a node what it is.

    Args:
        root: A module or a function.
        name: Name of a node in the graph.
        example_inputs: As for `trace`.
        example_kwargs: As for `trace`.
        mode: As for `trace`.
        pipeline: Name of a pipeline that is run on a copy before the node is looked for, so that its history tells
            which passes made or changed it.
        manager: Plugins and configuration; by default those that are installed and selected.

    Raises:
        UnknownNameError: The graph has no such node, or there is no such pipeline.
        TraceError: The program cannot be captured.
        PassError: A pass of the pipeline failed.
    """
    plugins = default_manager() if manager is None else manager
    questions = _Questions(plugins)
    has_examples = example_inputs is not None or example_kwargs is not None
    wanted = {"mode": mode, "check": False, "on_error": "raise", "on_mutation": None, "autowrap": None}
    chosen = chosen_options(wanted, plugins.config.trace, has_examples=has_examples)
    options = CaptureOptions(**chosen, manager=plugins, answers=questions.policy)
    chain = None if pipeline is None else plugins.resolve_pipeline(pipeline)
    program = copy_module(root) if chain is not None and isinstance(root, nn.Module) else root
    captured = capture(program, as_args(example_inputs), as_kwargs(example_kwargs), options)
    if chain is not None:
        with torch.no_grad():
            chain.run(captured, as_args(example_inputs) if example_inputs is not None else None)
    nodes = {node.name: node for node in captured.graph.nodes}
    if name not in nodes:
        raise UnknownNameError("node", name, nodes, note=f"The graph is that of {name_of_root(root)}.")
    node = nodes[name]
    opcode, _, target, args, kwargs = node_rows([node])[0]
    frames = list(node.origins[0].frames()) if node.origins else []
    source = line_of_program(frames)
    effect, effect_by = questions.effect_of(node, captured)
    return NodeExplanation(
        name=name,
        opcode=opcode,
        target=target,
        args=args,
        kwargs=kwargs,
        source=str(source or ""),
        source_text=source.text if source is not None else "",
        calls=tuple(map(str, frames)),
        module_stack=_module_stack(node),
        leaf=_leaf_of(node, captured, questions),
        kept=_kept(node, captured, questions),
        mixins=questions.mixins_of(node),
        notes=questions.notes_of(node),
        effect=effect,
        effect_by=effect_by,
        history=tuple(map(str, node.history)),
    )


def _module_stack(node: Node) -> tuple[tuple[str, str], ...]:
    scope = node.origins[0].module if node.origins else None
    if scope is None:
        return ()
    return tuple(
        (path, kind if isinstance(kind, str) else _qualified(kind)) for path, kind in scope.stack().values()
    )


def _leaf_of(node: Node, captured: nn.Module, questions: _Questions) -> LeafExplanation | None:
    if node.op != "call_module":
        return None
    path = str(node.target)
    return questions.about_leaf(captured.get_submodule(path), path, is_leaf=True)


def _kept(node: Node, captured: GraphModule, questions: _Questions) -> KeptCall | None:
    if node.op != "call_function":
        return None
    return questions.about_function(node.target, captured.meta.get("assumptions", ()))
