"""Tensors: their bytes as safetensors, and a table that says what safetensors does not.

The table has one row for each tensor *object*, so that tied parameters stay one parameter, and a second table says once
what many tensors have in common. Tensors that share memory without being one object (views,
``nn.Parameter(other.data)``) share one stretch of bytes, and strides and offsets are kept. A tensor on the meta device
has a row and no bytes.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import nn

from fxplug.semantics import internals
from fxplug.storage.documents import MOST_OBJECTS, check_count, quoted
from fxplug.storage.faults import Codes, Refusal, checked, have_forms, places
from fxplug.storage.weights import ALIGNMENT, LARGEST_HEADER, MOST_DIMENSIONS, NATIVE, bytes_at, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.storage.weights import Entry, Progress, Weights

__all__ = ["KIND_COLUMNS", "TENSOR_COLUMNS", "TensorReader", "TensorWriter"]

# Those of quantized tensors need a quantizer, which no file holds; torch is about to remove them.
_DTYPES: dict[str, torch.dtype] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.qint", "torch.quint"))
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PLAIN_CLASSES = frozenset({torch.Tensor, nn.Parameter})
_PIECE = 1 << 24
_SMALL = 1 << 18
"""Up to how many bytes a weight is gathered with others before they are written."""
_FEW = 8
"""Up to how many dimensions what is known of a shape is kept for the next tensor."""
KIND_COLUMNS = ("kind", "dtype", "shape", "requires_grad", "stride")
"""What the parts of a row of the table of kinds are; the last one is left out for tensors that are all of a weight."""
TENSOR_COLUMNS = ("number", "weight", "offset")
"""What the parts of a tensor's row are; the last ones are left out."""
_CLASSES = {"parameter": True, "tensor": False}
_ROWS = frozenset({(int,), (int, str), (int, str, int)})
_META = torch.device("meta")


def _span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return how many elements lie from the first to the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _dense_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _known_dense_stride(shape) if len(shape) <= _FEW else _find_dense_stride(shape)


def _find_dense_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


_known_dense_stride = functools.lru_cache(maxsize=4096)(_find_dense_stride)


class _Form:
    """What several tensors that are written have in common."""

    __slots__ = ("is_parameter", "itemsize", "requires_grad", "size", "stride")

    def __init__(
        self,
        kind: type[torch.Tensor],
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        requires_grad: bool,  # noqa: FBT001 - all of what tensors are told apart by
    ) -> None:
        # By the class: asking whether a tensor is an instance of nn.Parameter asks it for attributes.
        self.is_parameter = kind is nn.Parameter
        self.requires_grad = requires_grad
        # Not by is_contiguous(), which ignores strides of dimensions of size 1.
        is_dense = stride == _dense_stride(shape)
        self.stride = None if is_dense else stride
        """None where a tensor lies densely."""
        self.itemsize = dtype.itemsize
        self.size = dtype.itemsize * (math.prod(shape) if is_dense else _span(shape, stride))
        """How many bytes lie from the first element to the last, both included."""


class _Block:
    """A stretch of memory that one tensor fills, or several share."""

    __slots__ = ("key", "members", "start", "stop")

    def __init__(self, key: str, start: int, stop: int, number: int) -> None:
        self.key = key
        self.start = start
        self.stop = stop
        self.members = [number]


class _Weight(NamedTuple):
    """What the header of the weights says of a block, and one of the tensors that lie in it."""

    block: _Block
    dtype: torch.dtype
    shape: tuple[int, ...]
    tensor: torch.Tensor


_Place: TypeAlias = "tuple[str | None, tuple[int, ...] | None, int]"
"""Where a tensor lies: in which weight; the stride, None where it is all of the weight, densely; and the offset."""
_NOWHERE: _Place = (None, None, 0)


