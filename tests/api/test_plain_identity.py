"""Plain programs that ask whether two values are one object: ``y is x``."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
from fxplug.api.plain_identity import are_objects_of_their_own
from fxplug.capture.plain_code import reads_of_function

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.same = nn.Linear(4, 4), nn.LayerNorm(4), nn.Identity()
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.weight, self.other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.tied = self.weight
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.yes = True
        self.two = 2


def net_of(forward):
    return type("Asking", (Net,), {"forward": forward})().eval()


def of_a_layer(self, x):
    y = self.layer(x)
    return y if y is not x else x + 1


def of_a_function(self, x):
    y = functional.relu(x) + torch.tanh(x)
    return y + 1 if y is x else y


def of_a_view(self, x):
    y = x.view(4, 3)
    return x + 1 if x is y else y


def of_one_twice(self, x):
    y = x
    return x + 1 if x is y else x - 1


def of_what_a_function_returns(self, x):
    y = handed_on(x)
    return x + 1 if x is y else x - 1


def handed_on(x):
    return x


def in_a_function(self, x):
    return chosen(self.layer(x), x)


def chosen(one, other):
    return one if one is not other else other + 1


def of_parts(self, x):
    one, other = x.chunk(2, dim=1)
    return one + other if one is not other else x


def of_parts_of_one(self, x):
    found = torch.split(x, 2, dim=1)
    one, other = found[0], found[1]
    return one - other if one is not other else x


def of_parts_of_all_kinds(self, x):
    parts = [*x.tensor_split(2, 1), *torch.tensor_split(x, 2, 1), *x.split(2, 1)]
    last = parts[0]
    for part in parts:
        last = last + 1 if part is last else last - part[:, :1]
    return last


def of_what_a_call_returns(self, x):
    return x + 1 if self.layer(x) is x else x - 1


def of_what_is_chosen(self, x):
    y = self.layer(x)
    return x + 1 if (y if x.shape[0] > 1 else x) is x else x - 1


def of_weights(self, x):
    w, other = self.weight, self.other
    return x + w if w is other else x * other


def of_a_weight_read_twice(self, x):
    w, again = self.scale, self.scale
    return x + w if w is again else x


def beside_sizes(self, x):
    n, m = x.shape
    y = self.norm(x).view(m, n) * m**-0.5
    return y if y is not x else x


def beside_none(self, x, mask=None):
    y = self.layer(x)
    return y + 1 if y is mask else y


def in_a_comprehension(self, x):
    y = self.layer(x)
    return torch.stack([z for z in (x, y) if z is not x])


def of_parts_gone_through(self, x):
    y = x
    for part in x.unbind(0):
        y = y + part if part is not y else x
    return y


@pytest.mark.parametrize(
    "forward",
    [
        of_a_layer,
        of_a_function,
        of_a_view,
        of_one_twice,
        of_what_a_function_returns,
        in_a_function,
        of_parts,
        of_parts_of_one,
        of_parts_of_all_kinds,
        of_what_a_call_returns,
        of_weights,
        of_a_weight_read_twice,
        beside_sizes,
        beside_none,
        in_a_comprehension,
        of_parts_gone_through,
    ],
)
def test_values_that_are_objects_of_their_own_are_told_apart(forward, plainly, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    other = X.neg()
    torch.testing.assert_close(captured(other), net(other))
    heard = listened_to(net, X)
    torch.testing.assert_close(captured(other), heard(other))
    for one in (captured, heard):
        assert "type(x) is torch.Tensor" in {guard.text for guard in one.guards}


def of_what_is_contiguous(self, x):
    y = x.contiguous()
    return x + 1 if y is x else x - 1


def of_what_was_written(self, x):
    y = self.layer(x)
    z = y.add_(1)
    return z + 1 if z is y else z - 1


def of_what_an_operator_wrote(self, x):
    y = z = self.layer(x)
    y += 1
    return z + 1 if z is y else z - 1


def of_what_a_layer_wrote(self, x):
    y = self.layer(x)
    z = self.act(y)
    return z + 1 if z is y else z - 1


def of_what_a_function_wrote(self, x):
    y = self.layer(x)
    z = functional.relu(y, inplace=True)
    return z + 1 if z is y else z - 1


def of_dropout(self, x):
    y = functional.dropout(x, 0.5, training=False)
    return x + 1 if y is x else x - 1


def of_a_layer_of_dropout(self, x):
    y = self.drop(x)
    return x + 1 if y is x else x - 1


def of_a_layer_that_does_nothing(self, x):
    y = self.same(x)
    return x + 1 if y is x else x - 1


def of_one_part_twice(self, x):
    found = x.chunk(2, dim=1)
    one, other = found[1], found[1]
    return x + 1 if one is other else x - 1


def of_one_part_from_both_ends(self, x):
    found = x.chunk(2, dim=1)
    one, other = found[1], found[-1]
    return x + 1 if one is other else x - 1


def of_tied_weights(self, x):
    w, tied = self.weight, self.tied
    return x + w if w is tied else x - w


def of_an_answer(self, x):
    found, yes = x.is_contiguous(), self.yes
    return x + 1 if found is yes else x - 1


def of_devices(self, x):
    one, other = x.device, self.weight.device
    return x + 1 if one is other else x - 1


def of_what_was_flattened(self, x):
    y = x[0]
    z = y.flatten()
    return z + 1 if z is y else z - 1


def of_a_kind_of_its_own(self, x):
    y = x.to(x.dtype)
    return x + 1 if y is x else x - 1


def of_flags(self, x):
    one, other = x.is_cuda, x.is_cuda
    return x + 1 if one is other else x - 1


def of_a_flag_and_a_constant(self, x):
    one, other = x.requires_grad, self.yes
    return x + 1 if one is other else x - 1


def of_devices_behind_sizes(self, x):
    y = x + x.shape[0]
    one, other = y.device, y.device
    return y + 1 if one is other else y - 1


def of_a_tuple_of_a_tuple(self, x):
    one = x.split(2, 1)
    other = tuple(one)
    return x + 1 if one is other else x - 1


def of_a_slice_of_a_tuple(self, x):
    one = x.split(2, 1)
    other = one[:]
    return x + 1 if one is other else x - 1


def of_a_product_of_one(self, x):
    y = x.reshape(12)
    z = torch.cartesian_prod(y)
    return z + 1 if z is y else z - 1


def of_a_number_of_dimensions(self, x):
    n, two = x.dim(), self.two
    return x + 1 if n is two else x - 1


def of_what_is_transposed_behind_a_shape(self, x):
    y = (x + x.shape[0]).T
    return y if y is not x else x


def of_what_was_computed_into(self, x):
    y = torch.add(x, x)
    z = torch.add(y, x, out=y)
    return z + 1 if z is y else z - 1


def of_what_a_function_wrote_later(self, x):
    y = functional.silu(self.layer(x))
    z = functional.silu(y, inplace=True)
    return z + 1 if z is y else z - 1


def of_a_part_of_what_may_be_a_tensor(self, x):
    y = torch.max(x)
    found = torch.max(x, 0)
    one, other = found[0], found[0]
    return y + 1 if one is other else y - 1


def of_an_answer_about_sizes(self, x):
    found, yes = x.shape[0] > 1, self.yes
    return x + 1 if found is yes else x - 1


def of_one_size_twice(self, x):
    sizes = x.shape
    n, again = sizes[0], sizes[0]
    return x + 1 if n is again else x - 1


def of_sizes_taken_apart_twice(self, x):
    sizes = x.shape
    n, m = sizes
    again, _ = sizes
    return x + m if n is again else x - m


def of_a_power(self, x):
    y = x**2
    z = torch.pow(2, x.contiguous())
    return y + z if y is z else y - z


def in_a_comprehension_of_what_is_passed_on(self, x):
    y = x.contiguous()
    return torch.stack([z for z in (x, y, self.layer(x)) if z is not x])


def in_a_function_of_what_is_passed_on(self, x):
    return chosen(self.same(x), x)


def chosen_twice(self, x):
    y, z = x.contiguous(), self.layer(x)
    w = x + 1 if y is x else x - 1
    return w if z is x else w * 2


def by_a_function_of_its_own(self, x):
    y = self.layer(x)
    return y if chunk(y) is None else y + 1 if y is x else y - 1


def chunk(x):
    return x.contiguous()


def by_a_part(self, x):
    values, places = torch.max(x, 0)
    return values + 1 if values is places else values - 1


@pytest.mark.parametrize(
    "forward",
    [
        of_what_is_chosen,
        of_what_is_contiguous,
        of_what_was_written,
        of_what_an_operator_wrote,
        of_what_a_layer_wrote,
        of_what_a_function_wrote,
        of_dropout,
        of_a_layer_of_dropout,
        of_a_layer_that_does_nothing,
        of_one_part_twice,
        of_one_part_from_both_ends,
        of_tied_weights,
        of_an_answer,
        of_devices,
        of_what_was_flattened,
        of_a_kind_of_its_own,
        of_flags,
        of_a_flag_and_a_constant,
        of_devices_behind_sizes,
        of_a_tuple_of_a_tuple,
        of_a_slice_of_a_tuple,
        of_a_product_of_one,
        of_a_number_of_dimensions,
        of_what_is_transposed_behind_a_shape,
        of_what_was_computed_into,
        of_what_a_function_wrote_later,
        of_a_part_of_what_may_be_a_tensor,
        of_an_answer_about_sizes,
        of_one_size_twice,
        of_sizes_taken_apart_twice,
        of_a_power,
        in_a_comprehension_of_what_is_passed_on,
        in_a_function_of_what_is_passed_on,
        chosen_twice,
        by_a_function_of_its_own,
        by_a_part,
    ],
)
def test_what_may_be_one_object_is_listened_to(forward, plainly):
    net = net_of(forward)
    captured = fxplug.trace(net, (X.clone(),), check=False)
    assert plainly in ([], [None])
    torch.testing.assert_close(captured(X.neg()), net(X.neg()))


def test_two_inputs_may_be_one():
    def alike(x, y):
        return x + 1 if x is y else x + y

    captured = fxplug.trace(alike, (X, X.neg()), check=False)
    torch.testing.assert_close(captured(X, X.neg()), alike(X, X.neg()))
    with pytest.raises(fxplug.GuardError):
        captured(X, X)
    captured = fxplug.trace(alike, (X, X), check=False)
    torch.testing.assert_close(captured(X, X), alike(X, X))


def test_a_parameter_is_none_of_the_inputs_that_were_told_apart(plainly):
    net = net_of(of_the_weight)
    captured = fxplug.trace(net, (X[0],), check=False)
    assert plainly == [captured]
    with pytest.raises(fxplug.GuardError, match="type\\(x\\) is"):
        captured(net.weight)


def of_the_weight(self, x):
    w = self.weight
    return x + 1 if x is w else x * 2


def test_which_input_is_a_weight_is_told():
    class Two(Net):
        def forward(self, x, y):
            return x + 1 if x is y else x + y

    net = Two()
    with pytest.raises(fxplug.TraceError, match="as the example 'x'") as caught:
        fxplug.trace(net, (net.scale, net.other), check=False)
    assert caught.value.code == "FXP-T061"
    with pytest.raises(fxplug.TraceError, match="as the example 'x'"):
        fxplug.trace(net, (net.scale, X[0]), check=False)


def of_the_scale(self, x):
    scale = self.scale
    return x + 1 if x is scale else x - scale


@pytest.mark.parametrize("check", [True, False])
def test_a_weight_is_no_example_where_it_may_be_compared_with_itself(check, plainly):
    net = net_of(of_the_scale)
    with pytest.raises(fxplug.TraceError, match="as the example 'x'") as caught:
        fxplug.trace(net, (net.scale,), check=check)
    assert caught.value.code == "FXP-T061"
    assert plainly == [None]
    captured = fxplug.trace(net, (net.scale.clone(),), check=check)
    torch.testing.assert_close(captured(X), net(X))


def parted(function):
    """A graph in which a part is taken of what a function returns, and compared."""
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    part = graph.call_function(operator.getitem, (graph.call_function(function, (x, 2)), 0))
    graph.output(part)
    return list(graph.nodes)


def test_parts_of_what_a_function_of_the_program_returns_may_be_anything():
    def chunk(x, count):
        return (x,) * count

    assert are_objects_of_their_own(parted(torch.chunk), [X], nn.Module())
    assert not are_objects_of_their_own(parted(chunk), [X], nn.Module())


READ = {
    "two": (lambda x, y: x is y, True),
    "two, otherwise": (lambda x, y: (x is not y) + 1, True),
    "two, and one with None": (lambda x, y: (x is y) + (y is None), True),
    "an element": (lambda x, y: [part for part in x if part is y], True),
    "with None": (lambda x, y: x is None or y is None, False),
    "with a global": (lambda x: x is X, None),
    "with a global behind two": (lambda x, y: (x is y) + (x is X), None),
    "attributes": (lambda x, y: x.layer is y.layer, None),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_compared_with_a_variable_is_noted(name):
    function, compares = READ[name]
    reads = reads_of_function(function.__code__)
    assert (reads if reads is None else reads.compares) is compares
