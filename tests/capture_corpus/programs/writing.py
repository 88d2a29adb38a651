"""Writing: in-place operators, item assignment, views and aliases."""

from __future__ import annotations

import operator

import torch
from torch import nn
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, image, larger, one, positive, ramp, tracked, two, vector


@program(one, others=larger, rows=(6,))
def alias_then_add(x):
    y = x
    y += 1
    return x


@program(tracked, rows=(6,))
def alias_of_an_intermediate(x):
    y = x * 2
    z = y
    y += 1
    return z


@program(two, rows=(6,))
def every_augmented_operator(x, y):
    x = x.clone()
    x += y
    x -= 0.5
    x *= y
    x /= 2
    x //= 0.25
    x %= 3
    x **= 2
    return x, y


@program(lambda: (torch.tensor([5, 6, 7]), torch.tensor([1, 2, 3])), rows=(6,))
def augmented_operators_on_bits(x, y):
    before = x
    x <<= y
    x >>= 1
    x &= 0b1110
    x |= y
    x ^= 3
    return before, x


@program(two, rows=(6,))
def augmented_matrix_product(x, y):
    x = x.clone()
    kept = x
    x @= torch.eye(3) * 2
    return kept, x, y


@program(one, rows=(6,))
def augmented_through_operator(x):
    y = operator.iadd(x, 1)
    return y, operator.imul(y, 2)


@program(one, others=larger, rows=(6,))
def item_assignment(x):
    x[0] = 7.0
    x[1:, 1] += 1
    x[..., -1] *= x[..., 0]
    return x.sum(0)


@program(two, rows=(6,))
def masked_assignment(x, y):
    out = x.clone()
    out[x > 0] = 0.5
    out[:, [0, 2]] = y[:, [2, 0]]
    return out


@program(tracked)
def deleted_name(x):
    y = x * 2
    z = y + 1
    del y
    return z


@program(lambda: ([ramp(2), ramp(3), ramp(4)],))
def deleted_items_of_a_list(values):
    del values[0]
    values[0] = values[0] * 2
    values += [values[0] + 1]
    return values


@program(lambda: ({"a": ramp(2), "b": ramp(3)},))
def deleted_and_set_keys(batch):
    batch["c"] = batch.pop("a") * 2
    del batch["b"]
    batch |= {"d": batch["c"] + 1}
    return batch


@program(one, rows=(7,), without_dead_code=True)
def write_that_nobody_reads(x):
    x.mul_(2)
    return torch.zeros(1)


@program(one, rows=(7,), without_dead_code=True)
def in_place_functions(x):
    y = x.clone()
    F.relu(x, inplace=True)
    torch.nn.init.zeros_(y)
    F.threshold_(y, 1.0, 5.0)
    return y


@program(image, rows=(7,), without_dead_code=True)
class InPlaceModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.tail = nn.Sequential(nn.Hardtanh(-0.5, 0.5, inplace=True), nn.LeakyReLU(0.1, inplace=True))

    def forward(self, x):
        y = x + 0.25
        self.relu(y)
        self.tail(x)
        return y


@program(two, rows=(7,), without_dead_code=True)
def written_through_out(x, y):
    buffer = torch.empty(2, 3)
    torch.add(x, y, out=buffer)
    torch.mul(buffer, 2, out=y)
    return buffer


@program(cube, rows=(7,), without_dead_code=True)
def several_outputs_through_out(x):
    values, indices = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.int64)
    torch.max(x, 2, out=(values, indices))
    return indices


@program(image, rows=(7,), flips=True, without_dead_code=True)
class RunningStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        self.norm(x)
        return x * 2


@program(one, rows=(7,), without_dead_code=True)
class BufferUpdatedInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x.size(0))
        self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


@program(one, rows=(8,), without_dead_code=True)
def sum_before_and_after_a_write(x):
    before = x.sum()
    x.add_(1)
    return before, x.sum()


@program(one)
def write_through_a_view(x):
    column = x[:, 1]
    column.fill_(3.0)
    x.t()[0] += 1
    return x, column


@program(one)
def write_seen_by_a_view(x):
    row = x.view(-1)
    x.zero_()
    return row + 1


@program(one)
def chain_of_views(x):
    y = x.unsqueeze(0).expand(2, 2, 3)
    z = y[1].transpose(0, 1)
    x.copy_(x * 2)
    return z


@program(one)
def returned_input(x):
    return x


@program(two)
def returned_twice(x, y):
    z = x + y
    return z, [z, x], {"z": z.view(-1)}


@program(lambda: one() * 2)
def one_tensor_passed_twice(x, y):
    x += 1
    return x * y


@program(vector)
def overlapping_inputs(x):
    head, tail = x[:2], x[2:]
    head.copy_(tail)
    tail.mul_(0)
    return x


@program(tracked)
def in_place_on_an_intermediate_that_needs_gradients(x):
    y = x * 2
    y[0].mul_(3)
    y.clamp_(min=-1)
    return y


@program(one)
def detached_alias(x):
    y = x.clone()
    z = y.detach()
    z += 1
    return y


@program(one, rows=(20,), symbolic="FXP-T005")
def pieces_written(x):
    for piece in x.chunk(2, dim=0):
        piece.mul_(2)
    first, second, third = x.unbind(1)
    second.add_(first)
    return x, third


@program(one)
def swapped_rows(x):
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x


@program(two)
def index_put_and_scatter(x, y):
    x.index_put_((torch.tensor([0, 1]), torch.tensor([2, 0])), y[0, :2], accumulate=True)
    x.scatter_(1, torch.tensor([[1], [2]]), 9.0)
    return x.index_add(0, torch.tensor([1]), y[:1])


@program(one)
def filled_row_by_row(x):
    out = torch.zeros(2, 3)
    for index in range(2):
        out[index] = x[index] * (index + 1)
    return out


@program(one, others=larger)
def made_inside_and_written(x):
    out = x.new_empty(x.shape)
    out.copy_(x).add_(1)
    out.resize_(3, 1).zero_()
    return out


@program(one)
def requires_grad_switched_on(x):
    y = (x * 2).requires_grad_()
    return (y * y).sum()


@program(one, symbolic="FXP-T015")
def assigned_requires_grad(x):
    y = x.detach().clone()
    y.requires_grad = True
    return y * 3


@program(one, symbolic="FXP-T015")
def assigned_data(x):
    y = x.detach().clone()
    y.data = x * 2
    return y


@program(one)
def augmented_data(x):
    x.data += 1
    x.data[0] = 5.0
    return x * 1


@program(positive, symbolic="FXP-T015")
def assigned_shape_like_attribute(x):
    y = x * 2
    y.scale = 3.0
    return y * y.scale


@program(one, rows=(7,), shape="FXP-T062", symbolic="FXP-T068")
def set_by_swap(x):
    y = torch.zeros(2, 3)
    y.set_(x * 2)
    y.t_()
    return y
