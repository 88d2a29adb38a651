"""Modules as they are in practice: hooks, wrappers, containers of Python, sharing, odd names."""

from __future__ import annotations

import contextlib
import types

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from capture_corpus.corpus import program
from capture_corpus.inputs import image, larger, one, ramp, tokens, tracked, two


class Affine(nn.Module):
    """A small module that is no leaf."""

    def __init__(self, scale: float = 2.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x):
        return x * self.scale + 1


# -- hooks and replaced methods


@program(tracked, factory=True, rows=(10,))
def hooks_of_the_root():
    root = nn.Linear(3, 3)
    root.register_forward_pre_hook(lambda module, args: (args[0] * 10,))
    root.register_forward_hook(lambda module, args, output: output + args[0].sum())
    return root


@program(tracked, factory=True, rows=(10,))
def hooks_of_children():
    root = nn.Sequential(Affine(), nn.Linear(3, 2))
    root[0].register_forward_hook(lambda module, args, output: output * 100)
    root[1].register_forward_pre_hook(lambda module, args: (args[0] + 5,))
    return root


@program(one, factory=True, rows=(10,))
def hooks_with_keywords():
    root = Affine()
    root.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"x": kwargs.pop("x", 1) * 2} if kwargs else kwargs),
        with_kwargs=True,
    )
    root.register_forward_hook(lambda module, args, kwargs, output: {"out": output}, with_kwargs=True)
    return root


@program(tracked, factory=True, rows=(10,), symbolic="FXP-T010", shape="FXP-T010", value="FXP-T010")
def backward_hook_of_the_root():
    root = Affine()
    root.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    return root


@program(tracked, factory=True, rows=(10,), symbolic="FXP-T010")
def backward_hook_of_a_child():
    root = nn.Sequential(Affine(), nn.Tanh())
    root[0].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    return root


@program(one, factory=True, rows=(10,), symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
def hook_that_collects():
    root = nn.Sequential(Affine(), Affine(3.0))
    root.features = []
    root[0].register_forward_hook(lambda module, args, output: root.features.append(output.mean()))
    return root


@program(one, factory=True, rows=(10,))
def forward_of_the_instance():
    root = Affine()
    root.forward = lambda x: x * 100
    return root


@program(one, factory=True, rows=(10,))
def forward_of_a_child_replaced():
    root = nn.Sequential(Affine(), nn.Linear(3, 3))
    root[0].forward = types.MethodType(lambda self, x: x * self.scale * 50, root[0])
    root[1].forward = lambda x: x - 1
    return root


@program(one, symbolic="FXP-T010")
class OwnCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Affine()

    def __call__(self, x):
        return super().__call__(x * 3) + 1

    def forward(self, x):
        return self.inner.forward(x)


# -- wrappers


@program(one, factory=True, rows=(25,))
def data_parallel():
    return nn.Sequential(nn.DataParallel(nn.Linear(3, 2)), nn.ReLU())


@program(one, rows=(25,))
class CompiledChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(Affine(), backend="eager")

    def forward(self, x):
        return self.inner(x) * 2


@program(one, factory=True, rows=(25,), symbolic="FXP-T068")
def compiled_function_inside():
    compiled = torch.compile(lambda x: x.relu() + 1, backend="eager")
    return lambda x: compiled(x) * 2


@program(one, rows=(25,))
class ScriptedChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(3, 2))

    def forward(self, x):
        return self.inner(x).relu()


@program(one, factory=True, rows=(25,))
def jit_traced_child():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3))

        def forward(self, x):
            return self.inner(x) + 1

    return Root()


@program(one, factory=True, rows=(23,))
def captured_child():
    return nn.Sequential(torch.fx.symbolic_trace(Affine()), nn.Tanh())


# -- containers of Python


