"""The example models: what they compute, that they never vary, and that their outputs mean something."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """One example file, loaded by its path, and what its model promises."""

    file: str
    factory: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    batch_norms: int


EXAMPLE_MODELS = [
    Example("resnet50.py", "resnet50", (1, 3, 224, 224), (1, 1000), batch_norms=53),
    Example("deep_recommender.py", "deep_recommender", (2, 17768), (2, 17768), batch_norms=0),
    Example("learning_to_paint.py", "actor", (1, 9, 128, 128), (1, 65), batch_norms=21),
    Example("transformer.py", "transformer", (2, 16), (2, 16, 1000), batch_norms=0),
]
every_model = pytest.mark.parametrize("example", EXAMPLE_MODELS, ids=lambda example: example.factory)
float_models = pytest.mark.parametrize(
    "example",
    [example for example in EXAMPLE_MODELS if example.factory != "transformer"],
    ids=lambda e: e.factory,
)
batch_norm_models = pytest.mark.parametrize(
    "example",
    [example for example in EXAMPLE_MODELS if example.batch_norms],
    ids=lambda example: example.factory,
)


def load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_under_test_{Path(file).stem}", EXAMPLES / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(example: Example) -> nn.Module:
    return getattr(load(example.file), example.factory)()


def normal_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def largest_cosine(outputs: list[Tensor]) -> float:
    pairs = combinations([output.flatten() for output in outputs], 2)
    return max(F.cosine_similarity(one, other, dim=0).item() for one, other in pairs)


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    """Every model once; a test that changes one builds its own."""
    return {example.factory: build(example) for example in EXAMPLE_MODELS}


@every_model
def test_a_file_imports_only_torch_and_the_standard_library(example: Example) -> None:
    tree = ast.parse((EXAMPLES / example.file).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in imported}
    assert roots - set(sys.stdlib_module_names) == {"torch"}


@every_model
def test_the_factory_returns_a_model_ready_for_inference(
    example: Example, models: dict[str, nn.Module]
) -> None:
    model = models[example.factory]
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@every_model
def test_the_output_has_the_promised_shape_and_values(example: Example, models: dict[str, nn.Module]) -> None:
    inputs = load(example.file).example_inputs()
    with torch.no_grad():
        output = models[example.factory](*inputs)
    assert tuple(inputs[0].shape) == example.input_shape
    assert inputs[0].dtype == (torch.int64 if example.factory == "transformer" else torch.float32)
    assert tuple(output.shape) == example.output_shape
    assert output.dtype == torch.float32
    assert output.isfinite().all()


@every_model
def test_two_calls_of_the_factory_give_the_same_weights(
    example: Example, models: dict[str, nn.Module]
) -> None:
    first = models[example.factory].state_dict()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(987654321)
        second = build(example).state_dict()
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@every_model
def test_the_global_random_state_is_left_as_it_was(example: Example) -> None:
    module = load(example.file)
    before = torch.get_rng_state()
    getattr(module, example.factory)()
    module.example_inputs()
    assert torch.equal(torch.get_rng_state(), before)


@every_model
def test_example_inputs_are_the_same_at_every_call_and_differ_by_seed(example: Example) -> None:
    example_inputs = load(example.file).example_inputs
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(987654321)
        again = example_inputs()
    assert torch.equal(example_inputs()[0], again[0])
    assert not torch.equal(example_inputs()[0], example_inputs(seed=1)[0])


@every_model
def test_different_inputs_give_clearly_different_outputs(
    example: Example, models: dict[str, nn.Module]
) -> None:
    example_inputs = load(example.file).example_inputs
    with torch.no_grad():
        outputs = [models[example.factory](*example_inputs(seed)) for seed in range(3)]
    assert largest_cosine(outputs) < 0.9


@float_models
def test_different_noise_gives_clearly_different_outputs(
    example: Example, models: dict[str, nn.Module]
) -> None:
    model = models[example.factory]
    with torch.no_grad():
        normal = [model(normal_noise(seed, example.input_shape)) for seed in range(3)]
        # The normal distribution's own function turns normal noise into uniform noise.
        uniform = [model(torch.special.ndtr(normal_noise(seed, example.input_shape))) for seed in range(3)]
    assert largest_cosine(normal) < 0.9
    assert largest_cosine(uniform) < 0.9


@every_model
def test_a_symbolic_trace_computes_what_the_model_computes(
    example: Example, models: dict[str, nn.Module]
) -> None:
    inputs = load(example.file).example_inputs()
    traced = torch.fx.symbolic_trace(models[example.factory])
    with torch.no_grad():
        torch.testing.assert_close(traced(*inputs), models[example.factory](*inputs))


@every_model
def test_the_number_of_batch_norms_is_the_published_one(
    example: Example, models: dict[str, nn.Module]
) -> None:
    norms = [module for module in models[example.factory].modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == example.batch_norms


@batch_norm_models
def test_batch_norms_hold_measured_statistics(example: Example, models: dict[str, nn.Module]) -> None:
    for name, module in models[example.factory].named_modules():
        if not isinstance(module, nn.BatchNorm2d):
            continue
        assert module.running_mean is not None
        assert module.running_var is not None
        assert module.momentum == 0.1, name
        assert module.running_mean.abs().mean() > 0.01, name
        assert (module.running_var - 1).abs().mean() > 0.1, name
        assert module.running_var.min() > 1e-3, name
        assert module.weight.std() > 0.01, name
        assert module.bias.std() > 0.01, name


@batch_norm_models
def test_batch_norm_statistics_fit_the_data(example: Example, models: dict[str, nn.Module]) -> None:
    model = models[example.factory]
    deviations: dict[str, float] = {}

    def watch(name: str, norm: nn.BatchNorm2d) -> None:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            normalised = (output - norm.bias[:, None, None]) / norm.weight[:, None, None]
            deviations[name] = normalised.std().item()

        handles.append(norm.register_forward_hook(hook))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            watch(name, module)
    with torch.no_grad():
        model(normal_noise(0, example.input_shape))
    for handle in handles:
        handle.remove()
    assert len(deviations) == example.batch_norms
    assert {name: value for name, value in deviations.items() if not 0.3 < value < 3.0} == {}


def test_resnet50_traces_to_177_nodes(models: dict[str, nn.Module]) -> None:
    assert len(torch.fx.symbolic_trace(models["resnet50"]).graph.nodes) == 177


def test_resnet50_has_the_published_size_and_attribute_names(models: dict[str, nn.Module]) -> None:
    model = models["resnet50"]
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert [name for name, _ in model.named_children()] == [
        *("conv1", "bn1", "relu", "maxpool"),
        *("layer1", "layer2", "layer3", "layer4"),
        *("avgpool", "fc"),
    ]
    block = model.get_submodule("layer2.0")
    assert {name for name, _ in block.named_children()} == {
        *("conv1", "bn1", "conv2", "bn2", "conv3", "bn3"),
        *("relu", "downsample"),
    }
    strides = [model.get_submodule(f"layer2.0.{name}").stride for name in ("conv1", "conv2", "conv3")]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_the_painter_answers_between_zero_and_one_and_not_only_at_the_ends(
    models: dict[str, nn.Module],
) -> None:
    with torch.no_grad():
        strokes = models["actor"](*load("learning_to_paint.py").example_inputs())
    assert strokes.min() >= 0
    assert strokes.max() <= 1
    assert ((strokes > 0.02) & (strokes < 0.98)).float().mean() > 0.8


def test_the_recommender_mirrors_its_encoder_and_drops_four_fifths_of_the_code(
    models: dict[str, nn.Module],
) -> None:
    model = models["deep_recommender"]
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    widths = [(layer.in_features, layer.out_features) for layer in layers]
    assert widths == [
        *((17768, 512), (512, 512), (512, 1024)),
        *((1024, 512), (512, 512), (512, 17768)),
    ]
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [0.8]


def test_the_recommender_activates_its_last_layer() -> None:
    model = load("deep_recommender.py").deep_recommender(items=200)
    last = model.decoder[-1]
    before_activation: list[Tensor] = []
    last.register_forward_hook(lambda _module, _inputs, output: before_activation.append(output))
    with torch.no_grad():
        output = model(*load("deep_recommender.py").example_inputs(items=200))
    torch.testing.assert_close(output, F.selu(before_activation[0]), rtol=0, atol=0)


@pytest.mark.parametrize("constrained", [False, True])
def test_dropout_of_the_recommender_acts_in_train_mode_only(constrained: bool) -> None:
    module = load("deep_recommender.py")
    model = module.deep_recommender(items=200, constrained=constrained)
    (ratings,) = module.example_inputs(items=200)
    codes: list[Tensor] = []
    model.dropout.register_forward_hook(lambda _module, _inputs, output: codes.append(output))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        assert torch.equal(model(ratings), model(ratings))
        model.train()
        assert not torch.equal(model(ratings), model(ratings))
    dropped_shares = [(code == 0).float().mean().item() for code in codes]
    assert dropped_shares[:2] == [0, 0]
    assert dropped_shares[2:] == pytest.approx([0.8, 0.8], abs=0.05)


def test_the_constrained_recommender_decodes_with_the_weights_of_its_encoder() -> None:
    model = load("deep_recommender.py").deep_recommender(items=200, constrained=True)
    encoder_weights = [layer.weight for layer in model.encoder]
    decoder_weights = [layer.weight for layer in model.decoder]
    assert all(one is other for one, other in zip(encoder_weights, reversed(decoder_weights), strict=True))
    assert len({id(layer.bias) for layer in (*model.encoder, *model.decoder)}) == 6
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    assert len(matrices) == 3


def test_sizes_of_the_transformer_stay_symbolic_in_a_trace(models: dict[str, nn.Module]) -> None:
    traced = torch.fx.symbolic_trace(models["transformer"])
    tokens = torch.arange(3 * 64).view(3, 64)
    with torch.no_grad():
        torch.testing.assert_close(traced(tokens), models["transformer"](tokens))


def test_the_transformer_attends_to_all_positions(models: dict[str, nn.Module]) -> None:
    (tokens,) = load("transformer.py").example_inputs()
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 1000
    with torch.no_grad():
        difference = (models["transformer"](tokens) - models["transformer"](changed)).abs().amax(dim=-1)
    assert (difference > 1e-3).all()


def test_every_command_of_the_readme_names_a_callable_that_exists() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    references = set(re.findall(r"examples/(\w+\.py):(\w+)", readme))
    assert {example.factory for example in EXAMPLE_MODELS} <= {name for _, name in references}
    assert [(file, name) for file, name in references if not callable(getattr(load(file), name, None))] == []
