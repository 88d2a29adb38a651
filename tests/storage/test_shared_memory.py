"""Memory that torch knows more than once, or that somebody else writes to."""

from __future__ import annotations

import array
import mmap
import subprocess
import sys

import pytest
import torch

from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import load, save


def holding(**tensors):
    """Return a module that returns its tensors."""
    graph = Graph()
    graph.output([graph.get_attr(name) for name in tensors])
    return GraphModule(tensors, graph)


@pytest.fixture
def buffer():
    return bytearray(array.array("f", range(40)).tobytes())


def view(buffer, first, count, dtype=torch.float32):
    """Return a tensor over some memory, with a storage of its own."""
    return torch.frombuffer(buffer, dtype=dtype, offset=first, count=count)


def restored(tmp_path, *tensors):
    module = holding(**{f"tensor_{number}": tensor for number, tensor in enumerate(tensors)})
    save(module, tmp_path / "module.fxplug")
    result = load(tmp_path / "module.fxplug")()
    for before, after in zip(tensors, result, strict=True):
        assert torch.equal(before, after)
        assert (before.dtype, before.stride()) == (after.dtype, after.stride())
    return result


def test_tensors_of_several_storages_keep_the_memory_that_they_have_in_common(buffer, tmp_path):
    later, first, middle, _ = restored(
        tmp_path, view(buffer, 12, 10), view(buffer, 0, 5), view(buffer, 16, 3), view(buffer, 100, 4)
    )

    first[4] = 99
    assert later[1] == middle[0] == 99


def test_tensors_of_several_storages_and_dtypes_keep_the_memory_that_they_have_in_common(buffer, tmp_path):
    numbers, doubles = restored(tmp_path, view(buffer, 12, 10), view(buffer, 0, 5, torch.float64))

    doubles.zero_()
    assert numbers.tolist() == [0, 0, 0, 0, 0, 0, 0, 10, 11, 12]


def test_columns_that_are_given_one_by_one(buffer, tmp_path):
    even, odd = restored(tmp_path, view(buffer, 0, 40)[::2], view(buffer, 4, 39)[::2])

    odd.zero_()
    assert even.tolist() == list(range(0, 40, 2))


def test_large_tensors_of_several_storages(tmp_path):
    memory = bytearray(3 << 20)
    first, second = restored(tmp_path, view(memory, 0, 1 << 19), view(memory, 1 << 20, 1 << 18))

    first[-1] = 5
    assert second.count_nonzero() == 1


def test_a_tensor_that_begins_inside_of_an_element_of_another_one(buffer, tmp_path):
    module = holding(halves=view(buffer, 0, 10, torch.float16), odd=view(buffer, 2, 4))

    with pytest.raises(StorageError) as caught:
        save(module, tmp_path / "module.fxplug")

    assert (
        "'odd': the tensor cannot be stored: it has memory in common with others of other storages, and does not begin "
        "at a multiple of its elements in it. Call clone()."
    ) in str(caught.value)


def test_a_part_of_a_tensor_that_has_no_elements(tmp_path):
    restored(tmp_path, torch.ones(4, 0)[3:], torch.empty(0).as_strided((0,), (1,), 5))


WRITER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    print("ready", flush=True)
    number = 0
    while True:
        number = (number + 1) % 256
        memory[:] = bytes([number]) * len(memory)
"""


def test_a_file_that_is_saved_while_another_process_writes_to_its_weights_is_no_damaged_one(tmp_path):
    size = 8 << 20
    (tmp_path / "weights").write_bytes(bytes(size))
    with (tmp_path / "weights").open("r+b") as file:
        memory = mmap.mmap(file.fileno(), size)
    module = holding(weight=torch.frombuffer(memory, dtype=torch.uint8))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "weights")], stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout.readline() == b"ready\n"
            for _ in range(20):
                save(module, tmp_path / "module.fxplug")
                assert load(tmp_path / "module.fxplug")()[0].shape == (size,)
        finally:
            writer.kill()
