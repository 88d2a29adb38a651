"""What a captured program relies on besides its inputs, as source that checks it before the program runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import printable
from fxplug.semantics.surroundings import depth_of, tensor_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.execute.references import Libraries
    from fxplug.ir.guards import StateGuard

__all__ = ["UnwritableGuardError", "checking_method", "with_check"]

_CHECKING = """\
    def {name}(self):
{lines}"""


class UnwritableGuardError(Exception):
    """A guard that source cannot check; its text says which, and why."""


def checking_method(module: Any, name: str, libraries: Libraries) -> str:
    """Return a method of a class that checks what a graph module relies on; empty if there is nothing.

    Args:
        module: The graph module.
        name: Of the method.
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
            fails = f"{libraries.name('warnings')}.warn({message!r}, stacklevel={_LEVEL_OF_CALLER})"
        lines.setdefault(condition, f"        if not ({condition}):\n            {fails}\n")
    return _CHECKING.format(name=name, lines="".join(lines.values())) if lines else ""


def with_check(source: str, name: str) -> str:
    """Return the source of a forward that calls a method first."""
    lines = source.splitlines(keepends=True)
    definition: Any = ast.parse(source).body[-1]
    lines.insert(definition.body[0].lineno - 1, f"    self.{name}()\n")
    return "".join(lines)


_LEVEL_OF_CALLER = 5
"""Of frames between the check and whoever calls the module: the forward, and two of torch."""


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
