"""Programs that a mode answers wrongly today, each with the reason. The lists only ever get shorter."""

from __future__ import annotations

NO_CODE = "refused, but without a code"
ONLY_CHECKED = "only the comparison with eager notices that it is captured wrongly"
UNRELIABLE = "refused, at times without a code: threads get in the way of one another in fake tensors"
NO_LINE = "refused, but the line of the program is not shown"
WRONG = "answered differently from eager"
AT_RUN_TIME = "captured, and fails when it is called"
LEFT_BEHIND = "the capture leaves something behind"

KNOWN_WRONG: dict[str, dict[str, str]] = {
    "symbolic": {
        "nested_tensor": NO_CODE,
        "backward_inside": NO_CODE,
        "compiled_function_inside": NO_CODE,
        "PartsByPath": NO_CODE,
        "function_of_torch_itself": NO_LINE,
        "an_error_of_eager_is_caught": AT_RUN_TIME,
        "attribute_error_is_caught": AT_RUN_TIME,
    },
    "shape": {
        "sparse_rows_of_traced_parts": NO_CODE,
        "subclass_of_the_user": NO_CODE,
        "work_in_threads": UNRELIABLE,
        "class_attribute": ONLY_CHECKED,
        "attribute_that_the_caller_set": ONLY_CHECKED,
        "listed_attributes": ONLY_CHECKED,
    },
    "value": {},
}
"""Mode -> name of a program -> why."""
