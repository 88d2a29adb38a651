"""Reading and setting the state of random generators."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fxplug.semantics import kept_random_state
from fxplug.semantics.random_state import random_state, seed_random_state, set_random_state

MANY_THREADS = """
import gc, sys, threading, time

import torch

from fxplug.semantics import kept_random_state

def draw():
    kept = []
    for _ in range(200):
        with kept_random_state():
            kept.append(torch.rand(3))

threads = [threading.Thread(target=draw, daemon=True) for _ in range(3)]
sys.setswitchinterval(1e-5)
# Collecting lets other threads run, wherever it begins.
gc.callbacks.append(lambda *_: time.sleep(1e-4))
gc.set_threshold(3)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.disable()
print("done")
"""


def test_threads_that_keep_the_random_state_do_not_lock_one_another_out():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MANY_THREADS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.stdout == "done\n", run.stderr


def test_numbers_drawn_inside_are_drawn_again_afterwards():
    with kept_random_state():
        inside = torch.rand(5)

    assert torch.equal(torch.rand(5), inside)


def test_the_state_comes_back_after_an_error():
    before = torch.get_rng_state()

    with pytest.raises(RuntimeError), kept_random_state():
        torch.rand(5).reshape(2)

    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_is_set_again():
    state = random_state()
    first = torch.rand(5)
    set_random_state(state)

    assert torch.equal(torch.rand(5), first)


def test_a_generator_of_its_own():
    generator = torch.Generator().manual_seed(3)
    state = random_state(generator)
    first = torch.rand(5, generator=generator)
    set_random_state(state, generator)

    assert torch.equal(torch.rand(5, generator=generator), first)


def test_a_seed_is_that_of_pytorch():
    with kept_random_state():
        torch.manual_seed(5)
        expected = torch.rand(3)
        seed_random_state(5)

        assert torch.equal(torch.rand(3), expected)
