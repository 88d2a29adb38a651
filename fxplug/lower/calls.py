"""Which calls a backend says that it runs where it cannot try: a table of them, and what a call does besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects, qualified_name, writes
from fxplug.lower.autograd_functions import called_function, reason_against_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from fxplug.lower.backend import LoweringContext

__all__ = ["CallRow", "CallTable"]

# Inside these a forward computes what it computes outside.
_HARMLESS_REGIONS: tuple[Any, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    torch.set_grad_enabled,
)
_STATISTICS = writes("state", "running_mean", "running_var", 1, 2).writes
_FIRST_ARGUMENT = writes(0).writes


@dataclass(frozen=True)
class CallRow:
    """Calls that become the same operations of an engine."""

    operations: tuple[str, ...]
    """The engine's names of those that take part in any of the calls; empty where the call vanishes."""
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    """Of tensors; the forms with a trailing underscore are meant too."""
    shares_memory: bool = False
    """Whether the result may be a view of the input, so that a later in-place call reaches further."""


class CallTable:
    """The calls of PyTorch that an engine has operations for: what a backend goes by where it cannot try.

    Args:
        engine: Name of the engine, for people.
        source: The distribution whose table it is.
        rows: A call stands in one row at most.
        shape: The row of sizes: of the attribute ``shape``.
    """

    def __init__(
        self, engine: str, source: str, rows: Iterable[CallRow], *, shape: CallRow | None = None
    ) -> None:
        self.engine = engine
        self.rows = tuple(rows)
        self.modules = {module: row for row in self.rows for module in row.modules}
        """Module class -> row."""
        self.functions = {function: row for row in self.rows for function in row.functions}
        """Function -> row."""
        self.methods = {method: row for row in self.rows for method in row.methods}
        """Name of a tensor method -> row."""
        self._source = source
        self._shape = shape

    def find(self, node: Node, context: LoweringContext) -> CallRow | None:
        """Return what the table says about a call, None when it does not stand there."""
        if node.op == "call_module":
            # The very class: a subclass may compute something else.
            return self.modules.get(type(context.module.get_submodule(node.target)))
        if node.op == "call_method":
            name = str(node.target)
            return self.methods.get(name) or (self.methods.get(name[:-1]) if name.endswith("_") else None)
        if node.op != "call_function":
            return None
        if node.target is getattr:
            return self._shape if node.args[1:] == ("shape",) else None
        try:
            return self.functions.get(node.target)
        except TypeError:  # A callable that cannot be hashed.
            return None

    def reason_against(self, node: Node, context: LoweringContext) -> str:
        """Return why the engine cannot run a node, for people; empty when it can.

        Only what is called is looked at, and what the call does besides computing its value; not dtypes and shapes.

        Args:
            node: Any node of the module in `context`; those that are no calls are never in the way.
            context: Knows the module.
        """
        if not node.op.startswith("call_"):
            return ""
        if self.find(node, context) is None:
            return self._missing(node, context)
        return self.reason_against_effects(node, context)

    def reason_against_effects(self, node: Node, context: LoweringContext) -> str:
        """Return why a call cannot run in the engine for what it does besides computing; empty when it can.

        Args:
            node: A call of the module in `context`.
            context: Knows the module.
        """
        for entry in node.region:
            if entry.context not in _HARMLESS_REGIONS:
                return f"it runs inside {qualified_name(entry.context)}, whose rules {self.engine} does not follow"
        effect = effects.effect_of(node, context.module)
        if not effect.must_be_kept:
            return ""
        if effect.unknown and called_function(node) is not None:
            return reason_against_forward(node, context.values)
        if effect.unknown or effect.outside:
            return f"it has hooks or a forward of its own, or does something else that {self.engine} would leave out"
        if effect.random:
            return "it draws random numbers; call eval() on the model before it is captured"
        if effect.writes <= _STATISTICS:
            return "it updates its running statistics; call eval() on the model before it is captured"
        if effect.writes != _FIRST_ARGUMENT:
            return "it writes its result into another tensor"
        written = node.args[0] if node.args else None
        if isinstance(written, Node) and self._is_private(written, context):
            return ""
        return (
            f"it changes {written!r} in place, which others may read; use the form that returns a new tensor"
        )

    def _missing(self, node: Node, context: LoweringContext) -> str:
        absent = f"is not in the table of {self._source}"
        if node.op == "call_method":
            return f"the tensor method {node.target!r} {absent}"
        if node.target is getattr:
            return f"the attribute {node.args[1]!r} {absent}"
        if node.op == "call_function":
            return f"the function {qualified_name(node.target)} {absent}"
        kind = type(context.module.get_submodule(node.target))
        name = f"{kind.__module__}.{kind.__qualname__}"
        for known in self.modules:
            if issubclass(kind, known):
                return f"the module class {name} derives from {known.__name__} and may compute something else"
        if str(kind.__module__).startswith("torch.nn."):
            return f"the module class {name} {absent}"
        return (
            f"the module class {name} {absent}; to have its forward traced, add it to through_modules in "
            "[tool.fxplug.trace]"
        )

    def _is_private(self, node: Node, context: LoweringContext) -> bool:
        """Return whether nobody but the one user of `node` sees its value: it is new memory, or a view of such."""
        waiting = [node]
        while waiting:
            value = waiting.pop()
            if not value.op.startswith("call_") or len(value.users) != 1:
                return False
            row = self.find(value, context)
            if not (may_return_argument(value, context.module) if row is None else row.shares_memory):
                continue
            if row is None and not effects.effect_of(value, context.module).is_pure:
                return False
            waiting += value.all_input_nodes
        return True
