"""Ending what does not end, and leaving the interpreter as it was."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fxplug.testing.interruption import OvertimeError, interrupted_after


def test_what_ends_in_time_ends_as_usual():
    with interrupted_after(60, "it"):
        done = True

    assert done


def test_an_error_goes_through():
    with pytest.raises(KeyError, match="mine"), interrupted_after(60, "it"):
        raise KeyError("mine")


def test_a_loop_is_ended():
    def loop():
        while True:
            pass

    with pytest.raises(OvertimeError, match=r"it did not end within 0\.1 s"), interrupted_after(0.1, "it"):
        loop()


def test_a_loop_that_catches_everything_is_ended():
    def stubborn():
        rounds = 0
        while rounds < 2:
            try:
                while True:
                    pass
            except BaseException:
                rounds += 1

    with pytest.raises(OvertimeError), interrupted_after(0.1, "it"):
        stubborn()


def test_nothing_arrives_behind_it():
    for _ in range(50):
        try:
            with interrupted_after(0.002, "it"):
                time.sleep(0.0019)
        except OvertimeError:
            pass
        for _ in range(1000):
            pass


BEHIND = """
import sys
from fxplug.testing.interruption import OvertimeError, interrupted_after

try:
    with interrupted_after({limit}, "it"):
        {work}
except OvertimeError:
    pass

def called():
    return 1

sys.setprofile(lambda frame, event, argument: None)
called()
sys.setprofile(None)
print("called")
"""


@pytest.mark.parametrize(("limit", "work"), [(60, "pass"), (0.1, "while True: pass")])
def test_profilers_work_behind_it(limit, work):
    """An interpreter that goes on looking for an exception that was withdrawn hangs in the first call."""
    found = subprocess.run(
        [sys.executable, "-c", BEHIND.format(limit=limit, work=work)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (found.stdout.strip(), found.stderr) == ("called", "")
