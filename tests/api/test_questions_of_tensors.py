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
    "dtype": lambda net, x: x.dtype == torch.float32,
    "is_floating_point": lambda net, x: x.is_floating_point(),
    "is_signed": lambda net, x: x.is_signed(),
    "device": lambda net, x: x.device.type == "cpu",
    "is_meta": lambda net, x: x.is_meta,
    "type": lambda net, x: x.type() == "torch.FloatTensor",
    "steps": lambda net, x: x.stride() == (4, 1),
    "step": lambda net, x: x.stride(0) == 4,
    "is_contiguous": lambda net, x: x.is_contiguous(),
    "contiguous is x": lambda net, x: x.contiguous() is x,
    "float is x": lambda net, x: x.float() is x,
    "offset": lambda net, x: x.storage_offset() == 0,
    "is a view": lambda net, x: x._is_view(),
    "requires_grad": lambda net, x: x.requires_grad,
    "of a result": lambda net, x: (x * 2).requires_grad,
    "is_leaf": lambda net, x: x.is_leaf,
    "grad": lambda net, x: x.grad is None,
    "grad in an if": lambda net, x: True if x.grad is not None else False,  # noqa: SIM210
    "grad twice": lambda net, x: x.grad is x.grad,
    "grad_fn": lambda net, x: x.grad_fn is None,
    "is_inference": lambda net, x: x.is_inference(),
    "numel": lambda net, x: x.numel() == 12,
    "dim": lambda net, x: x.dim() == 2,
    "shape": lambda net, x: x.shape == (3, 4),
    "a size": lambda net, x: x.size(-1) == 4,
    "len": lambda net, x: len(x) == 3,
    "in shape": lambda net, x: 3 in x.shape,
    "parameter": lambda net, x: isinstance(x, nn.Parameter),
    "class": lambda net, x: type(x) is torch.Tensor,
    "any": lambda net, x: bool((x > 3).any()),
    "sum": lambda net, x: x.sum().item() > 10,
    "int": lambda net, x: int(x.sum()) > 70,
    "equal": lambda net, x: torch.equal(x, x + 0),
    "isnan": lambda net, x: bool(torch.isnan(x).any()),
    "nonzero": lambda net, x: x.nonzero().shape[0] == 11,
    "tolist": lambda net, x: x.tolist()[0][0] == 0,
    "text": lambda net, x: str(x.dtype) == "torch.float32",
    "result_type": lambda net, x: torch.result_type(x, 1.5) == torch.float32,
    "finfo": lambda net, x: torch.finfo(x.dtype).bits == 32,
    "finfo of a result": lambda net, x: torch.finfo((x * 2).dtype).eps < 1e-6,
    "finfo as a number": lambda net, x: (x + torch.finfo(x.dtype).min).isinf().any(),
    "iinfo": lambda net, x: torch.iinfo((x > 1).to(torch.int8).dtype).max > 200,
    "attribute": lambda net, x: hasattr(x, "name_of_my_own"),
}


LISTENED_TO = {
    *(
        "in shape",
        "parameter",
        "type",
        "steps",
        "int",
        "contiguous is x",
        "float is x",
        "tolist",
        "is a view",
    ),
    *("result_type", "is_leaf", "attribute", "grad", "grad in an if", "grad twice", "grad_fn"),
}
"""Those questions for which a program has to be listened to."""


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


def forward(self, x):
    return x * 2 if self.ask(x) else x * 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("way", ["plain", "listened to"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_is_answered_for_another_tensor(question, way, plainly, listened_to):
    # Its question is a method: a function that closes over one would not be plain.
    program = type("Asking", (nn.Module,), {"ask": QUESTIONS[question], "forward": forward})().eval()
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
    assert any(plainly) is (way == "plain" and question not in LISTENED_TO)
