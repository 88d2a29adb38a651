"""How calls of operators are written for an engine, and what converters write with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fxplug.errors import NotConvertibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

__all__ = ["Conversion", "ConverterRecord", "ConverterTable", "EngineValue"]


@dataclass(frozen=True)
class ConverterRecord:
    """Says how calls of one operator are written for an engine."""

    target: Any
    """An overload, such as ``torch.ops.aten.relu.default``."""
    function: Callable[..., Any]
    """Called with the `Conversion` and the arguments of the call, where values of the engine stand for tensors; those
    that the operator takes by keyword alone come by keyword. Returns a value, or a tuple of them for an operator with
    several results, with None for one that it does not compute; for a size, a number where it is known. Raises
    `NotConvertibleError` with the reason where the engine cannot run the call."""
    check: Callable[..., str] | None = None
    """Called before `function` with the same arguments; returns why the engine cannot run the call, or an empty
    text."""


class ConverterTable(Mapping[Any, ConverterRecord]):
    """Operator -> how its calls are written, and who says it.

    Args:
        groups: Who brings converters, as distribution and version, and the converters; later ones count.
    """

    def __init__(self, groups: Iterable[tuple[str, Iterable[ConverterRecord]]]) -> None:
        self._records: dict[Any, ConverterRecord] = {}
        self._providers: dict[Any, str] = {}
        for provider, records in groups:
            for record in records:
                self._records[record.target] = record
                self._providers[record.target] = provider

    def __getitem__(self, target: Any) -> ConverterRecord:
        return self._records[target]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def provider_of(self, target: Any) -> str:
        """Return who brings the converter of an operator: distribution and version, where they are known."""
        return self._providers[target] or _package(self._records[target])


def _package(record: ConverterRecord) -> str:
    return str(getattr(record.function, "__module__", "") or "").partition(".")[0]


def describe_converter(record: ConverterRecord, converters: Mapping[Any, ConverterRecord]) -> str:
    """Return where a converter is found and who brings it, for people."""
    function = record.function
    name = (
        f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    )
    provider = converters.provider_of(record.target) if isinstance(converters, ConverterTable) else ""
    return name if not provider or provider == _package(record) else f"{name} of {provider}"


@dataclass(frozen=True)
class EngineValue:
    """A tensor while a program is written for an engine."""

    output: Any
    """What stands for it in the engine."""
    like: torch.Tensor
    """A tensor without data, of its dtype and of the sizes that the example has."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype in PyTorch."""
        return self.like.dtype

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return self.like.dim()

    def axis(self, dim: int) -> int:
        """Return a dimension counted from the front."""
        return dim % self.rank if self.rank else 0


class Conversion(ABC):
    """A program that is being written for an engine, and what converters write with.

    A backend derives from it, says how inputs, constants and results are written, and adds whatever its converters
    need.
    """

    engine: ClassVar[str]
    """Name of the engine, for people."""
    value_type: ClassVar[type[Any]] = EngineValue
    """What stands for tensors. It has an attribute ``dtype``."""
    computes_known: ClassVar[bool] = False
    """Whether calls of ATen whose arguments are all known are computed while the program is written, and become
    constants, also where they have a converter."""
    like: Any = None
    """What the present call returns, without data: a tensor, or a tuple of them."""

    def fail(self, reason: str) -> NotConvertibleError:
        """Return the error that says why a call cannot be written."""
        return NotConvertibleError(reason)

    @abstractmethod
    def add_input(self, name: str, example: torch.Tensor, sizes: Sequence[int]) -> Any:
        """Return the value of a new input.

        Args:
            name: ``"input_0"``, ``"input_1"`` and so on.
            example: A tensor that is given there.
            sizes: Those of the example, and -1 for one that is left open.

        Raises:
            NotConvertibleError: The engine takes no such tensors.
        """

    @abstractmethod
    def add_constant(self, tensor: torch.Tensor) -> Any:
        """Return the value of a tensor that is known.

        Raises:
            NotConvertibleError: The engine takes no such tensors.
        """

    @abstractmethod
    def add_result(self, name: str, value: Any) -> None:
        """Make a value a result of the program.

        Args:
            name: ``"output_0"``, ``"output_1"`` and so on.
            value: Whatever `is_value` is true for.

        Raises:
            NotConvertibleError: It cannot be returned.
        """

    def is_value(self, value: Any) -> bool:
        """Return whether something is computed by the engine, and not known while the program is written."""
        return isinstance(value, self.value_type)

    def check_tensor(self, like: torch.Tensor) -> None:  # noqa: B027 - most engines hold what they can read
        """Refuse calls whose results the engine cannot hold.

        Args:
            like: A result, without data. It need not be one that is computed.

        Raises:
            NotConvertibleError: It has no such tensors.
        """

    def value_of(self, made: Any, like: torch.Tensor, target: Any) -> Any:
        """Return what a converter returned as a value.

        Args:
            made: Of one result.
            like: What PyTorch returns, without data.
            target: The operator.

        Raises:
            NotConvertibleError: It is none, or not like the tensor in PyTorch.
        """
        return made if isinstance(made, self.value_type) else self.value_type(made, like)

    def size_of(self, target: Any, first: Any, second: Any) -> Any:
        """Return a size that is computed from others, one of which at least is left open.

        Args:
            target: ``operator.add``, ``sub``, ``mul`` or ``floordiv``.
            first: A size.
            second: A size.

        Raises:
            NotConvertibleError: The engine cannot.
        """
        raise NotConvertibleError(f"it computes a size that is left open, which {self.engine} cannot")
