"""Every kind of bad file has a code of its own, by which programs tell them apart."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from fxplug.errors import StorageError
from fxplug.storage import load, summarize

GOLDEN = Path(__file__).parent / "golden" / "version-2.fxplug"


def truncated(stored):
    stored.path.write_bytes(stored.path.read_bytes()[:-100])


def flipped(stored):
    # A file whose members are stored as they are: a flipped bit must not already stop the unpacking.
    stored.write()
    content = bytearray(stored.path.read_bytes())
    with zipfile.ZipFile(stored.path) as archive:
        info = archive.getinfo("weights.safetensors")
    content[info.header_offset + 30 + len(info.filename) + info.file_size - 1] ^= 1
    stored.path.write_bytes(content)


def a_bomb(stored):
    stored.members["graph.json"] = b'{"graphs": [' + b" " * 10_000_000 + b"]}"
    stored.write(graph={"compress_type": zipfile.ZIP_DEFLATED})


def deep(stored):
    value = 1
    for _ in range(150):
        value = {"$tuple": [value]}
    stored.node("relu", args=[value])


def a_newer_version(stored):
    stored.edit("manifest.json", lambda manifest: manifest.update(format_version=99))


def a_missing_plugin(stored):
    stored.path.write_bytes(GOLDEN.read_bytes())


def header(stored, change):
    content = stored.members["weights.safetensors"]
    length = int.from_bytes(content[:8], "little")
    fields = json.loads(content[8 : 8 + length])
    change(fields)
    text = json.dumps(fields).encode()
    stored.members["weights.safetensors"] = len(text).to_bytes(8, "little") + text + content[8 + length :]
    stored.write()


def a_missing_weight(stored):
    header(stored, lambda fields: fields.update(other=fields.pop("scale")))


def a_weight_of_another_dtype(stored):
    header(stored, lambda fields: fields["scale"].update(dtype="I32"))


def a_header_of_ten_gigabytes(stored):
    content = stored.members["weights.safetensors"]
    stored.members["weights.safetensors"] = (10**10).to_bytes(8, "little") + content[8:]
    stored.write()


def a_member_twice(stored):
    with pytest.warns(UserWarning, match="Duplicate name"):
        stored.write(extra=((zipfile.ZipInfo("graph.json"), b""),))


KINDS = {
    "FXP-S001": [lambda stored: stored.path.unlink()],
    "FXP-S002": [truncated, a_member_twice],
    "FXP-S003": [flipped],
    "FXP-S004": [a_bomb, deep],
    "FXP-S005": [a_newer_version],
    "FXP-S006": [a_missing_plugin],
    "FXP-S007": [a_missing_weight, a_weight_of_another_dtype, a_header_of_ten_gigabytes],
    "FXP-S008": [
        lambda stored: stored.node("relu", name="linear"),
        lambda stored: stored.node("relu", name="x): import os #"),
    ],
    "FXP-S009": [
        lambda stored: stored.node("relu", args=[[2]]),
        lambda stored: stored.node("relu", args=[[3]]),
        lambda stored: stored.edit("modules.json", lambda data: data["modules"][-1].__setitem__(2, [9])),
    ],
    "FXP-S011": [lambda stored: stored.node("relu", op="import")],
    "FXP-S012": [
        lambda stored: stored.node("relu", op="call_function", target="os:system"),
        lambda stored: stored.node("relu", op="call_method", target="tofile"),
        lambda stored: stored.edit(
            "modules.json", lambda data: data["module_kinds"][0].update({"class": "os:X"})
        ),
    ],
}


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        pytest.param(code, damage, id=f"{code}-{number}")
        for code, damages in KINDS.items()
        for number, damage in enumerate(damages)
    ],
)
def test_a_bad_file_is_refused_with_the_code_of_its_kind(stored, code, damage):
    damage(stored)

    with pytest.raises(StorageError) as caught:
        load(stored.path)

    assert caught.value.code == code
    assert str(caught.value).endswith(f"[{code}]")


@pytest.mark.parametrize("damage", [truncated, flipped, a_bomb, a_newer_version])
def test_looking_into_a_bad_file_gives_the_same_code(stored, damage):
    damage(stored)

    with pytest.raises(StorageError) as loaded:
        load(stored.path)
    with pytest.raises(StorageError) as summarized:
        summarize(stored.path)

    assert summarized.value.code == loaded.value.code
