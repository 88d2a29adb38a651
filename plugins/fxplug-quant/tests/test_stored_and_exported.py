"""Quantized modules of every kind in files, and as Python that needs torch alone."""

from __future__ import annotations

import ast
import json
import struct
import subprocess
import sys
import textwrap
import zipfile
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
import fxplug_quant
from fxplug.errors import StorageError
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import plugin

if TYPE_CHECKING:
    from pathlib import Path


class Steps(nn.Module):
    """Everything that computes on steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.third = nn.Conv2d(8, 8, 1, bias=False)
        self.fourth = nn.Conv2d(24, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        a = functional.max_pool2d(self.second(x), 2)
        b = functional.max_pool2d(torch.relu(self.third(x) + x), 2)
        joined = torch.cat([torch.relu(a), a * b, a + b], 1)
        return self.head(functional.adaptive_avg_pool2d(self.fourth(joined), 1).flatten(1)), functional.gelu(
            a
        )


class Upwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(4, 8, 3)
        self.up = nn.ConvTranspose1d(8, 4, 3, stride=2)
        self.out = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        return self.out(torch.relu(self.up(self.down(x))))


class Guarded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, x):
        return torch.relu(self.layer(x)) if x.shape[0] > 1 else x


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 32)
        self.bags = nn.EmbeddingBag(20, 32, mode="sum")
        self.tied = nn.Linear(32, 32)

    def forward(self, chosen):
        return self.tied(torch.relu(self.tied(self.words(chosen)[:, 0] + self.bags(chosen))))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 32, bias=False), nn.Linear(32, 3))


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        x = x[:, None].expand(-1, 2, -1)
        return self.attention(x, x, x, key_padding_mask=x[..., 0] > 9.0, need_weights=False)[0]


CASES = {
    "static": (Steps, {}, (4, 3, 8, 8), torch.float32),
    "transposed": (Upwards, {}, (2, 4, 12), torch.float32),
    "fbgemm": (perceptron, {"engine": "fbgemm"}, (3, 64), torch.float32),
    **dict.fromkeys(
        {"qnnpack"} & set(torch.backends.quantized.supported_engines),
        (perceptron, {"engine": "qnnpack"}, (3, 64), torch.float32),
    ),
    "dynamic": (perceptron, {"mode": "dynamic-int8"}, (3, 64), torch.float32),
    "weight-int8": (perceptron, {"mode": "weight-int8"}, (3, 64), torch.bfloat16),
    "weight-int4": (perceptron, {"mode": "weight-int4", "group_size": 32}, (3, 64), torch.bfloat16),
    "guarded": (Guarded, {"mode": "dynamic-int8"}, (3, 64), torch.float32),
    "attention": (Attentive, {"mode": "dynamic-int8"}, (3, 64), torch.float32),
    "tables": (Tables, {"mode": "dynamic-int8"}, (6, 3), torch.int64),
}


@pytest.fixture(scope="module")
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


@pytest.fixture(scope="module")
def quantized():
    """Name -> quantized module, inputs and what it computes of them; it was run."""
    found = {}
    for name, (build, config, shape, dtype) in CASES.items():
        torch.manual_seed(0)
        inputs = torch.randint(0, 20, shape) if dtype is torch.int64 else torch.randn(shape).to(dtype)
        model = build().eval()
        prepared = fxplug_quant.prepare(model.to(dtype) if dtype.is_floating_point else model, config, inputs)
        module = fxplug_quant.convert(prepared.calibrate([inputs]) if prepared.observers else prepared)
        module.meta["note"] = {"by": name, "nan": [1, (2.5, None)]}
        with torch.no_grad():
            found[name] = (module, inputs, module(inputs))
    return found


@pytest.fixture(scope="module")
def files(quantized, manager, tmp_path_factory):
    """A folder with a file for each."""
    folder = tmp_path_factory.mktemp("files")
    for name, (module, _, _) in quantized.items():
        fxplug.save(module, folder / f"{name}.fxplug", manager=manager)
    torch.save(
        {name: (inputs, outputs) for name, (_, inputs, outputs) in quantized.items()}, folder / "expected.pt"
    )
    return folder


def described(module: fxplug.GraphModule) -> dict[str, object]:
    """Return everything that a file keeps of a module, but for the weights."""
    return {
        "text": str(module.graph),
        "code": module.code,
        "repr": repr(module),
        "guards": [(guard.text, guard.line, guard.source) for guard in module.guards],
        "origins": [[origin.to_data() for origin in node.origins] for node in module.graph.nodes],
        "regions": [node.region for node in module.graph.nodes],
        "notes": [
            {key: note for key, note in node.meta.items() if key == "note"} for node in module.graph.nodes
        ],
        "note": module.meta["note"],
        "modules": [(name, type(part), part.training) for name, part in module.named_modules()],
        "buffers": [name for name, _ in module.named_buffers()],
        "state": [
            (name, value.dtype, value.shape, value.stride()) for name, value in module.state_dict().items()
        ],
    }


def equal(found: object, expected: object) -> bool:
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return found.dtype is expected.dtype and torch.equal(found, expected)


def run(program: str, folder: Path, *options: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *options, "-c", textwrap.dedent(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_cases_have_every_layer_of_the_plugin(quantized):
    found = {type(part) for module, _, _ in quantized.values() for part in module.modules()}

    assert {record.target for record in plugin.fxplug_register_storage_targets()} <= found


# -- files


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_is_what_was_saved(name, lazy, quantized, files, manager, tmp_path):
    module, inputs, expected = quantized[name]
    loaded = fxplug.load(files / f"{name}.fxplug", lazy=lazy, manager=manager)

    ours, theirs = described(loaded), described(module)
    for part, value in theirs.items():
        assert ours[part] == value, part
    for key, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    with torch.no_grad():
        assert equal(loaded(inputs), expected)
    fxplug.save(loaded, tmp_path / "again.fxplug", manager=manager)
    assert (tmp_path / "again.fxplug").read_bytes() == (files / f"{name}.fxplug").read_bytes()


def test_guards_are_kept(quantized, files, manager):
    module, inputs, _ = quantized["guarded"]
    loaded = fxplug.load(files / "guarded.fxplug", manager=manager)

    assert loaded.guards
    with pytest.raises(fxplug.GuardError):
        module(inputs[:1])
    with pytest.raises(fxplug.GuardError):
        loaded(inputs[:1])


def test_a_layer_that_is_called_twice_is_one_layer(quantized, files, manager):
    loaded = fxplug.load(files / "tables.fxplug", manager=manager)
    for module in (quantized["tables"][0], loaded):
        assert module.get_submodule("tied") is module.get_submodule("tied_int8")


def test_a_fresh_process_loads_them(files):
    program = """
        import torch, fxplug
        from fxplug.plugins import PluginCandidate, PluginManager
        from fxplug_quant import plugin
        manager = PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})
        def equal(found, expected):
            if isinstance(expected, tuple):
                return all(map(equal, found, expected))
            return torch.equal(found, expected)
        torch.set_grad_enabled(False)
        for name, (inputs, expected) in torch.load("expected.pt").items():
            print(name, equal(fxplug.load(f"{name}.fxplug", manager=manager)(inputs), expected))
    """

    assert run(program, files).split("\n")[:-1] == [f"{name} True" for name in CASES]


@pytest.mark.parametrize("name", ["static", "weight-int4"])
def test_a_flipped_byte_is_refused_in_every_member(name, files, manager, tmp_path):
    content = (files / f"{name}.fxplug").read_bytes()
    with zipfile.ZipFile(files / f"{name}.fxplug") as archive:
        entries = archive.infolist()
    assert len(entries) == 4
    for entry in entries:
        # Behind the name there is a field that only puts the content at a round place.
        (more,) = struct.unpack_from("<H", content, entry.header_offset + 28)
        start = entry.header_offset + 30 + len(entry.filename) + more
        # The first and the last byte of a packed member have bits that mean nothing.
        for part in (1, 2, 3):
            damaged = bytearray(content)
            damaged[start + entry.compress_size * part // 4] ^= 1
            (tmp_path / "damaged.fxplug").write_bytes(damaged)
            with pytest.raises(StorageError) as caught:
                fxplug.load(tmp_path / "damaged.fxplug", manager=manager)
            assert caught.value.code.startswith("FXP-S"), entry.filename


def test_without_the_plugin_the_error_says_what_to_install(files):
    with pytest.raises(StorageError) as caught:
        fxplug.load(files / "static.fxplug", manager=PluginManager(candidates=[], environ={}))

    assert "was brought by the plugin 'quant' of " in str(caught.value)
    assert caught.value.code == "FXP-S006"


# -- Python


@pytest.fixture(scope="module")
def packages(quantized, files, manager):
    """The folder of the files, with a package for each, too."""
    for name, (module, _, _) in quantized.items():
        fxplug.export_python(module, files / name.replace("-", "_"), manager=manager)
    return files


def test_exported_layers_compute_the_same_where_only_torch_is(packages):
    program = """
        import importlib, sys
        sys.path.insert(0, "")
        sys.modules["fxplug"] = sys.modules["fxplug_quant"] = None
        import torch
        def equal(found, expected):
            if isinstance(expected, tuple):
                return all(map(equal, found, expected))
            return torch.equal(found, expected)
        torch.set_grad_enabled(False)
        for name, (inputs, expected) in torch.load("expected.pt").items():
            module = importlib.import_module(name.replace("-", "_")).load()
            again = importlib.import_module(name.replace("-", "_")).load()
            for key, value in again.state_dict().items():
                if key.endswith("int_weight"):
                    value.zero_()
            print(name, equal(module(inputs), expected), equal(again(inputs), expected))
    """

    assert run(program, packages).split("\n")[:-1] == [f"{name} True False" for name in CASES]


def test_an_exported_program_reads_well(packages):
    text = (packages / "dynamic" / "model.py").read_text()

    assert "from .quant import DynamicInt8Linear\n" in text
    assert "fxplug" not in text
    report = json.loads((packages / "dynamic" / "report.json").read_text())
    assert (report["imports"], report["files"]) == ([], ["quant"])


def test_the_layers_beside_it_import_torch_alone(packages):
    allowed = {"torch", *sys.stdlib_module_names}
    for path in (packages / "static" / "quant").glob("*.py"):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Import):
                assert {alias.name.partition(".")[0] for alias in part.names} <= allowed, path
            elif isinstance(part, ast.ImportFrom) and not part.level:
                assert part.module.partition(".")[0] in allowed, path


def test_state_keys_stay_and_errors_are_said(packages, quantized):
    program = """
        import sys
        sys.path.insert(0, "")
        sys.modules["fxplug"] = sys.modules["fxplug_quant"] = None
        import torch, dynamic, static
        module = dynamic.load()
        print(list(module.state_dict()))
        try:
            module(torch.ones(1, 64, dtype=torch.float64))
        except RuntimeError as error:
            print(type(error).__name__, str(error)[-10:])
        try:
            module(torch.ones(1, 64, requires_grad=True)).sum().backward()
        except RuntimeError as error:
            print(type(error).__name__, str(error)[-10:])
        try:
            static.load()(torch.full((4, 3, 8, 8), float("nan")))
        except RuntimeError as error:
            print(type(error).__name__, str(error)[-10:])
    """
    keys, *errors = run(program, packages).split("\n")[:-1]

    assert ast.literal_eval(keys) == list(quantized["dynamic"][0].state_dict())
    assert errors == [f"QuantizationError [FXP-Q{number}]"[:28] for number in ("002", "003", "012")]


def test_it_is_replaced_only_on_demand(quantized, manager, tmp_path):
    module = quantized["dynamic"][0]
    fxplug.export_python(module, tmp_path / "out", manager=manager)
    fxplug.export_python(module, tmp_path / "out", manager=manager, overwrite=True)

    assert (tmp_path / "out" / "quant" / "linear.py").exists()
