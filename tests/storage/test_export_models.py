"""Every example model, exported: run by a process that has no fxplug, and looked at by ruff where there is one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

import fxplug
from fxplug.execute.fused import FusedLayer
from fxplug.plugins import Config, PluginManager, TraceConfig

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "resnet50": "resnet50",
    "deep_recommender": "deep_recommender",
    "learning_to_paint": "actor",
    "transformer": "transformer",
}
FUSED = {"detector with dicts", "mixture of experts"}
OUTLINE = """
import importlib, sys, torch
from torch.utils import _pytree as pytree
sys.modules["fxplug"] = None
expected = torch.load("expected.pt", weights_only=False)
for name, (inputs, output, keys, gradients) in expected.items():
    module = importlib.import_module(name).load()
    # oneDNN rounds in another order where it adds in the same call.
    torch.backends.mkldnn.enabled = not name.endswith("_fused")
    torch.manual_seed(0)
    result = module(*inputs)
    found, structure = pytree.tree_flatten(result)
    wanted, wanted_structure = pytree.tree_flatten(output)
    assert structure == wanted_structure, name
    for one, other in zip(found, wanted):
        same = torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other
        assert same, name
    assert list(module.state_dict()) == keys, name
    losses = [part.float().square().mean() for part in found if isinstance(part, torch.Tensor) and part.requires_grad]
    if losses:
        sum(losses).backward()
    given = {key: value.grad for key, value in module.named_parameters() if value.grad is not None}
    assert given.keys() == gradients.keys(), name
    for key, gradient in gradients.items():
        torch.testing.assert_close(given[key], gradient, rtol=1e-5, atol=1e-7)
    print(name)
"""


def load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # An exported package imports what it needs from where it is defined.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def captured_models(folder: Path):
    """Yield names, graph modules and inputs."""
    alone = PluginManager(candidates=())
    through = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())
    for file, factory in EXAMPLES.items():
        example = load(CHECKOUT / "examples" / f"{file}.py", f"exported_example_{file}")
        model, inputs = getattr(example, factory)(), example.example_inputs()
        yield file, fxplug.symbolic_trace(model, manager=alone), inputs
        if file == "learning_to_paint":
            folded = fxplug.optimize(
                model.eval(), inputs, passes=["fuse-conv-bn"], measure=False, manager=alone
            ).graph_module
            yield f"{file}_folded", folded, inputs
            yield f"{file}_functions", fxplug.trace(model, inputs, manager=through), inputs
    shutil.copy(CHECKOUT / "benchmarks" / "own_models.py", folder / "exported_own_models.py")
    for entry in load(folder / "exported_own_models.py", "exported_own_models").OWN_MODELS:
        name = "".join(letter if letter.isalnum() else "_" for letter in entry.name.lower())
        model, inputs = entry.build().eval(), entry.inputs(2)
        yield name, fxplug.trace(model, inputs, manager=alone), inputs
        yield f"{name}_functions", fxplug.trace(model, inputs, manager=through), inputs
        if entry.name in FUSED:
            fused = fxplug.optimize(model, inputs, pipeline="inference", measure=False, manager=alone)
            assert any(isinstance(part, FusedLayer) for part in fused.graph_module.modules())
            yield f"{name}_fused", fused.graph_module, inputs


@pytest.fixture(scope="module", name="exported")
def _exported(tmp_path_factory):
    """A folder with a package for each model, and with what each is to compute."""
    folder = tmp_path_factory.mktemp("exported")
    expected = {}
    torch.manual_seed(0)
    for name, module, inputs in captured_models(folder):
        fxplug.export_python(module, folder / name)
        torch.manual_seed(0)
        module.zero_grad()
        torch.backends.mkldnn.enabled = not name.endswith("_fused")
        try:
            output = module(*inputs)
        finally:
            torch.backends.mkldnn.enabled = True
        keys = list(module.state_dict())
        parts = [
            part
            for part in pytree.tree_leaves(output)
            if isinstance(part, torch.Tensor) and part.requires_grad
        ]
        if parts:
            sum(part.float().square().mean() for part in parts).backward()
        gradients = {key: value.grad for key, value in module.named_parameters() if value.grad is not None}
        expected[name] = (inputs, output, keys, gradients)
    torch.save(expected, folder / "expected.pt")
    yield folder, list(expected)
    for name in [name for name in sys.modules if name.startswith("exported_")]:
        del sys.modules[name]


def test_a_process_without_fxplug_computes_the_same_and_learns_the_same(exported):
    folder, names = exported
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{OUTLINE}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == names


TEXTS = [
    (1, "x" * 200),
    ["a b " * 60, "c"],
    ("word " * 40,),
    {"k": "v " * 80},
    [("x " * 80, "y" * 90)],
    ("é" * 50 + " " + "ü" * 70, " " * 200),
]


def ruff_finds_nothing(arguments, place, *paths):
    """Run ruff on what was exported, as somebody without a configuration does; skip where it is not installed."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed; the environment 'template' has it")
    result = subprocess.run(
        [ruff, *arguments, "--isolated", "--no-cache", *map(str, paths)],
        cwd=place,  # What lies in the working directory counts as part of the project.
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_long_texts_are_written_as_ruff_wants_them(text, tmp_path):
    graph = fxplug.Graph()
    graph.output((graph.placeholder("x"), text))
    fxplug.export_python(fxplug.GraphModule({}, graph), tmp_path / "exported_text")
    written = (tmp_path / "exported_text" / "model.py").read_text(encoding="utf-8")

    assert '""' not in written.replace('"""', "")
    for arguments in [("format", "--check"), ("check",)]:
        ruff_finds_nothing(arguments, tmp_path, tmp_path / "exported_text")


@pytest.mark.parametrize(
    "arguments", [("format", "--check"), ("check",), ("check", "--select", "E,F,RUF")], ids=" ".join
)
def test_ruff_finds_nothing_where_a_parameter_has_a_name_that_looks_like_a_number(arguments, tmp_path):
    graph = fxplug.Graph()
    graph.output(graph.placeholder("l"))
    fxplug.export_python(fxplug.GraphModule({}, graph), tmp_path / "exported_name")

    ruff_finds_nothing(arguments, tmp_path, tmp_path / "exported_name")


@pytest.mark.parametrize(
    "arguments", [("format", "--check"), ("check",), ("check", "--select", "E,F,I,UP")], ids=" ".join
)
def test_ruff_finds_nothing(exported, arguments, tmp_path):
    folder, names = exported

    for place in (tmp_path, folder):
        ruff_finds_nothing(arguments, place, *(folder / name for name in names))


@pytest.mark.parametrize("number", [1, 2])
def test_ruff_finds_nothing_wherever_the_modules_lie_that_a_package_imports(number, tmp_path):
    graph = fxplug.Graph()
    value = graph.call_function(torch.relu, (graph.placeholder("x"),))
    for index, folder in enumerate((tmp_path / "project", tmp_path / "elsewhere")[:number]):
        folder.mkdir()
        name = f"exported_helper_{index}"
        (folder / f"{name}.py").write_text("def halved(x):\n    return x / 2\n", encoding="utf-8")
        value = graph.call_function(load(folder / f"{name}.py", name).halved, (value,))
    graph.output(value)
    package = tmp_path / "package"
    fxplug.export_python(fxplug.GraphModule({}, graph), package)

    assert (package / "model.py").read_text(encoding="utf-8").count("import exported_helper") == number
    for place in (tmp_path, tmp_path / "project"):
        ruff_finds_nothing(("check", "--select", "E,F,I,UP"), place, package)
        ruff_finds_nothing(("format", "--check"), place, package)
