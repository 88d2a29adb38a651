"""The header of the weights: the quick way of reading what fxplug writes says the same as the other one, or nothing."""

from __future__ import annotations

import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import load, save, weights
from fxplug.storage.faults import Refusal

BEGINNING = '{"__metadata__":{"format":"pt"}'
ENTRY = ',"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}'


def read(text: str, size: int):
    """Return the entries that a header says, or the refusal."""
    content = text.encode()
    content = len(content).to_bytes(8, "little") + content
    try:
        return weights._read_header(io.BytesIO(content), len(content) + size)[1]
    except Refusal as refusal:
        return str(refusal)


def test_what_fxplug_writes_is_read_the_quick_way(tmp_path, monkeypatch):
    graph = Graph()
    tensors = {
        "scalar": torch.tensor(3),
        "layer.weight": torch.ones(2, 3, dtype=torch.float16),
        "empty": torch.ones(0, 4),
        "layer.flags": torch.tensor([True]),
    }
    graph.output([graph.get_attr(name) for name in tensors])
    save(GraphModule(tensors, graph), tmp_path / "m.fxplug")
    monkeypatch.delattr(weights, "_entry")

    for name, value in load(tmp_path / "m.fxplug").state_dict().items():
        assert torch.equal(value, tensors[name])
        assert value.dtype is tensors[name].dtype


@pytest.mark.parametrize(
    "text",
    [
        BEGINNING + ENTRY + ENTRY + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[2,03]") + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[2,3,]") + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[,2,3]") + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[]") + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[2,-3]") + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[2,3.0]") + "}",
        BEGINNING + ENTRY.replace("[0,24]", "[0,25]") + "}",
        BEGINNING + ENTRY.replace("[0,24]", "[1,25]") + "}",
        BEGINNING + ENTRY.replace("[0,24]", f"[0,{10**30}]") + "}",
        BEGINNING + ENTRY.replace("F32", "F33") + "}",
        BEGINNING + ENTRY.replace('"a"', '""') + "}",
        BEGINNING + ENTRY.replace('"a"', '"a\\u0041"') + "}",
        BEGINNING + ENTRY.replace('"a"', '"a\n"') + "}",
        BEGINNING + ENTRY.replace('"a"', '"ä"') + "}",
        BEGINNING + ENTRY.replace('"a"', '"__metadata__"') + "}",
        BEGINNING + ENTRY.replace("[2,3]", "[" + ",".join(["1"] * 101 + ["6"]) + "]") + "}",
        BEGINNING + ENTRY + "x}",
        BEGINNING + "x" + ENTRY + "}",
        BEGINNING + ENTRY,
        BEGINNING + ENTRY + "}}",
        BEGINNING.replace("pt", "tf") + ENTRY + "}",
        "{" + ENTRY[1:] + "}",
        BEGINNING + "}",
        json.dumps(json.loads(BEGINNING + ENTRY + "}"), indent=1),
    ],
)
def test_odd_headers_are_read_as_json_says(text, monkeypatch):
    found = read(text, 24)
    monkeypatch.setattr(weights, "_usual_entries", lambda _: None)

    assert found == read(text, 24)


@settings(max_examples=300, deadline=None)
@given(
    place=st.integers(0, len(BEGINNING + ENTRY) + 1),
    removed=st.integers(0, 3),
    put=st.text(st.sampled_from('0129-.,:"[]{}\\ eEFa\t'), max_size=3),
)
def test_damaged_headers_are_read_as_json_says(place, removed, put):
    text = BEGINNING + ENTRY + "}"
    text = text[:place] + put + text[place + removed :]
    found = read(text, 24)
    usual = weights._usual_entries
    weights._usual_entries = lambda _: None
    try:
        assert found == read(text, 24)
    finally:
        weights._usual_entries = usual