class TensorWriter:
    """Takes tensors in, each object once, and writes their table and bytes."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._keys: list[str] = []
        self._numbers: dict[int, int] = {}
        self._forms: list[_Form] = []  # Of each tensor.
        self._aliases: list[torch.Tensor] = []
        """Of each tensor, with its memory as it was found: another thread may give it other memory meanwhile."""

    def add(self, tensor: torch.Tensor, key: str) -> int:
        """Return the number of `tensor` in the table, taking it in when it is new.

        Args:
            tensor: A parameter, a buffer or a plain tensor; `finish` refuses it if a file cannot hold it.
            key: The path at which it was found; the first one names it in the weights.

        Raises:
            Refusal: There are more tensors than a file may hold.
        """
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._tensors)
            if number >= MOST_OBJECTS:
                check_count(number + 1, MOST_OBJECTS, "tensors")
            self._tensors.append(tensor)
            self._keys.append(key)
        return number

    def add_checked(self, tensor: torch.Tensor, key: str) -> int:
        """Return what `add` returns.

        Raises:
            Refusal: The tensor is of a kind that a file cannot hold.
        """
        _check_storable(tensor)
        return self.add(tensor, key)

    def finish(
        self, progress: Progress | None = None
    ) -> tuple[dict[str, list[Any]], Callable[[Callable[[Any], Any]], None]]:
        """Return the tables, and a function that hands the content of the weights piece by piece to a sink.

        Raises:
            Refusal: A tensor is of a kind that a file cannot hold; the message names its path.
        """
        blocks = self._blocks()
        places: list[_Place] = [_NOWHERE] * len(self._tensors)
        weights: list[_Weight] = []
        for block in blocks:
            number = block.members[0]
            first = self._aliases[number]
            dtype = first.dtype
            if len(block.members) == 1 and self._forms[number].stride is None and dtype in NATIVE:
                places[number] = (block.key, None, 0)
                weights.append(_Weight(block, dtype, first.shape, first))
            else:
                weights.append(self._share(block, places))
        # Those whose size a larger power of two divides come first, which keeps every block aligned to its elements.
        weights.sort(key=_alignment)
        return self._tables(places), lambda sink: _write_weights(weights, sink, progress)

    def _share(self, block: _Block, places: list[_Place]) -> _Weight:
        """Return the weight for a block that is more than one tensor as safetensors has it, and note where they lie."""
        members = [self._aliases[number] for number in block.members]
        first = members[0]
        dtypes = {member.dtype for member in members}
        if len(dtypes) > 1:
            # Multiples of every element's size.
            block.start = min(member.untyped_storage().data_ptr() for member in members)
        dtype = first.dtype if dtypes <= NATIVE.keys() and len(dtypes) == 1 else torch.uint8
        shape: tuple[int, ...] = ((block.stop - block.start) // dtype.itemsize,)
        alone = len(members) == 1 and self._forms[block.members[0]].stride is None and dtype is first.dtype
        for number, member in zip(block.members, members, strict=True):
            offset, rest = divmod(member.data_ptr() - block.start, member.dtype.itemsize)
            if rest:
                raise Refusal(
                    f"{self._keys[number]!r}: the tensor cannot be stored: it has memory in common with others of "
                    f"other storages, and does not begin at a multiple of its elements in it. Call clone()."
                )
            places[number] = (block.key, None, 0) if alone else (block.key, member.stride(), offset)
        return _Weight(block, dtype, tuple(first.shape) if alone else shape, first)

    def _blocks(self) -> list[_Block]:
        """Return the memory of all tensors, after checking them."""
        blocks: list[_Block] = []
        shared: dict[Any, _Block] = {}
        forms: dict[Any, _Form] = {}
        of_each, aliases = self._forms, self._aliases = [], []
        taken = {"__metadata__"}
        for number, (tensor, path) in enumerate(zip(self._tensors, self._keys, strict=True)):
            try:
                _check_storable(tensor)
            except Refusal as refusal:
                raise refusal.within(repr(path)) from None
            alias = tensor.detach()
            aliases.append(alias)
            key = type(tensor), alias.dtype, alias.shape, alias.stride(), tensor.requires_grad
            form = forms.get(key)
            if form is None:
                form = forms[key] = _Form(*key)
            of_each.append(form)
            if alias.is_meta:
                continue
            name = path
            if name in taken or not name.isprintable():
                name = _free_key(name if name.isprintable() else "tensor", taken)
            taken.add(name)
            start = alias.data_ptr()
            stop = start + form.size
            # What trains in shards frees the memory of weights meanwhile, and they still say how large they are.
            reach = form.itemsize * alias.storage_offset() + form.size
            if form.size and alias.untyped_storage().nbytes() < reach:
                raise Refusal(
                    f"{path!r}: the tensor cannot be stored: its memory was freed, or is smaller than it. Gather the "
                    f"weights of the module before saving."
                )
            # The memory that the tensor is a part of; an address says nothing about another device.
            place: Any = start - form.itemsize * alias.storage_offset()
            if not alias.is_cpu:
                place = (alias.device, place)
            block = shared.get(place) if start else None
            if block is None:
                shared[place] = block = _Block(name, start, stop, number)
                blocks.append(block)
                continue
            block.start, block.stop = min(block.start, start), max(block.stop, stop)
            block.members.append(number)
        return _join(blocks, shared)

    def _tables(self, places: list[_Place]) -> dict[str, list[Any]]:
        """Return what the tensors have in common, each once, and a row for each tensor."""
        kinds: list[list[Any]] = []
        rows: list[list[Any]] = []
        numbers: dict[Any, int] = {}
        for tensor, form, (weight, steps, offset) in zip(self._aliases, self._forms, places, strict=True):
            stride = form.stride if weight is None else steps
            key = form if stride is None else (form, stride)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(kinds)
                name = _DTYPE_NAMES.get(tensor.dtype) or str(tensor.dtype)
                kind = "parameter" if form.is_parameter else "tensor"
                row: list[Any] = [kind, name, list(tensor.shape), form.requires_grad]
                kinds.append(row if stride is None else [*row, list(stride)])
            if offset:
                rows.append([number, weight, offset])
            else:
                rows.append([number] if weight is None else [number, weight])
        return {"tensor_kinds": kinds, "tensors": rows}


def _join(blocks: list[_Block], shared: dict[Any, _Block]) -> list[_Block]:
    """Join blocks of the CPU's memory that reach into each other.

    That of one storage is one block already; torch knows several storages where a caller gave it the memory more than
    once, as with ``torch.from_numpy(array)`` and ``torch.from_numpy(array[1:])``.
    """
    joined: list[_Block] = []
    gone: set[int] = set()
    known = [block for place, block in shared.items() if type(place) is int and block.start < block.stop]
    for block in sorted(known, key=_START):
        former = joined[-1] if joined else block
        if former is block or block.start >= former.stop:
            joined.append(block)
            continue
        gone.add(id(block))
        former.stop = max(former.stop, block.stop)
        if block.members[0] < former.members[0]:
            former.key = block.key
        former.members = sorted(former.members + block.members)
    return [block for block in blocks if id(block) not in gone] if gone else blocks


_START = operator.attrgetter("start")


def _free_key(name: str, taken: set[str]) -> str:
    key, number = name, 0
    while key in taken:
        number += 1
        key = f"{name}#{number}"
    return key


def _check_storable(tensor: torch.Tensor) -> None:
    if (
        type(tensor) in _PLAIN_CLASSES
        and tensor.layout is torch.strided
        and tensor.grad_fn is None
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not internals.is_zero_tensor(tensor)
        and tensor.dim() <= MOST_DIMENSIONS
        and not internals.has_gradient_hooks(tensor)
    ):
        return  # Almost always.
    if type(tensor) not in _PLAIN_CLASSES:
        fault = (
            f"it is a {type(tensor).__module__}.{type(tensor).__qualname__}. Use a plain tensor or parameter"
        )
    elif tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        fault = "it is sparse, nested or quantized. Store its parts as plain tensors"
    elif tensor.is_conj() or tensor.is_neg():
        fault = "it is a lazy conjugate or negative. Call resolve_conj() or resolve_neg()"
    elif internals.is_zero_tensor(tensor):
        fault = "it is zero without having memory, as gradients may be. Call clone()"
    elif tensor.dim() > MOST_DIMENSIONS:
        fault = f"it has more than {MOST_DIMENSIONS} dimensions. Flatten it"
    elif tensor.grad_fn is not None:
        fault = "it is the result of a computation that gradients flow through. Call detach()"
    else:
        fault = (
            "it has hooks, and a file cannot hold the functions they call. Remove them before saving, and register "
            "them again after loading"
        )
    raise Refusal(f"the tensor cannot be stored: {fault}.")


def _bytes_of(tensor: torch.Tensor, block: _Block) -> torch.Tensor:
    """Return the bytes of a block on the CPU; `tensor` is any of its members."""
    with torch.no_grad():
        storage = tensor.untyped_storage()
        size = block.stop - block.start
        if not 0 <= block.start - storage.data_ptr() <= storage.nbytes() - size and tensor.is_cpu and size:
            # Of several storages.
            return torch.frombuffer(bytearray(bytes_at(block.start, size)), dtype=torch.uint8)
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(storage, block.start - storage.data_ptr() if size else 0, (size,), (1,))
        return raw.cpu()


def _alignment(weight: _Weight) -> int:
    """Return the power of two that divides the size of a weight, negated: an order by it begins with the largest."""
    size = weight.block.stop - weight.block.start
    return -(min(size & -size, ALIGNMENT) or ALIGNMENT)


def _write_weights(weights: list[_Weight], sink: Callable[[Any], Any], progress: Progress | None) -> None:
    text, total = _header(weights)
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    if len(text) > LARGEST_HEADER:
        raise Refusal(
            f"the names of its weights are too long: together they take more than the {LARGEST_HEADER:,} bytes that "
            f"are allowed. Rename some, or keep parts of the module in files of their own.",
            Codes.TOO_LARGE,
        )
    sink(len(text).to_bytes(8, "little") + text)
    done = 0
    for piece in _pieces(weights):
        sink(piece)
        done += len(piece)
        if progress is not None:
            progress(done, total)


def _header(weights: list[_Weight]) -> tuple[bytes, int]:
    """Return the header of the weights in JSON, put together entry by entry, and how many bytes the weights are."""
    parts = ['{"__metadata__":{"format":"pt"}']
    total = 0
    shapes: dict[tuple[int, ...], str] = {}
    for block, dtype, shape, _ in weights:
        sizes = shapes.get(shape)
        if sizes is None:
            sizes = shapes[shape] = ",".join(map(str, shape))
        end = total + block.stop - block.start
        parts.append(
            f',{quoted(block.key)}:{{"dtype":"{NATIVE[dtype]}","shape":[{sizes}],"data_offsets":[{total},{end}]}}'
        )
        total = end
    parts.append("}")
    return "".join(parts).encode("ascii"), total


def _pieces(weights: list[_Weight]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of all weights, in pieces that are neither very large nor very small."""
    few: list[bytes] = []
    held = 0
    for weight in weights:
        size = weight.block.stop - weight.block.start
        is_small = size <= _SMALL and weight.tensor.device.type == "cpu"
        if is_small and size:
            few.append(bytes_at(weight.block.start, size))
            held += size
        if few and (not is_small or held >= _PIECE):
            yield b"".join(few)
            few, held = [], 0
        if not is_small:
            raw = _bytes_of(weight.tensor, weight.block)
            is_own = _is_of_process(raw)
            for piece in raw.split(_PIECE) if size else ():
                still = piece if is_own else piece.clone()
                yield memory_of(still)
    if few:
        yield b"".join(few)


