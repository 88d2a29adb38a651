"""Functions whose code is exchanged for a while: what changes, what does not, and what is put back."""

from __future__ import annotations

import inspect
import sys
import traceback

import pytest
from torch import nn

from fxplug.capture.trampolines import Trampoline, patch_for


def template(*args, **kwargs):
    handler = "<handler>"
    original = "<original>"
    return handler(original, args, kwargs)  # type: ignore[operator]


def heard(original, args, kwargs):
    return ("heard", args, kwargs, original(*args, **kwargs))


def made(constant):
    def function(a, b: int = 2, *, c=3):
        """A function with a bit of everything."""
        return a + b + c + constant

    function.note = "kept"
    return function


def trampoline_for(function, handler=heard):
    return Trampoline(function, template, {"<handler>": handler})


@pytest.fixture
def installed():
    """(function) -> its trampoline, installed until the test ends."""
    trampolines = []

    def install(function, handler=heard):
        trampoline = trampoline_for(function, handler)
        trampolines.append(trampoline)
        trampoline.install()
        return trampoline

    yield install
    for trampoline in trampolines:
        trampoline.remove()


def test_call_reaches_the_handler_with_the_arguments_as_they_were_passed(installed):
    function = made(10)
    installed(function)

    assert function(1, c=5) == ("heard", (1,), {"c": 5}, 1 + 2 + 5 + 10)


def test_everything_else_of_the_function_stays(installed):
    function = made(10)
    code = function.__code__
    installed(function)

    assert function.__name__ == "function"
    assert function.__doc__ == "A function with a bit of everything."
    assert function.__defaults__ == (2,)
    assert function.__kwdefaults__ == {"c": 3}
    assert function.note == "kept"
    lent = function.__code__
    assert (lent.co_filename, lent.co_name, lent.co_firstlineno) == (
        code.co_filename,
        code.co_name,
        code.co_firstlineno,
    )


def test_original_is_a_function_like_it(installed):
    function = made(10)
    signature = inspect.signature(function)
    original = installed(function).original

    assert original(1) == 16
    assert inspect.signature(original) == signature
    assert (original.__qualname__, original.__module__, original.note) == (
        function.__qualname__,
        __name__,
        "kept",
    )


def test_removing_leaves_nothing_behind():
    function = made(10)
    code, attributes = function.__code__, dict(vars(function))
    trampoline = trampoline_for(function)
    trampoline.install()
    assert function.__code__ is not code
    trampoline.remove()
    assert function.__code__ is code
    assert vars(function) == attributes


def test_code_that_somebody_else_gave_the_function_meanwhile_stays():
    function, other = made(10), made(20).__code__
    trampoline = trampoline_for(function)
    trampoline.install()
    function.__code__ = other
    trampoline.remove()
    assert function.__code__ is other


def test_trampoline_fits_only_the_function_as_it_was():
    function = made(10)
    trampoline = trampoline_for(function)

    assert trampoline.fits(function)
    assert not trampoline.fits(made(10))
    function.__code__ = made(10).__code__.replace(co_firstlineno=1)
    assert not trampoline.fits(function)


def test_function_that_runs_when_it_is_installed_goes_on(installed):
    def count():
        yield 1
        yield 2

    running = count()
    assert next(running) == 1
    installed(count)
    assert next(running) == 2


def test_traceback_shows_the_line_where_the_function_begins(installed):
    def fail(*args):
        raise ValueError("no")

    function = made(10)
    installed(function, fail)
    with pytest.raises(ValueError, match="no") as caught:
        function(1)
    frames = {frame.name: frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert frames["function"] == function.__code__.co_firstlineno


@pytest.mark.parametrize("count", [0, 1, 300])
def test_variables_of_a_running_trampoline_can_be_looked_at(installed, count):
    """As debuggers do, and pytest when it shows a failure."""
    names = [f"cell_{number}" for number in range(count)]
    lines = [
        *(f"    {name} = {number}" for number, name in enumerate(names)),
        "    def inner(): return " + "+".join([*names, "0"]),
    ]
    namespace: dict = {}
    exec("def outer():\n" + "\n".join([*lines, "    return inner"]), namespace)

    def look(original, args, kwargs):
        return dict(sys._getframe(1).f_locals)

    inner = namespace["outer"]()
    expected = inner()
    trampoline = installed(inner, look)
    seen = inner()
    assert [seen[name] for name in names] == list(range(count))
    assert trampoline.original() == expected


def test_method_of_a_class_is_found_by_name():
    class Base(nn.Module):
        def extra_repr(self):
            return "own"

    found = Base.extra_repr
    patch = patch_for(Base, "extra_repr", template, {"<handler>": lambda original, args, kwargs: "lent"})
    patch.install()
    assert Base().extra_repr() == "lent"
    assert Base.extra_repr is found
    patch.remove()
    assert Base().extra_repr() == "own"


def test_what_is_no_function_is_replaced_in_the_class():
    class Base:
        length = len

    patch = patch_for(Base, "length", template, {"<handler>": heard})
    patch.install()
    assert Base.length([1, 2]) == ("heard", ([1, 2],), {}, 2)
    patch.remove()
    assert Base.length is len
