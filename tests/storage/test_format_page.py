"""docs/format.md says what files hold: no field, tag, limit or version is missing or made up."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

from fxplug.ir import OPCODES
from fxplug.storage import (
    FORMAT_VERSION,
    annotations,
    container,
    documents,
    graphs,
    module_file,
    module_reader,
    modules,
    origins,
    save,
    tensors,
    values,
    weights,
)
from fxplug.storage.migrations import MIGRATIONS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """Return what stands under a heading, up to the next one of any level."""
    return re.split(r"^#+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def table(heading: str, column: str) -> list[str]:
    """Return the names in the first column of the tables whose first column is called so."""
    found: list[str] = []
    for part in re.findall(
        rf"^\| {column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", section(heading), flags=re.MULTILINE
    ):
        for row in part.splitlines():
            found += re.findall(r"`([^`]+)`", row.split("|")[1])
    return found


def test_the_fields_of_graphs_and_the_parts_of_nodes_and_origins():
    assert sorted(table("graph.json", "field")) == sorted(graphs._FIELDS | graphs._OPTIONAL_FIELDS)
    assert table("graph.json", "part") == [*graphs.NODE_COLUMNS, *origins.ORIGIN_COLUMNS]
    assert ", ".join(f"`{opcode}`" for opcode in OPCODES) in section("graph.json")


def test_the_fields_and_parts_of_modules_and_tensors():
    fields = (
        module_reader._REQUIRED
        | module_reader._OPTIONAL
        | module_reader._GRAPH_FIELDS
        | module_reader._GRAPH_OPTIONAL
    )
    columns = (*modules.MODULE_COLUMNS, *tensors.TENSOR_COLUMNS, *tensors.KIND_COLUMNS)

    assert sorted(table("modules.json", "field")) == sorted(fields)
    assert table("modules.json", "part") == list(columns)
    for field in (*module_reader._GUARD_FIELDS, modules.GRAPH_MODULE):
        assert f'"{field}"' in section("modules.json")
    for name in module_file._MODULE_FIELDS:
        assert f"`{name}`" in section("modules.json")


def test_the_keys_of_values():
    assert sorted(table("Values", "key")) == sorted(values.Decoder._decoders)


def test_the_dtypes_of_weights():
    for name in weights.NATIVE.values():
        assert f"`{name}`" in section("weights.safetensors")
    assert f"a multiple of {weights.ALIGNMENT} in the file" in PAGE
    assert f"`{container._PADDING:#06X}`".replace("0X", "0x") in PAGE


def test_the_limits():
    limits = [
        *(f"| size of `{name}`, unpacked | {size:,} bytes |" for name, size in container.LARGEST.items()),
        f"| header of the weights | {weights.LARGEST_HEADER:,} bytes |",
        f"packed size | {container.LARGEST_RATIO} |",
        f"| values in one JSON document, commas and brackets in its texts included | {documents.MOST_VALUES:,} |",
        f"| modules in a file, and tensors | {documents.MOST_OBJECTS:,} each |",
        f"| values in the attributes of all modules | {documents.MOST_VALUES:,} |",
        f"| nesting of containers in a value | {values.MAXIMAL_DEPTH} |",
        f"| dimensions of a tensor | {weights.MOST_DIMENSIONS} |",
        f"| alternatives of a union in an annotation | {annotations._MOST} |",
        f"| callers, and modules, around a node | {origins.LARGEST_DEPTH:,} |",
        f"is packed if it is longer than {container._SHORT // 1024} KiB",
    ]

    assert [limit for limit in limits if limit not in PAGE] == []


def test_the_versions():
    assert f"The present version is **{FORMAT_VERSION}**." in PAGE
    rows = re.findall(r"^\| (\d+) \|", section("Versions"), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [*MIGRATIONS, FORMAT_VERSION]


def test_what_is_written_is_what_the_page_lists(golden, tmp_path):
    path = tmp_path / "golden.fxplug"
    save(golden.golden_module(), path, provisions=golden.provisions)
    with zipfile.ZipFile(path) as archive:
        manifest, graph, tree = (
            json.loads(archive.read(name)) for name in ("manifest.json", "graph.json", "modules.json")
        )
        assert sorted(archive.namelist()) == sorted(table("The format", "member"))
    assert list(manifest) == table("manifest.json", "field")
    listed = set(table("graph.json", "field"))
    assert all(one.keys() <= listed for one in graph["graphs"])
    listed = set(table("modules.json", "field"))
    assert all(kind.keys() <= listed for kind in tree["module_kinds"])
    assert all(row[3].keys() <= listed for row in tree["modules"] if len(row) > 3)
    assert tree.keys() == module_file._MODULE_FIELDS
