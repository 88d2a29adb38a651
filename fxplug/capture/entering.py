"""Modules that a trace enters, though each of their calls would be one node by the usual rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.errors import TraceError
from fxplug.semantics.internals import caches_of_weights, has_pure_weights, parametrized_among

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import nn

__all__ = ["EnteredLeaves"]


class EnteredLeaves:
    """The modules below a root that may have to be entered.

    Inside of ``parametrize.cached()``, a layer whose weights are computed anew for each call keeps those of the first.
    A graph that calls it as a whole would compute them again, which is something else where that moves a state on
    (spectral norm) or draws random numbers. Entered, it reads what is in the cache, as in eager.

    Args:
        modules: All below the root.
        paths: By their ids.
        named: Paths of those that are entered in any case.
        runs_leaves: Whether modules that stay calls run while they are recorded: what they leave in the cache is
            nothing that the trace has heard of. Where they do not, it makes no difference for weights that are always
            the same, and some layers can only be recorded as a whole.

    Raises:
        TraceError: The trace runs inside of ``cached()``: weights would be those that are cached by now.
    """

    __slots__ = ("_always", "_weighted", "may_enter")

    def __init__(
        self,
        modules: Sequence[nn.Module] = (),
        paths: Mapping[int, str] | None = None,
        named: Collection[str] = (),
        *,
        runs_leaves: bool = False,
    ) -> None:
        parametrized = parametrized_among(modules)
        weighted = {id(module) for module in parametrized if runs_leaves or not has_pure_weights(module)}
        self._weighted = weighted and _with_holders(modules, weighted)
        self._always = {key for key, path in (paths or {}).items() if path in named} if named else set[int]()
        if parametrized and caches_of_weights():
            raise TraceError(
                "Cannot trace inside of torch.nn.utils.parametrize.cached(): the captured program would have the "
                "weights that are cached by now. Enter it in the program, or around the captured program.",
                code="FXP-T050",
            )
        self.may_enter = bool(self._weighted or self._always)
        """Whether there are any such modules."""

    def enters(self, module: nn.Module) -> bool:
        """Return whether a call of a module is entered now, whatever the rules say."""
        key = id(module)
        return key in self._always or (key in self._weighted and caches_of_weights() > 0)

    def may_be(self, module: nn.Module) -> bool:
        """Return whether a call of a module is ever entered so."""
        return id(module) in self._always or id(module) in self._weighted


def _with_holders(modules: Sequence[nn.Module], weighted: set[int]) -> set[int]:
    """Return the ids of modules with those of all modules that hold them."""
    return {id(module) for module in modules if any(id(part) in weighted for part in module.modules())}
