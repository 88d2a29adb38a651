"""What a captured program relies on besides its inputs, as source that checks it before the program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import printable
from fxplug.semantics.surroundings import depth_of, tensor_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.execute.references import Libraries
    from fxplug.ir.guards import StateGuard

__all__ = ["UnwritableGuardError", "checking_methods"]

_CHECKED = """\
    def _fxp_check(self):
{lines}
    def _fxp_checked(run):
        @{functools}.wraps(run)
        def forward(self, /, *args, **kwargs):
            self._fxp_check()
            return run(self, *args, **kwargs)

        return forward

    forward = _fxp_checked({function})
    del _fxp_checked
"""


class UnwritableGuardError(Exception):
    """A guard that source cannot check; its text says which, and why."""


def checking_methods(module: Any, function: str, libraries: Libraries) -> str:
    """Return methods of a class that check what a graph module relies on, and its `forward`; empty if there is nothing.

    Args:
        module: The graph module.
        function: Name of the function that is its forward without the checks.
        libraries: Gives the modules that the source needs.

    Raises:
        UnwritableGuardError: It relies on something about its inputs, or on an answer that no source can name.
    """
    guards = module.guard_set
    if guards is not None:
        if guards.on_failure == "ignore":
            return ""
        if guards.graph is not None:
            raise UnwritableGuardError(
                f"relies on {len(guards.guards)} guards on its inputs, the first of which is {guards.guards[0]}; "
                "fxplug.export_python writes them too"
            )
    warns = guards is not None and guards.on_failure == "warn"
    lines: dict[
        str, str
    ] = {}  # Modules that the root lacks are asked by what they are in: one question for several.
    for condition, text in _conditions(module, libraries.name("torch")):
        message = f"The program was captured for {printable(text)}."
        fails = f"raise ValueError({message!r})"
        if warns:
            fails = f"{libraries.name('warnings')}.warn({message!r}, stacklevel=3)"
        lines.setdefault(condition, f"        if not ({condition}):\n            {fails}\n")
    if not lines:
        return ""
    return _CHECKED.format(
        lines="".join(lines.values()), function=function, functools=libraries.name("functools")
    )


def _conditions(module: Any, torch_name: str) -> Iterator[tuple[str, str]]:
    """Yield what has to hold as an expression, and how messages call it."""
    training = module.graph.captured_training
    if training is not None:
        yield f"self.training is {training}", f"self.training is {training}"
    for guard in module.graph.state_guards:
        asked = _asked(module, guard, torch_name)
        if asked is not None:
            compare = "is" if guard.expected is None or isinstance(guard.expected, bool) else "=="
            expected = _literal(guard.expected, torch_name, guard)
            yield f"{asked} {compare} {expected}", str(guard.guard)


def _asked(module: Any, guard: StateGuard, torch_name: str) -> str | None:
    """Return an expression for what is asked; None where the module does not have it."""
    first, *path, name = guard.steps
    if first == "torch":
        arguments = ", ".join(_literal(argument, torch_name, guard) for argument in guard.arguments)
        return f"{torch_name}.{name}({arguments})"
    if name == "training":
        return f"{_module(path[: depth_of(module, path)])}.training"
    if tensor_at(module, path) is None:
        return None
    tensor = f"getattr({_module(path[:-1])}, {path[-1]!r})"
    forms = {"shape": f"tuple({tensor}.shape)", "stride": f"{tensor}.stride()"}
    return forms.get(name, f"{tensor}.{name}")


def _module(path: list[str]) -> str:
    return f"self.get_submodule({'.'.join(path)!r})" if path else "self"


def _literal(value: Any, torch_name: str, guard: StateGuard) -> str:
    """Return an expression for an answer or an argument."""
    if value is None or type(value) in {bool, int, str}:
        return repr(value)
    if type(value) in {torch.dtype, torch.layout}:
        return f"{torch_name}.{str(value).removeprefix('torch.')}"
    if type(value) is torch.device:
        return f"{torch_name}.device({str(value)!r})"
    if type(value) is tuple:
        return "(" + "".join(f"{_literal(part, torch_name, guard)}, " for part in value) + ")"
    raise UnwritableGuardError(f"relies on {guard.guard}, and no source can name a {type(value).__name__}")
