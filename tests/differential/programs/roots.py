"""What can be traced, and tracers with rules of their own, through torch.fx and fxplug."""

# Annotations are part of what is compared, so they are no text here: no `from __future__ import annotations`.
import enum
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

import fxplug

PROGRAMS: dict[str, dict[str, Any]] = {}


def one() -> tuple[Any, ...]:
    return (torch.linspace(-1, 1, 8).reshape(2, 4),)


def two() -> tuple[Any, ...]:
    return (*one(), torch.linspace(2, 3, 8).reshape(2, 4))


def root(
    make_inputs: Callable[[], tuple[Any, ...]], **options: Any
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that makes what is traced."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS[make.__name__] = {"make": make, "make_inputs": make_inputs, **options}
        return make

    return register


# -- callables


def scaled(x, scale, shift=0.5):
    return x * scale + shift


class Holder:
    factor = 3.0

    def __call__(self, x):
        return x * self.factor

    def method(self, x, power=2):
        return x**power

    @classmethod
    def of_class(cls, x):
        return x + cls.factor

    @staticmethod
    def without(x):
        return x.neg()


@root(one)
def lambda_root():
    return lambda x: x + 1


@root(one)
def partial_root():
    return functools.partial(scaled, scale=2.0)


@root(one)
def partial_root_by_position():
    return functools.partial(lambda scale, x: x * scale, 4.0)


@root(one)
def bound_method_root():
    return Holder().method


@root(one)
def class_method_root():
    return Holder.of_class


@root(one)
def static_method_root():
    return Holder.without


@root(one)
def callable_object_root():
    return Holder()


@root(one)
def nested_function_root():
    factors = [1.0, 2.0]

    def inner(x):
        nonlocal factors

        def deeper(y):
            return y * factors[1]

        return deeper(x) + factors[0]

    return inner


WEIGHT = torch.linspace(0, 1, 4)


@root(one)
def closure_over_a_tensor():
    weight, twin = torch.full((4,), 2.0), torch.ones(4)
    return lambda x: (x * weight + twin) * weight


@root(one)
def global_tensor():
    return lambda x: x @ WEIGHT + WEIGHT.sum()


@root(one)
def children_called_through_a_plain_list():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))
            self.order = [self.first, self.second]

        def forward(self, x):
            for layer in self.order:
                x = layer(x)
            return x + self.order[1][0].weight.sum()

    return Listed()


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@root(one)
def decorated_root():
    @doubled
    def inner(x):
        return x - 1

    return inner


class DecoratedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @doubled
    def forward(self, x):
        return self.linear(x)


@root(one)
def decorated_forward():
    return DecoratedForward()


# -- modules as roots


@root(one)
def leaf_as_root():
    return nn.Linear(4, 3)


@root(one)
def sequential_as_root():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))


class Helpers(nn.Module):
    """Reaches its parts by every means that a class has."""

    scale = 0.5

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.names = ["linear"]
        self.function = torch.tanh

    @classmethod
    def shift(cls, x):
        return x + cls.scale

    @staticmethod
    def square(x):
        return x * x

    @property
    def weight(self):
        return self.linear.weight

    def __getitem__(self, name):
        return getattr(self, name)

    def forward(self, x):
        x = self[self.names[0]](x)
        x = self.function(self.shift(x)) + self.square(x)
        return F.linear(x, self.weight) * type(self).scale


@root(one)
def helpers_of_a_class():
    return Helpers()


class Narrowed(nn.Sequential):
    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x.narrow(1, 0, 2)


@root(one)
def sequential_with_its_own_forward():
    return Narrowed(nn.Linear(4, 4), nn.ReLU())


@root(one)
def parent_reads_the_parameters_of_its_children():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            return sum(F.linear(x, layer.weight, layer.bias) for layer in self.child) / len(self.child)

    return Parent()


@root(one)
def forward_of_the_instance():
    module = nn.Linear(4, 4)
    module.forward = lambda x: x * 3
    return module


@root(one)
def training_decides():
    class Training(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training) if self.training else x

    return Training().eval()


