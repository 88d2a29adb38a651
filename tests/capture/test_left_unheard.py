"""What functions that stay calls, and threads, leave for the program on their way: it is not heard of on examples."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fxplug

X = torch.ones(2, 3)
CHOICES = (torch.ones(3), torch.zeros(3))
LIST, DICT, TENSORS, UNREAD = [0.0], {"sum": 0.0}, [CHOICES[0]], [0.0]
GLOBAL = 0.0


class Holder:
    number = 0.0
    other = 0.0


HOLDER = Holder()


@fxplug.wrap
def into_list(x):
    LIST[0] = 1.0 if x.sum() > 0 else 2.0
    return x


@fxplug.wrap
def into_dict(x):
    DICT["sum"] = x.sum().item()
    return x


@fxplug.wrap
def among_tensors(x):
    TENSORS[0] = CHOICES[0] if x.sum() > 0 else CHOICES[1]
    return x


@fxplug.wrap
def into_global(x):
    global GLOBAL  # noqa: PLW0603 - what is tested
    GLOBAL = 1.0 if x.sum() > 0 else 2.0
    return x


@fxplug.wrap
def into_object(x):
    HOLDER.number = 1.0 if x.sum() > 0 else 2.0
    return x


@fxplug.wrap
def counting_on(x):
    HOLDER.number += x.shape[0]
    return x


@fxplug.wrap
def into_function(x):
    into_function.number = 1.0 if x.sum() > 0 else 2.0
    return x


into_function.number = 0.0

LEAVING = {
    "list": lambda x: into_list(x) * LIST[0],
    "dict": lambda x: into_dict(x) * DICT["sum"],
    "tensor": lambda x: among_tensors(x) * TENSORS[0],
    "global": lambda x: into_global(x) * GLOBAL,
    "object": lambda x: into_object(x) * HOLDER.number,
    "counter": lambda x: counting_on(x) * HOLDER.number,
    "function": lambda x: into_function(x) * into_function.number,
}


@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize("program", LEAVING.values(), ids=LEAVING.keys())
def test_what_a_function_that_stays_a_call_leaves_is_refused(program, mode):
    with pytest.raises(fxplug.TraceError, match="kept as a call, changes") as caught:
        fxplug.trace(program, (X,), mode=mode, check=False)

    assert caught.value.code == {"symbolic": "FXP-T056", "value": "FXP-T061"}[mode]


@fxplug.wrap
def telling(x):
    UNREAD[0] = float(x.sum())
    HOLDER.other = UNREAD[0]
    return x * 2


@pytest.mark.filterwarnings("ignore:While it was traced:fxplug.errors.TraceWarning")
@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_what_the_program_does_not_read_is_left(mode):
    def program(x):
        return telling(x) * HOLDER.number

    captured = fxplug.trace(program, (X,), mode=mode)

    torch.testing.assert_close(captured(-X), program(-X), rtol=0, atol=0)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Own(threading.Thread):
    def __init__(self, work):
        super().__init__()
        self.work = work

    def run(self):
        self.work()


def in_own_thread(function):
    thread = Own(function)
    thread.start()
    thread.join()


def in_pool(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


STARTS = [in_thread, in_own_thread, in_pool]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "work",
    [lambda x: x.shape[0], len, lambda x: x.dim(), lambda x: x.is_floating_point(), lambda x: x.dtype],
    ids=["shape", "len", "dim", "method", "dtype"],
)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_a_thread_asks_of_traced_values_is_refused(mode, work, start):
    def program(x):
        found = []
        start(lambda: found.append(work(x)))
        return x * (found[0] if isinstance(found[0], int) else 1)

    with pytest.raises(fxplug.TraceError, match="it runs in another thread") as caught:
        fxplug.trace(program, (X,), mode=mode, check=False)
    assert caught.value.code == "FXP-T063"


@pytest.mark.parametrize("start", STARTS)
def test_values_that_a_thread_chooses_by_are_refused(start):
    def program(x):
        found = []
        start(lambda: found.append(CHOICES[0] if x.sum() > 0 else CHOICES[1]))
        return x * found[0]

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(program, (X,), check=False)
    assert caught.value.code == "FXP-T063"


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_threads_that_have_nothing_to_do_with_traced_values_run(mode, start):
    def program(x):
        found = []
        start(lambda: found.append(torch.ones(3).sum().item()))
        return x * 2

    captured = fxplug.trace(program, (X,), mode=mode)

    assert torch.equal(captured(X), program(X))


@fxplug.wrap
def with_threads(x):
    found = []
    in_thread(lambda: found.append(x.sum()))
    in_pool(lambda: found.append(x.mean()))
    return x * found[0] * found[1]


def test_functions_that_stay_calls_start_threads_as_they_like():
    captured = fxplug.trace(lambda x: with_threads(x) + 1, (X,))

    torch.testing.assert_close(captured(X * 3), with_threads(X * 3) + 1)


def test_a_thread_may_outlive_the_capture():
    go, results = threading.Event(), []

    def program(x):
        def work():
            go.wait(60)
            results.append(x.sum())

        thread = threading.Thread(target=work)
        threads.append(thread)
        thread.start()
        return x * 2

    threads = []
    captured = fxplug.trace(program, (X,), check=False)
    go.set()
    for thread in threads:
        thread.join()

    assert [float(result) for result in results] == [6.0] * len(threads)
    assert torch.equal(captured(X), X * 2)
