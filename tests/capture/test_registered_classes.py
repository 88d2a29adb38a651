"""Objects of classes of which torch knows the parts (`torch.utils._pytree`), as inputs and as results."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import fxplug
from fxplug.analyze.comparison import MismatchError
from fxplug.api.checking import check_capture
from fxplug.errors import GraphError, TraceError

X = torch.tensor([1.0, 2.0])


class Cache:
    """What a language model returns beside its result."""

    def __init__(self, key, value):
        self.key, self.value = key, value
        self.calls = []


class Unknown:
    def __init__(self, key):
        self.key = key


_pytree.register_pytree_node(
    Cache,
    lambda cache: ([cache.key, cache.value], None),
    lambda parts, _: Cache(*parts),
    serialized_type_name="test_registered_classes.Cache",
    flatten_with_keys_fn=lambda cache: (
        [(_pytree.GetAttrKey("key"), cache.key), (_pytree.GetAttrKey("value"), cache.value)],
        None,
    ),
)


def alone(x, scale=2.0, *, offset=None):
    return Cache(x + 1, x * scale)


def among_others(x):
    return {"out": x + 1, "caches": [Cache(x, (x * 2, None))]}


def with_star(x, *others):
    return Cache(x, sum(others))


def parts(value):
    leaves, _ = _pytree.tree_flatten(value)
    return leaves


def same(value, expected):
    one, other = parts(value), parts(expected)
    return type(value) is type(expected) and all(map(same_leaf, one, other)) and len(one) == len(other)


def same_leaf(one, other):
    return torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", [alone, among_others])
def test_it_is_a_result(mode, program):
    captured = fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode)

    again = [fxplug.symbolic_trace(captured)] if mode == "symbolic" else []  # Guards ask for inputs.
    for module in (captured, copy.deepcopy(captured), *again):
        assert same(module(X * 3), program(X * 3))
    assert same(fxplug.Interpreter(captured).run(X * 3), program(X * 3))
    assert same(pickle.loads(pickle.dumps(captured))(X), program(X))


def test_the_signature_stays():
    captured = fxplug.symbolic_trace(alone)

    assert same(captured(X, scale=3.0), alone(X, 3.0))
    with pytest.raises(TypeError, match="unexpected keyword argument 'scales'"):
        captured(X, scales=3.0)


def test_a_variable_number_of_inputs():
    captured = fxplug.trace(with_star, (X, X * 2, X * 3))

    assert same(captured(X, X, X), with_star(X, X, X))


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_it_is_an_input(mode):
    def program(cache, x):
        return Cache(torch.cat([cache.key, x]), cache.value * 2)

    captured = fxplug.trace(program, (Cache(X, X), X), mode=mode)

    assert same(captured(Cache(X + 1, X), X * 2), program(Cache(X + 1, X), X * 2))
    with pytest.raises(GraphError, match="the value of 'cache' has another structure"):
        captured((X, X), X)


def test_models_that_return_one_are_optimised_with_gradients_around():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return Cache(self.linear(x), x)

    model = Model().eval()
    result = fxplug.optimize(model, (X,), measure=False)
    captured = fxplug.trace(model, (X,))
    captured(X).key.sum().backward()

    assert torch.allclose(result.module(X).key, model(X).key)
    assert model.linear.weight.grad is not None


def _adding(number):
    return lambda x: Cache(x, x + number)


def test_values_in_one_are_compared():
    right, wrong = (fxplug.symbolic_trace(_adding(by)) for by in (1, 2))

    with pytest.raises(MismatchError, match=r"in output\.value \(float32"):
        check_capture(lambda x: Cache(x, x + 1), wrong, (X,), {})
    assert check_capture(lambda x: Cache(x, x + 1), right, (X,), {}).passed


@pytest.mark.parametrize("given", [None, (X,)], ids=["symbolic", "value"])
def test_what_torch_knows_nothing_of_is_refused_with_what_helps(given):
    with pytest.raises(TraceError) as caught:
        fxplug.trace(lambda x: {"out": x, "cache": Unknown(x)}, given)

    assert caught.value.code == "FXP-T006"
    assert caught.value.message.endswith(
        f"Cannot record a value of type {__name__}.Unknown as a result. Return tensors and plain values (models of "
        "transformers do with use_cache=False), or tell torch its parts (torch.utils._pytree.register_pytree_node)."
    )
