"""What is in a file, read as data: no name in it is looked up outside the closed table, nothing is made or imported."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import StorageError
from fxplug.ir import printable
from fxplug.storage.container import read_container
from fxplug.storage.faults import Codes, Refusal, checked, places
from fxplug.storage.graphs import NODE_COLUMNS, NODE_DEFAULTS
from fxplug.storage.modules import GRAPH_MODULE
from fxplug.storage.targets import look_up

if TYPE_CHECKING:
    import os

__all__ = ["FileGraph", "FileNode", "FileSummary", "summarize"]

_DEEPEST = 100
_CHECKS = "fxplug.semantics.checks:check_"
"""How the names of functions begin that check guards inside a program."""


@dataclass(frozen=True)
class FileNode:
    """One node, as text."""

    op: str
    name: str
    target: str
    args: str
    kwargs: str
    region: str


@dataclass(frozen=True)
class FileGraph:
    """One graph."""

    owner: str
    """The class of the module that runs it; empty where it only checks guards."""
    nodes: tuple[FileNode, ...]


@dataclass(frozen=True)
class FileSummary:
    """What a file says about itself, and what it holds."""

    path: str
    size: int
    format_version: int
    fxplug_version: str
    torch_version: str
    members: dict[str, int]
    """Name -> size in bytes."""
    graphs: tuple[FileGraph, ...]
    """The one of the outermost module is the first."""
    guards: tuple[str, ...]
    """What the programs in it were captured for."""
    plugins: dict[str, str]
    """Name of each plugin that it needs -> distribution and version that it was written with."""
    allow: tuple[str, ...]
    """Functions that it names and that fxplug does not know: `load` has to be told to take them."""
    modules: dict[str, int]
    """Class -> how many modules there are of it."""
    tensors: int
    parameters: int
    """Elements of all parameters."""
    left_out: tuple[str, ...]
    """What was left out when it was written."""
    engines: tuple[str, ...] = ()
    """What backends compiled: partition, backend, and with what."""


def summarize(path: str | os.PathLike[str]) -> FileSummary:
    """Return what is in a file that `fxplug.save` wrote, after checking its members, their sizes and checksums.

    Raises:
        StorageError: It is missing, damaged, no fxplug file, or of a newer version.
    """
    source = Path(path)
    try:
        return _summarize(source)
    except FileNotFoundError as error:
        raise StorageError(
            f"Cannot read {str(source)!r}: there is no such file. Check the path.", code=Codes.UNREACHABLE
        ) from error
    except OSError as error:
        raise StorageError(
            f"Cannot read {str(source)!r}: {error.strerror or error}. Check the path.", code=Codes.UNREACHABLE
        ) from error
    except Refusal as refusal:
        raise StorageError(
            f"Cannot read {str(source)!r}: {refusal}", code=refusal.code or Codes.DAMAGED
        ) from refusal.__cause__
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(
            f"Cannot read {str(source)!r}: its content does not fit together: {error!r}. The file is damaged."
        ) from error


def _documents(path: Path) -> tuple[dict[str, Any], Any, Any]:
    """Return the manifest, the graphs and the modules of a file whose members are as they should be."""
    contents = read_container(path)
    return contents.manifest, contents.graphs, contents.modules


def _summarize(path: Path) -> FileSummary:
    manifest, graphs, modules = _documents(path)
    rows = checked(modules["modules"], list, "The table of modules")
    classes = [str(modules["module_kinds"][row[0]]["class"]) for row in rows]
    entries = [row[3] for row, name in zip(rows, classes, strict=True) if name == GRAPH_MODULE]
    owners = {entry["graph"]: printable(str(entry["class_name"])) for entry in entries}
    read = [
        FileGraph(owners.get(number, ""), tuple(_nodes(graph)))
        for number, graph in enumerate(checked(graphs["graphs"], list, "The list of graphs"))
    ]
    outermost = entries[-1].get("graph", 0)
    tensors = checked(modules["tensors"], list, "The table of tensors")
    kinds = [modules["tensor_kinds"][row[0]] for row in tensors]
    members = checked(manifest["members"], dict, "The list of members")
    return FileSummary(
        path=str(path),
        size=path.stat().st_size,
        format_version=manifest["format_version"],
        fxplug_version=str(manifest.get("fxplug_version", "unknown")),
        torch_version=str(manifest.get("torch_version", "unknown")),
        members={
            name: checked(entry["size"], int, "The size of a member") for name, entry in members.items()
        },
        graphs=(read[outermost], *(graph for number, graph in enumerate(read) if number != outermost)),
        guards=tuple(_guards(entries, graphs["graphs"])),
        plugins={
            name: " ".join(map(str, provider)) if isinstance(provider, list) else str(provider)
            for name, provider in (manifest.get("plugins") or graphs.get("providers") or {}).items()
        },
        allow=tuple(sorted(_unknown_names(graphs["graphs"]))),
        modules=dict(Counter(classes)),
        tensors=len(tensors),
        parameters=sum(_elements(kind[2]) for kind in kinds if kind[0] == "parameter"),
        left_out=tuple(
            ": ".join(filter(None, (str(entry["module"]), str(entry["node"]), str(entry["what"]))))
            for entry in manifest.get("left_out_meta", [])
        ),
        engines=tuple(map(_engine_text, manifest.get("engines", []))),
    )


def _engine_text(entry: Any) -> str:
    made_with = ", ".join(f"{name} {version}" for name, version in dict(entry["environment"]).items())
    kept = f"compiled with {made_with}" if entry["sha256"] else "compiled when it is loaded"
    return f"{entry['partition']}: {entry['backend']} of {entry['distribution']} {entry['version']}, {kept}"


def _elements(shape: list[int]) -> int:
    # As a file may be loaded with them: others may have thousands of digits, which Python refuses to write.
    return math.prod([places(size, 2**62, "The size of a tensor") for size in shape])


def _rows(graph: Any) -> list[dict[str, Any]]:
    """Return the nodes of a graph, each as column -> part."""
    found: list[dict[str, Any]] = []
    for row in checked(graph["nodes"], list, "The list of nodes"):
        op, name, target, *rest = checked(row, list, "A node")
        parts = (op, name, target, *rest, *NODE_DEFAULTS[len(row) :])
        found.append(dict(zip(NODE_COLUMNS, parts, strict=True)))
    return found


def _guards(entries: list[Any], graphs: list[Any]) -> list[str]:
    found = [str(row[0]) for entry in entries for row in (entry.get("guards") or {}).get("guards", [])]
    for graph in graphs:
        training = graph.get("captured_training")
        if training is not None:
            found.append(f"self.training is {training}")
        found += [str(row[-1]) for row in graph.get("state_guards", [])]
        for node in _rows(graph):
            if str(node["target"]).startswith(_CHECKS):
                texts = [value for value in node["args"] if isinstance(value, str)]
                found += texts[-1:]
    return list(dict.fromkeys(found))


def _unknown_names(graphs: list[Any]) -> set[str]:
    found: set[str] = set()
    for graph in graphs:
        for node in _rows(graph):
            names = [node["target"]] if node["op"] == "call_function" else []
            names += _named_in([node["args"], node["kwargs"]])
            found |= {name for name in names if not name.startswith("@") and look_up(name) is None}
    return found


def _named_in(value: Any) -> list[str]:
    """Return the names that arguments refer to."""
    found: list[str] = []
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if list(part) == ["$name"] and isinstance(part["$name"], str):
                found.append(part["$name"])
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found


# -- arguments as text


def _nodes(graph: Any) -> list[FileNode]:
    entries = _rows(graph)
    names = [printable(str(entry["name"])) for entry in entries]
    return [
        FileNode(
            printable(str(entry["op"])),
            printable(str(entry["name"])),
            printable(str(entry["target"])),
            _sequence("(", entry["args"], ")", names, 0),
            _pairs(entry["kwargs"].items(), names, 0),
            ", ".join(
                f"{printable(str(context))}{_sequence('(', args, ')', names, 0)}"
                for context, args in entry["region"]
            ),
        )
        for entry in entries
    ]


def _sequence(opening: str, values: Any, closing: str, names: list[str], depth: int) -> str:
    parts = [_text(value, names, depth + 1) for value in checked(values, list, "The content of a container")]
    comma = "," if len(parts) == 1 and opening == "(" else ""
    return f"{opening}{', '.join(parts)}{comma}{closing}"


def _pairs(items: Any, names: list[str], depth: int) -> str:
    return (
        "{"
        + ", ".join(f"{printable(repr(key))}: {_text(value, names, depth + 1)}" for key, value in items)
        + "}"
    )


def _text(value: Any, names: list[str], depth: int) -> str:
    """Return a value of a file as people write it."""
    if depth > _DEEPEST:
        raise Refusal(
            f"containers are nested more than {_DEEPEST} deep. The file is damaged.", Codes.TOO_LARGE
        )
    if isinstance(value, list) and len(value) == 1:
        return names[value[0]]
    if not isinstance(value, dict) or len(value) != 1:
        return printable(repr(value))
    ((tag, content),) = cast("dict[str, Any]", value).items()
    if tag == "$list":
        return _sequence("[", content, "]", names, depth)
    if tag == "$ellipsis":
        return "..."
    if tag == "$dict":
        pairs = [f"{_text(key, names, depth + 1)}: {_text(one, names, depth + 1)}" for key, one in content]
        return "{" + ", ".join(pairs) + "}"
    if tag in {"$tuple", "$size"}:
        return _sequence("(", content, ")", names, depth)
    if tag in {"$slice", "$range"}:
        return _sequence(f"{tag[1:]}(", content, ")", names, depth)
    if tag in {"$name", "$torch"}:
        return printable(str(content))
    return f"{printable(tag[1:])}({_text(content, names, depth + 1)})"
