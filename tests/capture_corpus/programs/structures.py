"""Structured inputs and outputs: dicts, dataclasses, named tuples and nests of them."""

# ruff: noqa: PLC3002
from __future__ import annotations

import collections
import dataclasses
import types
import typing

import torch
from torch import nn
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, larger, one, ramp, tracked, two


def batch():
    return ({"ids": torch.tensor([[1, 2], [3, 0]]), "mask": torch.tensor([[1, 1], [1, 0]])},)


def larger_batch():
    return ({"ids": torch.tensor([[1], [3], [2]]), "mask": torch.tensor([[1], [1], [0]])},)


@program(batch, others=larger_batch, rows=(22,))
def dict_input(batch):
    return batch["ids"] * batch["mask"]


@program(batch, others=lambda: ({"ids": torch.tensor([[1, 2]])},), rows=(22,), symbolic="FXP-T004")
def key_in_a_dict(batch):
    if "mask" in batch:
        return batch["ids"] * batch["mask"]
    return batch["ids"]


@program(batch, rows=(22,), symbolic="FXP-T005")
def keys_values_items(batch):
    total = sum(batch.values())
    return {f"{key}_doubled": value * 2 for key, value in batch.items()}, total, list(batch.keys())


@program(batch, rows=(22,), symbolic="FXP-T003")
def get_with_a_default(batch):
    return batch["ids"] * batch.get("scale", 3) + len(batch) + batch.setdefault("bias", 1)


@program(batch, rows=(22,), symbolic="FXP-T005")
def spread_dict(batch):
    merged = {**batch, "more": batch["ids"] + 1}
    return (lambda ids, mask, more: ids * mask + more)(**merged)


@program(
    lambda: ({"image": {"x": ramp(2, 3)}, "boxes": [ramp(4), ramp(4)]},), rows=(22,), symbolic="FXP-T005"
)
def nested_input(sample):
    boxes = torch.stack(sample["boxes"])
    return {"image": sample["image"]["x"] * 2, "boxes": (boxes, [box.sum() for box in boxes])}


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None = None
    name: str = "batch"


@program(
    lambda: (Batch(*one()),),
    others=(lambda: (Batch(*two()),), lambda: (Batch(*larger()),)),
    rows=(22,),
    symbolic="FXP-T041",
)
def dataclass_input(batch):
    return batch.x * 2 if batch.mask is None else batch.x * batch.mask


@program(two, rows=(22,))
def dataclass_output(x, y):
    made = Batch(x * 2, name="made")
    made.mask = y > 2.5
    return dataclasses.replace(made, name="replaced")


@program(lambda: (Batch(*two()),), symbolic="FXP-T068")
def fields_of_a_dataclass(batch):
    fields = dataclasses.asdict(batch)
    return fields["x"] + fields["mask"] * len(fields["name"])


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@program(lambda: (Pair(*two()),), rows=(22,))
def named_tuple_input(pair):
    left, right = pair
    return Pair(left + pair.right, right)._replace(left=pair.left)


@program(cube)
def named_result_of_torch(x):
    result = x.max(dim=1)
    values, indices = torch.sort(x, dim=-1)
    return result.values + values[:, 0], result.indices, indices


class ModelOutput(collections.OrderedDict):
    """An output whose keys can be read as attributes and by position."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_tuple(self):
        return tuple(self.values())


@program(tracked, rows=(22, 27))
class LanguageModelLike(nn.Module):
    """Options, optional inputs and an output class, as in libraries of language models."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(use_return_dict=True, activation="gelu")
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x, mask=None, labels=None, return_dict=None):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        hidden = getattr(F, self.config.activation)(self.body(x))
        if mask is not None:
            hidden = hidden * mask[:, None]
        logits = self.head(hidden)
        loss = None if labels is None else F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
        if not return_dict:
            return (logits,) if loss is None else (loss, logits)
        output = ModelOutput(logits=logits, hidden=hidden)
        if loss is not None:
            output["loss"] = loss
        return output


@program(
    lambda: (ramp(2, 3), torch.tensor([1.0, 0.0])),
    kwargs=lambda: {"labels": torch.tensor([0, 1])},
    other_kwargs=lambda: {"return_dict": False},
    rows=(27,),
    symbolic="FXP-T060",
)
class LanguageModelLikeWithLabels(LanguageModelLike):
    pass


@program(
    lambda: (collections.OrderedDict(a=ramp(2), b=ramp(2)),),
    symbolic="FXP-T005",
)
def ordered_dict(values):
    values.move_to_end("a")
    return collections.OrderedDict((key, value * index) for index, (key, value) in enumerate(values.items()))


@program(one, symbolic="FXP-T005")
def default_dict_made_inside(x):
    groups = collections.defaultdict(list)
    for index, row in enumerate(x.unbind(0)):
        groups[index % 2].append(row)
    return {key: torch.stack(rows) for key, rows in groups.items()}


@program(
    lambda: (types.SimpleNamespace(x=ramp(2, 3), scale=2.0),),
    symbolic="FXP-T015",
)
def object_input(request):
    request.result = request.x * request.scale
    return request.result


@program(one)
def mixed_outputs(x):
    return {"x": x, "name": "relu", "numbers": [1, 2.5, None, True], 3: (x + 1, {"nested": x - 1})}


@program(one)
def nothing_returned(x):
    x.add_(1)


@program(one)
def constant_returned(x):
    return {"answer": 42, "shape": (1, 2)}


@program(lambda: ([ramp(2, 3), ramp(2, 3)],), others=lambda: ([ramp(2, 3)] * 3,), symbolic="FXP-T005")
def list_input(values):
    total = values[0]
    for value in values[1:]:
        total = total * value
    return total / len(values)


@program(lambda: ((ramp(2), (ramp(3), [ramp(4)])),))
def unpacked_nest(nest):
    first, (second, [third]) = nest
    return first.sum() + second.sum() * third


@program(lambda: ([],), symbolic="FXP-T001")
def empty_list_input(values):
    values.append(torch.ones(2))
    return torch.stack(values) if values else None


@program(
    lambda: (ramp(2, 3), None, 2, "sum", [1, 2]),
    others=lambda: (ramp(2, 3), None, 3, "sum", [1, 2]),
    symbolic="FXP-T001",
)
def inputs_that_are_no_tensors(x, nothing, factor, kind, dims):
    out = x * factor if nothing is None else nothing
    return getattr(out, kind)() + len(dims)


@program(
    lambda: (torch.nn.utils.rnn.pack_sequence([ramp(3, 2), ramp(2, 2)]),),
    symbolic="FXP-T041",
    shape="FXP-T066",
)
def packed_sequence(packed):
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    return padded * 2, lengths


@program(
    lambda: (torch.distributions.Normal(torch.zeros(2), torch.ones(2)), ramp(2)),
)
def distribution_input(prior, x):
    return prior.log_prob(x) + prior.mean