def _is_of_process(tensor: torch.Tensor) -> bool:
    """Return whether this process alone can write to the memory of a tensor: torch took it, and does not share it."""
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


class _Kind(NamedTuple):
    """What several tensors of a file have in common."""

    is_parameter: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool
    stride: tuple[int, ...]
    is_whole: bool
    """Whether such a tensor is all of its weight, densely."""


class TensorReader:
    """Makes the tensors of a table.

    Args:
        kinds: What they have in common, as JSON.
        rows: The table, as JSON.
        weights: The weights of the file.

    Raises:
        Refusal: A table or the weights are damaged, or do not fit together.
    """

    def __init__(self, kinds: Any, rows: Any, weights: Weights) -> None:
        self._weights = weights
        self._unused = weights.keys()
        self._kinds = [_kind(row) for row in checked(kinds, list, "The table of kinds of tensors")]
        check_count(len(checked(rows, list, "The table of tensors")), MOST_OBJECTS, "tensors")
        self._tensors: list[torch.Tensor] = []
        if not have_forms(rows, _ROWS):
            for row in rows:
                _check_row(row)
        for row in rows:
            try:
                self._tensors.append(self._restore(*row))
            except (RuntimeError, OverflowError, TypeError) as error:
                raise Refusal(
                    f"tensor {len(self._tensors)} cannot be made: {error}. The file is damaged.", Codes.WEIGHT
                ) from error
        if self._unused:
            raise Refusal(
                f"the weight {min(self._unused)!r} belongs to no tensor. The file is damaged.", Codes.WEIGHT
            )

    def fetch(self, number: Any) -> torch.Tensor:
        """Return the tensor with the given number.

        Raises:
            Refusal: There is none.
        """
        if type(number) is int and 0 <= number < len(self._tensors):  # Almost always.
            return self._tensors[number]
        return self._tensors[places(number, len(self._tensors), "The number of a tensor")]

    def _restore(self, number: int, weight: str | None = None, offset: int = 0) -> torch.Tensor:
        kinds = self._kinds
        if not 0 <= number < len(kinds):
            places(number, len(kinds), "The number of a kind of tensors")  # It says what is wrong.
        kind = kinds[number]
        if weight is None:
            tensor = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=_META)
        else:
            entry = self._weights.find(weight)
            self._unused.discard(weight)
            is_usual = kind.is_whole and not offset
            if is_usual and entry.dtype is kind.dtype and entry.shape == kind.shape:
                tensor = self._weights.whole(entry, kind.stride)
            else:
                tensor = self._place(kind, entry, offset)
        if kind.is_parameter:
            return internals.as_parameter(tensor, kind.requires_grad)
        return tensor.requires_grad_() if kind.requires_grad else tensor

    def _place(self, kind: _Kind, entry: Entry, offset: int) -> torch.Tensor:
        """Return a tensor that is a part of a weight, or is laid out in another way."""
        if kind.is_whole and (entry.dtype is not kind.dtype or entry.shape != kind.shape):
            raise Refusal(
                f"the weight {entry.key!r} is {entry.dtype}{list(entry.shape)}, the table says "
                f"{kind.dtype}{list(kind.shape)}. The file is damaged.",
                Codes.WEIGHT,
            )
        size = entry.stop - entry.start
        if offset < 0 or (offset + _span(kind.shape, kind.stride)) * kind.dtype.itemsize > size:
            raise Refusal(
                f"a tensor reaches beyond the weight {entry.key!r}. The file is damaged.", Codes.WEIGHT
            )
        # A tensor of its own and no view, so that autograd sees a leaf like the one that was saved.
        memory = self._weights.memory(entry).untyped_storage()
        return torch.empty(0, dtype=kind.dtype, device="cpu").set_(memory, offset, kind.shape, kind.stride)


