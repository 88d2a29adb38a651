"""Replacing activation functions by others, in whatever form they are called."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn import functional

from fxplug.errors import ConfigError, did_you_mean
from fxplug.execute import set_path
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.sharing import free_path, is_shared
from fxplug.rewrite.adoption import drop_unreached
from fxplug.rewrite.calls import value_at
from fxplug.semantics.canonical import ACTIVATIONS, canonical_call, canonical_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule

__all__ = ["Activation", "ReplaceActivations", "ReplaceActivationsOptions", "replace_activations"]

Activation = Literal[
    "celu",
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "tanh",
]
"""The activations that can be replaced, and put in the place of others."""

_INPLACE_FUNCTIONS: dict[str, Any] = {"sigmoid": torch.sigmoid_, "tanh": torch.tanh_}
"""Of activations whose function takes no ``inplace``."""
_FUNCTIONS: dict[str, Any] = {
    name: getattr(torch if name in _INPLACE_FUNCTIONS else functional, name) for name in ACTIVATIONS
}


@dataclass(frozen=True)
class ReplaceActivationsOptions:
    """Options of the pass `replace-activations`."""

    replacements: dict[Activation, Activation] = field(default_factory=dict[Activation, Activation])
    """What is replaced, and by what: ``{relu = "gelu"}``."""


def replace_activations(
    module: GraphModule, replacements: Mapping[str | type[nn.Module], str | type[nn.Module] | nn.Module]
) -> PassResult:
    """Replace activation functions of a module, in place.

    Calls of modules, of functions and of methods are replaced alike, whatever their parameters. A call that works in
    place is replaced by one of the same effect.

    Args:
        module: Changed in place.
        replacements: What is replaced -> what is put there. Each is a name, such as ``"relu"``, or a class, such as
            `torch.nn.ReLU`; what is put there may also be a module with parameters of its own,
            ``torch.nn.LeakyReLU(0.2)``.

    Returns:
        What was done; ``details["replaced"]`` counts the calls.

    Raises:
        ConfigError: There is no such activation, or one is both replaced and put in the place of another.
    """
    return ReplaceActivations(replacements).run(module, PassContext(module=module))


class ReplaceActivations(Pass):
    """Replaces activation functions by others.

    Args:
        replacements: As for `replace_activations`.

    Raises:
        ConfigError: As for `replace_activations`.
    """

    def __init__(
        self,
        replacements: Mapping[str | type[nn.Module], str | type[nn.Module] | nn.Module] | None = None,
    ) -> None:
        given = replacements or {}
        self._wanted = {_name_of(key): _module_of(value) for key, value in given.items()}
        again = sorted({_name_of(value) for value in self._wanted.values()} & self._wanted.keys())
        if again:
            raise ConfigError(
                f"Cannot replace activations: {again[0]!r} is replaced and also put in the place of another, so that "
                "it would matter how often the pass runs. Run it for one after the other."
            )

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Replace every call."""
        replacer = _Replacer(module, context, self._wanted)
        for node in list(module.graph.nodes):
            replacer.look_at(node)
        replacer.replace_modules()
        count = sum(replacer.counts.values())
        parts = [f"{number} {name}" for name, number in replacer.counts.items()]
        text = f"replaced {', '.join(parts)}" if parts else "nothing to replace"
        if not self._wanted:
            text += ": no replacements are given"
        return PassResult(count > 0, text, {"replaced": count, **replacer.counts})


def _name_of(given: object) -> str:
    """Return the name of an activation that is given by name, class or module."""
    kind = type(given) if isinstance(given, nn.Module) else given
    for name, (known, _) in ACTIVATIONS.items():
        if given == name or kind is known:
            return name
    if isinstance(given, str):
        raise ConfigError(
            f"Cannot replace activations: there is none called {given!r}. {did_you_mean(given, ACTIVATIONS)}"
        )
    text = kind.__qualname__ if isinstance(kind, type) else repr(given)
    raise ConfigError(
        f"Cannot replace activations: {text} is none of those that this pass knows ({', '.join(sorted(ACTIVATIONS))}). "
        "For classes of your own, use fxplug.replace_pattern."
    )


def _module_of(given: object) -> nn.Module:
    kind, _ = ACTIVATIONS[_name_of(given)]
    if not isinstance(given, nn.Module):
        return kind()
    if canonical_name("call_module", "", given) is None:
        raise ConfigError(
            f"Cannot replace activations by this {type(given).__name__}: it has hooks, or a forward of its own. Pass "
            "one without."
        )
    return given


