"""Proving, pass by pass, that a module still computes what it computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fxplug.analyze.comparison import Check, Comparison, MismatchError, Tolerance
from fxplug.errors import ConfigError, FxplugError, PassError, did_you_mean
from fxplug.passes.claims import idempotence_fault, preservation_fault, wrong_shapes
from fxplug.passes.first_difference import NodeValues
from fxplug.passes.references import Observation, Parameters, References, other_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fxplug.execute import GraphModule
    from fxplug.passes.base import PassContext, PassRecord, PassResult
    from fxplug.passes.transaction import Snapshot

__all__ = [
    "LEVELS",
    "Level",
    "PassRun",
    "PassVerificationError",
    "UnverifiableError",
    "Verification",
    "Verifier",
]

Level = Literal["structure", "shape", "numeric", "gradient", "paranoid"]
"""How thoroughly each pass is checked; every level does what those before it do."""

_SHOWN = 4
"""Names that a line lists."""

LEVELS: tuple[Level, ...] = ("structure", "shape", "numeric", "gradient", "paranoid")


class UnverifiableError(FxplugError, ValueError):
    """Nothing can be said about passes on this module with these reference inputs; none has run."""

    code = "FXP-V003"


class PassVerificationError(PassError, MismatchError):
    """A pass changed what the module computes by more than is allowed, and was undone; `check` says where."""

    code = "FXP-V004"


@dataclass(frozen=True)
class PassRun:
    """A pass that has run."""

    title: str
    """Name, plugin and version, for messages."""
    record: PassRecord
    """What offers it."""
    result: PassResult
    """What it said."""
    again: Callable[[Snapshot], PassResult]
    """Runs it once more; gets what undoes that."""


@dataclass(frozen=True)
class Verification:
    """How the passes of a pipeline are verified."""

    level: Level = "structure"
    """How thoroughly."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    """How far all passes together may move a number, beside what each of them declares."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ConfigError(
                f"Cannot verify passes at the level {self.level!r}. {did_you_mean(str(self.level), LEVELS)}"
            )

    def reaches(self, level: Level) -> bool:
        """Return whether what `level` asks for is checked."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


class Verifier:
    """Verifies the passes of one run of a pipeline, above what a transaction checks by itself.

    Args:
        verification: How.
        pipeline: Name of the pipeline, for messages.
        module: As it is before the first pass.
        inputs: The reference inputs: positional arguments of one call each.

    Raises:
        UnverifiableError: The level needs runs of the module, and there are no inputs, the module fails on them, or two
            runs from the same random state differ.
    """

    def __init__(
        self,
        verification: Verification,
        pipeline: str,
        module: GraphModule,
        inputs: Sequence[tuple[Any, ...]],
    ) -> None:
        self._verification = verification
        self._name = f"Cannot verify the passes of pipeline {pipeline!r} at level {verification.level!r}"
        self._declared = 0.0
        self.saves_memory = verification.reaches("paranoid")
        """Whether all memory of the module is to be copied before each pass."""
        self._references: References | None = None
        self._wrong_shapes: frozenset[str] = frozenset()
        if not verification.reaches("shape"):
            return
        if not inputs:
            raise UnverifiableError(
                f"{self._name}: the module has to be run, and there are no inputs. Give example_inputs, or choose "
                "the level 'structure'."
            )
        self._references = References(inputs, gradients=verification.reaches("gradient"))
        self._first = self._last = self._begin(module, self._references)

    def _begin(self, module: GraphModule, references: References) -> Observation:
        """Run the module before the first pass; find out whether its runs can be compared."""
        found = self._observe_first(module, references)
        if not self._verification.reaches("numeric"):
            return found
        self._check_repeats(module, references, found)
        if self._verification.reaches("paranoid"):
            return self._with_other_values(module, references) or found
        return found

    def _observe_first(self, module: GraphModule, references: References) -> Observation:
        try:
            found = references.observe(module)
            if found.gradient_error is not None:
                # An input that requires a gradient may be what fails: the program may ask for it.
                references.give_up_input_gradients()
                found = references.observe(module)
            if found.gradient_error is not None:
                raise found.gradient_error  # noqa: TRY301 - one message for both
        except Exception as error:
            raise UnverifiableError(
                f"{self._name}: the module fails on the reference inputs before the first pass: "
                f"{_text_of(error)}. Give inputs that it accepts, or choose a lower level."
            ) from error
        return found

    def _check_repeats(self, module: GraphModule, references: References, found: Observation) -> None:
        again = references.observe(module)
        same = Parameters(found, again)
        failures = _failures(references.differences(found, again, self._verification.tolerance, same))
        if failures:
            raise UnverifiableError(
                f"{self._name}: two runs of the module on the same inputs, from the same random state, differ before "
                f"any pass has run: in {failures[0].path}, {failures[0].reason}. Make the module deterministic, or "
                "choose the level 'shape'."
            )

    def _with_other_values(self, module: GraphModule, references: References) -> Observation | None:
        """Take in a second set of inputs, and run; None where the module does not take such values."""
        others = other_values(references.sets[0])
        if others is None:
            return None
        count = len(references.sets)
        references.add(others)
        try:
            found = references.observe(module)
            if found.gradient_error is not None:
                raise found.gradient_error  # noqa: TRY301 - the same follows
            self._check_repeats(module, references, found)
        except Exception:  # It asserts something about them, or has a guard.
            references.drop(count)
            return None
        return found

    def check(
        self,
        run: PassRun,
        module: GraphModule,
        context: PassContext,
        snapshot: Snapshot,
    ) -> str:
        """Compare what the module computes now with what it computed before a pass, and before all of them.

        Args:
            run: The pass.
            module: As the pass left it.
            context: What the pass was told.
            snapshot: Undoes the pass.

        Returns:
            What was found, in a line.

        Raises:
            PassVerificationError: It computes something else; the pass is undone.
            PassError: The pass does not do what its record claims.
        """
        references = self._references
        if references is None:
            return ""
        now, text = self._last, ""
        if run.result.modified or snapshot.may_compute_otherwise():
            now, text = self._compare(references, run, module, snapshot)
        if self._verification.reaches("paranoid"):
            self._check_claims(run, module, context)
        self._last = now
        if run.result.modified:
            self._declared += run.record.tolerance
        return text

    def _check_claims(self, run: PassRun, module: GraphModule, context: PassContext) -> None:
        """Hold a pass to what its record says of it."""
        wrong = wrong_shapes(module, context)
        fault = preservation_fault(run.record, wrong - self._wrong_shapes)
        if not fault and run.record.idempotent and run.result.modified:
            fault = idempotence_fault(module, run.again)
        if fault:
            raise PassError(f"{run.title} {fault} The pass was undone.")
        self._wrong_shapes = wrong

    def _compare(
        self, references: References, run: PassRun, module: GraphModule, snapshot: Snapshot
    ) -> tuple[Observation, str]:
        try:
            now = references.observe(module)
        except Exception as error:
            raise self._failing(run, "on the reference inputs", error) from error
        parameters = Parameters(self._last, now)
        allowed = self._allowed(run.record.tolerance)
        entries = [
            *references.differences(self._last, now, allowed, parameters),
            *parameters.faults(self._last),
        ]
        if _failures(entries):
            values = [NodeValues(module, inputs) for inputs in references.sets]
            snapshot.restore()
            places = (found.first_difference(module, allowed) for found in values)
            raise self._refusal(run, entries, next(filter(None, places), ""))
        if now.gradient_error is not None:
            raise self._failing(
                run, "with gradients on the reference inputs", now.gradient_error
            ) from now.gradient_error
        self._check_drift(references, run, now)
        largest = max((entry.max_abs_error for entry in entries), default=0.0)
        text = f"{self._verification.level}: {len(entries)} value{'s' if len(entries) != 1 else ''} compared"
        if self._verification.reaches("numeric"):
            has_numbers = any(entry.elements for entry in entries)
            text += f", largest error {largest:.2g}" if has_numbers else ", none of which has elements"
        if parameters.replaced:
            text += f"; gradients left out, as the pass replaced them: {_listed(parameters.replaced)}"
        return now, text

    def _check_drift(self, references: References, run: PassRun, now: Observation) -> None:
        """Compare with the module before the first pass."""
        allowed = self._allowed(self._declared + run.record.tolerance)
        entries = list(references.differences(self._first, now, allowed, Parameters(self._first, now)))
        if _failures(entries):
            together = " That is so when all passes that ran are taken together, against the module before the first."
            raise self._refusal(run, entries, together)

    def _failing(self, run: PassRun, when: str, error: Exception) -> PassVerificationError:
        reason = f"the module fails {when}: {_text_of(error)}"
        return self._refusal(run, [Comparison("output", "a result", "an error", reason=reason)], "")

    def _allowed(self, share: float) -> Tolerance:
        tolerance = self._verification.tolerance
        is_numeric = self._verification.reaches("numeric")
        return Tolerance(tolerance.rtol, tolerance.atol, share, values=is_numeric)

    def _refusal(self, run: PassRun, entries: Sequence[Comparison], more: str) -> PassVerificationError:
        failures = _failures(entries)
        first = failures[0]
        others = f" {len(failures) - 1} more of {len(entries)} values differ." if failures[1:] else ""
        where = "" if first.actual == "an error" else f"in {first.path} ({first.expected}), "
        advice = " Correct it; if it is meant to round, say how far: PassRecord(tolerance=0.01)."
        if not 0 < first.max_abs_error < math.inf:
            advice = ""
        return PassVerificationError(
            f"{run.title} changed what the module computes (level "
            f"{self._verification.level!r}): {where}{first.reason.rstrip('.')}.{others}{more} "
            f"The pass was undone.{advice}",
            Check(tuple(entries)),
        )


def _failures(entries: Iterable[Comparison]) -> list[Comparison]:
    return [entry for entry in entries if not entry.passed]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _text_of(error: BaseException) -> str:
    notes = [note.strip() for note in getattr(error, "__notes__", ())]
    return " ".join([f"{type(error).__name__}: {error}".rstrip("."), *notes]).rstrip(".")
