"""A backend on the skeleton for converting backends: its engine runs a list of operators."""

from __future__ import annotations

import operator

import torch
from torch import nn

from fxplug.ir import map_aggregate
from fxplug.lower import (
    Conversion,
    ConverterRecord,
    ConvertingBackend,
    EngineValue,
    fill_results,
    write_program,
)

aten = torch.ops.aten


class Name(str):
    """Of a value while the engine runs."""

    __slots__ = ()


class Lines(Conversion):
    """A list of operators that is being written."""

    engine = "Lines"

    def __init__(self):
        self.lines, self.constants, self.results, self.sizes = [], {}, [], {}

    def add_input(self, name, example, sizes):
        self.sizes[name] = tuple(sizes)
        return EngineValue(Name(name), example)

    def add_constant(self, tensor):
        name = Name(f"constant_{len(self.constants)}")
        self.constants[name] = tensor.detach()
        return EngineValue(name, tensor)

    def add_result(self, name, value):
        self.results.append(value.output)

    def check_tensor(self, like):
        if like.dtype is torch.complex64:
            raise self.fail("Lines has no complex numbers")

    def line(self, function, *args, **kwargs):
        name = Name(f"line_{len(self.lines)}")
        self.lines.append((name, function, map_aggregate(args, _name, frozen=False), kwargs))
        return name


def _name(leaf):
    return leaf.output if isinstance(leaf, EngineValue) else leaf


def record(target, check=None):
    """Return the converter that writes an operator as itself."""

    def convert(build, *args, **kwargs):
        made = build.line(target, *args, **kwargs)
        if isinstance(build.like, int):
            return EngineValue(made, torch.tensor(build.like))
        if not isinstance(build.like, (tuple, list)):
            return made
        return tuple(build.line(operator.getitem, made, number) for number in range(len(build.like)))

    return ConverterRecord(target, convert, check)


KNOWN = (
    *(aten.relu.default, aten.tanh.default, aten.addmm.default, aten.t.default, aten.sum.dim_IntList),
    *(
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.cat.default,
        aten.split_with_sizes.default,
        aten.max.dim,
        aten.view.default,
    ),
)


class LinesModule(nn.Module):
    """Runs a list of operators."""

    def __init__(self, build, written):
        super().__init__()
        self.build, self.written = build, written

    def forward(self, *inputs):
        values = {place.name: place.tensor(inputs) for place in self.written.inputs} | self.build.constants

        def known(leaf):
            return values[leaf] if isinstance(leaf, Name) else leaf

        for name, function, args, kwargs in self.build.lines:
            values[name] = function(*map_aggregate(args, known, frozen=False), **kwargs)
        return fill_results(self.written.results, [values[name].clone() for name in self.build.results])


class LinesBackend(ConvertingBackend):
    """Runs what `KNOWN` names, and what it is given."""

    engine = "Lines"
    distribution = "fxplug-lines"
    converter_hook = "lines_converters"

    def __init__(self, *converters, opened=(), manager=None):
        super().__init__(converters)
        self.opened, self.manager, self.writings = tuple(opened), manager, 0

    def builtin_converters(self):
        return map(record, KNOWN)

    def open_dimensions(self):
        return self.opened

    def host(self):
        return self.manager

    def written(self, program):
        self.writings += 1
        build = Lines()
        return LinesModule(build, write_program(program, build, self.converters))

    def compile(self, subgraph, example_inputs, options):
        return self.converted(subgraph, example_inputs)
