"""Reading and setting the state of random generators."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fxplug
from fxplug.semantics import kept_random_state
from fxplug.semantics.random_state import (
    random_state,
    random_states,
    same_random_states,
    seed_random_state,
    set_random_state,
    set_random_states,
)

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


@pytest.fixture
def of_device(monkeypatch):
    """The generator of a device that is in use, as far as anybody can see."""
    generator = torch.Generator().manual_seed(11)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    return generator


def test_generators_of_devices_in_use_are_kept_too(of_device):
    with kept_random_state():
        inside = torch.rand(5, generator=of_device)

    assert torch.equal(torch.rand(5, generator=of_device), inside)


def test_generators_of_devices_in_use_are_seeded_too(of_device):
    drawn = []
    for _ in range(2):
        seed_random_state(7)
        drawn.append(torch.rand(5, generator=of_device))

    assert torch.equal(*drawn)


def test_a_draw_on_a_device_is_a_draw(of_device):
    before = random_states()
    assert same_random_states(before)
    first = torch.rand(5, generator=of_device)
    assert not same_random_states(before)
    set_random_states(before)

    assert same_random_states(before)
    assert torch.equal(torch.rand(5, generator=of_device), first)


def test_devices_that_nobody_has_used_are_not_started():
    assert list(random_states()) == [torch.default_generator] or torch.cuda.is_initialized()


def test_the_check_runs_both_programs_from_the_same_state_of_a_device(of_device):
    def noisy(x):
        return x + torch.rand(3, generator=torch.cuda.default_generators[0])

    before = of_device.get_state()
    captured = fxplug.trace(noisy, (torch.zeros(3),), mode="value")

    assert torch.equal(of_device.get_state(), before)
    expected = noisy(torch.zeros(3))
    of_device.set_state(before)
    assert torch.equal(captured(torch.zeros(3)), expected)