def _check_row(row: Any) -> None:
    if (
        len(checked(row, list, "An entry of the table of tensors")) > len(TENSOR_COLUMNS)
        or tuple(map(type, row)) not in _ROWS
    ):
        raise Refusal(
            f"an entry of the table of tensors is {str(row)[:80]}, which none can be. The file is damaged."
        )


def _kind(data: Any) -> _Kind:
    row: list[Any] = checked(data, list, "A kind of tensors")
    if not len(KIND_COLUMNS) - 1 <= len(row) <= len(KIND_COLUMNS):
        raise Refusal(
            f"a kind of tensors has {len(row)} parts, not {len(KIND_COLUMNS) - 1} or {len(KIND_COLUMNS)}. The file is "
            "damaged."
        )
    kind, name, sizes, requires_grad, *strides = row
    dtype = _DTYPES.get(checked(name, str, "A dtype"))
    if dtype is None:
        raise Refusal(
            f"the dtype {name!r} is unknown to torch {torch.__version__}, or is none that files hold.",
            Codes.WEIGHT,
        )
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise Refusal(f"a tensor is of the kind {kind!r}. The file is damaged.")
    shape = _sizes(sizes)
    stride = _steps(strides[0]) if strides else _dense_stride(shape)
    if len(stride) != len(shape):
        raise Refusal("a tensor has more strides than sizes, or fewer. The file is damaged.", Codes.WEIGHT)
    checked(requires_grad, bool, "requires_grad")
    return _Kind(_CLASSES[kind], dtype, shape, requires_grad, stride, not strides)


