"""Regions in which operations mean something else: gradients off, autocast, inference mode; and other contexts."""

# ruff: noqa: PLW2101, RET504, TRY301
from __future__ import annotations

import contextlib
import threading
import warnings

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import one, ramp, tracked, two


def weights():
    return ramp(2, 3, grad=True), ramp(3, 3, grad=True)


@program(tracked, rows=(11,))
def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 3


@program(tracked, rows=(11,))
def gradients_back_on(x):
    with torch.no_grad():
        mean = x.mean()
        with torch.enable_grad():
            out = x - mean
    return out, mean


@program(tracked, rows=(11,))
@torch.no_grad()
def decorated_without_gradients(x):
    return x * 2


@program(tracked, rows=(11,))
class MethodWithoutGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(3, 2)
        self.student = nn.Linear(3, 2)

    @torch.no_grad()
    def target(self, x):
        return self.teacher(x).softmax(-1)

    def forward(self, x):
        return self.student(x), self.target(x)


@program(one, rows=(11,))
def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return y


@program(tracked, rows=(11,))
def inference_mode_turned_off_inside(x):
    with torch.inference_mode():
        with torch.inference_mode(mode=False):
            y = x * 2
        z = x + 1
    return y, z.clone()


@program(tracked, rows=(11,))
@torch.inference_mode()
def decorated_inference_mode(x):
    return x + 1


@program(weights, rows=(11,))
def autocast(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ weight
    return y, x @ weight


@program(weights, rows=(11,))
def autocast_turned_off_inside(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ weight
        with torch.autocast("cpu", enabled=False):
            return (y.float() @ weight).sum() + (x @ weight).sum()


@program(weights, rows=(11,))
def all_regions_nested(x, weight):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        y = x @ weight
        with torch.enable_grad():
            z = x @ weight
    return y, z


@program(tracked, rows=(11,), others=lambda: (ramp(2, 3),), symbolic="FXP-T001")
def gradients_set_by_a_value(x):
    with torch.set_grad_enabled(x.shape[0] > 5):
        return x * 2


@program(tracked, rows=(11,))
def gradients_switched_by_call(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y, x * 3


@program(tracked, rows=(11,))
def error_leaves_a_region(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise KeyError("leave")
    except KeyError:
        return y, x * 3


@program(tracked)
def is_it_recording_gradients(x):
    with torch.no_grad():
        inside = torch.is_grad_enabled()
    return x * 2 if torch.is_grad_enabled() and not inside else x


@program(tracked, rows=(11,))
def profiled(x):
    with torch.profiler.record_function("corpus"), torch.autograd.profiler.record_function("inner"):
        return x * 2


@program(one, rows=(11,))
def silenced(x):
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.enter_context(torch.no_grad())
        warnings.warn("from the program", UserWarning, stacklevel=1)
        return x * 2


@contextlib.contextmanager
def doubled(values):
    values.append(2)
    try:
        yield values
    finally:
        values.pop()


@program(one)
def context_of_the_program(x):
    with doubled([3]) as values:
        x = x * sum(values)
    return x + len(values)


@program(one, rows=(1,))
def under_a_lock(x):
    with threading.Lock():
        return x * 2


@program(tracked)
def anomaly_detection(x):
    with torch.autograd.set_detect_anomaly(False), torch.autograd.set_multithreading_enabled(False):
        return x.exp()


@program(two)
def attention_backend_chosen(x, y):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x[None], y[None], y[None])


@program(tracked)
def saved_tensors_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return (x * x).sum()
