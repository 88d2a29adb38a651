"""What libraries hear that ask torch.fx whether it traces: yes inside a trace, no everywhere else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx import _symbolic_trace as asked

from fxplug.capture import Tracer
from fxplug.errors import TraceError


def answers():
    return (
        bool(asked.is_fx_tracing()),
        bool(asked.is_fx_symbolic_tracing()),
        bool(asked._is_fx_tracing_flag),
    )


YES, NO = (True,) * 3, (False,) * 3


def in_another_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def trace_with(action, tracer=Tracer):
    """Trace a program that does something, and return what comes of it."""
    results = []

    def program(x):
        results.append(action())
        return x + 1

    tracer().trace(program)
    return results[0]


@pytest.fixture(autouse=True)
def plain_flag():
    """Fails a test after which torch.fx's flag is not what it was."""
    assert asked._is_fx_tracing_flag is False
    yield
    left, asked._is_fx_tracing_flag = asked._is_fx_tracing_flag, False
    assert left is False


def test_library_hears_yes_inside_a_trace():
    assert answers() == NO
    assert trace_with(answers) == YES
    assert answers() == NO


def test_other_threads_hear_no_meanwhile():
    assert trace_with(lambda: in_another_thread(answers)) == NO


def test_flag_is_put_back_after_a_failure():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trace_with(fail)
    assert asked._is_fx_tracing_flag is False


def test_program_may_branch_on_the_question():
    class Asking(nn.Module):
        def forward(self, x):
            return x + 1 if asked.is_fx_symbolic_tracing() else x.nonzero()

    assert "add" in str(Tracer().trace(Asking()))


def test_nested_traces():
    assert trace_with(lambda: (trace_with(answers), answers())) == (YES, YES)


def test_trace_of_torch_fx_inside_a_trace():
    assert trace_with(lambda: (trace_with(answers, torch.fx.Tracer), answers())) == (YES, YES)
    assert asked._is_fx_tracing_flag is False


def test_trace_inside_a_trace_of_torch_fx():
    assert trace_with(lambda: (trace_with(answers), answers()), torch.fx.Tracer) == (YES, YES)
    assert trace_with(lambda: trace_with(lambda: in_another_thread(answers)), torch.fx.Tracer) == YES


def test_trace_of_torch_fx_that_ends_after_ours():
    """It puts back the stand-in that it found; nobody traces any more, and everybody hears so."""
    former = trace_with(
        lambda: asked._is_fx_tracing_flag
    )  # What a trace of torch.fx would note, and put back late.
    asked._is_fx_tracing_flag = former
    assert answers() == NO
    assert trace_with(answers) == YES
    assert asked._is_fx_tracing_flag is False


def test_flag_that_torch_fx_sets_meanwhile_stays():
    def set_it():
        asked._is_fx_tracing_flag = True

    trace_with(set_it)
    assert asked._is_fx_tracing_flag is True
    asked._is_fx_tracing_flag = False


def test_compiled_function_runs_in_another_thread_and_is_refused_inside_the_trace():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
    x = torch.ones(2)
    torch.testing.assert_close(trace_with(lambda: in_another_thread(lambda: compiled(x))), x * 2)
    with pytest.raises(TraceError, match="FX to symbolically trace a dynamo-optimized function"):
        Tracer().trace(lambda x: compiled(x) + 1)
    torch.testing.assert_close(compiled(x), x * 2)
    torch._dynamo.reset()
