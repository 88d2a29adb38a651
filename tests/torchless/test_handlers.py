"""Which errors a program catches, on the running Python."""

from __future__ import annotations

import contextlib
import sys

import pytest

from fxplug.ir import Origin, handlers
from fxplug.ir.handlers import catching_origin, is_caught


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return ask()", False),
        ("try: return ask()\n except ValueError: return None", True),
        ("try: return ask()\n except: return None", True),
        ("try: found = ask()\n except (KeyError, ValueError) as error: return error\n return found", True),
        ("try: found = ask()\n finally: given = 2\n return found", False),
        ("try:\n  with given: found = ask()\n except ValueError: return None\n return found", True),
        ("with given: found = ask()\n return found", False),
        ("try: given = 2\n except ValueError: return None\n return ask()", False),
        ("for _ in range(2):\n  try: found = ask()\n  except ValueError: continue\n return found", True),
    ],
)
def test_whether_an_error_is_caught(body, expected):
    def ask():
        frame = sys._getframe(1)
        return is_caught(frame.f_code, frame.f_lasti)

    space = {"ask": ask}
    exec(f"def program(given):\n {body}", space)

    follows = sys.version_info < (3, 11) and body.startswith("try: given")

    assert space["program"](contextlib.nullcontext()) is (expected or follows)


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    ("clauses", "error", "expected"),
    [
        ("except ValueError: pass", ValueError(), True),
        ("except ValueError: pass", UnicodeError(), True),
        ("except ValueError: pass", KeyError(), False),
        ("except (KeyError, ValueError): pass", ValueError(), True),
        ("except (KeyError, ValueError): pass", TypeError(), False),
        ("except KeyError: raise LookupError\n except ValueError as error: pass", ValueError(), True),
        ("except KeyError as error: given = [TypeError]\n except ValueError: pass", TypeError(), False),
        ("except KeyError: pass\n except: pass", TypeError(), True),
        ("except ValueError: raise", ValueError(), False),
        ("except ValueError as error: raise LookupError from error", ValueError(), False),
        ("except: raise", ValueError(), False),
        ("except OwnError: pass", OwnError(), False),
        ("except OwnError: pass", KeyError(), False),
        ("except own.OwnError: pass", KeyError(), False),
        ("except given: pass", KeyError(), False),
        (
            "finally:\n  for one in (1, 2):\n   try: int('a')\n   except ValueError: continue",
            ValueError(),
            False,
        ),
    ],
)
def test_which_errors_are_caught(clauses, error, expected):
    found = []

    def ask():
        frame = sys._getframe(1)
        found.append(is_caught(frame.f_code, frame.f_lasti, error))
        found.append(
            catching_origin(Origin(None, caller=Origin(frame.f_code, frame.f_lasti)), error) is not None
        )

    space = {"ask": ask, "OwnError": OwnError}
    exec(f"def program(given):\n try: ask()\n {clauses}", space)
    space["program"](OwnError)

    assert found == [expected, expected]


def test_a_function_is_read_once_however_often_it_is_asked_about(monkeypatch):
    def guarded(x):
        try:
            return x + 1
        except ValueError:
            return x

    def plain(x):
        return x + 1

    read = []
    original = handlers.dis.get_instructions
    monkeypatch.setattr(
        handlers.dis,
        "get_instructions",
        lambda code, **options: read.append(code) or original(code, **options),
    )
    for _ in range(9):
        for function in (guarded, plain):
            for offset in range(0, len(function.__code__.co_code), 2):
                is_caught(function.__code__, offset)
    assert read.count(guarded.__code__) == 1
    assert read.count(plain.__code__) <= 1
