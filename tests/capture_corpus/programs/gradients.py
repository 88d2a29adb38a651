"""Derivatives of the program's own: custom backward, checkpoints, function transforms, control-flow operators."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, one, positive, ramp, tracked, two


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * 1, x.sum()

    @staticmethod
    def backward(ctx, gradient, gradient_of_sum):
        (x,) = ctx.saved_tensors
        return gradient * ctx.scale * x + gradient_of_sum, None


@program(tracked)
def straight_through_estimator(x):
    return _StraightThrough.apply(x * 2) * 3


@program(tracked)
def function_with_several_results(x):
    y, total = _ScaledGradient.apply(x, 5.0)
    return y * total


@program(tracked)
def detached_straight_through(x):
    return x + (x.round() - x).detach()


@program(tracked)
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) + x


@program(tracked, symbolic="FXP-T054")
class CheckpointedReentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x):
        return checkpoint(lambda value, scale: self.body(value) * scale, x, 2.0, use_reentrant=True)


@program(tracked)
class CheckpointedInSegments(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])

    def forward(self, x):
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@program(two, others=lambda: (ramp(5, 3), ramp(5, 3)))
def vmapped(x, y):
    return torch.vmap(torch.dot)(x, y)


@program(one)
def vmapped_over_columns(x):
    return torch.func.vmap(lambda column, scale: column.sum() * scale, in_dims=(1, None))(x, 2.0)


@program(tracked)
def gradient_as_a_value(x):
    return torch.func.grad(lambda value: value.sin().sum())(x)


@program(one)
def jvp(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


@program(one, symbolic="FXP-T054")
def jacobian_and_hessian(x):
    return torch.func.jacrev(lambda v: v**3)(x[0]), torch.func.hessian(lambda v: (v**3).sum())(x[0])


@program(tracked, symbolic="FXP-T054", others=lambda: (ramp(5, 3),))
class GradientsOfTheModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def energy(self, row):
        return self.net(row).sum() * self.scale

    def forward(self, x):
        return torch.func.vmap(torch.func.grad(self.energy))(x)


@program(one, symbolic="FXP-T054")
class JacobiansOfALayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(self.layer))(x)


@program(tracked)
class FunctionalCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        doubled = {name: value * 2 for name, value in self.linear.named_parameters()}
        return torch.func.functional_call(self.linear, doubled, (x,))


@program(tracked)
def gradient_by_autograd(x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return gradient * x


@program(one, symbolic="FXP-T045")
def backward_inside(x):
    weight = torch.ones(3, requires_grad=True)
    (x * weight).sum().backward()
    return weight.grad * 2


@program(tracked)
def hook_on_a_tensor(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 10)
    return y.sum()


@program(two, others=lambda: (ramp(2, 3, low=-3.0, high=-2.0), ramp(2, 3)))
def torch_cond(x, y):
    return torch.cond(x.sum() + 1 > 0, lambda a, b: a + b, lambda a, b: a - b, (x, y))


@program(positive, others=larger)
def where_instead_of_a_branch(x):
    return torch.where(x > 0, x.sqrt(), torch.zeros_like(x))


@program(tracked)
def gradients_stopped_in_places(x):
    y = x * 2
    return y.detach() * x, y.data.sum(), torch.clone(y), x.detach().requires_grad_() * 3


@program(tracked)
def retained_gradient(x):
    y = x * 2
    y.retain_grad()
    return y.exp()


@program(one, symbolic="FXP-T001")
def forward_derivative(x):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        return forward.unpack_dual(dual.sin()).tangent.clone()


class _InPlaceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@program(one)
def function_that_writes(x):
    y = _InPlaceFunction.apply(x)
    return y + x
