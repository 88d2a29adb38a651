"""Random modules, random edits of them, and photographs that show everything that can be seen of one."""

from __future__ import annotations

import copy
import operator
import random
from contextlib import suppress

import torch
from torch import nn

import fxplug
from fxplug.execute import GraphModule
from fxplug.ir import Origin, RegionEntry
from fxplug.semantics.internals import storage_of

WIDTH = 3
X = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
UNARY = (torch.relu, torch.sin, torch.tanh, operator.neg, torch.detach)
BINARY = (operator.add, operator.mul, torch.maximum)


class Part(nn.Module):
    """A module with a bit of everything."""

    def __init__(self, rng):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH), requires_grad=rng.random() < 0.7)
        self.register_buffer("offset", torch.randn(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=rng.random() < 0.5)
        # Memory that several share.
        self.register_buffer("row", self.weight.detach()[0] if rng.random() < 0.5 else torch.ones(WIDTH))
        self.register_buffer("turned", self.weight.detach().t() if rng.random() < 0.5 else torch.eye(WIDTH))
        self.plain = torch.randn(WIDTH)
        self.settings = {"names": ["a", {"b": [1, 2]}], "pair": ([1], {3}), "tensors": [torch.ones(2)]}
        self.history = [{"step": 0}, {"step": 1}]
        if rng.random() < 0.3:
            self.register_forward_hook(lambda *_: None)

    def forward(self, x):
        return x @ self.weight.t() + self.bias * self.offset + self.row + self.plain


def random_module(seed):
    """Return a graph module made from a seed."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    parts = {f"part{number}": Part(rng) for number in range(rng.randint(1, 3))}
    if len(parts) > 1 and rng.random() < 0.3:
        parts["part1"].bias = parts["part0"].bias
    values = dict(parts)
    inner = fxplug.symbolic_trace(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH).eval()))
    inner.graph.output_node().meta["inner"] = {"deep": [1]}
    values["nested"] = inner
    values["scale"] = nn.Parameter(torch.ones(WIDTH))
    values["shift"] = torch.zeros(WIDTH)
    graph = fxplug.Graph()
    pool = [graph.placeholder("x")]
    for _ in range(rng.randint(3, 9)):
        pool.append(_random_node(graph, pool, list(parts), rng))
    graph.output(pool[-1])
    for node in graph.nodes:
        if rng.random() < 0.5:
            node.meta["note"] = {"list": [rng.random()], "node": rng.choice(pool)}
        if rng.random() < 0.3:
            node.type = torch.Tensor
    module = GraphModule(values, graph, "Random")
    module.meta["mine"] = {"list": [1, {"a": 2}]}
    if rng.random() < 0.5 and module(X).requires_grad:
        module(X).sum().backward()
    module.train(rng.random() < 0.5)
    return module


def _random_node(graph, pool, parts, rng):
    kind = rng.randrange(5)
    value = rng.choice(pool)
    if kind == 0:
        return graph.call_function(rng.choice(UNARY[:4]), (value,))
    if kind == 1:
        return graph.call_function(rng.choice(BINARY), (value, rng.choice(pool)))
    if kind == 2:
        return graph.call_module(rng.choice(parts), (value,))
    if kind == 3:
        return graph.call_module("nested", (value,))
    return graph.call_function(operator.mul, (value, graph.get_attr(rng.choice(["scale", "shift", "scale"]))))


# -- photographs


def photograph(module):
    """Return everything that can be seen of a module, as values that can be compared."""
    twin = copy.deepcopy(module)  # A run may change the module.
    with torch.no_grad():
        results = [repr(twin(X).tolist()), repr(twin(X * 2).tolist())]
    return {
        "graphs": [
            (path, _graph(part)) for path, part in module.named_modules() if isinstance(part, GraphModule)
        ],
        "tensors": {
            (path, name): _tensor(value)
            for path, part in module.named_modules()
            for table in (part._parameters, part._buffers, vars(part))
            for name, value in table.items()
            if isinstance(value, torch.Tensor)
        },
        "order": [*module.state_dict()],
        "modules": [
            (name, id(part), type(part), part.training)
            for name, part in module.named_modules(remove_duplicate=False)
        ],
        "parameters": [(name, id(value)) for name, value in module.named_parameters(remove_duplicate=False)],
        "buffers": [(name, id(value)) for name, value in module.named_buffers(remove_duplicate=False)],
        "attributes": [
            (path, [(name, id(value), _plain(value)) for name, value in _attributes(part)])
            for path, part in module.named_modules()
        ],
        "results": results,
    }


def _attributes(part):
    return [(name, value) for name, value in vars(part).items() if name not in {"_compiled", "_graph"}]


def _graph(part):
    return {
        "text": str(part.graph),
        "code": part.code,
        "nodes": [
            (
                node.name,
                node.op,
                node.target,
                str(node.args),
                str(node.kwargs),
                str(node.type),
                str(node.region),
                [id(origin) for origin in node.origins],
                _plain(node.meta),
                [user.name for user in node.users],
                [used.name for used in node.all_input_nodes],
            )
            for node in part.graph.nodes
        ],
    }


def _tensor(value):
    gradient = value.grad if value.is_leaf else None
    return {
        "id": id(value),
        "kind": type(value),
        "memory": (storage_of(value), value.untyped_storage().nbytes()),
        "layout": (value.shape, value.stride(), value.storage_offset(), value.dtype),
        "values": value.detach().tolist(),
        "needs": (value.requires_grad, value.is_leaf),
        "gradient": None if gradient is None else (id(gradient), gradient.tolist()),
        "attributes": dict(vars(value)),
    }


def _plain(value):
    """Return containers by what they hold, and of anything else the identity."""
    if isinstance(value, dict):
        return [(str(key), _plain(element)) for key, element in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, set):
        return sorted(map(str, value))
    if isinstance(value, torch.Tensor):
        return (id(value), value.tolist())
    if isinstance(value, fxplug.Node):
        return value.name
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    return id(value)


# -- edits


def _nodes(module):
    return [node for node in module.graph.nodes if node.op not in {"placeholder", "output"}]


def _graph_module(module, rng):
    parts = [part for part in module.modules() if isinstance(part, GraphModule)]
    return rng.choice(parts)


def _part(module, rng):
    return rng.choice([part for part in module.modules() if not isinstance(part, GraphModule)])


def _tensor_of(module, rng):
    return rng.choice([*module.parameters(), *module.buffers()])


def insert_node(module, rng):
    owner = _graph_module(module, rng)
    node = rng.choice(list(owner.graph.nodes)[:-1])
    with owner.graph.inserting_after(node):
        new = owner.graph.call_function(rng.choice(UNARY), (node,))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def erase_node(module, rng):
    node = rng.choice(_nodes(module))
    if node.all_input_nodes:
        node.replace_all_uses_with(node.all_input_nodes[0])
    module.graph.erase_node(node)


def rename_node(module, rng):
    rng.choice(list(module.graph.nodes)).name = f"other{rng.randrange(9)}"


def change_arguments(module, rng):
    node = rng.choice(list(module.graph.nodes)[1:])
    first = next(iter(module.graph.nodes))
    node.args = tuple(first if isinstance(value, fxplug.Node) else value for value in node.args)


def change_target(module, rng):
    node = rng.choice(module.graph.find_nodes(op="call_function"))
    node.target = torch.sub if len(node.args) == 2 else torch.cos


def change_notes(module, rng):
    for node in _graph_module(module, rng).graph.nodes:
        choice = rng.randrange(4)
        if choice == 0:
            node.meta["new"] = [1]
        elif choice == 1:
            node.meta.clear()
        elif choice == 2 and "note" in node.meta:
            node.meta["note"]["list"].append(7)
        else:
            node.type = int


def change_origins(module, rng):
    for node in _graph_module(module, rng).graph.nodes:
        node.origins = () if rng.random() < 0.5 else (Origin(None, made_by="nobody"),)


def change_region(module, rng):
    node = rng.choice(_nodes(module))
    node.region = (RegionEntry(torch.no_grad),)


def move_node(module, rng):
    node = rng.choice(_nodes(module))
    rng.choice(list(module.graph.nodes)).prepend(node)


def replace_graph(module, rng):
    owner = _graph_module(module, rng)
    owner.graph = copy.deepcopy(owner.graph)
    next(iter(owner.graph.nodes)).name = "fresh"


def rewrite(module, rng):
    kind = rng.choice(UNARY[:3])

    def pattern(x):
        return kind(x)

    def replacement(x):
        return kind(x) * 2

    fxplug.replace_pattern(module, pattern, replacement)


def add_module(module, rng):
    module.add_submodule(f"new.deep{rng.randrange(3)}", nn.Linear(2, 2))


def delete_module(module, rng):
    module.delete_submodule(rng.choice([name for name, _ in module.named_modules() if name]))


def delete_unused(module, rng):
    node = rng.choice(module.graph.find_nodes(op="call_module"))
    node.replace_all_uses_with(node.args[0])
    module.graph.erase_node(node)
    module.delete_all_unused_submodules()


def replace_module(module, rng):
    name = rng.choice([name for name, _ in module.named_children()])
    setattr(module, name, nn.Identity())


def replace_parameter(module, rng):
    part = _part(module, rng)
    name = rng.choice(list(part._parameters) or [""])
    setattr(part, name, nn.Parameter(torch.zeros(WIDTH, 1)))


def delete_tensor(module, rng):
    part = rng.choice(list(module.modules()))
    delattr(part, rng.choice([*part._parameters, *part._buffers]))


def add_tensors(module, rng):
    part = _part(module, rng)
    part.register_buffer("added", torch.ones(2))
    part.register_parameter("trained", nn.Parameter(torch.ones(2)))


def reorder_state(module, rng):
    part = _part(module, rng)
    name = next(iter(part._parameters))
    value = part._parameters.pop(name)
    part._parameters[name] = value


def write_in_place(module, rng):
    with torch.no_grad():
        _tensor_of(module, rng).add_(1)


def write_data(module, rng):
    _tensor_of(module, rng).data.mul_(3)


def write_view(module, rng):
    _tensor_of(module, rng).detach().view(-1)[:1].fill_(9)


def write_detached(module, rng):
    torch.neg(torch.ones(1), out=_tensor_of(module, rng).detach().reshape(-1)[:1])


def write_with_history(module, rng):
    with torch.enable_grad():
        rng.choice(list(module.buffers())).mul_(rng.choice(list(module.parameters())).sum())


def write_plain(module, rng):
    for part in module.modules():
        if isinstance(part, Part):
            part.plain.zero_()
            part.settings["tensors"][0].fill_(5)


def assign_data(module, rng):
    tensor = _tensor_of(module, rng)
    tensor.data = rng.choice([torch.zeros(1), torch.ones(4, 4, dtype=torch.float64), tensor.data.clone()])


def assign_transposed(module, rng):
    tensor = _tensor_of(module, rng)
    tensor.data = tensor.data.t()


def set_memory(module, rng):
    with torch.no_grad():
        _tensor_of(module, rng).set_(torch.full((5,), 2.0))


def resize(module, rng):
    with torch.no_grad():
        _tensor_of(module, rng).resize_(7).fill_(1)


def swap(module, rng):
    with torch.no_grad():
        one, other = _tensor_of(module, rng), _tensor_of(module, rng)
        one.data, other.data = other.data, one.data


def change_need(module, rng):
    tensor = _tensor_of(module, rng)
    tensor.requires_grad_(not tensor.requires_grad)


def write_gradients(module, rng):
    for parameter in module.parameters():
        choice = rng.randrange(4)
        if choice == 0:
            parameter.grad = None
        elif choice == 1:
            parameter.grad = torch.full_like(parameter, 4.0)
        elif choice == 2 and parameter.grad is not None:
            parameter.grad.add_(1)


def train_a_step(module, rng):
    module(X).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.5).step()


def convert(module, rng):
    rng.choice([module.double, module.half, lambda: module.to(torch.bfloat16)])()


def change_mode(module, rng):
    part = rng.choice(list(module.modules()))
    part.train(not part.training)


def add_hooks(module, rng):
    part = rng.choice(list(module.modules()))
    part.register_forward_hook(lambda *_: torch.zeros(1))
    part.register_forward_pre_hook(lambda *_: None)
    part._forward_hooks.clear() if rng.random() < 0.3 else None


def change_attributes(module, rng):
    part = _part(module, rng)
    part.mark = object()
    part.plain = 3
    if isinstance(part, Part):
        part.settings["names"][1]["b"].append(object())
        part.settings["pair"][0].clear()
        part.settings["pair"][1].add(4)
        part.history[1]["step"] = 99
        part.history.pop(0)
    module.meta["mine"]["list"][1]["a"] = "changed"
    module.meta["else"] = 1


def change_class(module, rng):
    _part(module, rng).__class__ = nn.Identity


def change_forward(module, rng):
    _part(module, rng).forward = lambda x: x * 0


def mark_tensor(module, rng):
    _tensor_of(module, rng).mark = 1


def run_module(module, rng):
    module(X)


EDITS = [
    *(insert_node, erase_node, rename_node, change_arguments, change_target, change_notes, change_origins),
    *(change_region, move_node, replace_graph, rewrite, add_module, delete_module, delete_unused),
    *(replace_module, replace_parameter, delete_tensor, add_tensors, reorder_state),
    *(
        write_in_place,
        write_data,
        write_view,
        write_detached,
        write_with_history,
        write_plain,
        assign_data,
        assign_transposed,
    ),
    *(set_memory, resize, swap, change_need, write_gradients, train_a_step, convert, change_mode),
    *(add_hooks, change_attributes, change_class, change_forward, mark_tensor, run_module),
]


def write_numpy(module, rng):
    _tensor_of(module, rng).detach().numpy().reshape(-1)[:1] = 8


def edit(module, edits, seed):
    """Do some edits; one that is not possible on the module as it is by then is left half-done."""
    rng = random.Random(seed)
    for change in edits:
        with suppress(Exception):
            change(module, rng)
