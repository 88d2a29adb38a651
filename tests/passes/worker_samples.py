"""Modules and passes that another process can import."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch
from torch import nn

from fxplug.passes import Pass, PassResult


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))
        self.listed = [self.first, self.scale]
        self.config = {"depth": [1, 2]}

    def forward(self, x):
        return torch.relu(self.second(self.first(x))) * self.scale


class Doing(Pass):
    """Runs one of the functions below."""

    def __init__(self, work):
        self.work = work

    def run(self, module, context):
        found = self.work(module)
        return PassResult(True, "done") if found is None else found


def relu_of(module):
    return module.graph.find_nodes(op="call_function", target=torch.relu)[0]


def edits(module):
    relu = relu_of(module)
    relu.target = torch.sigmoid
    with module.graph.inserting_after(relu):
        negated = module.graph.call_function(torch.neg, (relu,))
    relu.replace_all_uses_with(negated, delete_user_cb=lambda user: user is not negated)


def negates(module):
    (output,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(torch.neg, output.args),)
    module.negated = True  # So that the module itself is sent back, too.


def writes(module):
    with torch.no_grad():
        module.first.weight.mul_(2)
        module.listed[1].add_(3)
        module.first.bias.data = torch.zeros(4)


def replaces(module):
    module.first = nn.Linear(4, 4, bias=False)
    nn.init.constant_(module.first.weight, 0.5)
    module.second.bias = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
    module.second.extra = module.first
    module.second.view = module.scale[:2]
    module.eval()
    del module.listed


def converts(module):
    module.to(torch.float64)


def unties(module):
    module.second.weight = nn.Parameter(module.first.weight.detach().clone())


def ties_memory(module):
    module.first.bias.data = module.second.bias.data


def notes(module):
    relu_of(module).meta["note"] = relu_of(module).args[0]
    return PassResult(False)


def draws(module):
    with torch.no_grad():
        module.scale.copy_(torch.rand(4))


def new_graph(module):
    import copy

    module.graph = copy.deepcopy(module.graph)
    relu_of(module).target = torch.tanh


def lies(module):
    relu_of(module).target = torch.sigmoid
    return PassResult(False)


def wrong_type(module):
    return "done"


def loops(module):
    relu_of(module).target = torch.sigmoid
    with torch.no_grad():
        module.first.weight.zero_()
    while True:
        pass


def sleeps_in_c(module):
    time.sleep(1000)


def loops_editing(module):
    while True:
        relu_of(module).target = torch.relu


class Asking(Pass):
    """Reads what is known of a node after an edit that keeps all shapes."""

    def run(self, module, context):
        shapes = context.analysis("shapes")
        relu = relu_of(module)
        relu.target = torch.sigmoid
        return PassResult(True, str(list(shapes[relu].shape)))


def fails(module):
    relu_of(module).target = torch.sigmoid
    raise ValueError("of its own")


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fails_oddly(module):
    raise OddError(1, 2)


def interrupts(module):
    raise KeyboardInterrupt


def ends(module):
    raise SystemExit(3)


def leaves(module):
    relu_of(module).target = torch.sigmoid
    os._exit(7)


def crashes(module):
    relu_of(module).target = torch.sigmoid
    ctypes.string_at(0)


def is_killed(module):
    os.kill(os.getpid(), signal.SIGKILL)


def puts_a_lambda(module):
    module.function = lambda: None


def prints_where(module):
    return PassResult(False, f"process {os.getpid()}")
