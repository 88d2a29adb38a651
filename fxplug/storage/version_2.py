"""What version 2 of the format wrote, turned into what version 3 writes: rows with tables in the place of objects.

Nothing is looked up or made here. What is not as version 2 has it is refused where its form has to be known, and left
to the checks of the readers where it does not.
"""

from __future__ import annotations

from typing import Any

from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places
from fxplug.storage.graphs import NODE_DEFAULTS
from fxplug.storage.values import MAXIMAL_DEPTH

__all__ = ["to_rows"]

_NODE = frozenset({"op", "name", "target"})
_NODE_OPTIONAL = frozenset({"args", "kwargs", "type", "meta", "region", "origins"})
_TENSOR = frozenset({"kind", "dtype", "shape", "requires_grad", "weight"})
_TENSOR_OPTIONAL = frozenset({"stride", "offset"})
_GRAPH = ("graph", "class_name", "meta", "guards", "state_origins")
_SEQUENCES = frozenset({"$tuple", "$size", "$slice", "$range"})
_LAST_PARTS = frozenset({"$record", "$fields", "$constant"})
_CALLS = ("frames", "modules", "origins")


def to_rows(_manifest: dict[str, Any], graphs: Any, modules: Any) -> None:
    """Change the documents of version 2 into those of version 3, in place.

    Raises:
        Refusal: They are damaged.
    """
    if isinstance(graphs, dict) and isinstance(graphs.get("graphs"), list):
        graphs["graphs"] = [_graph(graph) for graph in graphs["graphs"]]
    if not isinstance(modules, dict):
        return
    if isinstance(modules.get("modules"), list):
        pairs = [_module(number, entry) for number, entry in enumerate(modules["modules"])]
        modules["module_kinds"] = [kind for kind, _ in pairs]
        modules["modules"] = [row for _, row in pairs]
    if isinstance(modules.get("tensors"), list):
        rows = [_tensor(number, entry) for number, entry in enumerate(modules["tensors"])]
        modules["tensor_kinds"] = [kind for kind, _ in rows]
        modules["tensors"] = [row for _, row in rows]


# -- graphs


def _graph(data: Any) -> Any:
    graph: dict[str, Any] = checked(data, dict, "A graph")
    found = {name: value for name, value in graph.items() if name not in _CALLS}
    if isinstance(graph.get("nodes"), list):
        found["nodes"] = [_node(number, entry) for number, entry in enumerate(graph["nodes"])]
    if isinstance(graph.get("lifted"), dict):
        found["lifted"] = {path: _value(value) for path, value in graph["lifted"].items()}
    frames, scopes, origins = (checked(graph.get(name), list, f"The {name}") for name in _CALLS)
    return {**found, "lines": frames, **_origins(frames, scopes, origins)}


def _node(number: int, entry: Any) -> list[Any]:
    try:
        fields = entry_fields(entry, "A node", _NODE, _NODE_OPTIONAL)
        meta, kwargs = (checked(fields.get(name, {}), dict, name) for name in ("meta", "kwargs"))
        row = [
            *(fields["op"], fields["name"], fields["target"]),
            [_value(value) for value in checked(fields.get("args", []), list, "args")],
            checked(fields.get("origins", []), list, "origins"),
            fields.get("type"),
            {name: _value(value) for name, value in kwargs.items()},
            {name: _value(value) for name, value in meta.items()},
            [_region(part) for part in checked(fields.get("region", []), list, "A region")],
        ]
    except Refusal as refusal:
        name = entry.get("name") if isinstance(entry, dict) else None
        raise refusal.within(f"node {name!r}" if name else f"node {number}") from None
    while row[-1] == NODE_DEFAULTS[len(row) - 1] and len(row) > len(_NODE):
        row.pop()
    return row


def _region(data: Any) -> list[Any]:
    context, values = (*checked(data, list, "An entry of a region"), None, None)[:2]
    return [context, [_value(value) for value in checked(values, list, "The arguments of a region")]]


