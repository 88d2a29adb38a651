"""Whole models: every call has a converter, the network computes what eager computes, and the engine is built."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import BackendError, ConfigError, LoweringError
from fxplug.lower import lower, plan_lowering
from fxplug_tensorrt import (
    ConverterRecord,
    NotConvertibleError,
    TensorRTBackend,
    TensorRTOptions,
    load_module,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
TORCHVISION = (
    *("alexnet", "efficientnet_b0", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small"),
    *("regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t"),
)
M = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.skip = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet50():
    blocks, inputs = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.norm_2(self.two(F.relu(self.norm_1(self.one(x))))) + self.skip(x))


class Actor(nn.Module):
    """The kind of network that learns to paint: a residual one whose answer is squeezed into numbers below one."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(9, 32, 3, 2, 1)
        self.blocks = nn.Sequential(*(Residual(32 * 2**n, 64 * 2**n, 2) for n in range(3)))
        self.head = nn.Linear(256, 65)

    def forward(self, x):
        x = F.avg_pool2d(self.blocks(F.relu(self.stem(x))), 4)
        return torch.sigmoid(self.head(x.view(x.size(0), -1)))


class DecoderStep(nn.Module):
    """One step of a language model: keys and values of earlier words come in, and go out with one more."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 50)

    def forward(self, word, keys, values):
        x = self.words(word)
        parts = self.qkv(self.norm(x)).view(x.size(0), 1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, parts[1]], 2), torch.cat([values, parts[2]], 2)
        found = F.scaled_dot_product_attention(parts[0], keys, values)
        x = x + self.out(found.transpose(1, 2).reshape(x.size(0), 1, 32))
        return self.head(x).argmax(-1), keys, values


def encoder():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False
    )


MODELS = {
    "ResNet-50": (resnet50, lambda: (torch.randn(1, 3, 64, 64),)),
    "actor": (Actor, lambda: (torch.randn(2, 9, 64, 64),)),
    "encoder": (encoder, lambda: (torch.randn(2, 7, 32),)),
    "decoder step": (
        DecoderStep,
        lambda: (torch.tensor([[3], [9]]), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)),
    ),
}


def with_statistics(model):
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.2, 0.2)
            part.running_var.uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_built_as_a_whole(name):
    from fxplug_tensorrt.testing import check_program

    torch.manual_seed(0)
    build, inputs = MODELS[name]

    checked = check_program(with_statistics(build()), inputs())

    assert checked.plan


@pytest.fixture(scope="module")
def torchvision_models():
    try:
        import torchvision
    except RuntimeError:
        # Its compiled operators are for another build of torch, and it asks for them while it is imported.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision
    return torchvision.models


@pytest.mark.skipif(not HAS_TORCHVISION, reason="torchvision is not installed")
@pytest.mark.parametrize("name", TORCHVISION)
def test_a_model_of_torchvision_is_built_as_a_whole(name, torchvision_models):
    from fxplug_tensorrt.testing import check_program

    torch.manual_seed(0)
    model = with_statistics(getattr(torchvision_models, name)(weights=None))

    assert check_program(model, (torch.randn(1, 3, 64, 64),)).plan


# -- through the front door -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["actor", "encoder", "decoder step"])
def test_lowering_leaves_nothing_behind(name):
    build, inputs = MODELS[name]
    examples = inputs()
    module = fxplug.trace(with_statistics(build()), examples, check=False)

    lowered = lower(
        module, TensorRTBackend(targets=("SM86", "SM120")), examples, name="tensorrt", strict=True
    )

    assert lowered.fallback == ""
    assert lowered.report.coverage == 1.0


def no_gpu():
    from fxplug_tensorrt._trt import why_engines_do_not_run

    return bool(why_engines_do_not_run())


def test_without_a_gpu_the_module_stays_in_pytorch_and_the_report_says_what_to_do():
    if not no_gpu():
        pytest.skip("TensorRT runs engines here")
    module = fxplug.symbolic_trace(nn.Linear(6, 3).eval())

    lowered = lower(module, TensorRTBackend(), (M,), name="tensorrt")

    assert lowered.module is module
    assert "TensorRT finds none that it runs on (" in lowered.fallback
    assert 'Name the GPUs that the engine is for with targets, such as ("SM86",)' in lowered.fallback


def built(options=None, model=None, inputs=(M,)):
    backend = TensorRTBackend(targets=("SM86",), **(options or {}))
    module = fxplug.symbolic_trace(model or nn.Linear(6, 3).eval())
    return lower(module, backend, inputs, name="tensorrt", strict=True).module


def engine_of(module):
    from fxplug.lower import lowered_partitions

    (partition,) = lowered_partitions(module).values()
    return partition.engine


def test_a_named_tuple_comes_back_as_one_also_from_a_file(tmp_path):
    from fxplug.lower import fill_results

    class Largest(nn.Module):
        def forward(self, x):
            return torch.max(x, 1)

    engine = engine_of(built(model=Largest()))
    engine.save(tmp_path / "engine")

    for module in (engine, load_module(tmp_path / "engine")):
        found = fill_results(module.record.results, ["values", "places"])
        assert type(found) is torch.return_types.max
        assert (found.values, found.indices) == ("values", "places")


def test_a_result_that_is_not_computed_leaves_its_call_alone_in_pytorch():
    def program(x):
        return torch.relu(F.max_pool2d(x[None], 2, return_indices=True)[1].float() * 2)

    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", (M,))

    (left,) = report.unsupported
    assert left.target == "max_pool2d_with_indices"
    assert left.reason.endswith("is not computed by TensorRT")
    assert [part.nodes[-1] for part in report.partitions] == ["relu"]


def test_without_a_gpu_an_engine_for_another_machine_says_so_when_it_is_run():
    if not no_gpu():
        pytest.skip("TensorRT runs engines here")

    with pytest.raises(BackendError) as caught:
        built()(M)

    assert caught.value.message.startswith("Cannot run the engine: TensorRT finds no GPU that it runs on (")
    assert caught.value.message.endswith("It was built for SM86; save it, and load it there.")


def test_a_size_outside_of_the_profile_is_named():
    module = built({"batch_sizes": (2, 4, 8)})

    for count in (1, 9):
        with pytest.raises(BackendError) as caught:
            module(torch.randn(count, 6))
        assert caught.value.message == (
            f"Cannot run the engine: the first size of input_0 is {count}, and it was built for 2 to 8. Build it with "
            "other batch_sizes."
        )


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_half_precision_is_inside_and_what_goes_in_and_out_stays(precision):
    from fxplug_tensorrt.testing import check_program

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()
    checked = check_program(
        model, (torch.randn(2, 3, 8, 8),), options=TensorRTOptions(precision), tolerance=5e-2
    )

    inside = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert {value.dtype for value in checked.converted.build.kept.values()} == {inside}
    assert [dtype for _, dtype in checked.converted.outputs] == [torch.float32]
    assert checked.plan


def test_the_memory_for_layers_the_level_and_the_timing_cache_reach_tensorrt(tmp_path):
    cache = tmp_path / "kept" / "timings"
    options = {"workspace_mib": 64, "optimization_level": 2, "timing_cache": str(cache)}

    built(options)
    assert cache.exists()
    built(options)

    with pytest.raises(LoweringError, match=r"Cannot use timing_cache=.*Name a file"):
        built({**options, "timing_cache": str(tmp_path)})


def test_a_gpu_that_is_not_known_is_named():
    from fxplug_tensorrt.engine import build_plan
    from fxplug_tensorrt.testing import check_program

    converted = check_program(nn.ReLU(), (M,), engine=False).converted

    with pytest.raises(ConfigError, match="it is none of the GPUs that this version builds for, SM75, SM80"):
        build_plan(converted, TensorRTOptions(targets=("SM90",)))


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "inputs", "reason"),
    [
        (lambda x: x + 1, (M.double(),), "TensorRT does not compute with float64"),
        (lambda x: x + 1, (torch.zeros(2, dtype=torch.int16),), "TensorRT does not compute with int16"),
        (
            lambda x: x * 2,
            (torch.zeros(0, 3),),
            "TensorRT is given no empty tensors, and one is (0, 3) large",
        ),
        (lambda x: x[x > 0], (M,), "what reaches it is not known without running the program"),
        (lambda x: torch.bernoulli(x.sigmoid()), (M,), "it draws random numbers"),
        (lambda x: torch.linalg.inv(x[:, :4]), (M,), "there is no converter for aten.linalg_inv_ex.default"),
        (lambda x: F.max_pool2d(x[None], 2, return_indices=True), (M,), "is not computed by TensorRT"),
        (lambda x: x.expand(4000, 4, 6).sort(0), (M,), "it orders 4000 elements, and TensorRT at most 3840"),
        (
            lambda x: x.reshape([1] * 9 + [24]),
            (M,),
            "TensorRT has at most 8 dimensions, and one tensor has 10",
        ),
    ],
    ids=["float64", "int16", "empty", "mask", "random", "unknown", "indices", "long", "rank"],
)
def test_what_is_refused_stays_in_pytorch_with_its_reason(program, inputs, reason):
    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", inputs)

    assert any(reason in node.reason for node in report.unsupported), [node.reason for node in report.nodes]


def wrong_dtypes(build, x):
    return build.value(
        build.add("elementwise", x.output, build.constant(1).output, build.trt.ElementWiseOperation.SUM),
        x.dtype,
    )


def wrong_kernel(build, x):
    weights = build.weights(torch.ones(5), "kernel")
    return build.value(
        build.add("convolution_nd", x.reshape([1, 4, 6, 1]).output, 2, (1, 1), weights), x.dtype
    )


def wrong_factors(build, x):
    return build.matmul(x, x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (wrong_dtypes, "TensorRT refuses a layer"),
        (wrong_kernel, "TensorRT refuses a layer"),
        (wrong_factors, "TensorRT refuses a layer"),
        (lambda build, x: build.add("teleport", x.output), "this TensorRT has no layer 'teleport'"),
        (
            lambda build, x: x.reduce("SUM", [0]),
            r"returns DataType.FLOAT of \(6,\), and PyTorch torch.float32 of",
        ),
        (lambda build, x: x.to(torch.int32), "returns DataType.INT32"),
        (lambda build, x: x.output, "returns a ITensor"),
        (
            lambda build, x: 1 / 0,
            "the converter of aten.relu.default fails .*ZeroDivisionError: division by zero",
        ),
    ],
    ids=["dtypes", "kernel", "factors", "layer", "sizes", "dtype", "kind", "raises"],
)
def test_a_wrong_converter_is_found_out_and_its_call_stays_in_pytorch(function, reason):
    backend = TensorRTBackend(converters=[ConverterRecord(torch.ops.aten.relu.default, function)])

    lowered = lower(fxplug.symbolic_trace(lambda x: x.relu()), backend, (M,), name="tensorrt")

    assert torch.equal(lowered.module(M), M.relu())
    from fxplug_tensorrt.testing import check_call

    with pytest.raises(NotConvertibleError, match=reason):
        check_call(torch.ops.aten.relu.default, M, converters=backend.converters)


def test_a_network_that_computes_something_else_is_found_out():
    from fxplug_tensorrt.testing import check_call

    backend = TensorRTBackend(
        converters=[ConverterRecord(torch.ops.aten.relu.default, lambda build, x: x * 2)]
    )

    with pytest.raises(AssertionError, match="not close"):
        check_call(torch.ops.aten.relu.default, M, converters=backend.converters)


def test_what_is_written_in_place_outside_is_not_lowered():
    def program(x):
        x.mul_(2)
        return x + 1

    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", (M,))

    (left,) = report.unsupported
    assert (
        left.reason == "it changes x in place, which others may read; use the form that returns a new tensor"
    )


# -- engines as files -------------------------------------------------------------------------------------------


class Several(nn.Module):
    def forward(self, x):
        return {"a": (x + 1, 3), "b": [x.sum()]}


def test_an_engine_is_saved_and_loaded(tmp_path):
    engine = engine_of(built(model=Several()))
    engine.save(tmp_path / "engine")

    again = load_module(tmp_path / "engine")

    assert again.record == engine.record
    assert again.record.device == "SM86"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"PK" + data, "it is no file that fxplug-tensorrt wrote"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "the file is damaged, its checksum is another"),
        (lambda data: data[: len(data) // 2], "the file is damaged, its checksum is another"),
    ],
    ids=["foreign", "changed", "cut"],
)
def test_a_file_that_is_no_engine_is_refused(tmp_path, change, message):
    path = tmp_path / "engine"
    engine_of(built()).save(path)
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(BackendError, match=message):
        load_module(path)


def test_an_engine_of_another_version_is_refused(tmp_path):
    from dataclasses import replace

    engine = engine_of(built())
    engine.record = replace(engine.record, made_by="TensorRT for RTX 9.9")
    engine.save(tmp_path / "engine")

    with pytest.raises(BackendError, match=r"it was built by TensorRT for RTX 9\.9, and TensorRT for RTX 1"):
        load_module(tmp_path / "engine")


def test_an_engine_for_another_gpu_is_refused(tmp_path, monkeypatch):
    from fxplug_tensorrt import saving

    engine_of(built()).save(tmp_path / "engine")
    monkeypatch.setattr(saving, "device_name", lambda: "SM120")

    with pytest.raises(BackendError, match="it was built for SM86, and this machine has SM120"):
        load_module(tmp_path / "engine")
