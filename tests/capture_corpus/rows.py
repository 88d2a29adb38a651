"""Known pains of capturing programs, by number; programs name those that they are examples of."""

from __future__ import annotations

ROWS = {
    1: "traces in several threads",
    2: "questions about kinds take the wrong branch",
    3: "the program catches the error of the tracer",
    4: "attributes that tensors do not have",
    5: "the text of a traced value",
    6: "in-place operators lose aliases",
    7: "writes are removed as dead code",
    8: "random or changed values are merged",
    9: "nobody compares the captured program with eager",
    10: "hooks and the forward of an instance",
    11: "regions without gradients, autocast, inference mode",
    12: "state that is fixed while tracing",
    13: "traced values leak into objects",
    14: "names that parameters shadow",
    15: "code that is older than its graph",
    16: "metadata that is older than its graph",
    17: "shared modules under rewrites",
    18: "copies of graphs that share metadata",
    19: "branches on shape, dtype, rank or mode",
    20: "iteration and unpacking",
    21: "sizes that are computed, and factories that take them",
    22: "structured and optional inputs",
    23: "functions that cannot be traced through",
    24: "several customisations of one tracer",
    25: "wrapped, compiled, unregistered modules",
    26: "signatures",
    27: "language models",
    28: "errors that do not show the line of the program",
    29: "names of modules that are no identifiers",
    30: "text of the program that becomes code",
    31: "constants",
    32: "keywords in schemas, odd annotations",
    33: "deep and long programs",
    34: "values that nobody uses",
    35: "debugging generated code",
}
"""Number -> what the pain is about."""

NO_PROGRAMS = {
    15: (
        "is about edited graphs",
        "tests/execute/test_graph_module.py::test_edited_graph_never_runs_old_code",
    ),
    16: (
        "is about analyses of edited graphs",
        "tests/passes/test_propagate_shapes.py::test_old_notes_go_when_a_value_is_no_tensor_any_more",
    ),
    18: ("is about copied graphs", "tests/torchless/test_copies.py::test_notes_of_a_copied_node_are_its_own"),
    24: (
        "is about tracers, not programs",
        "tests/plugins_host/test_policy.py::test_the_first_answer_counts_and_none_passes_the_question_on",
    ),
    28: (
        "is about every refused program; where the line is missing, that program fails",
        "tests/capture_corpus/test_corpus.py::test_captured_program_does_what_eager_does_or_is_refused_as_expected",
    ),
    35: (
        "is about debuggers",
        "tests/execute/test_graph_module.py::test_error_in_generated_code_shows_its_line",
    ),
}
"""Number -> why no program can show it, and the test that covers it."""