def _origins(frames: list[Any], modules: list[Any], origins: list[Any]) -> dict[str, list[Any]]:
    """Return the tables of origins: what was a list of all that lies around a node leads from one to the next."""
    callers: dict[tuple[Any, ...], int] = {}
    scopes: dict[tuple[Any, ...], int] = {}

    def linked(table: dict[tuple[Any, ...], int], parts: list[tuple[Any, ...]]) -> int | None:
        outer: int | None = None
        for part in parts:
            outer = table.setdefault((*part, outer), len(table))
        return outer

    rows: list[list[Any]] = []
    for data in origins:
        row: list[Any] = checked(data, list, "An origin")
        if not 3 <= len(row) <= 4:
            raise Refusal(f"An origin has {len(row)} parts, not 3 or 4. The file is damaged.")
        lines = _numbers(row[0], len(frames), "The number of a frame")
        inside = [
            _path(modules[number]) for number in _numbers(row[1], len(modules), "The number of a module")
        ]
        caller = linked(callers, [(number,) for number in reversed(lines[1:])])
        start: list[Any] = [lines[0] if lines else None, caller, linked(scopes, inside)]
        made_by = row[3] if len(row) > 3 else row[2]
        rows.append(start if made_by is None else [*start, made_by])
    return {"callers": list(map(list, callers)), "scopes": list(map(list, scopes)), "origins": rows}


def _numbers(data: Any, limit: int, what: str) -> list[int]:
    return [places(number, limit, what) for number in checked(data, list, "An origin")]


def _path(data: Any) -> tuple[str, str]:
    row: list[Any] = checked(data, list, "A module path")
    if len(row) != 2:
        raise Refusal(f"A module path has {len(row)} parts, not 2. The file is damaged.")
    return checked(row[0], str, "A module path"), checked(row[1], str, "A module path")


# -- values


def _value(data: Any, depth: int = 0) -> Any:
    """Return a value as version 3 writes it: a node is an array of its number, and a list is no array."""
    if depth > MAXIMAL_DEPTH:
        raise Refusal(
            f"containers are nested more than {MAXIMAL_DEPTH} deep. The file is damaged.", Codes.TOO_LARGE
        )
    if isinstance(data, list):
        return {"$list": _values(data, depth)}
    if not isinstance(data, dict) or len(data) != 1:
        return data
    ((tag, content),) = data.items()
    if tag == "$node":
        return [checked(content, int, "The number of a node")]
    if tag == "$list":
        raise Refusal("a value is written as '$list', which no rule explains. The file is damaged.")
    if tag in _SEQUENCES:
        return {tag: _values(content, depth)}
    if tag == "$dict":
        return {tag: [_values(pair, depth) for pair in checked(content, list, "The content of a dict")]}
    return {tag: _parts(tag, content, depth)} if tag in _LAST_PARTS else data


def _parts(tag: str, content: Any, depth: int) -> list[Any]:
    """Return a list of parts of which the last one holds values."""
    parts: list[Any] = checked(content, list, "A value")
    last: Any
    if tag == "$constant":
        last = _values(parts[-1:], depth)
    elif tag == "$record":
        last = [_values(part, depth) for part in parts[-1:]]
    else:
        last = [[_values(row, depth) for row in checked(part, list, "Fields")] for part in parts[-1:]]
    return [*parts[:-1], *last]


def _values(data: Any, depth: int) -> list[Any]:
    return [_value(part, depth + 1) for part in checked(data, list, "The content of a container")]


# -- modules and tensors


def _module(number: int, entry: Any) -> tuple[dict[str, Any], list[Any]]:
    try:
        fields: dict[str, Any] = checked(entry, dict, "A module")
        kind = {name: value for name, value in fields.items() if name not in _GRAPH}
        graph = {name: fields[name] for name in _GRAPH if name in fields}
        held: list[Any] = []
        for table in ("parameters", "buffers"):
            if table in kind:
                tensors = checked(kind[table], dict, f"The {table} of a module")
                kind[table] = list(tensors)
                held += tensors.values()
        children = checked(fields.get("children", {}), dict, "The children of a module")
        if "children" in kind:
            kind["children"] = list(children)
        for holder, name in ((kind, "attributes"), (graph, "meta")):
            if name in holder:
                values = checked(holder[name], dict, f"The {name} of a module")
                holder[name] = {key: _value(value) for key, value in values.items()}
        return kind, [number, held, list(children.values()), graph]
    except Refusal as refusal:
        raise refusal.within(f"module {number} of the table") from None


def _tensor(number: int, entry: Any) -> tuple[list[Any], list[Any]]:
    fields = entry_fields(entry, "An entry of the table of tensors", _TENSOR, _TENSOR_OPTIONAL)
    kind = [fields[name] for name in ("kind", "dtype", "shape", "requires_grad")]
    if "stride" in fields:
        kind.append(fields["stride"])
    if fields["weight"] is None:
        return kind, [number]
    return kind, [number, fields["weight"], fields.get("offset", 0)]
