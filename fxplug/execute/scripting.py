"""What TorchScript compiles in the place of modules that it cannot read as they are."""

from __future__ import annotations

import ast
import copy
import operator
from typing import TYPE_CHECKING, Any

from fxplug.codegen import compile_code
from fxplug.errors import GraphError
from fxplug.execute.guards import relies_on_state
from fxplug.ir import PythonCode, printable
from fxplug.semantics.checks import CHECKS, check_equal, check_length, same_value
from fxplug.semantics.internals import assert_function, modules_of
from fxplug.semantics.surroundings import depth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from fxplug.ir import Graph, Node

__all__ = ["modules_apart", "scripted_forward"]


def modules_apart(
    module: nn.Module, _known: dict[int, nn.Module] | None = None
) -> dict[str, nn.Module | None]:
    """Return the modules that a module holds, in which TorchScript may put others without being felt.

    It puts what it compiles where it finds what stands for something else, into the very tables of the modules that it
    is given. Those that hold none of them are not copied, and no tensor is.
    """
    known = {} if _known is None else _known
    found: dict[str, nn.Module | None] = {}
    for name, part in modules_of(module).items():
        if part is not None and id(part) not in known:
            known[id(part)] = part
            below = [other for other in part.modules() if other is not part]
            if not hasattr(part, _HOOK) and any(hasattr(other, _HOOK) for other in below):
                known[id(part)] = copied = copy.copy(part)
                copied.__dict__["_modules"] = modules_apart(part, known)
        found[name] = None if part is None else known[id(part)]
    return found


_HOOK = "__prepare_scriptable__"
"""The method by which TorchScript asks for another module."""


def scripted_forward(module: Any, code: PythonCode, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a graph module that TorchScript compiles: one that checks what the program relies on.

    Args:
        module: The graph module.
        code: Its source.
        function: What runs it.

    Raises:
        GraphError: It relies on something about its inputs, or on more than its modes.
    """
    plain = _with_plain_checks(module.graph)
    for node in plain.find_nodes(op="call_function"):
        if node.target in CHECKS:
            texts = [argument for argument in node.args if type(argument) is str]
            raise _refusal(module, texts[-1])
        if node.target is same_value:
            raise _refusal(module, f"the value of {node.args[0]}")
    if plain is not module.graph:
        code = plain.python_code("self")
        function = compile_code(code, name=module._get_name()).function
    guards = module.guard_set
    if guards is not None and guards.on_failure == "ignore":
        return function
    if guards is not None and guards.graph is not None:
        raise _refusal(
            module, f"{len(guards.guards)} guards on its inputs, the first of which is {guards.guards[0]}"
        )
    if not relies_on_state(module.graph):
        return function
    lines = [
        f"    if {mode} != {expected}:\n        raise ValueError({f'The program was captured for {text}.'!r})\n"
        for mode, expected, text in _modes(module)
    ]
    return compile_code(
        PythonCode(_with_lines(code.src, lines), code.globals, code.function_name), name=module._get_name()
    ).function


def _with_plain_checks(graph: Graph) -> Graph:
    """Return a graph with the same checks, as far as there are others for them that TorchScript understands.

    How many parts a value has is an assertion in it. Inputs that have to have their defaults are none of its inputs,
    where none comes behind them.
    """
    if not any(node.target in {check_length, check_equal} for node in graph.nodes):
        return graph
    written = copy.deepcopy(graph)
    for node in written.find_nodes(op="call_function", target=check_length):
        value, expected, text = node.args[:3]
        with written.inserting_before(node):
            count = written.call_function(len, (value,))
            fits = written.call_function(operator.eq, (count, expected))
            written.call_function(assert_function, (fits, f"The program was captured for {text}."))
        written.erase_node(node)
    for entry in reversed(written.find_nodes(op="placeholder")):
        checks = list(entry.users)
        if not (entry.args and checks and all(_is_for_default(node, entry) for node in checks)):
            break
        for node in (*checks, entry):
            written.erase_node(node)
    return written


def _is_for_default(node: Node, entry: Node) -> bool:
    """Return whether a call checks that an input has its default."""
    if node.target is not check_equal or node.args[0] is not entry:
        return False
    return same_value(node.args[1], entry.args[0])


def _modes(module: Any) -> Iterator[tuple[str, bool, str]]:
    """Yield an expression for each mode that the program relies on, what it has to be, and how messages call it."""
    training = module.graph.captured_training
    if training is not None:
        yield "self.training", training, f"self.training is {training}"
    for guard in module.graph.state_guards:
        first, *path, name = guard.steps
        if first != "self" or name != "training":
            raise _refusal(module, str(guard.guard))
        holder = "self"
        for part in path[: depth_of(module, path)]:
            holder = f"getattr({holder}, {part!r})"
        yield f"{holder}.training", bool(guard.expected), printable(str(guard.guard))


def _with_lines(source: str, lines: list[str]) -> str:
    """Return the source of a function that does something else first."""
    own = source.splitlines(keepends=True)
    definition: Any = ast.parse(source).body[-1]
    own[definition.body[0].lineno - 1 : definition.body[0].lineno - 1] = lines
    return "".join(own)


def _refusal(module: Any, what: str) -> GraphError:
    return GraphError(
        f"Cannot script {module._get_name()!r}: it relies on {what}. TorchScript would run it for other inputs as "
        "well, without a word. Capture it without examples (fxplug.symbolic_trace), pass on_guard_failure='ignore' to "
        "fxplug.trace if all inputs are as it was captured, or compile it with torch.export or torch.compile."
    )