@root(one)
def constant_attributes():
    class Constants(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes, self.mode, self.table = (2, 2), "nearest", {"scale": 3.0}

        def forward(self, x):
            y = F.interpolate(x.view(1, 1, *self.sizes, -1)[..., 0], scale_factor=2, mode=self.mode)
            return y * self.table["scale"]

    return Constants()


# -- programs with values fixed


@root(one, concrete_args={"scale": 2.0})
def fixed_number():
    return lambda x, scale=2.0: x * scale if scale > 1 else x


@root(one, concrete_args={"mask": None})
def fixed_none():
    return lambda x, mask=None: x if mask is None else x * mask


@root(one, concrete_args={"negates": True})
def fixed_condition():
    return lambda x, negates=True: -x if negates else x


# -- functions that stay calls


@torch.fx.wrap
@fxplug.wrap
def kept(x, factor):
    return x * 2 if float(x.detach().sum()) > 100 else x * factor


torch.fx.wrap("len")


@root(one)
def wrapped_function():
    return lambda x: kept(x, 3) + kept(x.abs(), factor=2)


@root(one)
def wrapped_builtin():
    return lambda x: x * len(x) + len([1, 2])


@root(one)
def functions_of_math():
    return lambda x: x * math.sqrt(x.shape[1]) + math.pi - math.floor(2.5)


@root(one)
def sizes_in_factories():
    return lambda x: torch.arange(x.size(1)) + torch.zeros((x.shape[0], 4)) + torch.full((x.shape[1],), 2.0)


# -- tracers with rules of their own


class LeafRule:
    """Keeps a class of the user as one node, and enters one of torch."""

    def is_leaf_module(self, m, module_qualified_name):
        if isinstance(m, DecoratedForward):
            return True
        return not isinstance(m, nn.Linear) and super().is_leaf_module(m, module_qualified_name)


def tracers(rule: type, **namespace: Any) -> tuple[type, type]:
    return type("Ours", (rule, fxplug.Tracer), namespace), type(
        "Theirs", (rule, torch.fx.Tracer), dict(namespace)
    )


@root(one, tracers=tracers(LeafRule))
def tracer_with_its_own_leaves():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = DecoratedForward()
            self.entered = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.entered(self.kept(x))

    return Model()


class NoLeaves:
    def is_leaf_module(self, m, module_qualified_name):
        return False


@root(one, tracers=tracers(NoLeaves))
def tracer_that_enters_everything():
    return nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.0), nn.Hardswish(), nn.Softmax(-1)
    )


@root(lambda: (torch.linspace(-1, 1, 16).reshape(1, 4, 2, 2),), tracers=tracers(NoLeaves))
def tracer_that_enters_convolutions():
    return nn.Sequential(
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
        nn.ConvTranspose2d(4, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Truthful:
    def to_bool(self, obj):
        return True

    def iter(self, obj):
        return iter([obj[index] for index in range(2)])

    def keys(self, obj):
        return ["dim"]


@root(one, tracers=tracers(Truthful))
def tracer_that_answers():
    return lambda x: [row * 2 for row in x] if x.sum() > 0 else x


@root(lambda: (*one(), {"dim": 1}), tracers=tracers(Truthful))
def tracer_that_knows_the_keys():
    return lambda x, options: torch.sum(x, **options)


class Axis(enum.IntEnum):
    ROWS = 0
    COLUMNS = 1


class ArgumentRule:
    """Turns what torch.fx would refuse into plain numbers."""

    def create_arg(self, a):
        return int(a) if isinstance(a, Axis) else super().create_arg(a)


@root(two, tracers=tracers(ArgumentRule))
def tracer_with_its_own_arguments():
    return lambda x, y: (x.sum(Axis.ROWS), torch.cat([x, y], dim=Axis.COLUMNS), x.permute([Axis.COLUMNS, 0]))


class ProxyRule:
    """Names and annotates what it records."""

    def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, proxy_factory_fn=None):
        if kind == "call_function":
            name, type_expr = "step", Tensor
        return super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)


@root(two, tracers=tracers(ProxyRule))
def tracer_with_its_own_proxies():
    return lambda x, y: torch.relu(x + y) - x.abs()


class ModuleRule:
    """Notes which modules are called, and puts something behind each."""

    def call_module(self, m, forward, args, kwargs):
        return super().call_module(m, forward, args, kwargs).contiguous()


@root(one, tracers=tracers(ModuleRule))
def tracer_with_its_own_module_calls():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))


class NodeRule:
    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        node.meta["seen"] = len(self.graph.nodes)
        return node


@root(two, tracers=tracers(NodeRule))
def tracer_with_its_own_nodes():
    return lambda x, y: (x @ y.t()).sum()
