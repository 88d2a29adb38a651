"""Every question about a tensor that a program goes on with: a captured one never answers it for another tensor."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fxplug


class Own(torch.Tensor):
    pass


def tensors():
    start = torch.arange(12.0).reshape(3, 4)
    with_gradient = start.clone().requires_grad_()
    (with_gradient * 2).sum().backward()
    needing = start.clone().requires_grad_()
    with torch.inference_mode():
        untracked = start.clone()
    return {
        "floats": start,
        "doubles": start.double(),
        "integers": start.long(),
        "answers": start > 3,
        "complex": start.to(torch.complex64),
        "parameter": nn.Parameter(start.clone()),
        "needs gradients": needing,
        "computed": needing * 1,
        "has a gradient": with_gradient,
        "transposed": torch.arange(12.0).reshape(4, 3).t(),
        "behind others": torch.arange(16.0)[4:].reshape(3, 4),
        "expanded": torch.arange(4.0).expand(3, 4),
        "other values": start + 1,
        "no numbers": start * float("nan"),
        "longer": torch.arange(20.0).reshape(5, 4),
        "vector": torch.arange(4.0),
        "empty": torch.zeros(0, 4),
        "of a class": start.clone().as_subclass(Own),
        "untracked": untracked,
        "without data": start.to("meta"),
    }


QUESTIONS = {
    "dtype": lambda x: x.dtype == torch.float32,
    "is_floating_point": lambda x: x.is_floating_point(),
    "is_signed": lambda x: x.is_signed(),
    "device": lambda x: x.device.type == "cpu",
    "is_meta": lambda x: x.is_meta,
    "type": lambda x: x.type() == "torch.FloatTensor",
    "steps": lambda x: x.stride() == (4, 1),
    "step": lambda x: x.stride(0) == 4,
    "is_contiguous": lambda x: x.is_contiguous(),
    "contiguous is x": lambda x: x.contiguous() is x,
    "float is x": lambda x: x.float() is x,
    "offset": lambda x: x.storage_offset() == 0,
    "is a view": lambda x: x._is_view(),
    "requires_grad": lambda x: x.requires_grad,
    "of a result": lambda x: (x * 2).requires_grad,
    "is_leaf": lambda x: x.is_leaf,
    "grad": lambda x: x.grad is None,
    "grad in an if": lambda x: True if x.grad is not None else False,  # noqa: SIM210
    "grad_fn": lambda x: x.grad_fn is None,
    "is_inference": lambda x: x.is_inference(),
    "numel": lambda x: x.numel() == 12,
    "dim": lambda x: x.dim() == 2,
    "shape": lambda x: x.shape == (3, 4),
    "a size": lambda x: x.size(-1) == 4,
    "len": lambda x: len(x) == 3,
    "in shape": lambda x: 3 in x.shape,
    "parameter": lambda x: isinstance(x, nn.Parameter),
    "class": lambda x: type(x) is torch.Tensor,
    "any": lambda x: bool((x > 3).any()),
    "sum": lambda x: x.sum().item() > 10,
    "int": lambda x: int(x.sum()) > 70,
    "equal": lambda x: torch.equal(x, x + 0),
    "isnan": lambda x: bool(torch.isnan(x).any()),
    "nonzero": lambda x: x.nonzero().shape[0] == 11,
    "tolist": lambda x: x.tolist()[0][0] == 0,
    "text": lambda x: str(x.dtype) == "torch.float32",
    "result_type": lambda x: torch.result_type(x, 1.5) == torch.float32,
    "finfo": lambda x: torch.finfo(x.dtype).bits == 32,
    "attribute": lambda x: hasattr(x, "name_of_my_own"),
}


def called(program, x):
    """What a program gives, None where it raises an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Of gradients that are no leaf's.
        try:
            return program(x)
        except fxplug.GuardError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
            return None


def are_alike(found, expected):
    kinds = [(one.shape, one.dtype, one.device, one.requires_grad) for one in (found, expected)]
    if kinds[0] != kinds[1]:
        return False
    return found.is_meta or torch.equal(torch.nan_to_num(found.detach()), torch.nan_to_num(expected.detach()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("way", ["plain", "listened to"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_is_answered_for_another_tensor(question, way, listened_to):
    ask = QUESTIONS[question]

    def program(x):
        return x * 2 if ask(x) else x * 3

    count = 0
    for name, example in tensors().items():
        if called(program, example) is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                captured = (fxplug.trace if way == "plain" else listened_to)(
                    *((program, (example,)) if way == "plain" else (program, example)), check=False
                )
        except fxplug.TraceError:
            continue
        count += 1
        for other, value in tensors().items():
            expected = called(program, value)
            try:
                found = called(captured, tensors()[other])
            except fxplug.GuardError:
                continue
            assert found is None or (expected is not None and are_alike(found, expected)), (name, other)
    assert count > 5
