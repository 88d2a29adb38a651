"""Small files that ask for much: memory, time, or what is not there."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import threading
import time
import types
import typing
from contextlib import contextmanager
from dataclasses import astuple

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import StorageError
from fxplug.storage import StoredEngine, load, save, summarize
from fxplug.storage.faults import Refusal
from fxplug.storage.graphs import NODE_DEFAULTS

_QUICK = 10
"""Seconds that no file of some kilobytes takes, wherever it is loaded."""


def refused_at_once(path, match):
    started = time.monotonic()
    with pytest.raises(StorageError, match=match):
        load(path)
    assert time.monotonic() - started < _QUICK


def freed():
    """Return a row of bytes whose memory is gone."""
    found = torch.zeros(1000, dtype=torch.uint8)
    found.untyped_storage().resize_(0)
    return found


@pytest.mark.parametrize(
    "kept",
    [
        torch.empty(1000, dtype=torch.uint8, device="meta"),
        torch.zeros(1, dtype=torch.uint8).expand(3_000_000_000),
        torch.zeros(4, dtype=torch.uint8)[::2],
        freed(),
    ],
)
def test_an_engine_is_a_row_of_bytes_that_are_there(kept):
    made = StoredEngine(nn.Identity(), b"abc", {})
    made.artefact = kept
    facts = dict.fromkeys(("backend", "distribution", "partition", "plugin", "sha256", "version"), "")
    made.facts = lambda: facts

    with pytest.raises(Refusal, match="no row of bytes"):
        made.content()


def test_a_recurrent_layer_has_no_more_layers_than_weights(stored):
    def change(data):
        data["module_kinds"][0] = {
            "class": "torch.nn.modules.rnn:LSTM",
            "training": True,
            "attributes": {
                "_all_weights": {"$list": [{"$list": [0]}]},
                "num_layers": 10**12,
                "bidirectional": False,
                "bias": False,
                "proj_size": 0,
            },
            "parameters": ["weight_ih_l0", "weight_hh_l0"],
        }

    stored.edit("modules.json", change)
    refused_at_once(stored.path, "does not have 1000000000000 layers")


def test_keys_that_were_chosen_to_have_one_hash_are_refused(stored):
    modulus = 2**61 - 1
    keys = [[{"$int": f"{modulus * (number + 1):x}"}, 0] for number in range(150_000)]

    def change(data):
        data["module_kinds"][0]["attributes"]["in_features"] = {"$dict": keys}

    stored.edit("modules.json", change)
    refused_at_once(stored.path, "the same hash")


def annotate(stored, annotation):
    def change(data):
        row = data["graphs"][0]["nodes"][0]
        row += NODE_DEFAULTS[len(row) : 5]
        row.append(annotation)

    stored.edit("graph.json", change)


INTEGER = {"$name": "builtins:int"}
INTEGERS = {"$generic": ["typing.List", [INTEGER]]}


@pytest.mark.parametrize("text", ["import os", "1 +", "-" * 100_000 + "1", "Missing"])
@pytest.mark.parametrize(
    ("generic", "others"),
    [("typing.List", []), ("typing.Dict", [INTEGER]), ("Optional", []), ("|", [INTEGERS]), ("|", [INTEGER])],
)
def test_a_text_in_an_annotation_is_not_compiled(stored, text, generic, others):
    annotate(stored, {"$generic": [generic, [*others, text]]})

    with compilations() as compiled:
        refused_at_once(stored.path, "an annotation cannot be made: a text would be compiled")
    assert not compiled


def test_compilations_are_heard_of():
    with compilations() as compiled:
        typing.ForwardRef("1 + 1")
    assert compiled == ["compile"]


_listeners: list[list[str]] = []


@functools.lru_cache(maxsize=1)
def _listen():
    # Audit hooks stay for ever.
    sys.addaudithook(
        lambda event, _: _listeners[-1].append(event) if event == "compile" and _listeners else None
    )


@contextmanager
def compilations():
    _listen()
    _listeners.append([])
    try:
        yield _listeners[-1]
    finally:
        _listeners.pop()


def test_a_text_in_an_annotation_is_not_compiled_when_it_is_saved(trace, tmp_path):
    class Holder(typing.Generic[typing.TypeVar("T")]): ...

    module = trace(nn.ReLU())
    node = next(iter(module.graph.nodes))
    node.type = types.GenericAlias(Holder, ("1 +",))
    save(module, tmp_path / "module.fxplug")

    assert next(iter(load(tmp_path / "module.fxplug").graph.nodes)).type is None


def test_a_union_has_few_alternatives(stored):
    def tuples(first, count):
        return [{"$generic": ["tuple", [INTEGER] * number]} for number in range(first, first + count)]

    annotate(stored, {"$generic": ["|", tuples(1, 51)]})
    refused_at_once(stored.path, "a union has more than 50 arguments")

    nested = [{"$generic": ["|", tuples(1 + 30 * number, 30)]} for number in range(2)]
    stored.edit("graph.json", lambda data: data["graphs"][0]["nodes"][0].pop())
    annotate(stored, {"$generic": ["|", nested]})
    refused_at_once(stored.path, "a union has more than 50 arguments")


def test_an_annotation_with_many_alternatives_is_left_out(trace, tmp_path):
    module = trace(nn.ReLU())
    node = next(iter(module.graph.nodes))
    node.type = typing.Union[tuple(tuple[(int,) * number] for number in range(1, 60))]  # noqa: UP007
    save(module, tmp_path / "module.fxplug")

    assert next(iter(load(tmp_path / "module.fxplug").graph.nodes)).type is None
    assert len(summarize(tmp_path / "module.fxplug").left_out) == 1


def test_a_text_in_a_plain_generic_stays_one(trace, round_trip):
    module = trace(nn.ReLU())
    node = next(iter(module.graph.nodes))
    node.type = list["Missing"]  # noqa: F821 - it is never looked up
    loaded = next(iter(round_trip(module).graph.nodes))

    assert typing.get_args(loaded.type) == ("Missing",)


def test_a_summary_holds_nothing_that_a_terminal_obeys(stored):
    def change(data):
        for row in data["graphs"][0]["nodes"]:
            row[1] += "\x1b]0;title\x07\u202e"
            if row[0] == "call_module":
                row[2] += "\x1b[2J"

    def rename(data):
        data["modules"][-1][3]["class_name"] = "\x1b]0;title\x07\nplugins none needed"

    stored.edit("graph.json", change)
    stored.edit("modules.json", rename)
    shown = summarize(stored.path)

    assert repr(shown).isprintable()
    assert all(
        str(part).isprintable() for graph in shown.graphs for node in graph.nodes for part in astuple(node)
    )
    assert [graph.owner.isprintable() for graph in shown.graphs] == [True]


def test_a_summary_of_sizes_with_thousands_of_digits_is_refused(stored):
    def change(data):
        data["tensor_kinds"].append(["parameter", "torch.float32", [10**4000, 10**4000], True])
        data["tensors"].append([len(data["tensor_kinds"]) - 1])

    stored.edit("modules.json", change)
    with pytest.raises(StorageError, match="The size of a tensor is"):
        summarize(stored.path)


SCRIPT = """
import sys
import fxplug
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    module = fxplug.load(sys.argv[1])
    fxplug.save(module, sys.argv[1])
    fxplug.load(sys.argv[1], lazy=True)
