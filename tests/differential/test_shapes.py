"""Every program of the folder `programs`: the notes on its values are those that torch.fx makes.

`DIFFERENCES` is the only place where a difference is allowed, with its reason; an entry that describes none fails.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.shape_prop import ShapeProp as TorchShapeProp
from torch.utils import _pytree as pytree

from fxplug.analyze import ShapeProp

DIFFERENCES: dict[str, str] = {}
"""Name of a program -> why its notes differ."""


def named_values(graph, args, kwargs):
    """Return the values of the inputs in the order of the graph; None where they cannot be passed by position."""
    values = list(args)
    named = dict(kwargs)
    for node in graph.find_nodes(op="placeholder")[len(values) :]:
        if node.target not in named:
            break
        values.append(named.pop(node.target))
    return None if named else values


def torch_notes(comparison, *, fake):
    module = comparison.with_torch()
    values = named_values(comparison.with_fxplug().graph, *comparison.inputs())
    if values is None:
        return None
    torch.manual_seed(0)
    if not fake:
        TorchShapeProp(module).propagate(*values)
        return {node.name: plain(node.meta.get("tensor_meta")) for node in module.graph.nodes}
    FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*values)
    return {node.name: value_text(node.meta.get("val")) for node in module.graph.nodes}


def own_notes(comparison, *, fake):
    module = comparison.with_fxplug()
    values = named_values(module.graph, *comparison.inputs())
    torch.manual_seed(0)
    if not fake:
        ShapeProp(module).propagate(*values)
        return {node.name: plain(node.meta.get("tensor_meta")) for node in module.graph.nodes}
    ShapeProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*values)
    return {node.name: value_text(node.meta.get("val")) for node in module.graph.nodes}


def plain(note):
    """Return a note in a form that does not depend on the library."""
    if note is None:
        return None
    if hasattr(note, "memory_format"):
        return tuple(note)[:7]
    parts = (
        list(note.items())
        if isinstance(note, dict)
        else list(note)
        if isinstance(note, (list, tuple))
        else note
    )
    return [plain(part) for part in parts] if isinstance(parts, list) else repr(parts)


def value_text(value):
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [(tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) for leaf in tensors]


def compare(comparison, *, fake):
    if not comparison.same_graph:
        pytest.skip("the graphs are meant to differ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = torch_notes(comparison, fake=fake)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            # What depends on values has no answer without them, in either library.
            with pytest.raises(type(error)):
                own_notes(comparison, fake=fake)
            return
        if theirs is None:
            pytest.skip("torch.fx propagates no inputs by name")
        ours = own_notes(comparison, fake=fake)
    if comparison.name in DIFFERENCES:
        assert ours != theirs, "There is no difference: take the entry out of DIFFERENCES."
        return
    assert ours == theirs
    assert any(ours.values()), "nothing was noted"


def test_metadata_is_that_of_torch_fx(comparison):
    compare(comparison, fake=False)


def test_values_without_data_are_those_of_torch_fx(comparison):
    compare(comparison, fake=True)


def test_enough_programs_are_compared(comparisons):
    assert sum(comparison.same_graph for comparison in comparisons) >= 40


def test_every_entry_is_a_program(comparisons):
    assert DIFFERENCES.keys() <= {comparison.name for comparison in comparisons}
