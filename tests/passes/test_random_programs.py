"""Passes leave what random programs compute, whatever these write, and whatever is a view of what."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch

from fxplug.passes import (
    CommonSubexpressions,
    DeadCode,
    FoldConstants,
    Functionalize,
    Normalize,
    PassContext,
)

sys.path.insert(0, str(Path(__file__).parent))
from random_programs import X, outcome, random_program

PASSES = {
    "dead-code": DeadCode,
    "common-subexpressions": CommonSubexpressions,
    "fold-constants": FoldConstants,
    "fold-constants, trainable": lambda: FoldConstants(trainable=True),
    "normalize": Normalize,
    "functionalize": Functionalize,
}
PROGRAMS = 150


@pytest.mark.parametrize("name", PASSES)
def test_values_inputs_and_state_are_what_they_were(name):
    changed = 0
    for seed in range(PROGRAMS):
        module = random_program(seed).eval()
        expected = copy.deepcopy(module)
        found = outcome(copy.deepcopy(expected))
        if isinstance(found[1], type):
            continue  # Eager refuses it, too.
        context = PassContext((X.clone(),), module=module)
        with torch.no_grad():
            result = PASSES[name]().run(module, context)
            module.graph.lint()
            assert not PASSES[name]().run(module, PassContext((X.clone(),), module=module)).modified, seed
        _check(outcome(module), found, seed)
        changed += result.modified

    assert changed > 2, "hardly any of the programs has something to do"


def _check(ours, theirs, seed):
    values, state = theirs
    assert not isinstance(ours[1], type), (seed, ours[1])
    for one, other in zip(ours[0], values, strict=True):
        torch.testing.assert_close(
            one, other, msg=lambda text: f"program {seed}: {text}", rtol=0, atol=0, equal_nan=True
        )
    for path in ours[1].keys() & state.keys():
        torch.testing.assert_close(ours[1][path], state[path], rtol=0, atol=0, equal_nan=True)
