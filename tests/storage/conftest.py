"""What the storage tests share: traced modules, and files that were tampered with."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fxplug.semantics  # noqa: F401 - tells the layers below how torch's functions are called
from fxplug.capture import Tracer
from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.storage import load, save
from fxplug.storage.checksums import new_checksum
from fxplug.storage.graphs import NODE_COLUMNS, NODE_DEFAULTS
from fxplug.storage.tensors import KIND_COLUMNS, TENSOR_COLUMNS
from fxplug.storage.weights import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _trace(root: Any) -> GraphModule:
    tracer = Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph)


@pytest.fixture
def trace() -> Callable[[Any], GraphModule]:
    """Capture a module or function."""
    return _trace


@pytest.fixture
def round_trip(tmp_path: Path) -> Callable[..., GraphModule]:
    """Save a module and load it again."""

    def store(module: GraphModule, *, allow: Any = ()) -> GraphModule:
        path = tmp_path / "module.fxplug"
        save(module, path, allow=allow)
        return load(path, allow=allow)

    return store


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale


class StoredFile:
    """A good file, and what becomes of it when its members are changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with zipfile.ZipFile(path) as archive:
            self.members = {name: archive.read(name) for name in archive.namelist()}

    def edit(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change a JSON member and make the checksums right again, as somebody who means harm would."""
        value = json.loads(self.members[name])
        change(value)
        self.members[name] = json.dumps(value).encode()
        self.write()

    def node(self, name: str, /, **fields: Any) -> None:
        """Change fields of the node called `name`."""

        def change(graphs: Any) -> None:
            nodes = graphs["graphs"][0]["nodes"]
            ((number, row),) = ((number, row) for number, row in enumerate(nodes) if row[1] == name)
            nodes[number] = self.changed(row, **fields)

        self.edit("graph.json", change)

    @staticmethod
    def changed(row: list[Any], **fields: Any) -> list[Any]:
        """Return the row of a node with other parts in some of the columns."""
        parts = dict(zip(NODE_COLUMNS, row + NODE_DEFAULTS[len(row) :], strict=True))
        assert parts.keys() >= fields.keys()
        return [*(parts | fields).values()]

    def tensor(self, weight: str, /, **fields: Any) -> None:
        """Change columns of the tensor that is all of a weight."""

        def change(modules: Any) -> None:
            (row,) = (row for row in modules["tensors"] if row[1] == weight)
            kind = dict(zip(KIND_COLUMNS, modules["tensor_kinds"][row[0]], strict=False))
            own = {"weight": weight, "offset": 0} | {
                name: fields[name] for name in fields if name in TENSOR_COLUMNS
            }
            kind |= {name: value for name, value in fields.items() if name not in TENSOR_COLUMNS}
            modules["tensor_kinds"].append([*kind.values()])
            row[:] = [len(modules["tensor_kinds"]) - 1, *(own.values() if own["weight"] is not None else ())]

        self.edit("modules.json", change)

    def refusal(self, **options: Any) -> str:
        """Return the message with which the file is refused."""
        with pytest.raises(StorageError) as caught:
            load(self.path, **options)
        return str(caught.value).replace(str(self.path), "FILE")

    def write(
        self, *, checksums: bool = True, extra: tuple[tuple[Any, bytes], ...] = (), **options: Any
    ) -> None:
        """Write the members back."""
        if checksums:
            manifest = json.loads(self.members["manifest.json"])
            for name, stated in manifest["members"].items():
                kind = next((key for key in stated if key != "size"), "xxh3_128")
                stated[kind] = new_checksum(kind, self.members[name]).hexdigest()
                stated["size"] = len(self.members[name])
            self.members["manifest.json"] = json.dumps(manifest).encode()
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, content in self.members.items():
                archive.writestr(zipfile.ZipInfo(name), content, **options.get(name.partition(".")[0], {}))
            for info, content in extra:
                archive.writestr(info, content)


@pytest.fixture
def stored(tmp_path: Path) -> StoredFile:
    """Return a good file with the nodes x, linear, relu, scale, mul and output."""
    path = tmp_path / "stored.fxplug"
    save(_trace(_Model()), path)
    return StoredFile(path)


@pytest.fixture
def opened() -> Callable[[Path], StoredFile]:
    """Open any good file for changes."""
    return StoredFile


@pytest.fixture(scope="session")
def golden() -> Any:
    """Return the module that says what the golden files hold."""
    name = "golden_module"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _bits(value: Any) -> Any:
    """Return something that is equal only for what is equal to the bit."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return value.dtype, value.shape, value.stride()
        dense = value.detach().clone(memory_format=torch.contiguous_format)
        raw = torch.empty(0, dtype=torch.uint8).set_(dense.untyped_storage())
        return value.dtype, value.shape, hashlib.sha256(memory_of(raw) if raw.numel() else b"").hexdigest()
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, complex):
        return _bits(value.real), _bits(value.imag)
    if isinstance(value, slice):
        return slice, _bits([value.start, value.stop, value.step])
    if isinstance(value, dict):
        return type(value), [(_bits(key), _bits(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_bits(one) for one in value]
    return type(value), value


@pytest.fixture(scope="session")
def bits() -> Callable[[Any], Any]:
    """Return a function whose results are equal only for values that are equal to the bit."""
    return _bits