@program(tracked, rows=(25,))
class ModulesInAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3), Affine(), nn.Tanh()]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@program(tracked, rows=(25,))
class ParametersInADict(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = {"scale": nn.Parameter(torch.ones(3)), "shift": [nn.Parameter(torch.zeros(3))]}

    def forward(self, x):
        return x * self.weights["scale"] + self.weights["shift"][0]


@program(one, rows=(25,))
class ModuleMadeInForward(nn.Module):
    def forward(self, x):
        return nn.Softmax(dim=-1)(nn.LeakyReLU(0.2)(x))


@program(one, rows=(25,))
class RandomModuleMadeInForward(nn.Module):
    def forward(self, x):
        return nn.Linear(3, 2, bias=False)(x)


@program(tracked, others=larger, rows=(25,))
class SlicesOfSequential(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        middle = self.layers[:2](x)
        return self.layers[2:](middle) + nn.Sequential(*list(self.layers)[1:3])(middle)


@program(tracked, rows=(25,))
class ModuleListsAndDicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Affine(), Affine(0.5)])
        self.heads = nn.ModuleDict({"left": nn.Linear(3, 1), "right": nn.Linear(3, 1)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.shifts = nn.ParameterDict({"left": nn.Parameter(torch.zeros(1))})

    def forward(self, x):
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x) * scale
        outputs = {name: head(x) for name, head in self.heads.items()}
        outputs["left"] = outputs["left"] + self.shifts["left"]
        return outputs if "right" in self.heads and len(self.blocks) == 2 else None


@program(one, rows=(25,))
class ModuleOutsideOfTheTree(nn.Module):
    def forward(self, x):
        return _OUTSIDE(x) * 2


_OUTSIDE = nn.Linear(3, 3).requires_grad_(False)


# -- sharing


@program(tracked, rows=(17,))
class SharedUnderTwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.third = Affine()
        self.fourth = self.third

    def forward(self, x):
        return self.second(self.first(x)) + self.fourth(self.third(x))


@program(image, flips=True, rows=(17,))
class SharedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.eval()

    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm(x)


@program(tokens)
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


@program(tracked)
class ParametrizedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = parametrizations.weight_norm(nn.Linear(3, 3))
        self.symmetric = nn.Linear(3, 3)
        parametrize.register_parametrization(self.symmetric, "weight", _Symmetric())

    def forward(self, x):
        return self.symmetric(self.plain(x))


class _Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).t()


@program(one, flips=True)
class SpectralNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.spectral_norm(nn.Linear(3, 3))

    def forward(self, x):
        return self.layer(x)


@program(tracked)
class CachedParametrization(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        parametrize.register_parametrization(self.layer, "weight", _Symmetric())

    def forward(self, x):
        with parametrize.cached():
            return F.linear(x, self.layer.weight) + F.linear(x * 2, self.layer.weight)


# -- names and ways to reach parts


@program(one, factory=True, rows=(29,))
def names_that_are_no_identifiers():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("class", "None", 'quo"te', "back\\slash", "new\nline", "a b", "self"):
                self.add_module(name, Affine())
            self.register_buffer("lambda", torch.ones(3))

        def forward(self, x):
            for child in self.children():
                x = child(x)
            return x * getattr(self, "lambda")

    return Root()


@program(tracked, symbolic="FXP-T068")
class PartsByPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), Affine())

    def forward(self, x):
        weight = self.get_parameter("layers.0.weight")
        return self.get_submodule("layers.1")(x @ weight) + sum(p.sum() for p in self.parameters())


@program(one)
class CountsItsParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        size = sum(parameter.numel() for parameter in self.parameters())
        device = next(self.parameters()).device
        return x.to(device) * size + len(self.state_dict())


@program(two)
class SeveralMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(3, 3), nn.Linear(3, 3)

    def scores(self, x, y):
        return self.query(x) @ self.key(y).t()

    @staticmethod
    def normalised(scores, *, dim=-1):
        return scores.softmax(dim)

    @classmethod
    def described(cls, scores):
        return {cls.__name__: scores}

    def forward(self, x, y):
        return self.described(self.normalised(self.scores(x, y)))


@program(one)
class InheritedForward(Affine):
    def forward(self, x):
        return super().forward(x) - Affine.forward(self, x * 2)


@program(one)
class CastsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer.weight.double() @ x.double().t() + self.layer.bias.to(torch.float64)[:, None]


@program(one, shape="FXP-T069", value="FXP-T069")
class LazyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(2)

    def forward(self, x):
        return self.layer(x)


@program(one, factory=True)
def module_as_a_context_of_its_child():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Affine()

        @contextlib.contextmanager
        def without_gradients(self):
            with torch.no_grad():
                yield self.inner

        def forward(self, x):
            with self.without_gradients() as inner:
                return inner(x)

    return Frozen()


@program(lambda: (ramp(4, 2, 3),), symbolic="FXP-T005")
class RecurrentCellInALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, sequence, hidden=None):
        states = []
        for step in sequence:
            hidden = self.cell(step, hidden)
            states.append(hidden)
        return torch.stack(states)


@program(lambda: (ramp(2, 4, 6),))
class AttentionWithWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        out, weights = self.attention(x, x, x, need_weights=True, average_attn_weights=False)
        return out, weights
