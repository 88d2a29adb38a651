"""The map from a transformed module to the original's state dict, as data: recipes are graphs like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import PATH_OPCODES
from fxplug.passes import Recipe, StateOrigins, TensorOrigin
from fxplug.storage.faults import Refusal, checked, entry_fields, places

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Graph
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["describe_origins", "restore_origins"]

_FIELDS = frozenset({"original", "recipes", "table", "tensors"})
_PARTS = {"original": 2, "recipes": 2, "table": 4}
"""How long the rows of each list are."""


def describe_origins(
    origins: StateOrigins, encoder: Encoder, add_graph: Callable[[Graph], int]
) -> dict[str, Any]:
    """Return a map as JSON.

    Args:
        origins: The map.
        encoder: Turns dtypes into JSON.
        add_graph: Takes in a graph and returns its number.

    Raises:
        Refusal: A recipe calls something that a file cannot name.
    """
    recipes: list[list[Any]] = []
    table: list[list[Any]] = []
    numbers: dict[int, int] = {}

    def number_of(origin: TensorOrigin) -> int:
        for part in origin.parts():  # Inputs first.
            if id(part) in numbers:
                continue
            recipe = None
            if part.recipe is not None:
                if id(part.recipe) not in numbers:
                    numbers[id(part.recipe)] = len(recipes)
                    recipes.append([part.recipe.name, add_graph(part.recipe.graph)])
                recipe = numbers[id(part.recipe)]
            numbers[id(part)] = len(table)
            table.append([part.key, recipe, [numbers[id(entry)] for entry in part.inputs], part.pass_name])
        return numbers[id(origin)]

    tensors = {path: number_of(origin) for path, origin in origins.items()}
    original = {key: [encoder.encode(dtype), list(shape)] for key, (dtype, shape) in origins.original.items()}
    found: dict[str, Any] = {"original": original, "recipes": recipes, "table": table, "tensors": tensors}
    return {**found, "ties": [list(tied) for tied in origins.ties]} if origins.ties else found


def restore_origins(data: Any, decoder: Decoder, fetch_graph: Callable[[Any], Graph]) -> StateOrigins:
    """Return the map that `data` describes.

    Args:
        data: From a file.
        decoder: Turns JSON into dtypes.
        fetch_graph: Returns the graph with a number.

    Raises:
        Refusal: The data is damaged.
    """
    fields = entry_fields(data, "The map of weights", _FIELDS, frozenset({"ties"}))
    original: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for key, row in checked(fields["original"], dict, "The original's state dict").items():
        kind, sizes = _row(row, "original")
        dtype: Any = decoder.decode(kind)
        shape = [checked(size, int, "A size") for size in checked(sizes, list, "A shape")]
        if not isinstance(dtype, torch.dtype):
            raise Refusal(f"the map of weights has no dtype for {key!r}. The file is damaged.")
        original[key] = dtype, tuple(shape)
    known: set[int] = set()
    recipes = [
        _recipe(_row(row, "recipes"), fetch_graph, known)
        for row in checked(fields["recipes"], list, "The recipes")
    ]
    table: list[TensorOrigin] = []
    for row in checked(fields["table"], list, "The table of origins"):
        table.append(_origin(_row(row, "table"), recipes, table, original))
    tensors = checked(fields["tensors"], dict, "The tensors of the map")
    return StateOrigins(
        {
            path: table[places(number, len(table), "The number of an origin")]
            for path, number in tensors.items()
        },
        original,
        [_tied(keys, original) for keys in checked(fields.get("ties", []), list, "The tied keys")],
    )


def _tied(keys: Any, original: dict[str, Any]) -> list[str]:
    found = [checked(key, str, "A key") for key in checked(keys, list, "The keys of a tensor")]
    if len(found) < 2 or not original.keys() >= set(found):
        raise Refusal("the map of weights ties keys that the original does not have. The file is damaged.")
    return found


def _row(row: Any, name: str) -> list[Any]:
    found: list[Any] = checked(row, list, "A row of the map of weights")
    if len(found) != _PARTS[name]:
        raise Refusal(f"a row of {name!r} in the map of weights has {len(found)} parts. The file is damaged.")
    return found


def _recipe(row: list[Any], fetch_graph: Callable[[Any], Graph], known: set[int]) -> Recipe:
    name, graph = checked(row[0], str, "The name of a recipe"), fetch_graph(row[1])
    if id(graph) in known:  # Many recipes may have one graph, and looking at it takes as long as it is.
        return Recipe(name, graph)
    known.add(id(graph))
    if graph.lifted or any(node.op in PATH_OPCODES for node in graph.nodes):
        raise Refusal(f"the recipe {name!r} reads something besides its inputs. The file is damaged.")
    graph.lint()
    graph.output_node()
    return Recipe(name, graph)


def _origin(
    row: list[Any], recipes: list[Recipe], table: list[TensorOrigin], original: dict[str, Any]
) -> TensorOrigin:
    key = checked(row[0], str, "A key")
    recipe = None if row[1] is None else recipes[places(row[1], len(recipes), "The number of a recipe")]
    numbers = checked(row[2], list, "The inputs of a recipe")
    inputs = tuple(table[places(number, len(table), "The number of an origin")] for number in numbers)
    count = 0 if recipe is None else len(recipe.graph.find_nodes(op="placeholder"))
    if len(inputs) != count or (key and (recipe is not None or key not in original)):
        raise Refusal("an origin in the map of weights does not fit together. The file is damaged.")
    return TensorOrigin(key, recipe, inputs, checked(row[3], str, "The name of a pass"))
