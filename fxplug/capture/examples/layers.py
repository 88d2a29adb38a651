"""Calls of modules that stay calls; those of the layers of torch, which most calls of a network are, by a short way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.examples.listening import CallListener
from fxplug.capture.interception import original_call, originals
from fxplug.capture.listeners import stop_telling, tell_again
from fxplug.capture.policy import is_leaf_by_class
from fxplug.capture.reached import asks_for_training, flags_read_by
from fxplug.capture.sessions import active, likeness_of
from fxplug.capture.sources import Place
from fxplug.capture.state import may_assign
from fxplug.execute import GraphModule
from fxplug.ir import PURE, Effect, ModuleScope, Node, effects
from fxplug.semantics.internals import (
    call_beneath,
    calls_forward,
    has_backward_hooks,
    has_hooks,
    hooks_around_forward,
    modules_below,
    storage_of,
)
from fxplug.semantics.modules import effects_of_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LayerCaller"]

_ScriptModule: type = torch.jit.ScriptModule
_FRAMES_OF_A_LEAF = 5
"""How far up the stack, seen from `Place.origin`, the call of a leaf stands: its record, and the interception of it."""
_FRAMES_OF_A_LAYER = 4
"""The same for the call of a layer by the short way."""


class LayerCaller(CallListener):
    """A tracer that records and makes calls of modules that stay calls."""

    def _reset(self) -> None:
        super()._reset()
        self._leaf_kinds: dict[type, bool] = {}
        self._enters_layers = self._calls_forward = False
        self._layers: dict[int, tuple[str, type, Effect]] = {}
        """Id of a layer whose calls are recorded by the short way -> its path, its class, and what a call does."""
        self._settled: dict[int, bool] = {}
        """Likeness of modules whose forward was entered, and needs no further look -> whether it asks for
        ``training``."""

    def _remember_modules(self, modules: Sequence[nn.Module]) -> None:
        super()._remember_modules(modules)
        asks = (self.policy.is_leaf_module, self.policy.unwrap_module)
        is_asked = any(ask is not None for ask in asks) or "is_leaf_module" in self._replaced
        if is_asked or not self._records_plainly or self.without_data is not None:
            return
        self._calls_forward = calls_forward(originals.call)
        paths = self._paths
        self._layers = {
            id(layer): (paths[id(layer)], layer.__class__, effect)
            for layer, effect in effects_of_layers(self._states.plain_layers)
            if not self._entered.may_be(layer)
        }

    def on_module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of a call of a module."""
        layer = self._layers.get(id(module))
        if layer is not None and len(args) == 1 and not kwargs and not self.paused:
            value = args[0]
            known = self._known.get(id(value))
            if known is not None and value.__class__ is torch.Tensor:
                source = known[1]
                if source.__class__ is Node and self._states.are_as_found() and not self._read_numbers:
                    return self._call_layer(module, layer, value, cast("Node", source))
        elif self._settled and not self.paused:
            path = self._paths.get(id(module))
            asks = None if path is None else self._settled.get(likeness_of(module))
            if path is not None and asks is not None and "forward" not in module.__dict__:
                if self._stays_whole(module, path):
                    return self._call_leaf(module, path, args, kwargs)
                if asks:
                    self._surroundings.note_flags(path, module)
                return self._enter_settled(path, module, args, kwargs)
        return self._call_module(module, args, kwargs)

    def _enter_settled(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Enter the forward of a module of a class that was entered before, as `enter_module` does."""
        if self._draws is not None:
            told = stop_telling()
            self._draws.note_held(path, module)
            tell_again(told)
        former = self._place
        origin = former.origin(_FRAMES_OF_A_LAYER)
        self._place = Place(_ENTER_CODE, origin, ModuleScope(path, module.__class__, former.scope))
        try:
            return originals.call(module, *args, **kwargs)
        finally:
            self._place = former

    def _call_layer(
        self, module: nn.Module, layer: tuple[str, type, Effect], value: torch.Tensor, source: Node
    ) -> Any:
        """Record and make a call of a layer of torch with one tensor that is known."""
        path, kind, effect = layer
        origin = self._place.origin_of_call(path, kind, _FRAMES_OF_A_LAYER)
        node = self.graph._create_at("call_module", path, source, origin)  # pyright: ignore[reportPrivateUsage]
        if self.policy.node_created is not None:
            self._note(node)
        writes = effect is not PURE
        if writes:
            self._before_write(value)
        call = module.forward if self._calls_forward else partial(originals.call, module)
        token, told = active.set(None), stop_telling()
        try:
            result = call_beneath(self._calls, self._operators, call, value)
        except Exception as error:
            self._record_failure(node, error, is_free=not writes)
            raise
        finally:
            active.reset(token)
            tell_again(told)
        if result.__class__ is not torch.Tensor:
            return self._stand_in(result, node, writes=writes)
        if self.values is not None or (not writes and id(result) in self._known):
            return self._bind(result, node, writes=writes)
        self._known.add_result(result, storage_of(result), node)
        return result

    def _call_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused:
            return original_call(module, *args, **kwargs)
        unwrap = self.policy.unwrap_module
        inner = unwrap(module) if unwrap is not None else None
        if inner is not None and inner is not module:
            return self.on_module_call(inner, args, kwargs)
        path = self._paths.get(id(module))
        if path is not None and self._stays_whole(module, path):
            return self._call_leaf(module, path, args, kwargs)
        run = partial(original_call, module)
        if path is None:
            return self.enter_module(None, module, run, args, kwargs)
        result = self.enter_module(path, module, run, args, kwargs)
        has_own = "forward" in vars(module) or isinstance(module, GraphModule)
        if unwrap is None and not has_own:
            asks = bool(flags_read_by(module)) or any(map(asks_for_training, hooks_around_forward(module)))
            self._settled[likeness_of(module)] = asks
        return result

    def _stays_whole(self, module: nn.Module, path: str) -> bool:
        """Return whether a call of a module of the root is one node."""
        # Hooks on gradients belong to the call of the module itself.
        if isinstance(module, _ScriptModule) or has_backward_hooks(module):
            return True
        if self._entered.may_enter and self._entered.enters(module):
            return False
        if "is_leaf_module" in self._replaced:
            return self._is_leaf(module, path)
        ask = self.policy.is_leaf_module
        answer = ask(module, path, self.context) if ask is not None else None
        if answer is not None:
            return answer
        kind = type(module)
        is_leaf = self._leaf_kinds.get(kind)
        if self._enters_layers:
            return False
        if is_leaf is None:
            is_leaf = self._leaf_kinds[kind] = is_leaf_by_class(module)
        return is_leaf

    def _call_leaf(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._states.check_call(module, path)
        if module.training:
            self._save(module.buffers())
        if vars(module).get("max_norm") is not None:
            self._save(module.parameters())  # A lookup renormalises the rows that it reads.
        plain = None if kwargs or self._read_numbers else self._plain_arguments_of(args)
        place = self._place
        found: list[Any] = []
        if plain is not None:
            found, args = plain.found, tuple(plain.real)
        if len(found) == 1 and found[0].__class__ is Node and self._records_plainly:
            origin = place.origin_of_call(path, type(module), _FRAMES_OF_A_LEAF - 1)
            node = self.graph._create_at("call_module", path, found[0], origin)  # pyright: ignore[reportPrivateUsage]
            if self.policy.node_created is not None:
                self._note(node)
            return self._run_leaf(node, module, args, kwargs)
        former = place.scope
        place.scope = ModuleScope(path, type(module), former)
        try:
            if plain is not None:
                node = self._create_node_below(_FRAMES_OF_A_LEAF, "call_module", path, tuple(found), {})
            else:
                node = self._record("call_module", path, args, kwargs)
                args, kwargs = self._real(args), self._real(kwargs)
        finally:
            place.scope = former
        return self._run_leaf(node, module, args, kwargs)

    def _run_leaf(self, node: Node, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call of a module that was recorded."""
        told = stop_telling()
        try:
            run = partial(self.run_unheard, original_call, module)
            effect = effects.effect_of_module(node, module)
            if not may_assign(module):
                return self._make(node, run, args, kwargs, effect)
            if any(_runs_other_code(part) for _, part in modules_below(module)):
                run = partial(self.run_kept, original_call, module)
            else:
                run = partial(self.run_drawing, original_call, module)
            with self._states.calling(module):
                return self._make(node, run, args, kwargs, effect)
        finally:
            tell_again(told)

    def _save(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._snapshots.add(tensor)
            self._aloof(self._snapshots.before_write, tensor)


def _runs_other_code(module: nn.Module) -> bool:
    """Return whether a call of a module runs other code than that of torch, which may write to anything."""
    if not str(type(module).__module__).startswith("torch.nn.modules."):
        return True
    return "forward" in module.__dict__ or has_hooks(module)


_ENTER_CODE = LayerCaller._enter_settled.__code__  # pyright: ignore[reportPrivateUsage]
