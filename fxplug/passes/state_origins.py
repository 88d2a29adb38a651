"""The map from the tensors of a transformed module to the original's state dict, kept by the passes of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fxplug.errors import PassError
from fxplug.passes.derivations import TensorOrigin
from fxplug.passes.tensor_table import TensorTable, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from fxplug.execute import GraphModule
    from fxplug.passes.derivations import Derivation

__all__ = ["NOTE", "StateOrigins", "initial_origins", "state_origins", "updated_origins"]

NOTE = "fxplug.state_origins"
"""Key in ``module.meta`` under which a module keeps the map."""


class StateOrigins(Mapping[str, TensorOrigin]):
    """Where each tensor of a transformed module comes from; it is not changed once it is made.

    Args:
        origins: Path of the tensor -> where it comes from.
        original: The original's state dict: key -> dtype and shape.
        ties: The keys of each tensor that has several in the original.
    """

    def __init__(
        self,
        origins: Mapping[str, TensorOrigin],
        original: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        ties: Iterable[Sequence[str]] = (),
    ) -> None:
        self._origins = dict(origins)
        self.original = dict(original)
        """The original's state dict: key -> dtype and shape."""
        self.ties = tuple(map(tuple, ties))
        """The keys of each tensor that has several in the original."""

    def __getitem__(self, path: str) -> TensorOrigin:
        return self._origins[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def __deepcopy__(self, memo: dict[int, Any]) -> StateOrigins:
        return self

    def __str__(self) -> str:
        """Return a table: each tensor of the module, and how it comes from the original."""
        width = max(map(len, self._origins), default=0)
        return "\n".join(f"{path.ljust(width)}  {origin}" for path, origin in self._origins.items())

    def __repr__(self) -> str:
        return f"<StateOrigins of {len(self)} tensors, from {len(self.original)} of the original>"


def state_origins(module: GraphModule) -> StateOrigins:
    """Return where each tensor of a module comes from: from which keys of the original, through which passes.

    Args:
        module: A graph module. Where no pipeline has run on it, each tensor comes from itself.

    Example:
        >>> print(fxplug.state_origins(module))  # doctest: +SKIP
        conv.weight  fold_weight(conv.weight, bn.running_var, bn.weight) by fuse-conv-bn of fxplug
        fc.weight    fc.weight
    """
    found: Any = module.meta.get(NOTE)
    return found if isinstance(found, StateOrigins) else initial_origins(TensorTable(module))


def updated_origins(
    former: object,
    before: TensorTable,
    after: TensorTable,
    derivations: Sequence[Derivation],
    written: Iterable[torch.Tensor],
    pass_name: str,
) -> StateOrigins:
    """Return the map of a module that a pass has transformed.

    Args:
        former: The map that it had before; anything else where it had none.
        before: The tensors that it held before the pass.
        after: Those that it holds now.
        derivations: What the pass said.
        written: The tensors among `before` that the pass wrote.
        pass_name: Of the pass, with its distribution and version.

    Raises:
        PassError: A derivation cannot be recorded.
    """
    if not isinstance(former, StateOrigins):
        former = initial_origins(before)
    unknown = TensorOrigin(pass_name=pass_name)
    outside = TensorOrigin(pass_name="somebody outside of a pipeline")
    known: dict[int, TensorOrigin] = {}
    for path, tensor in before.tensors.items():
        known.setdefault(id(tensor), former.get(path, outside))
    explained = {id(derivation.target) for derivation in derivations}
    for tensor in written:
        if id(tensor) not in explained:  # Nobody knows whether it was written before or after it was read.
            known[id(tensor)] = unknown
    derived = _derive(derivations, known, pass_name)
    origins: dict[str, TensorOrigin] = {}
    for path, tensor in after.tensors.items():
        origin = derived.get(id(tensor)) or known.get(id(tensor), unknown)
        if origin.key and origin.key != path and before.tensors.get(path) is tensor:
            origin = former.get(path, origin)  # A tensor with several paths has several keys.
        origins[path] = origin
    return StateOrigins(origins, former.original, former.ties)


def _derive(
    derivations: Sequence[Derivation], known: Mapping[int, TensorOrigin], pass_name: str
) -> dict[int, TensorOrigin]:
    """Return id of each tensor that the pass spoke of -> where it comes from."""
    derived: dict[int, TensorOrigin] = {}
    for number, derivation in enumerate(derivations):
        inputs: list[TensorOrigin] = []
        for position, source in enumerate(derivation.sources):
            origin = derived.get(id(source)) or known.get(id(source))
            if origin is None:
                raise PassError(
                    f"Cannot record derivation {number} of the pass: its source {position}, a tensor of shape "
                    f"{list(source.shape)}, is none that the module held when the pass began, and none that was "
                    "derived before. Hand context.derive the very tensors of the module, not copies or views of them.",
                    code="FXP-P024",
                )
            inputs.append(origin)
        derived[id(derivation.target)] = TensorOrigin("", derivation.recipe, tuple(inputs), pass_name)
    return derived


def initial_origins(table: TensorTable) -> StateOrigins:
    """Return the map of a module that nobody has transformed: every tensor of its state dict comes from itself."""
    constant = TensorOrigin()
    keys: dict[int, list[str]] = {}
    for path in table.stored:
        keys.setdefault(id(table.tensors[path]), []).append(path)
    return StateOrigins(
        {path: TensorOrigin(path) if path in table.stored else constant for path in table.tensors},
        {path: (table.tensors[path].dtype, shape_of(table.tensors[path])) for path in table.stored},
        [tied for tied in keys.values() if len(tied) > 1],
    )
