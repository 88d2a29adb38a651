"""Indexing, splitting, masks and einsum."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, larger, larger_cube, one, positive, ramp, tracked, two, vector


@program(cube, rows=(20,), symbolic="FXP-T005")
def chunks(x):
    first, second = x.chunk(2, dim=-1)
    return first * second + sum(part.sum() for part in torch.chunk(x, 3, dim=1))


@program(cube, rows=(20,), symbolic="FXP-T005")
def pieces_of_given_sizes(x):
    left, right = torch.split(x, [1, 3], dim=2)
    *most, last = x.split(2, dim=1)
    return left, right, len(most), last


@program(cube, rows=(20,), symbolic="FXP-T005")
def unbound(x):
    return [part * index for index, part in enumerate(torch.unbind(x, 1))]


@program(cube, rows=(20,), symbolic="FXP-T003")
def top_values(x):
    values, indices = x.topk(2, dim=-1)
    return values * len(x.topk(1)), indices.float().mean()


@program(cube, others=larger_cube, rows=(20,), symbolic="FXP-T005")
def chunks_of_the_batch(x):
    parts = x.chunk(4)
    return torch.stack([part.sum() for part in parts]) * len(parts)


@program(cube)
def results_of_known_length(x):
    q, r = torch.linalg.qr(x[0].t())
    sign, logdet = torch.linalg.slogdet(x[0] @ x[0].t() + torch.eye(3))
    low, high = torch.aminmax(x)
    std, mean = torch.std_mean(x)
    return q.abs(), r.abs(), sign * logdet, low + high, std - mean


@program(one)
def lists_as_indices(x):
    return x[[0, 1], [1, 2]], x[torch.tensor([1, 0])], x[:, torch.tensor([[0, 2]])]


@program(cube)
def mixed_indices(x):
    return x[..., None, 1:], x[None, 0], x[-1, :, ::2], x[:, [0, 2]][..., 0], x[(0, ...)]


@program(one, others=positive, shape="FXP-T066")
def boolean_mask(x):
    return x[x > 0]


@program(one, others=positive, shape="FXP-T066")
def nonzero_positions(x):
    rows, columns = torch.nonzero(x > 0.3, as_tuple=True)
    return x[rows, columns].sum() + torch.argwhere(x > 0).shape[0]


@program(vector, shape="FXP-T066")
def unique_values(x):
    values, counts = torch.unique((x * 2).round(), return_counts=True)
    return values * counts


@program(lambda: (ramp(4, 3), torch.tensor([2, 0])), others=lambda: (ramp(4, 3), torch.tensor([1, 1, 3])))
def gathered(x, index):
    return x[index] + x.index_select(0, index) + x.gather(0, index[:, None].expand(-1, 3))


@program(two)
def einsums(x, y):
    return torch.einsum("ij,kj->ik", x, y), torch.einsum("i...,i...->...", [x, y])


@program(cube, others=larger_cube)
def attention_by_einsum(x):
    scores = torch.einsum("bld,bmd->blm", x, x) / x.shape[-1] ** 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("blm,bmd->bld", scores.masked_fill(mask, -1e9).softmax(-1), x)


@program(tracked, shape="FXP-T066")
def where_with_one_argument(x):
    rows, columns = torch.where(x > 0)
    return x[rows, columns] * 2


@program(vector, shape="FXP-T066")
def index_by_a_traced_scalar(x):
    index = x.argmax()
    return x[index] + x[: index + 1].sum()


@program(two)
def stacked_and_split(x, y):
    stacked = torch.stack([x, y], dim=1)
    return stacked.flatten(0, 1).tensor_split(4), torch.meshgrid(x[0], y[0], indexing="ij")


@program(one, others=larger)
def slices_by_objects(x):
    columns = slice(None, x.shape[1] - 1)
    return x[slice(0, 2), columns], x[(slice(None), -1)]


@program(cube, others=larger_cube)
def functional_shapes(x):
    pooled = F.adaptive_avg_pool1d(x, 2)
    return F.unfold(x[:, None], (2, 2)), pooled, F.one_hot(x.argmax(-1), num_classes=x.size(-1))


@program(lambda: (torch.tensor([0, 2, 1]),), shape="FXP-T066")
def one_hot_of_unknown_classes(labels):
    return F.one_hot(labels)


@program(lambda: (torch.tensor([2, 1, 3]),), shape="FXP-T066")
def repeated_by_a_tensor(counts):
    return torch.arange(3).repeat_interleave(counts), torch.bincount(counts)


@program(lambda: (torch.tensor([[0, 1], [2, 0]]), torch.tensor([3.0, 4.0])))
def sparse_product(indices, values):
    return torch.sparse_coo_tensor(indices, values, (3, 3)).to_dense() @ torch.ones(3)


@program(lambda: (torch.tensor([1 + 2j, 3 - 1j]),))
def complex_parts(z):
    return z.real * z.imag, z.conj() * z, torch.view_as_real(z), abs(z)


@program(vector)
def attributes_of_tensors(x):
    matrix = x.reshape(2, 2)
    return matrix.T @ matrix.mT, matrix.H, x.real, x.nbytes, x.itemsize, matrix.grad, x.is_sparse, x.layout