def _sizes(data: Any) -> tuple[int, ...]:
    sizes = tuple(checked(data, list, "A shape"))
    if len(sizes) > MOST_DIMENSIONS:
        raise Refusal(
            f"a tensor has {len(sizes)} dimensions, more than {MOST_DIMENSIONS}. The file is damaged.",
            Codes.TOO_LARGE,
        )
    for size in sizes:
        checked(size, int, "A size")
    if not (_is_known_possible(sizes) if len(sizes) <= _FEW else _is_possible(sizes)):
        raise Refusal(f"a shape is {list(sizes)[:8]}. The file is damaged.", Codes.WEIGHT)
    return sizes


def _steps(data: Any) -> tuple[int, ...]:
    """Return strides; how far they reach is another question."""
    steps = tuple(checked(data, list, "A stride"))
    if len(steps) > MOST_DIMENSIONS:
        raise Refusal(f"a tensor has {len(steps)} strides. The file is damaged.", Codes.TOO_LARGE)
    if not all(0 <= checked(step, int, "A stride") < 2**62 for step in steps):
        raise Refusal(f"strides are {list(steps)[:8]}. The file is damaged.", Codes.WEIGHT)
    return steps


def _is_possible(sizes: tuple[int, ...]) -> bool:
    return all(size >= 0 for size in sizes) and math.prod(max(size, 1) for size in sizes) < 2**62


# Only for whole numbers: True and 1.0 would be found as 1.
_is_known_possible = functools.lru_cache(maxsize=4096)(_is_possible)
