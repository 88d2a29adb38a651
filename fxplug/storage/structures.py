"""The nested inputs and results of a program, around a graph whose inputs and outputs are flat, as JSON."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any

from fxplug.capture.pytrees import LEAF, InputTrees, OutputTree
from fxplug.codegen import CodeGen, PyTreeCodeGen, TreeParameter
from fxplug.ir.parameters import is_plain_name
from fxplug.semantics.internals import flatten_tree
from fxplug.storage.faults import Refusal, checked, entry_fields

if TYPE_CHECKING:
    from fxplug.ir import Graph
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["describe_structures", "restore_structures"]

_FIELDS = frozenset({"parameters", "inputs"})
_PARTS = 5
"""Of a parameter: name, stars, leaves, defaults (one or none), and whether callers must name it."""
_STARS = frozenset({"", "*", "**"})


def describe_structures(graph: Graph, encoder: Encoder) -> dict[str, Any] | None:
    """Return how the function of a graph takes its inputs and gives its result, None where it does so as they are.

    Args:
        graph: Not changed.
        encoder: Turns defaults, and structures without values, into JSON.

    Raises:
        Refusal: It does something that a file cannot hold.
    """
    codegen = vars(graph)["_codegen"]
    if codegen is None or type(codegen) is CodeGen:
        return None
    trees = (codegen.flatten, codegen.unflatten) if type(codegen) is PyTreeCodeGen else (None, None)
    inputs, output = trees
    if not isinstance(inputs, InputTrees) or not isinstance(output, (OutputTree, type(None))):
        raise Refusal(
            f"the graph has a code generator of its own ({type(codegen).__name__}), which a file cannot "
            f"hold. Call graph.set_codegen(fxplug.CodeGen()) before saving, and set yours again after "
            f"loading."
        )
    found: dict[str, Any] = {
        "parameters": [_parameter(parameter, encoder) for parameter in codegen.parameters],
        "inputs": {
            name: _described(skeleton, encoder, f"the structure of the input {name!r}")
            for name, skeleton in inputs.skeletons.items()
        },
    }
    if inputs.tells_sizes:
        found["tells_sizes"] = True
    if output is not None:
        found["output"] = _described(output.skeleton, encoder, "the structure of the result")
    return found


def _described(skeleton: Any, encoder: Encoder, what: str) -> Any:
    try:
        return encoder.encode(skeleton)
    except Refusal as refusal:
        raise refusal.within(what) from None


def _parameter(parameter: TreeParameter, encoder: Encoder) -> list[Any]:
    has_default = parameter.default is not Parameter.empty
    return [
        parameter.name,
        parameter.stars,
        parameter.leaves,
        [encoder.encode(parameter.default)] if has_default else [],
        parameter.keyword_only,
    ]


def restore_structures(graph: Graph, data: Any, decoder: Decoder) -> None:
    """Let the function of a graph take nested inputs and give a nested result again.

    Args:
        graph: With all of its nodes.
        data: What `describe_structures` has returned.
        decoder: Turns JSON into defaults and structures.

    Raises:
        Refusal: The data is damaged, or names a class that is not allowed.
    """
    fields = entry_fields(data, "The structures of a graph", _FIELDS, frozenset({"output", "tells_sizes"}))
    rows = checked(fields["parameters"], list, "The list of parameters")
    parameters = [_restored(row, decoder) for row in rows]
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise Refusal("Two parameters have the same name. The file is damaged.")
    written = checked(fields["inputs"], dict, "The structures of inputs")
    skeletons = {name: decoder.decode(skeleton) for name, skeleton in written.items()}
    leaves = {parameter.name: parameter.leaves for parameter in parameters if parameter.leaves is not None}
    if [*skeletons] != [*leaves] or any(
        _count_leaves(skeleton) != leaves[name] for name, skeleton in skeletons.items()
    ):
        raise Refusal("The parameters are nested in another way than the inputs. The file is damaged.")
    count = sum(1 for node in graph.nodes if node.op == "placeholder")
    if sum(parameter.inputs for parameter in parameters) != count:
        raise Refusal(
            f"The parameters do not stand for as many inputs as the graph has ({count}). The file is damaged."
        )
    output = None
    if "output" in fields:
        skeleton = decoder.decode(fields["output"])
        _count_leaves(skeleton)
        output = OutputTree.of(skeleton)
    tells_sizes = checked(fields.get("tells_sizes", False), bool, "Whether sizes are told from tuples")
    graph.set_codegen(PyTreeCodeGen(parameters, InputTrees.of(skeletons, tells_sizes), output))


def _restored(row: Any, decoder: Decoder) -> TreeParameter:
    parts: list[Any] = checked(row, list, "A parameter")
    if len(parts) != _PARTS:
        raise Refusal(f"A parameter has {len(parts)} parts, not {_PARTS}. The file is damaged.")
    name, stars, leaves, defaults, keyword_only = parts
    # The name becomes text of a program.
    if not is_plain_name(checked(name, str, "The name of a parameter")) or name == "self":
        raise Refusal(f"The parameter {name!r} has no name that a parameter can have. The file is damaged.")
    checked(stars, str, "The stars of a parameter")
    if stars not in _STARS or (leaves is not None and checked(leaves, int, "A number of leaves") < 0):
        raise Refusal(f"The parameter {name!r} takes no such values. The file is damaged.")
    checked(keyword_only, bool, "Whether a parameter has to be named")
    default = [decoder.decode(value) for value in checked(defaults, list, "The default of a parameter")]
    return TreeParameter(name, stars, leaves, default[0] if default else Parameter.empty, keyword_only)


def _count_leaves(skeleton: Any) -> int:
    """Return how many values a structure has, which are all the same in a file."""
    leaves, _ = flatten_tree(skeleton)
    if any(type(leaf) is not int or leaf != LEAF for leaf in leaves):
        raise Refusal(f"A structure holds values, as {str(leaves)[:80]}. The file is damaged.")
    return len(leaves)