print(type(next(module.parameters()).data).__name__)
"""


def test_a_mode_of_fake_tensors_around_it_does_not_matter(stored):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(stored.path)], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "Tensor"


@pytest.mark.parametrize("lazy", [False, True])
def test_the_default_device_does_not_matter(tmp_path, lazy):
    graph = fxplug.Graph()
    graph.output([graph.get_attr("small"), graph.get_attr("large")])
    weights = {"small": torch.ones(3), "large": torch.ones(200, 200)}
    fxplug.save(fxplug.GraphModule(weights, graph), tmp_path / "file.fxplug")

    with torch.device("meta"):
        loaded = fxplug.load(tmp_path / "file.fxplug", lazy=lazy)

    assert torch.equal(loaded.large, weights["large"])
    assert torch.equal(loaded.small, weights["small"])


@pytest.mark.parametrize(
    "kept",
    [
        torch.zeros((2,) * 12).permute(*range(11, -1, -1)),
        torch.zeros(1).as_strided((1, 1, 1, 1), (2**20,) * 4),
    ],
)
def test_whatever_strides_are_saved_can_be_loaded(kept, tmp_path):
    graph = fxplug.Graph()
    graph.output(graph.get_attr("kept"))
    fxplug.save(fxplug.GraphModule({"kept": kept}, graph), tmp_path / "file.fxplug")
    loaded = fxplug.load(tmp_path / "file.fxplug").kept

    assert loaded.stride() == kept.stride()
    assert torch.equal(loaded, kept)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_path_that_is_none_is_an_error_with_a_code(name, tmp_path):
    module = fxplug.symbolic_trace(nn.ReLU())

    with pytest.raises(StorageError, match="no file can have this name"):
        fxplug.save(module, tmp_path / name)
    with pytest.raises(StorageError, match="no file can have this name"):
        load(tmp_path / name)


def held(name, *values):
    root = nn.Sequential(*[nn.ReLU() for _ in values])
    for layer, value in zip(root, values, strict=True):
        setattr(layer, name, value)
    return fxplug.symbolic_trace(root)


@pytest.mark.parametrize(
    "value", [bytearray(b"x"), memoryview(b"x"), [bytearray(b"x")], (b"y", memoryview(b"x"))]
)
def test_what_only_looks_like_bytes_does_not_become_bytes(value, tmp_path):
    module = held(
        "key", type(value)(b"x" for _ in value) if isinstance(value, (list, tuple)) else b"x", value
    )

    with pytest.raises(StorageError, match="cannot be stored"):
        fxplug.save(module, tmp_path / "file.fxplug")


def test_a_training_flag_that_is_none_is_refused(tmp_path):
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    vars(module.get_submodule("1"))["training"] = 1

    with pytest.raises(StorageError, match="its training flag is 1"):
        fxplug.save(module, tmp_path / "file.fxplug")


def test_a_tensor_without_memory_is_refused(tmp_path):
    graph = fxplug.Graph()
    graph.output(graph.get_attr("kept"))
    module = fxplug.GraphModule({"kept": torch._efficientzerotensor(3)}, graph)

    with pytest.raises(StorageError, match="without having memory"):
        fxplug.save(module, tmp_path / "file.fxplug")


def test_parametrized_layers_are_refused(tmp_path):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    graph = fxplug.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))

    with pytest.raises(StorageError, match=r"submodule 'layer'.*parametrizations"):
        fxplug.save(fxplug.GraphModule({"layer": layer}, graph), tmp_path / "file.fxplug")


@pytest.mark.parametrize("size", [100, 600])
def test_weights_that_get_other_memory_while_they_are_saved_are_those_that_were_found(size, tmp_path):
    graph = fxplug.Graph()
    names = [f"weight{number}" for number in range(6)]
    graph.output([graph.get_attr(name) for name in names])
    module = fxplug.GraphModule({name: nn.Parameter(torch.ones(size, size)) for name in names}, graph)

    def replace(done, total):
        for weight in module.parameters():
            weight.data = torch.full((size, size), 7.0)
        gc.collect()

    fxplug.save(module, tmp_path / "file.fxplug", progress=replace)
    loaded = fxplug.load(tmp_path / "file.fxplug")

    for name in names:
        assert torch.equal(getattr(loaded, name), torch.ones(size, size))
        assert getattr(module, name).untyped_storage().nbytes() == size * size * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_collector_runs_in_a_process_that_was_forked_while_another_thread_saved(tmp_path):
    module = fxplug.symbolic_trace(nn.Linear(400, 400))
    inside, forked = threading.Event(), threading.Event()

    def progress(done, total):
        inside.set()
        forked.wait(30)

    saver = threading.Thread(
        target=fxplug.save, args=(module, tmp_path / "file.fxplug"), kwargs={"progress": progress}
    )
    saver.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 7)
    forked.set()
    saver.join()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()
