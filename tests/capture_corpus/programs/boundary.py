"""The boundary of torch: numpy, Python containers, and entry points that do not dispatch. These run on their own."""

from __future__ import annotations

import array
import functools
import io
import pickle

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import one, ramp, two, vector

alone = functools.partial(program, isolated=True)


@alone(one, needs="numpy", shape="FXP-T063", value="FXP-T063", symbolic="FXP-T068")
def to_numpy_and_back(x):
    return torch.from_numpy(x.numpy() * 2) + 1


@alone(one, needs="numpy", shape="FXP-T063", value="FXP-T063", symbolic="FXP-T002")
def function_of_numpy(x):
    import numpy as np

    return torch.as_tensor(np.square(x)) + np.float32(2.0)


@alone(one, needs="numpy", rows=(31,), symbolic="FXP-T002")
def scalars_of_numpy(x):
    import numpy as np

    return x * np.float64(1.5) + np.int64(2) * x - x / np.float32(4)


@alone(one, needs="numpy", shape="FXP-T063", value="FXP-T063", symbolic="FXP-T002")
def array_times_tensor(x):
    import numpy as np

    return torch.as_tensor(np.array([1.0, 2.0, 3.0], dtype=np.float32)) * x + torch.from_numpy(np.asarray(x))


@alone(one, rows=(21,))
def tensor_of_a_tensor(x):
    return torch.tensor(x) + torch.tensor(x.detach()[0].clone())


@alone(vector, shape="FXP-T066")
def tensor_of_elements(x):
    return torch.tensor([x[0], x[1] * 2, 3.0])


@alone(vector, shape="FXP-T063", symbolic="FXP-T068")
def legacy_constructors(x):
    return torch.Tensor(x) + torch.FloatTensor([x[0], 1.0, 2.0, 3.0]) + x.new(x)


@alone(one, rows=(21,), shape="FXP-T061", symbolic="FXP-T068")
def legacy_constructor_of_sizes(x):
    return torch.Tensor(x.shape[0], 3).zero_() + torch.Tensor(*x.shape).fill_(1.0)


@alone(two, symbolic="FXP-T015")
def assigned_data_of_an_input(x, y):
    x.data = y * 2
    return x + 1


@alone(lambda: (torch.tensor([[0, 1], [1, 0]]), ramp(2)))
def sparse_of_traced_parts(indices, values):
    return torch.sparse_coo_tensor(indices, values, (2, 2))


@alone(lambda: (torch.tensor([0, 1, 2]), torch.tensor([1, 0]), ramp(2)), shape="FXP-T066")
def sparse_rows_of_traced_parts(rows, columns, values):
    return torch.sparse_csr_tensor(rows, columns, values, (2, 2)).to_dense()


@alone(one, symbolic="FXP-T015")
def as_a_parameter(x):
    return nn.Parameter(x) * 2


@alone(one, value="FXP-T061", symbolic="FXP-T068")
def as_subclass(x):
    return x.as_subclass(torch.Tensor) + torch.Tensor._make_subclass(torch.Tensor, x)


@alone(one, symbolic="FXP-T001")
def dlpack(x):
    return torch.from_dlpack(x) * 2


@alone(one, symbolic="FXP-T046", shape="FXP-T063", value="FXP-T063")
def through_a_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file) * 2


@alone(one, symbolic="FXP-T046", shape="FXP-T063", value="FXP-T063")
def through_pickle(x):
    return pickle.loads(pickle.dumps(x)) * 2


@alone(vector, symbolic="FXP-T005", shape="FXP-T066", value="FXP-T061")
def buffer_of_bytes(x):
    return torch.frombuffer(array.array("f", x.tolist()), dtype=torch.float32) * 2


@alone(one, shape="FXP-T063", value="FXP-T063", symbolic="FXP-T068")
def storage_of_a_tensor(x):
    return torch.empty(0).set_(x.untyped_storage(), 0, (6,), (1,)) * 2


@alone(one)
def strided_view(x):
    return x.as_strided((3, 2), (1, 3)) * 2


@alone(lambda: ([ramp(3), ramp(2)],), symbolic="FXP-T005")
def padded_sequence(values):
    return nn.utils.rnn.pad_sequence(values, batch_first=True)


@alone(lambda: ([ramp(3), ramp(2)],), symbolic="FXP-T068", shape="FXP-T063")
def nested_tensor(values):
    return torch.nested.nested_tensor(values).to_padded_tensor(0.0)


@alone(one, symbolic="FXP-T015")
def module_moved_onto(x):
    layer = nn.Linear(3, 3, bias=False)
    layer.weight = nn.Parameter(x[:1].expand(3, 3).clone())
    return layer(x)


@alone(one, shape="FXP-T066")
def factories_with_a_traced_fill(x):
    return torch.full((2,), x[0, 0].item()) + torch.full_like(x[0, :2], x[0, 1])


@alone(vector)
def tensors_as_sizes(x):
    size = torch.tensor(2)
    return torch.zeros(size, 2) + x.reshape(size, 2) + torch.arange(size)


@alone(one, factory=True)
def scripted_function_inside():
    def activated(x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1

    activated.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    scripted = torch.jit.script(activated)
    return lambda x: scripted(x) * 2


class Meters(torch.Tensor):
    """A subclass of a user's own."""

    @property
    def feet(self):
        return self.as_subclass(torch.Tensor) * 3.28


@alone(lambda: (ramp(2, 3).as_subclass(Meters),), symbolic="FXP-T040", shape="FXP-T066", value="FXP-T061")
def subclass_of_the_user(x):
    return (x + 1).feet * isinstance(x * 2, Meters)


class Logged:
    """A tensor-like that is none."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        plain = [part.value if isinstance(part, Logged) else part for part in args]
        return Logged(function(*plain, **(kwargs or {})))


@alone(one)
def tensor_like_of_the_user(x):
    return torch.add(Logged(x), 2).value
