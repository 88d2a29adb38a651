"""Searches do not get into each other's way, and functions of the user's that fail are named."""

# Patterns are written as functions of the values in them, also where a bare callable would do.
# ruff: noqa: PLW0108

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from fxplug.errors import PatternError
from fxplug.rewrite import (
    Const,
    Module,
    Pattern,
    Rewriter,
    explain,
    replace_pattern_with_filters,
)


class Activated(nn.Module):
    def __init__(self, activation, times=1):
        super().__init__()
        self.act = activation
        self.times = times

    def forward(self, x):
        for _ in range(self.times):
            x = self.act(x)
        return x


RELU = Pattern(lambda x: Module(nn.ReLU)(x))


def test_a_condition_may_search_for_the_same_pattern_elsewhere(capture):
    module = capture(Activated(nn.ReLU(), times=3))
    other = capture(Activated(nn.Tanh()))

    def condition(match):
        assert RELU.matches(other) == []
        return True

    rewriter = Rewriter().add(RELU, lambda x: torch.sigmoid(x), condition=condition)

    assert len(rewriter.run(module)) == 3


def test_a_search_in_the_middle_of_another_one(capture):
    module = capture(Activated(nn.ReLU(), times=3))
    other = capture(Activated(nn.Tanh()))
    found = RELU.matcher.find(module.graph)

    next(found)
    RELU.matches(other)
    explain(RELU, next(iter(other.graph.find_nodes(op="call_module"))))

    assert len(list(found)) == 2


def test_threads_share_a_pattern(capture):
    modules = [capture(Activated(nn.ReLU(), times=20)), capture(Activated(nn.Tanh(), times=20))]
    wanted = [20, 0]
    wrong = []

    def search(index):
        for _ in range(50):
            found = len(RELU.matches(modules[index]))
            if found != wanted[index]:
                wrong.append(found)

    threads = [threading.Thread(target=search, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_pattern_does_not_keep_what_it_was_searched_for_in(capture):
    module = capture(Activated(nn.ReLU()))
    known = weakref.ref(module)

    assert len(RELU.matches(module)) == 1
    del module
    gc.collect()

    assert known() is None


def test_a_function_of_the_program_does_not_live_on(capture):
    class Callee:
        def __call__(self, x):
            return x

    callee = Callee()
    known = weakref.ref(callee)
    module = capture(lambda x: torch.relu(x))
    next(iter(module.graph.find_nodes(op="call_function"))).target = callee

    assert Pattern(lambda x: torch.relu(x)).matches(module) == []
    del module, callee
    gc.collect()

    assert known() is None


# -- functions that fail


def fails(*_):
    raise KeyError("lost")


def _refusal(function, module):
    version, code = module.graph.version, module.code
    with pytest.raises(PatternError) as caught:
        function()
    assert isinstance(caught.value.__cause__, KeyError)
    assert (module.graph.version, module.code) == (version, code)
    return str(caught.value)


def relu(x):
    return torch.relu(x)


@pytest.mark.parametrize("word", ["condition", "callback", "filter", "filter callback", "predicate"])
def test_a_function_that_fails_is_named_with_the_place(capture, word):
    module = capture(lambda x: torch.relu(x * 2))
    runs = {
        "condition": lambda: Rewriter().add(relu, relu, condition=fails).run(module),
        "callback": lambda: Rewriter().add(relu, callback=fails).run(module),
        "filter": lambda: replace_pattern_with_filters(module, relu, relu, match_filters=[fails]),
        "filter callback": lambda: replace_pattern_with_filters(module, relu, replacement_callback=fails),
        "predicate": lambda: Pattern(lambda x, n: torch.relu(x * n), n=Const(fails)).matches(module),
    }

    message = _refusal(runs[word], module)

    kind = word.split()[-1]
    assert message.startswith(f"Cannot search for the pattern: the {kind} fails raised KeyError: 'lost'")
    assert "at the node 'relu' (" in message
    assert "test_searches.py:" in message
    assert "Nothing was changed." in message


def test_a_filter_that_gives_no_answer_is_named(capture):
    module = capture(lambda x: torch.relu(x))

    with pytest.raises(PatternError, match=r"the filter .*lambda.* raised RuntimeError"):
        replace_pattern_with_filters(module, relu, relu, match_filters=[lambda *_: torch.ones(2)])