class _Replacer:
    def __init__(self, module: GraphModule, context: PassContext, wanted: Mapping[str, nn.Module]) -> None:
        self._module, self._context, self._wanted = module, context, wanted
        self._graph = module.graph
        self._paths: dict[str, tuple[str, list[Node]]] = {}
        self.counts: dict[str, int] = {}

    def look_at(self, node: Node) -> None:
        """Replace a call of an activation, unless it is one of a module; those wait."""
        called = value_at(self._module, str(node.target)) if node.op == "call_module" else None
        call = canonical_call(node, called) if node.op.startswith("call_") else None
        if call is None or call.name.rstrip("_") not in self._wanted:
            return
        given = call.arguments.get("self")
        effect = effects.effect_of(node, self._module)
        if effect.must_be_kept and not call.name.endswith("_"):
            return  # It does something besides: out=.
        if not isinstance(given, Node) or not self._context.allows(node, "replace"):
            return
        name = call.name.rstrip("_")
        writes = call.name.endswith("_") and not _is_unseen(node, given, self._module)
        if node.op == "call_module":
            self._paths.setdefault(str(node.target), (name, []))[1].append(node)
            if writes and not hasattr(self._wanted[name], "inplace"):
                self._write_back(node, given)
        else:
            self._replace_function(node, given, self._wanted[name], writes=writes)
        self.counts[name] = self.counts.get(name, 0) + 1

    def _replace_function(self, node: Node, given: Node, wanted: nn.Module, *, writes: bool) -> None:
        name = _name_of(wanted)
        settings = {attribute: getattr(wanted, attribute) for attribute in ACTIVATIONS[name][1]}
        function = _FUNCTIONS[name]
        is_inplace = writes and (hasattr(wanted, "inplace") or name in _INPLACE_FUNCTIONS)
        if is_inplace and name in _INPLACE_FUNCTIONS:
            function = _INPLACE_FUNCTIONS[name]
        elif is_inplace:
            settings["inplace"] = True
        with self._graph.inserting_before(node):
            fresh = self._graph.call_function(function, (given,), settings)
        fresh.origins, fresh.region, fresh.type = node.origins, node.region, node.type
        node.replace_all_uses_with(fresh)
        self._graph.erase_node(node)
        if writes and not is_inplace:
            self._write_back(fresh, given)

    def _write_back(self, node: Node, given: Node) -> None:
        """Let the value of a call be written over what it is given, as that of the former one was."""
        with self._graph.inserting_before(node):
            before = self._graph.call_method("clone", (given,))
        node.replace_input_with(given, before)
        with self._graph.inserting_after(node):
            written = self._graph.call_method("copy_", (given, node))
        for made in (before, written):
            made.origins, made.region = node.origins, node.region
        node.replace_all_uses_with(written, delete_user_cb=lambda user: user is not written)

    def replace_modules(self) -> None:
        """Replace the modules whose calls were seen."""
        for path, (name, nodes) in self._paths.items():
            former = cast("nn.Module", value_at(self._module, path))
            calls = self._graph.find_nodes(op="call_module", target=path, sort=False)
            fresh: Any = copy.deepcopy(self._wanted[name])
            fresh.train(former.training)
            if hasattr(fresh, "inplace"):
                fresh.inplace = bool(getattr(former, "inplace", False))
            if len(calls) > len(nodes) or is_shared(self._module, path):
                new_path = free_path(self._module, f"{path}_{_name_of(fresh)}")
                for node in nodes:
                    node.target = new_path
                set_path(self._module, new_path, fresh)
                drop_unreached(self._module, [path])
            else:
                set_path(self._module, path, fresh)


def _is_unseen(node: Node, given: Node, module: GraphModule) -> bool:
    """Return whether nothing else can see that a call writes over what it is given.

    Then that is memory which the program itself made, and whatever else reads it, directly or through a view, has done
    so before.
    """
    same = {given}
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if value.op in {"placeholder", "get_attr"}:
            return False
        near = list(value.all_input_nodes) if may_return_argument(value, module) else []
        for user in value.users:
            if user is node:
                continue
            if user.op == "output" or not user < node:
                return False
            if may_return_argument(user, module):
                near.append(user)
        waiting += [other for other in near if other not in same]
        same.update(near)
    return True
