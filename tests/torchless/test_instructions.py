"""Instructions are decoded once for all questions about a function, and kept for few functions."""

from __future__ import annotations

import dis
import gc
import weakref

from fxplug.ir import instructions
from fxplug.ir.instructions import instructions_of


def asked(x):
    return x.sin() if x else [y + 1 for y in x]


def made(number):
    namespace = {}
    exec(compile(f"def one(x):\n    return x + {number}\n", "<made>", "exec"), namespace)
    return namespace["one"].__code__


def test_instructions_are_those_of_dis():
    assert list(instructions_of(asked.__code__)) == list(dis.get_instructions(asked.__code__))


def test_a_function_is_decoded_once_for_several_questions(monkeypatch):
    decoded = []
    decode = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: decoded.append(code) or decode(code))
    code = made(1)
    assert instructions_of(code) is instructions_of(code)
    assert decoded == [code]


def test_few_are_kept_and_none_holds_its_code():
    codes = [made(number) for number in range(100)]
    for code in codes:
        instructions_of(code)
    assert len(instructions._decoded) <= instructions._MOST_DECODED
    last = weakref.ref(codes[-1])
    del code, codes
    gc.collect()
    assert last() is None


def test_code_at_the_address_of_another_one_is_decoded_anew():
    code, other = made(1), made(2)
    instructions_of(code)
    instructions._decoded[id(other)] = instructions._decoded[id(code)]
    assert [one.argval for one in instructions_of(other) if one.opname == "LOAD_CONST"] == [2]
