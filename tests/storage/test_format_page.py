"""docs/format.md says what files hold: no field, tag, limit or version is missing or made up."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

from fxplug.ir import OPCODES
from fxplug.storage import (
    FORMAT_VERSION,
    container,
    documents,
    graphs,
    modules,
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


def test_the_fields_of_graphs_and_nodes():
    graph_fields = graphs._FIELDS | graphs._OPTIONAL_FIELDS
    node_fields = graphs._NODE_REQUIRED | graphs._NODE_OPTIONAL

    assert sorted(table("graph.json", "field")) == sorted([*graph_fields, *node_fields])
    assert ", ".join(f"`{opcode}`" for opcode in OPCODES) in section("graph.json")


def test_the_fields_of_modules_and_tensors():
    of_modules = modules._REQUIRED | modules._OPTIONAL | modules._GRAPH_FIELDS | modules._GRAPH_OPTIONAL

    assert sorted(table("modules.json", "field")) == sorted(
        [*of_modules, *tensors._REQUIRED, *tensors._OPTIONAL]
    )
    for field in (*modules._GUARD_FIELDS, modules.GRAPH_MODULE):
        assert f'"{field}"' in section("modules.json")


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
        f"| values in one JSON document | {documents.MOST_VALUES:,} |",
        f"| nesting of containers in a value | {values.MAXIMAL_DEPTH} |",
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
    for one in graph["graphs"]:
        assert one.keys() <= listed
        assert all(node.keys() <= listed for node in one["nodes"])
    assert tree.keys() == {"modules", "tensors"}
    assert all(
        row.keys() <= set(table("modules.json", "field")) for row in (*tree["modules"], *tree["tensors"])
    )
