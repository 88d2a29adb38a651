"""Weights that are mapped into memory: fetched when they are needed, copied when they are written to."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import load, save


def holding(tensors) -> GraphModule:
    graph = Graph()
    graph.output([graph.get_attr(name) for name in tensors])
    return GraphModule(tensors, graph)


def every_dtype():
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    found = {}
    for dtype in sorted(dtypes, key=str):
        if "q" in str(dtype).replace("torch.", "")[:2]:
            continue  # Quantized tensors of the old kind, which torch is about to remove.
        raw = torch.arange(3 * 16 * max(dtype.itemsize, 1), dtype=torch.int16).to(torch.uint8)
        found[str(dtype).replace(".", "_")] = torch.empty(0, dtype=dtype).set_(
            raw.untyped_storage(), 0, (3, 5), (5, 1)
        )
    return found


def raw(tensor):
    size = tensor.numel() * tensor.dtype.itemsize
    start = tensor.storage_offset() * tensor.dtype.itemsize
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (size,), (1,)).tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("lazy", [False, True])
def test_every_dtype_comes_back_to_the_bit(tmp_path, lazy):
    tensors = every_dtype()
    assert {"torch_bfloat16", "torch_float8_e5m2", "torch_complex128", "torch_bool", "torch_uint4"} <= set(
        tensors
    )
    save(holding(tensors), tmp_path / "m.fxplug")
    loaded = load(tmp_path / "m.fxplug", lazy=lazy)

    for name, tensor in tensors.items():
        found = getattr(loaded, name)
        assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert raw(found) == raw(tensor)
        assert found.data_ptr() % max(found.dtype.itemsize, 1) == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_views_of_one_storage_share_it_and_others_do_not(tmp_path, lazy):
    base = torch.arange(24.0).view(4, 6)
    tensors = {
        "base": nn.Parameter(base),
        "transposed": base.t(),
        "middle": base[1:3, ::2],
        "bytes": base.view(torch.uint8)[1:, 3:7],
        "expanded": base[0, 0].expand(5),
        "other": torch.ones(24),
        "empty": base[4:],
    }
    save(holding(tensors), tmp_path / "m.fxplug")
    loaded = load(tmp_path / "m.fxplug", lazy=lazy)

    places = {name: getattr(loaded, name).untyped_storage()._cdata for name in tensors}
    shared = {"base", "transposed", "middle", "bytes", "expanded"}
    assert len({places[name] for name in shared}) == 1
    assert places["other"] != places["base"]
    for name, tensor in tensors.items():
        assert torch.equal(getattr(loaded, name), tensor)
        assert getattr(loaded, name).stride() == tensor.stride()
    with torch.no_grad():
        loaded.base[1, 2] = 99
    assert loaded.transposed[2, 1] == 99
    assert loaded.middle[0, 1] == 99


def test_writing_to_a_mapped_tensor_leaves_the_file_alone(tmp_path):
    path = tmp_path / "m.fxplug"
    save(holding({"w": torch.zeros(1000)}), path)
    before = path.read_bytes()
    loaded = load(path, lazy=True)
    loaded.w.fill_(3)

    assert path.read_bytes() == before
    assert load(path, lazy=True).w.eq(0).all()
    assert loaded()[0].eq(3).all()


def test_a_file_can_be_replaced_and_removed_while_it_is_mapped(tmp_path):
    path = tmp_path / "m.fxplug"
    save(holding({"w": torch.zeros(100_000)}), path)
    loaded = load(path, lazy=True)
    save(holding({"w": torch.ones(100_000)}), path)
    path.unlink()

    assert loaded.w.eq(0).all()


def test_mapped_modules_are_trained_copied_and_pickled_as_others(trace, tmp_path):
    path = tmp_path / "m.fxplug"
    save(trace(nn.Sequential(nn.Linear(3, 3))), path)
    loaded = load(path, lazy=True)
    x = torch.ones(2, 3)
    before = loaded(x).detach().clone()
    for copied in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert torch.equal(copied(x), before)
    loaded(x).sum().backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()

    assert not torch.equal(loaded(x), before)
    assert torch.equal(load(path)(x), before)


@pytest.mark.parametrize("count", range(1, 70, 3))
def test_the_bytes_of_weights_are_aligned_whatever_their_header(tmp_path, count):
    path = tmp_path / "m.fxplug"
    save(
        holding({"x" * count: torch.ones(5, dtype=torch.float64), "b": torch.ones(3, dtype=torch.bool)}), path
    )

    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("weights.safetensors")
        header = archive.read("weights.safetensors")
    start = content.index(header)
    length = int.from_bytes(header[:8], "little")
    places = [
        row["data_offsets"][0] for name, row in json.loads(header[8 : 8 + length]).items() if name[0] != "_"
    ]
    assert (info.compress_type, start % 64, (8 + length) % 64, places[0]) == (zipfile.ZIP_STORED, 0, 0, 0)


MEMORY = """
import sys
from pathlib import Path
import torch, fxplug

def resident():
    rows = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    return int(rows["VmRSS"].split()[0]) // 1024, int(rows["VmHWM"].split()[0]) // 1024

fxplug.symbolic_trace(torch.nn.Identity())
before, _ = resident()
module = fxplug.load(sys.argv[1], lazy=True)
after, highest = resident()
print(after - before, highest - before)
assert module()[0][-1] == 1
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_mapping_200_megabytes_takes_next_to_no_memory(tmp_path):
    path = tmp_path / "large.fxplug"
    save(holding({f"w{number}": torch.ones(5 << 20) for number in range(10)}), path)
    assert path.stat().st_size > 200 << 20

    result = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], check=True, capture_output=True, text=True
    )

    grown, highest = map(int, result.stdout.split())
    assert grown < 40
    assert highest < 40
