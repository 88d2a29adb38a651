"""Archives that are damaged, of another kind or made to do harm are refused before they are read further."""

from __future__ import annotations

import contextlib
import json
import zipfile

import pytest
import torch

from fxplug.errors import StorageError
from fxplug.storage import FORMAT_VERSION, load


def damaged(text: str, code: str = "FXP-S000") -> str:
    return f"Cannot load 'FILE': {text} The file is damaged. [{code}]"


@pytest.mark.parametrize(
    "name", ["../../escaped", "/etc/passwd", "..\\escaped", "extra.json", "graph.json/", ""]
)
def test_members_that_do_not_belong_there_are_refused(stored, name, tmp_path):
    stored.write(extra=((zipfile.ZipInfo(name), b"content"),))
    before = sorted(tmp_path.rglob("*"))

    assert stored.refusal() == (
        f"Cannot load 'FILE': it has a member named {name!r}, which does not belong into an fxplug file. "
        f"[FXP-S002]"
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors"])
def test_a_member_that_is_there_twice(stored, name):
    stored.write(extra=((zipfile.ZipInfo(name), stored.members[name]),))

    assert stored.refusal() == damaged(f"it has two members named {name!r}.", "FXP-S002")


@pytest.mark.parametrize("name", ["graph.json", "modules.json", "weights.safetensors"])
def test_a_missing_member(stored, name):
    stored.write()
    del stored.members[name]
    stored.write(checksums=False)

    assert stored.refusal() == damaged(f"its member {name!r} is missing.", "FXP-S002")


def test_a_list_of_members_with_one_that_no_file_has(stored):
    manifest = json.loads(stored.members["manifest.json"])
    manifest["members"]["x" * 60] = {}
    stored.members["manifest.json"] = json.dumps(manifest).encode()
    stored.write(checksums=False)

    assert stored.refusal() == damaged(f"its manifest.json lists a member {'x' * 40!r} that it has not.")


@pytest.mark.parametrize("name", ["graph.json", "modules.json", "weights.safetensors"])
def test_a_wrong_checksum(stored, name):
    stored.members[name] = stored.members[name][:-1] + b" "
    stored.write(checksums=False)

    assert stored.refusal() == (
        f"Cannot load 'FILE': the checksum of its member {name!r} is wrong: its content was changed or "
        f"damaged. [FXP-S003]"
    )


def test_a_missing_checksum(stored):
    stored.edit("manifest.json", lambda manifest: manifest["members"]["graph.json"].clear())
    manifest = json.loads(stored.members["manifest.json"])
    manifest["members"] = {}
    stored.members["manifest.json"] = json.dumps(manifest).encode()
    stored.write(checksums=False)

    assert stored.refusal() == damaged("The checksum of 'graph.json' is a NoneType where dict was expected.")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(stored, share):
    content = stored.path.read_bytes()
    stored.path.write_bytes(content[: int(len(content) * share)])

    message = stored.refusal()
    assert message.startswith("Cannot load 'FILE': it is damaged or not an fxplug file: ")
    assert message.endswith("Write it again with fxplug.save. [FXP-S002]")


def test_a_flipped_bit_anywhere_is_noticed_or_harmless(stored):
    content = stored.path.read_bytes()
    expected = str(load(stored.path).graph)
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        stored.path.write_bytes(changed)
        with contextlib.suppress(StorageError):
            assert str(load(stored.path).graph) == expected


def test_a_zip_bomb(stored):
    stored.members["graph.json"] = b" " * 20_000_000
    stored.write(graph={"compress_type": zipfile.ZIP_DEFLATED})

    message = stored.refusal()
    assert message.startswith("Cannot load 'FILE': its member 'graph.json' unpacks to 20,000,000 bytes from ")
    assert message.endswith("more than 250 times its size: it looks like a zip bomb. [FXP-S004]")


def test_compressed_weights(stored):
    stored.write(weights={"compress_type": zipfile.ZIP_DEFLATED})

    assert stored.refusal() == (
        "Cannot load 'FILE': its member 'weights.safetensors' is compressed, which fxplug never does with "
        "weights. [FXP-S002]"
    )


def test_a_member_that_is_packed_in_another_way(stored):
    stored.write(graph={"compress_type": zipfile.ZIP_BZIP2})

    assert stored.refusal() == (
        "Cannot load 'FILE': its member 'graph.json' is encrypted, or packed in a way that fxplug does not "
        "use. [FXP-S002]"
    )


def test_a_member_that_is_larger_than_allowed(stored):
    content = bytearray(stored.path.read_bytes())
    start = content.rindex(b"PK\x01\x02", 0, content.rindex(b"modules.json"))
    for offset in (20, 24):  # Compressed and unpacked size in the central directory.
        content[start + offset : start + offset + 4] = (3_000_000_000).to_bytes(4, "little")
    stored.path.write_bytes(content)

    assert stored.refusal() == (
        "Cannot load 'FILE': its member 'modules.json' has 3,000,000,000 bytes, more than the 134,217,728 "
        "that are allowed. [FXP-S004]"
    )


@pytest.mark.parametrize(
    ("writer", "advice"),
    [
        ("9.9.0", "Install the one that wrote it, or a newer one: pip install 'fxplug>=9.9.0'."),
        ("unknown", "Install a newer one: pip install --upgrade fxplug."),
        ("1'; rm -rf /", "Install a newer one: pip install --upgrade fxplug."),
        (None, "Install a newer one: pip install --upgrade fxplug."),
    ],
)
def test_a_newer_version_says_what_to_install(stored, writer, advice):
    def change(manifest) -> None:
        manifest.update(format_version=FORMAT_VERSION + 1, fxplug_version=writer)

    stored.edit("manifest.json", change)
    stored.write(extra=((zipfile.ZipInfo("new-member"), b""),))

    assert stored.refusal() == (
        f"Cannot load 'FILE': it has format version {FORMAT_VERSION + 1}, and this fxplug reads versions up to "
        f"{FORMAT_VERSION}. {advice} [FXP-S005]"
    )


@pytest.mark.parametrize("version", [0, "1", None, True, 1.5])
def test_a_version_that_is_none(stored, version):
    stored.edit("manifest.json", lambda manifest: manifest.update(format_version=version))

    assert stored.refusal() == damaged(f"its format version is {version!r}.")


def test_another_zip_archive(stored):
    with zipfile.ZipFile(stored.path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")

    assert stored.refusal() == (
        "Cannot load 'FILE': it is a zip archive with 0 manifest.json, so it is not an fxplug file. "
        "[FXP-S002]"
    )


def test_a_file_that_torch_saved(stored):
    torch.save(torch.nn.Linear(2, 2), stored.path)

    assert "so it is not an fxplug file" in stored.refusal()


def test_a_missing_file(stored):
    stored.path.unlink()

    assert stored.refusal() == "Cannot load 'FILE': there is no such file. Check the path. [FXP-S001]"


def test_a_folder(stored, tmp_path):
    with pytest.raises(StorageError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"Cannot load {str(tmp_path)!r}: Is a directory. Check the path. [FXP-S001]"
