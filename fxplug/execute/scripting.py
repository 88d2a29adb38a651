"""What TorchScript compiles of a graph."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

from fxplug.codegen.compiled import compile_code
from fxplug.semantics.checks import check_length
from fxplug.semantics.internals import assert_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Graph

__all__ = ["scripted_form"]


def scripted_form(graph: Graph) -> Callable[..., Any] | None:
    """Return a function that does what a graph does and that TorchScript understands; None where any would do.

    Checks of how many parts a value has are assertions in it: TorchScript knows no functions of fxplug.

    Args:
        graph: Not changed.
    """
    if not any(node.target is check_length for node in graph.nodes):
        return None
    written = copy.deepcopy(graph)
    for node in [node for node in written.nodes if node.target is check_length]:
        value, expected, text = node.args[:3]
        with written.inserting_before(node):
            count = written.call_function(len, (value,))
            fits = written.call_function(operator.eq, (count, expected))
            written.call_function(assert_function, (fits, f"The program was captured for {text}."))
        written.erase_node(node)
    return compile_code(written.python_code("self"), name="scripted").function
