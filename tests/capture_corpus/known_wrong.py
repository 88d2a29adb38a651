"""Programs that a mode answers wrongly today, each with the reason. The lists only ever get shorter."""

from __future__ import annotations

NO_CODE = "refused, but without a code"
ONLY_CHECKED = "only the comparison with eager notices that it is captured wrongly"
UNRELIABLE = "refused, at times without a code: threads get in the way of one another in fake tensors"
WRONG = "answered differently from eager"
LEFT_BEHIND = "the capture leaves something behind"

KNOWN_WRONG: dict[str, dict[str, str]] = {
    "symbolic": {},
    "shape": {
        "work_in_threads": UNRELIABLE,
        "attribute_that_the_caller_set": ONLY_CHECKED,
        "listed_attributes": ONLY_CHECKED,
    },
    "value": {},
}
"""Mode -> name of a program -> why."""
