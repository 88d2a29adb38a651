"""Shape functions of layers that take or give several values, against what torch makes of them."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from fxplug.semantics.modules import compute_alone
from fxplug.semantics.shapes.abstract import AbstractTensor, UnknownShapeError, abstract
from fxplug.semantics.shapes.composites import COMPOSITES, shape_of_call
from fxplug.semantics.shapes.integers import known_value

DTYPE = torch.float32
X = torch.rand(2, 5, 8)
MEMORY = torch.rand(2, 3, 8)

pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections is not supported with oneDNN:UserWarning"
)


def told(value):
    return known_value(value, DTYPE, "given")


def are_alike(real, known):
    """Whether what is known of a value is so."""
    if isinstance(known, AbstractTensor):
        return tuple(real.shape) == known.sizes and real.dtype is DTYPE and type(real) is torch.Tensor
    if isinstance(known, tuple):
        return len(real) == len(known) and all(map(are_alike, real, known))
    return known is real is None


def known_of(layer, args, kwargs):
    try:
        return shape_of_call(layer, told(args), {name: told(one) for name, one in kwargs.items()}, DTYPE)
    except Exception:  # Nothing is known then.
        return None


RECURRENT = [
    kind(8, 6, layers, bias=bias, batch_first=first, bidirectional=both, **options)
    for kind, options in ((nn.GRU, {}), (nn.LSTM, {}), (nn.RNN, {"nonlinearity": "relu"}))
    for layers, bias, first, both in itertools.product((1, 3), (True, False), (True, False), (True, False))
]


@pytest.mark.parametrize("layer", RECURRENT, ids=range(len(RECURRENT)))
def test_recurrent_layers(layer):
    layer.eval()
    found, after = layer(X)
    assert are_alike((found, after), shape_of_call(layer, (told(X),), {}, DTYPE))
    assert are_alike((found, after), shape_of_call(layer, (told(X), told(after)), {}, DTYPE))


def wrong_states(layer):
    """States of other sizes, and other things, that a recurrent layer may be given."""
    _, after = layer(X)
    parts = after if isinstance(after, tuple) else (after,)
    for place, part in enumerate(parts):
        for other in (part[:1].repeat(7, 1, 1), part[..., :-1], part[:, :1], part[:, 0], part.double()):
            changed = (*parts[:place], other, *parts[place + 1 :])
            yield changed if isinstance(after, tuple) else other
    yield parts
    yield parts[0]
    yield (*parts, parts[0])
    yield list(parts)


@pytest.mark.parametrize("layer", RECURRENT, ids=range(len(RECURRENT)))
def test_what_is_known_of_recurrent_layers_is_so(layer):
    layer.eval()
    given = [(x,) for x in (X, X[0], X[..., :-1], X.double(), X[:1], X[:, :1])]
    given += [(X, states) for states in wrong_states(layer)]
    for args in given:
        known = known_of(layer, args, {})
        assert known is None or are_alike(layer(*args), known)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_recurrent_layers_with_other_weights_are_not_known(kind):
    for change in (
        lambda layer: setattr(layer, "weight_hh_l0", nn.Parameter(torch.rand(3, 3))),
        lambda layer: setattr(layer, "hidden_size", 7),
        lambda layer: setattr(layer, "num_layers", 2),
        lambda layer: setattr(layer, "bidirectional", True),
        lambda layer: layer.__dict__["_flat_weights"].reverse(),
        lambda layer: layer.double(),
        lambda layer: layer.train(),
        lambda layer: layer._parameters.pop("bias_hh_l0"),
    ):
        layer = kind(8, 6, batch_first=True).eval()
        assert known_of(layer, (X,), {}) is not None
        change(layer)
        assert known_of(layer, (X,), {}) is None


ENCODER = [
    nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=first, norm_first=before, bias=bias, activation=activation
    )
    for first, before, bias, activation in itertools.product(
        (True, False), (True, False), (True, False), ("relu", "gelu")
    )
]
DECODER = [
    nn.TransformerDecoderLayer(8, 2, 16, batch_first=first, norm_first=before, bias=bias)
    for first, before, bias in itertools.product((True, False), (True, False), (True, False))
]


def stacked(layer):
    kind = nn.TransformerEncoder if isinstance(layer, nn.TransformerEncoderLayer) else nn.TransformerDecoder
    return [kind(layer, 2), kind(layer, 2, nn.LayerNorm(8))]


@pytest.mark.parametrize("layer", ENCODER + DECODER, ids=range(len(ENCODER + DECODER)))
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_transformers(layer):
    is_first = layer.self_attn.batch_first
    x, memory = (X, MEMORY) if is_first else (X.transpose(0, 1), MEMORY.transpose(0, 1))
    inputs = (x,) if isinstance(layer, nn.TransformerEncoderLayer) else (x, memory)
    for one in (layer, *stacked(layer)):
        with torch.no_grad():
            assert are_alike(one.eval()(*inputs), shape_of_call(one, told(inputs), {}, DTYPE))


@pytest.mark.parametrize("layer", [ENCODER[0], DECODER[0]], ids=["encoder", "decoder"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_what_is_known_of_transformers_is_so(layer):
    others = [X, X[..., :-1], X[0], X.double(), X[:1], X[:, :1], MEMORY, MEMORY[..., :4]]
    square = torch.zeros(5, 5, dtype=torch.bool)
    masks = [
        {},
        {"src_mask": square},
        {"tgt_mask": square},
        {"is_causal": True},
        {"src_key_padding_mask": square[:2]},
    ]
    for one in (layer, *stacked(layer)):
        one.eval()
        for args in [(x,) for x in others] + list(itertools.product(others, others)):
            for kwargs in masks:
                known = known_of(one, args, kwargs)
                with torch.no_grad():
                    assert known is None or are_alike(one(*args, **kwargs), known)


def changed(make, name, value):
    """A layer of which an attribute is another one, or is missing."""
    layer = make().eval()
    owner, _, attribute = name.rpartition(".")
    owner = layer.get_submodule(owner)
    delattr(owner, attribute)
    if value != "missing":
        setattr(owner, attribute, value)
    return layer


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def decoder():
    return nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)


def attention():
    return nn.MultiheadAttention(8, 2, batch_first=True)


def cells():
    return nn.LSTM(8, 6, batch_first=True)


OTHER_SETTINGS = [
    *((encoder, name, nn.RMSNorm(8)) for name in ("norm1", "norm2")),
    *((encoder, name, nn.LayerNorm(8, bias=False)) for name in ("norm1", "norm2")),
    *((encoder, name, nn.Identity()) for name in ("norm1", "linear1", "linear2", "dropout")),
    (encoder, "linear1", nn.Linear(8, 16, bias=False)),
    (encoder, "linear2", nn.Linear(16, 8, bias=False)),
    (encoder, "linear2", nn.Linear(16, 4)),
    *(
        (make, "activation", value)
        for make in (encoder, decoder)
        for value in (nn.GLU(), nn.Flatten(), None, "missing")
    ),
    *((make, "dropout1", nn.Linear(8, 4)) for make in (encoder, decoder)),
    *(
        (make, "dropout2.p", value)
        for make in (encoder, decoder)
        for value in (2.0, -1.0, "a", None, "missing")
    ),
    *((make, "norm_first", value) for make in (encoder, decoder) for value in ("x", 0, None)),
    (decoder, "norm3", nn.RMSNorm(8)),
    (decoder, "multihead_attn", nn.Identity()),
    *((attention, "num_heads", value) for value in (2.0, -2, None)),
    *((attention, "embed_dim", value) for value in (8.0, None)),
    *((attention, "dropout", value) for value in (2.0, None, "missing")),
    *((attention, "batch_first", value) for value in (1, None)),
    *((cells, name, value) for name in ("batch_first", "bidirectional", "bias") for value in (0, 1, None)),
    *(
        (cells, name, value)
        for name in ("hidden_size", "num_layers", "proj_size")
        for value in (6.0, None, True)
    ),
    *((cells, "dropout", value) for value in (2.0, None, "missing")),
    *((cells, "training", value) for value in (0, None)),
    *((cells, "mode", value) for value in ("GRU", "other")),
    (cells, "bias", False),
    (cells, "_flat_weight_refs", []),
]


@pytest.mark.parametrize(("make", "name", "value"), OTHER_SETTINGS)
def test_other_settings_are_not_known(make, name, value):
    inputs = {encoder: (X,), decoder: (X, MEMORY), attention: (X, X, X), cells: (X,)}[make]
    assert known_of(make().eval(), inputs, {}) is not None
    assert known_of(changed(make, name, value), inputs, {}) is None


@pytest.mark.parametrize("kind", [nn.TransformerEncoder, nn.TransformerDecoder])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_stacks_of_nothing_are_not_known(kind):
    layer = encoder() if kind is nn.TransformerEncoder else decoder()
    inputs = (X,) if kind is nn.TransformerEncoder else (X, MEMORY)
    assert known_of(kind(layer, 0).eval(), inputs, {}) is None
    stack = kind(layer, 1, nn.LayerNorm(8)).eval()
    assert known_of(stack, inputs, {}) is not None
    stack.norm = nn.Flatten()
    assert known_of(stack, inputs, {}) is None


def test_projections_make_torch_warn_and_are_not_known():
    assert known_of(nn.LSTM(8, 6, proj_size=3).eval(), (X,), {}) is None


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        (nn.TransformerEncoderLayer, "_ff_block", encoder),
        (nn.MultiheadAttention, "merge_masks", attention),
        (nn.LSTM, "check_forward_args", cells),
        (nn.RNNBase, "check_input", cells),
    ],
)
def test_classes_with_other_functions_are_not_known(kind, name, make, monkeypatch):
    inputs = {encoder: (X,), attention: (X, X, X), cells: (X,)}[make]
    layer = make().eval()
    assert known_of(layer, inputs, {}) is not None
    monkeypatch.setattr(kind, name, lambda *_: None)
    assert known_of(layer, inputs, {}) is None


def test_transformers_of_other_layers_are_not_known():
    class Other(nn.TransformerEncoderLayer):
        def forward(self, src, **options):
            return src[:1]

    encoder = nn.TransformerEncoder(Other(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    assert known_of(encoder, (X,), {}) is None
    layer = copy.deepcopy(ENCODER[0]).eval()
    layer.linear1 = nn.Linear(8, 15)
    assert known_of(layer, (X,), {}) is None
    layer = copy.deepcopy(ENCODER[0]).eval()
    layer.norm2 = nn.Flatten()
    assert known_of(layer, (X,), {}) is None


MASKS = [
    {},
    {"key_padding_mask": torch.tensor([[False, True, False]]).expand(2, 3)},
    {"attn_mask": torch.zeros(5, 3, dtype=torch.bool)},
    {"attn_mask": torch.zeros(4, 5, 3, dtype=torch.bool)},
    {"attn_mask": torch.zeros(5, 3)},
    {"attn_mask": torch.zeros(3, 5, dtype=torch.bool)},
    {"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)},
    {
        "key_padding_mask": torch.zeros(2, 3, dtype=torch.bool),
        "attn_mask": torch.zeros(5, 3, dtype=torch.bool),
    },
    {"is_causal": True},
    {"need_weights": False},
    {"average_attn_weights": False},
    {"key_padding_mask": None, "attn_mask": None, "is_causal": False, "average_attn_weights": True},
]


@pytest.mark.parametrize("options", MASKS, ids=range(12))
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_with_masks(options, batch_first):
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    args = (X, MEMORY, MEMORY) if batch_first else tuple(one.transpose(0, 1) for one in (X, MEMORY, MEMORY))
    known = known_of(layer, args, options)
    assert known is None or are_alike(layer(*args, **options), known)


def test_attention_with_one_mask_of_flags_is_known():
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    known = [known_of(layer, (X, MEMORY, MEMORY), options) is not None for options in MASKS]
    assert known == [True, True, True, *[False] * 6, True, False, True]


@pytest.mark.parametrize("kind", COMPOSITES)
def test_subclasses_are_not_known(kind):
    layer = nn.LSTM(8, 6).eval()
    layer.__class__ = type("Own", (kind,), {})
    with pytest.raises((UnknownShapeError, KeyError)):
        shape_of_call(layer, (abstract(X, DTYPE),), {}, DTYPE)


def test_layers_that_hold_one_another_are_looked_at_once():
    layer = encoder().eval()
    layer.dropout1._modules["back"] = layer
    assert not compute_alone([layer, layer.dropout1])
    layer.dropout1._modules.clear()
    assert compute_alone([*layer.modules()])
