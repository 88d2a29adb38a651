"""Capture of programs that run on a GPU: devices, random numbers, casts, streams, memory."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import fxplug

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
MODES = ["symbolic", "shape", "value"]
WITH_EXAMPLES = ["shape", "value"]


def capture(root, *args, mode="value", **options):
    if mode == "symbolic":
        return fxplug.symbolic_trace(root)
    return fxplug.trace(root, args, mode=mode, **options)


def captured_or_refused(program, *args, mode):
    """Return what was captured; None where that is refused, with a code."""
    try:
        return capture(program, *args, mode=mode)
    except fxplug.FxplugError as error:
        if not error.code:
            raise
        return None


def on_device(*sizes):
    return torch.linspace(-1, 1, torch.Size(sizes).numel(), device=DEVICE).reshape(sizes)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return self.out(x)


# -- the same results


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [False, True])
def test_a_network_is_equal_to_eager_with_its_gradients(mode, training):
    torch.manual_seed(0)
    eager = Net().to(DEVICE).train(training)
    captured = capture(copy.deepcopy(eager), on_device(2, 3, 8, 8), mode=mode)
    for batch in (2, 5):
        results = []
        for module in (eager, captured):
            torch.manual_seed(7)
            x = on_device(batch, 3, 8, 8).requires_grad_()
            output = module(x)
            output.square().sum().backward()
            results.append([output, x.grad, *(parameter.grad for parameter in module.parameters())])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)
            assert found.device.type == DEVICE


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_what_draws_on_the_device_is_checked_from_the_same_state(mode):
    # Without that the check would say that a dropout is not what it was.
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).to(DEVICE)
    torch.manual_seed(3)
    before = torch.cuda.get_rng_state()
    captured = fxplug.trace(model, (on_device(4, 16),), mode=mode)

    assert torch.equal(torch.cuda.get_rng_state(), before)
    expected = model(on_device(4, 16))
    torch.manual_seed(3)
    assert torch.equal(captured(on_device(4, 16)), expected)


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_a_generator_of_the_device_that_a_module_holds(mode):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.source = torch.Generator(DEVICE).manual_seed(5)

        def forward(self, x):
            return x + torch.rand(x.shape, generator=self.source, device=x.device)

    captured, eager = fxplug.trace(Noisy(), (on_device(3),), mode=mode), Noisy()
    for _ in range(2):
        assert torch.equal(captured(on_device(3)), eager(on_device(3)))


@pytest.mark.parametrize("mode", MODES)
def test_seeding_in_the_program_is_part_of_it(mode):
    def seeded(x):
        torch.manual_seed(4)
        return x + torch.rand(3, device="cuda")

    captured = captured_or_refused(seeded, on_device(3), mode=mode)
    if captured is None:
        assert mode == "symbolic"
    else:
        assert torch.equal(captured(on_device(3)), seeded(on_device(3)))


# -- devices


def factories(x):
    return (
        x
        + torch.ones(3, device=x.device)
        + torch.arange(3, device=x.device)
        + x.new_zeros(3)
        + torch.zeros_like(x)
    )


def moves(x):
    return x.cpu().to(x.device) + x.to("cpu").cuda() + x.to(DEVICE, torch.float64).float()


def asks(x):
    return x + 1 if x.is_cuda and x.device.type == "cuda" and x.get_device() == 0 else x - 1


def compares(x):
    return x * 2 if x.device == torch.device("cuda", 0) else x * 3


def names_its_device(x):
    return x * len(str(x.device))


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
@pytest.mark.parametrize("program", [factories, moves, asks, compares, names_its_device])
def test_programs_that_look_at_devices(program, mode):
    captured = fxplug.trace(program, (on_device(3),), mode=mode)

    assert torch.equal(captured(on_device(3)), program(on_device(3)))


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
@pytest.mark.parametrize("program", [factories, asks, compares, names_its_device])
def test_on_another_device_it_is_equal_or_a_guard_says_no(program, mode):
    captured, other = fxplug.trace(program, (on_device(3),), mode=mode), torch.ones(3)
    try:
        found = captured(other)
    except fxplug.GuardError:
        assert program is not factories
        return
    assert torch.equal(found, program(other))


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_captured_on_the_cpu_and_moved(mode):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.register_buffer("table", torch.arange(3.0))
            self.plain = torch.full((3,), 2.0)

        def forward(self, x):
            places = torch.arange(x.shape[1], device=x.device)
            return x * self.scale + self.table + places + self.plain.to(x.device)

    captured = fxplug.trace(Positions(), (torch.ones(2, 3),), mode=mode).to(DEVICE)

    assert torch.equal(captured(on_device(2, 3)), Positions().to(DEVICE)(on_device(2, 3)))
    assert torch.equal(captured.cpu()(torch.ones(2, 3)), Positions()(torch.ones(2, 3)))


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_examples_on_another_device_than_the_weights_are_refused_as_by_eager(mode):
    model = nn.Linear(3, 3).to(DEVICE)
    with pytest.raises(Exception, match=r"(?i)device"):
        model(torch.ones(1, 3))

    with pytest.raises(Exception, match=r"(?i)device") as refused:
        fxplug.trace(model, (torch.ones(1, 3),), mode=mode)
    text = str(refused.value) + " ".join(getattr(refused.value, "__notes__", ()))
    assert "cpu" in text
    assert "cuda" in text


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_a_tensor_is_read_where_the_program_reads_it(mode):
    def program(x):
        return x * x.sum().item() if bool((x > 0).any()) else x + x.cpu().numpy().sum()

    pytest.importorskip("numpy")
    captured = captured_or_refused(program, on_device(4), mode=mode)
    if captured is None:
        assert mode == "shape"
    else:
        torch.testing.assert_close(captured(on_device(4)), program(on_device(4)))


# -- regions and other things of CUDA


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_kept(mode, dtype):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cuda", dtype=dtype):
                x = self.one(x)
                with torch.autocast("cuda", enabled=False):
                    x = self.other(x.float())
            return x, torch.mm(x, x.t())

    eager = Mixed().to(DEVICE)
    captured = capture(copy.deepcopy(eager), on_device(4, 8), mode=mode)
    for found, expected in zip(captured(on_device(4, 8)), eager(on_device(4, 8)), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    with torch.autocast("cuda", dtype=dtype):
        assert captured(on_device(4, 8))[1].dtype == eager(on_device(4, 8))[1].dtype


@pytest.mark.parametrize("mode", WITH_EXAMPLES)
def test_captured_under_autocast(mode):
    eager = nn.Linear(8, 8).to(DEVICE)
    with torch.autocast("cuda"):
        captured = fxplug.trace(eager, (on_device(4, 8),), mode=mode)
        found, expected = captured(on_device(4, 8)), eager(on_device(4, 8))
    assert found.dtype == expected.dtype == torch.float16
    assert torch.equal(found, expected)


class _Doubling(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize("mode", MODES)
def test_an_autograd_function_that_casts(mode):
    def program(x):
        return _Doubling.apply(x).sin()

    captured = capture(program, on_device(3), mode=mode)
    results = []
    for call in (captured, program):
        x = on_device(3).requires_grad_()
        with torch.autocast("cuda"):
            output = call(x)
        output.sum().backward()
        results.append((output, x.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def on_a_stream(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y + 1


def synchronizes(x):
    y = x * 2
    torch.cuda.synchronize()
    return y + 1


def with_event(x):
    event = torch.cuda.Event()
    y = x * 2
    event.record()
    event.wait()
    return y + 1


def annotated(x):
    with torch.cuda.nvtx.range("double"):
        return x * 2


def asks_the_card(x):
    major, _ = torch.cuda.get_device_capability(x.device)
    return x * 2 if major >= 1 and torch.cuda.is_available() and torch.cuda.current_device() == 0 else x


def with_memory(x):
    return x * 2 + (torch.cuda.memory_allocated() > 0)


def on_a_device(x):
    with torch.cuda.device(0):
        return x * 2 + torch.ones(3, device="cuda")


def with_default_device(x):
    with torch.device("cuda"):
        return x + torch.ones(3)


def chosen_attention(x):
    q = x.reshape(1, 1, 3, 1).expand(1, 1, 3, 8).contiguous()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def deterministic(x):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        return torch.conv1d(x.view(1, 1, 3), torch.ones(1, 1, 2, device=x.device))


def pinned(x):
    return x + torch.ones(3).pin_memory().to(x.device, non_blocking=True)


def recorded(x):
    y = x * 2
    y.record_stream(torch.cuda.current_stream())
    return y


def seeds_the_device(x):
    torch.cuda.manual_seed(3)
    return x + torch.rand_like(x)


def seeds_all(x):
    torch.cuda.manual_seed_all(3)
    return x + torch.rand_like(x)


def keeps_the_state(x):
    state = torch.cuda.get_rng_state()
    y = x + torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return y + torch.rand_like(x)


def forks(x):
    with torch.random.fork_rng(devices=[0]):
        y = torch.rand_like(x)
    return x + y + torch.rand_like(x)


PARTICULAR = [
    *(on_a_stream, synchronizes, with_event, annotated, asks_the_card, with_memory, on_a_device),
    *(with_default_device, chosen_attention, deterministic, pinned, recorded, seeds_the_device, seeds_all),
    *(keeps_the_state, forks),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PARTICULAR)
def test_what_only_a_gpu_has_is_captured_or_refused_with_a_code(program, mode):
    torch.manual_seed(0)
    before = torch.cuda.get_rng_state()
    captured = captured_or_refused(program, on_device(3), mode=mode)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    if captured is None:
        return
    for seed in (1, 2):
        results = []
        for call in (captured, program):
            torch.manual_seed(seed)
            results.append((call(on_device(3)), torch.rand(2, device=DEVICE)))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])


def test_what_only_a_gpu_has_is_mostly_captured_with_examples():
    refused = {}
    for program in PARTICULAR:
        try:
            fxplug.trace(program, (on_device(3),))
        except fxplug.FxplugError as error:
            refused[program.__name__] = error.code
    assert len(refused) <= len(PARTICULAR) // 3, refused


# -- what becomes of a captured module


def test_shape_mode_computes_nothing_on_the_device():
    model, x = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(DEVICE), on_device(4096, 1024)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fxplug.trace(model, (x,), mode="shape", check=False)

    assert torch.cuda.max_memory_allocated() - before < 1 << 20


@pytest.mark.parametrize("mode", MODES)
def test_a_capture_leaves_no_memory_behind(mode):
    model, x = Net().to(DEVICE), on_device(2, 3, 8, 8)
    for _ in range(2):
        capture(model, x, mode=mode)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        capture(model, x, mode=mode)
    gc.collect()

    assert torch.cuda.memory_allocated() == before


def test_training_is_that_of_eager():
    torch.manual_seed(0)
    eager = Net().to(DEVICE)
    captured = fxplug.trace(copy.deepcopy(eager), (on_device(2, 3, 8, 8),))
    losses = []
    for module in (eager, captured):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        found = []
        for step in range(20):
            optimizer.zero_grad()
            loss = (module(on_device(8, 3, 8, 8) * (step + 1) / 20) - 1).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)


def test_a_captured_module_runs_in_a_cuda_graph():
    model = Net().to(DEVICE).eval()
    captured, x = fxplug.trace(model, (on_device(2, 3, 8, 8),)), on_device(2, 3, 8, 8)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            captured(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = captured(x)
        x.mul_(2)
        graph.replay()
        torch.testing.assert_close(output, model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_captured_module_is_compiled():
    model = Net().to(DEVICE).eval()
    captured, x = fxplug.trace(model, (on_device(2, 3, 8, 8),)), on_device(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(captured, fullgraph=True)(x), model(x), rtol=1e-3, atol=1e-4)
