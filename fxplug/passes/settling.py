"""What a pipeline puts in order behind a pass: parameters, the map to the original's weights, notes of analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.passes.analyses import drop_notes_of_analyses
from fxplug.passes.parameters import keep_parameters
from fxplug.passes.state_origins import NOTE, initial_origins, updated_origins
from fxplug.passes.tensor_table import TensorTable

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.passes.base import PassContext, PassRecord, PassResult
    from fxplug.semantics.storages import StorageJournal

__all__ = ["Settlement"]


class Settlement:
    """What has to be known of a module before a pass, so that its state can be put in order behind it.

    Args:
        module: As the pass will find it.
        context: What the pass is handed.
        record: What offers the pass.
        name: Full name of the pass.
        provider: Distribution and version that it comes from.
    """

    def __init__(
        self, module: GraphModule, context: PassContext, record: PassRecord, name: str, provider: str
    ) -> None:
        self._module, self._context, self._record = module, context, record
        self._name, self._provider = name, provider
        self._before = TensorTable(module)
        # As it is now: a pass may run a pipeline of its own, of whose tensors nothing is known here.
        self._former = module.meta.get(NOTE)
        self._wrote = False

    def begin(self) -> None:
        """Tell the context that the pass starts."""
        self._context.derivations.clear()
        self._context.analyses.begin(self._record.preserves)

    def settle(self, result: PassResult, journal: StorageJournal) -> None:
        """Put in order what the pass left.

        Args:
            result: What the pass returned.
            journal: Knows what was written.

        Raises:
            PassError: The pass did to parameters what it did not declare, or said something wrong of a tensor.
        """
        meta = self._module.meta
        written = journal.written()
        self._wrote = bool(written)
        if not result.modified:
            if NOTE not in meta:
                meta[NOTE] = initial_origins(self._before)
            return
        after = TensorTable(self._module)
        meta[NOTE] = updated_origins(
            self._former,
            self._before,
            after,
            self._context.derivations,
            written,
            f"{self._name} of {self._provider}",
        )
        if not self._record.replaces_parameters:
            title = f"{self._name!r} of {self._provider}"
            keep_parameters(self._module, self._before, after, journal, title)
        if "shapes" not in self._record.preserves:
            drop_notes_of_analyses(self._module)

    def end(self, *, failed: bool) -> None:
        """Tell the context that the pass ended."""
        self._context.derivations.clear()
        self._context.analyses.end(failed=failed, wrote=self._wrote)
