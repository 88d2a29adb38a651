"""What a node says of itself: what its call does, what its arguments are in full, and how it is printed."""

# Half of a node, which shares its parts with the other half.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.ir.effects import effects
from fxplug.ir.naming import qualified_name
from fxplug.ir.normalization import ArgsKwargsPair, normalization
from fxplug.ir.text import argument_text_with, tensor_text, type_text, value_text

if TYPE_CHECKING:
    from fxplug.ir.arguments import Argument
    from fxplug.ir.node import Node

__all__ = ["NodeDescription", "argument_text"]

_DESCRIBING = ("val", "tensor_meta", "example_value")
"""Notes that may hold the value, or what it is like; the first one counts."""


class NodeDescription:
    """The questions that a node answers about itself; `Node` has the data."""

    __slots__ = ()

    if TYPE_CHECKING:
        _args: tuple[Argument, ...]
        _kwargs: dict[str, Argument]
        _meta: dict[str, Any] | None
        _name: str
        _op: str
        _target: Any
        _type: Any

        @property
        def users(self) -> dict[Node, None]:
            """The nodes that use this one's value."""
            ...

    def is_impure(self, impure_random: bool = True) -> bool:  # noqa: FBT001, FBT002 - torch.fx's public signature
        """Return whether the node does more than compute its value, so that it may not be removed.

        Args:
            impure_random: Whether drawing random numbers counts; removing such a node changes all later
                draws.
        """
        if self._op == "placeholder":
            return True
        effect = effects.effect_of(cast("Node", self))
        if effect.random and not impure_random:
            return bool(effect.writes) or effect.outside or effect.unknown
        return effect.must_be_kept

    def normalized_arguments(
        self,
        root: object,
        arg_types: tuple[Any, ...] | None = None,
        kwarg_types: dict[str, Any] | None = None,
        normalize_to_only_use_kwargs: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
    ) -> ArgsKwargsPair | None:
        """Return the arguments of a call of a function or module matched to its parameters, defaults filled in.

        Args:
            root: The module that the graph refers to.
            arg_types: Types of the positional arguments, which choose between overloads.
            kwarg_types: Types of the keyword arguments.
            normalize_to_only_use_kwargs: Whether all arguments come by keyword, in the order of the parameters;
                otherwise those that are given by position stay so.

        Returns:
            What the same callee can be called with; None for other opcodes, for parameters that only a position or
            stars name, and where the parameters are not known.

        Raises:
            GraphError: Several overloads match, and would give the arguments different meanings.
        """
        return normalization.normalize(
            cast("Node", self), root, arg_types, kwarg_types, only_keywords=normalize_to_only_use_kwargs
        )

    def format_node(
        self,
        placeholder_names: list[str] | None = None,
        maybe_return_typename: list[str] | None = None,
        *,
        include_tensor_metadata: bool = False,
    ) -> str | None:
        """Return the line that stands for this node in ``str(graph)``.

        Args:
            placeholder_names: Where given, placeholders are appended to it and None is returned for them.
            maybe_return_typename: Where given, receives the annotation of the output as ``" -> type"``.
            include_tensor_metadata: Whether element type, sizes, strides and device of the value are shown, where a
                note (``"val"``, ``"tensor_meta"`` or ``"example_value"``) has them.
        """
        if self._op == "placeholder" and placeholder_names is not None:
            annotation = f" : {type_text(self._type)}" if self._type is not None else ""
            placeholder_names.append(f"{self._target}{annotation}")
            return None
        if self._op == "output":
            if self._type is not None and maybe_return_typename is not None:
                maybe_return_typename[0] = f" -> {type_text(self._type)}"
            return f"return {value_text(self._args[0])}" if self._args else "return"
        known = self.tensor_text(stride=True, device=True) if include_tensor_metadata else ""
        described = f'Tensor "{known}"' if known else type_text(self._type) if self._type is not None else ""
        head = f"%{self._name} :{f' {described}' if described else ''} [num_users={len(self.users)}] = {self._op}"
        if self._op == "placeholder":
            default = f"(default={value_text(self._args[0])})" if self._args else ""
            return f"{head}[target={self._target}]{default}"
        if self._op == "get_attr":
            return f"{head}[target={self._target}]"
        target = self._target if isinstance(self._target, str) else qualified_name(self._target)
        arguments = f"(args = {argument_text(self._args)}, kwargs = {argument_text(self._kwargs)})"
        return f"{head}[target={target}]{arguments}"

    def tensor_text(self, *, stride: bool = False, device: bool = False) -> str:
        """Return element type and sizes of the value where a note has them, e.g. ``"f32[2, 3]"``, else nothing.

        Args:
            stride: Whether strides follow.
            device: Whether the device follows.
        """
        notes = self._meta or {}
        described = next((notes[key] for key in _DESCRIBING if key in notes), None)
        return tensor_text(described, stride=stride, device=device)

    def __repr__(self) -> str:
        return self._name


def argument_text(argument: Argument) -> str:
    """Return the text of an argument in ``str(graph)``: nodes by name behind a percent sign, text without quotes."""
    return argument_text_with(
        argument, lambda leaf: f"%{leaf._name}" if isinstance(leaf, NodeDescription) else str(leaf)
    )
