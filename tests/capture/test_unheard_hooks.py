"""Hooks of layers and tensors run with the captured program: one that changes what the program reads is refused."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError, TraceWarning

X = torch.arange(6.0).reshape(2, 3)
STORE = {}


def linear():
    layer = nn.Linear(3, 3)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Hooked(nn.Module):
    """Has a hook at a layer, and reads what the hook may have changed."""

    def __init__(self):
        super().__init__()
        self.layer = linear()
        self.features = []
        self.feature = torch.zeros(3)
        self.count = 0
        self.hang()

    def forward(self, x):
        return self.read(self.layer(x))


class Appends(Hooked):
    def hang(self):
        self.layer.register_forward_hook(self.keep)

    def keep(self, module, args, result):
        self.features.append(result)

    def read(self, y):
        return self.features[-1] * 2


class AppendsThroughAMethod(Appends):
    def hang(self):
        self.layer.register_forward_hook(lambda module, args, result: self.keep(module, args, result * 1))


class AppendsToWhatItClosesOver(Hooked):
    def hang(self):
        kept = self.features
        self.layer.register_forward_hook(lambda module, args, result: kept.insert(0, result))

    def read(self, y):
        return self.features[0] * 2


class Assigns(Hooked):
    def hang(self):
        self.layer.register_forward_hook(self.keep)

    def keep(self, module, args, result):
        self.feature = result

    def read(self, y):
        return self.feature * 2


class AssignsAtTheLayer(Hooked):
    def hang(self):
        def keep(module, args, result):
            module.last = result

        self.layer.register_forward_hook(keep)

    def read(self, y):
        return getattr(self.layer, "last", y) * 2


class Counts(Hooked):
    def hang(self):
        self.layer.register_forward_pre_hook(self.add)

    def add(self, module, args):
        self.count += 1

    def read(self, y):
        return y * self.count


def store(name, value):
    STORE[name] = value


class StoresInAGlobal(Hooked):
    def hang(self):
        self.layer.register_forward_hook(lambda module, args, result: store("last", result))

    def read(self, y):
        return STORE.get("last", y) * 2


class StoresByAPartial(Hooked):
    def hang(self):
        self.layer.register_forward_hook(functools.partial(self.keep, 0))

    def keep(self, place, module, args, result):
        self.features[place:] = [result]

    def read(self, y):
        return sum(self.features, y)


class AppendsToALocal(Appends):
    def keep(self, module, args, result):
        kept = self.features
        kept.append(result)


class AssignsByText(Assigns):
    def keep(self, module, args, result):
        setattr(self, "feature", result)  # noqa: B010 - as programs do with names that they work out


class AssignsInTheTable(Assigns):
    def keep(self, module, args, result):
        vars(self).update(feature=result)


class AssignsByATextInADefault(Assigns):
    def keep(self, module, args, result, *, name="feature"):
        setattr(self, name, result)


class AssignsByATextOfAPartial(Assigns):
    def hang(self):
        self.layer.register_forward_hook(functools.partial(self.keep, "feature"))

    def keep(self, name, module, args, result):
        setattr(self, name, result)


class AppendsToADefault(Appends):
    def hang(self):
        def keep(module, args, result, kept=self.features):
            kept.append(result)

        self.layer.register_forward_hook(keep)


class AppendsToWhatAPartialBinds(Appends):
    def hang(self):
        self.layer.register_forward_hook(functools.partial(self.keep, self.features))

    @staticmethod
    def keep(kept, module, args, result):
        kept.append(result)


class Recorder:
    def __init__(self):
        self.seen = {}

    def __call__(self, module, args, result):
        self.seen["last"] = result


class StoresInAnObject(Hooked):
    def hang(self):
        self.recorder = Recorder()
        self.layer.register_forward_hook(self.recorder)

    def read(self, y):
        return self.recorder.seen["last"]


READING = [
    *(Appends, AppendsThroughAMethod, AppendsToWhatItClosesOver, Assigns, AssignsAtTheLayer, Counts),
    *(StoresInAGlobal, StoresByAPartial, StoresInAnObject),
    *(AppendsToALocal, AssignsByText, AssignsInTheTable),
    *(AssignsByATextInADefault, AssignsByATextOfAPartial, AppendsToADefault, AppendsToWhatAPartialBinds),
]


@pytest.mark.parametrize("kind", READING)
def test_hook_that_changes_what_the_program_reads_is_refused_where_the_layer_is_a_call(
    kind, with_whole_layers
):
    with pytest.raises(TraceError, match=r"a hook of the layer 'layer', changes .*\[FXP-T010\]$"):
        fxplug.symbolic_trace(kind(), manager=with_whole_layers)
    with pytest.raises(TraceError, match=r"a hook of the layer 'layer', changes .*\[FXP-T010\]$"):
        fxplug.Tracer().trace(kind())


@pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")
@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("kind", [kind for kind in READING if kind is not Counts])
def test_what_such_a_hook_does_is_recorded_with_the_layer_entered(kind, mode):
    STORE.clear()
    if (
        kind is AppendsToALocal and mode == "symbolic"
    ):  # It does not know that what is read is what was added last.
        with pytest.raises(TraceError, match="FXP-T055"):
            fxplug.symbolic_trace(kind())
        return
    captured = fxplug.symbolic_trace(kind()) if mode == "symbolic" else fxplug.trace(kind(), (X,), mode=mode)
    assert not STORE

    model = kind()
    for made in (captured, copy.deepcopy(captured)):
        for inputs in (X + 1, X[:1], X * 2):
            assert torch.equal(made(inputs), model(inputs))


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_what_such_a_hook_counts_on_is_refused(mode):
    model = Counts()
    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(model) if mode == "symbolic" else fxplug.trace(model, (X,), mode=mode)
    assert refused.value.code == "FXP-T055"
    assert model.count == 0


@pytest.mark.filterwarnings("ignore:While tracing, forward:fxplug.errors.TraceWarning")
@pytest.mark.parametrize("kind", [Appends, Assigns, StoresInAnObject])
def test_with_examples_such_hooks_run(kind):
    captured = fxplug.trace(kind(), (X,))

    assert torch.equal(captured(X + 1), kind()(X + 1))


def test_hook_of_a_part_of_a_layer_is_one_of_the_layer():
    class Encodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 1, 4).eval()
            self.features = []
            self.layer.linear1.register_forward_hook(
                lambda module, args, result: self.features.append(result)
            )

        def forward(self, x):
            self.layer(x)
            return self.features[0]

    with pytest.raises(TraceError, match=r"a hook of the layer 'layer.linear1', .*\[FXP-T010\]$"):
        fxplug.symbolic_trace(Encodes())


def test_hook_of_all_modules_is_one_of_each_layer():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, x):
            y = self.layer(x)
            return STORE.get("last", y) * 2

    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, result: store("last", result)
    )
    try:
        with pytest.raises(TraceError, match=r"a hook of all modules, .*\[FXP-T010\]$"):
            fxplug.symbolic_trace(Reads())
    finally:
        handle.remove()


class OnlyAdds(Hooked):
    def hang(self):
        self.layer.register_forward_hook(self.keep)

    def keep(self, module, args, result):
        self.features.append(result)

    def forward(self, x):
        self.features.clear()
        return self.layer(x)


class Doubles(Hooked):
    def hang(self):
        self.layer.register_forward_hook(lambda module, args, result: result * 2)

    def read(self, y):
        return y + len(self.features) + self.count


class OfWhatIsEntered(Hooked):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(self.layer, nn.ReLU())
        self.layer.register_forward_hook(lambda module, args, result: self.features.append(result))

    def hang(self):
        pass

    def forward(self, x):
        self.features.clear()
        self.layer(x)
        return self.features[0]


@pytest.mark.filterwarnings("ignore:While tracing, forward:fxplug.errors.TraceWarning")
@pytest.mark.parametrize("kind", [OnlyAdds, Doubles, OfWhatIsEntered])
def test_other_hooks_are_captured(kind):
    assert torch.equal(fxplug.symbolic_trace(kind())(X), kind()(X))


def test_hooks_run_once_for_each_call_of_the_captured_module():
    class CountsOnly(Hooked):
        def hang(self):
            self.layer.register_forward_pre_hook(self.add)

        def add(self, module, args):
            self.count += 1

        def read(self, y):
            return y

    root = CountsOnly()
    captured = fxplug.symbolic_trace(root)
    captured(X)
    captured(X)

    assert root.count == 2


# -- hooks of tensors


def appends(x):
    seen = []
    y = (x * 1).requires_grad_()
    y.register_hook(lambda gradient: seen.append(gradient * 2))
    (y * 3).sum().backward()
    return seen[0]


def counts(x):
    seen = {}
    y = (x * 1).requires_grad_()
    y.register_hook(lambda gradient: seen.update(gradient=1))
    (y * 3).sum().backward()
    return x + len(seen)


def calls_a_method_of_python(x):
    seen = []
    y = (x * 1).requires_grad_()
    y.register_hook(seen.append)
    (y * 3).sum().backward()
    return x + len(seen)


@pytest.mark.parametrize("program", [appends, counts, calls_a_method_of_python])
def test_hook_of_a_tensor_that_changes_what_the_program_reads_is_refused(program):
    with pytest.raises(TraceError, match=r"a hook of the tensor 'requires_grad_', changes .*\[FXP-T010\]$"):
        fxplug.symbolic_trace(program)


class Weighs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.gradients = []
        self.weight.register_hook(lambda gradient: self.gradients.append(gradient * 2))

    def forward(self, x):
        (self.weight * x).sum().backward()
        return x * len(self.gradients)


def test_hook_of_a_weight_that_changes_what_the_program_reads_is_refused():
    with pytest.raises(TraceError, match=r"a hook of the weight 'weight', changes .*\[FXP-T010\]$"):
        fxplug.symbolic_trace(Weighs())


def test_hook_of_a_weight_is_nothing_where_no_gradient_is_computed():
    class Reads(Weighs):
        def forward(self, x):
            return self.weight * x + len(self.gradients)

    assert torch.equal(fxplug.symbolic_trace(Reads())(X), X)


def test_hook_of_a_tensor_that_changes_the_gradient_alone_is_captured():
    def program(x):
        y = (x * 1).requires_grad_()
        y.register_hook(lambda gradient: gradient * 2)
        (y * 3).sum().backward()
        return y.grad

    assert torch.equal(fxplug.symbolic_trace(program)(X), program(X))


def test_error_that_no_hook_has_to_do_with_stays_what_it_is():
    class Fails(OnlyAdds):
        def forward(self, x):
            self.layer(x)
            return {}["missing"]

    with pytest.raises(KeyError):
        fxplug.symbolic_trace(Fails())


# -- functions that stay calls

SEEN = []
TOTAL = 0


@fxplug.wrap
def noted(x):
    SEEN.append(x)
    return x


@fxplug.wrap
def counted(x):
    global TOTAL  # noqa: PLW0603 - as programs do
    TOTAL += 1
    return x


class Result:
    value = 1


@fxplug.wrap
def result_of(x):
    result = Result()
    result.value = x
    return result


def reads_what_is_in_a_global(x):
    return noted(x) * len(SEEN)


def reads_a_global(x):
    return counted(x) * TOTAL


@pytest.mark.parametrize("program", [reads_what_is_in_a_global, reads_a_global])
def test_kept_function_that_changes_a_global_that_the_program_reads_is_refused(program):
    with pytest.raises(TraceError, match=r"which is kept as a call, changes .*\[FXP-T056\]$"):
        fxplug.symbolic_trace(program)


@pytest.mark.parametrize(
    "program", [lambda x: noted(x) * 2, lambda x: result_of(x).value * 2], ids=["global", "attribute"]
)
def test_kept_function_that_changes_what_the_program_does_not_read_is_captured(program):
    assert torch.equal(fxplug.symbolic_trace(program)(X), X * 2)


# -- numbers that hooks leave, on examples


class _Leaving(nn.Module):
    def __init__(self, hook, read, before=False):
        super().__init__()
        self.layer, self.number, self.held, self.table = nn.Linear(4, 4), 1, [], {}
        self.read = read
        register = self.layer.register_forward_pre_hook if before else self.layer.register_forward_hook
        register(lambda *given: hook(self, *given))

    def forward(self, x):
        return self.read(self, self.layer(x))


def _assigns(model, layer, given, result):
    model.number = result.shape[0]


def _appends(model, layer, given, result):
    model.held.append(result.shape)


def _stores(model, layer, given, result):
    model.table["rows"] = result.shape[0]


def _decides(model, layer, given, result):
    model.flag = bool(result.sum() > 0)


def _sees_inputs(model, layer, given):
    model.sizes = tuple(given[0].shape)


def _keeps(model, layer, given, result):
    model.held.append(result)
    model.table[0] = result
    model.kept = result


NUMBERS = {
    "assigned": (_assigns, lambda model, y: y * model.number, False),
    "appended": (_appends, lambda model, y: y.reshape(model.held[-1]), False),
    "stored": (_stores, lambda model, y: y * model.table["rows"], False),
    "decided": (_decides, lambda model, y: y * 2 if model.flag else y, False),
    "of the inputs": (_sees_inputs, lambda model, y: y.reshape(model.sizes), True),
}


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_a_hook_leaves_is_no_constant(name, check, with_whole_layers):
    model = _Leaving(*NUMBERS[name])

    with pytest.raises(TraceError, match="a hook of the layer 'layer', puts a number into") as refused:
        fxplug.trace(model, (torch.rand(3, 4),), check=check, manager=with_whole_layers)

    assert refused.value.code == "FXP-T061"


@pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "appended"])
def test_a_number_that_a_hook_leaves_hangs_on_the_inputs_with_the_layer_entered(name, check):
    captured = fxplug.trace(_Leaving(*NUMBERS[name]), (torch.rand(3, 4),), check=check)

    for inputs in (torch.rand(3, 4), torch.rand(5, 4), -9 * torch.ones(2, 4), 9 * torch.ones(2, 4)):
        wanted = _Leaving(*NUMBERS[name])
        wanted.load_state_dict(captured.state_dict(), strict=False)
        try:
            found = captured(inputs)
        except fxplug.GuardError:
            assert name == "decided"  # It is the branch that is guarded.
            continue
        torch.testing.assert_close(found, wanted(inputs))


@pytest.mark.parametrize(
    "read",
    [
        lambda model, y: y + model.held.pop(),
        lambda model, y: y + model.table[0],
        lambda model, y: y + model.kept,
        lambda model, y: y * model.number,
    ],
    ids=["a list", "a dict", "an attribute", "what it leaves alone"],
)
def test_the_result_of_a_layer_that_a_hook_keeps_is_heard_of(read):
    model = _Leaving(_keeps, read)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        captured = fxplug.trace(model, (torch.rand(3, 4),))

    x = torch.rand(5, 4)
    torch.testing.assert_close(captured(x), model(x))


def test_numbers_that_the_program_does_not_read_are_its_hooks_own():
    model = _Leaving(_assigns, lambda model, y: y + 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        captured = fxplug.trace(model, (torch.rand(3, 4),))

    x = torch.rand(5, 4)
    torch.testing.assert_close(captured(x), model(x))


def _count(module, given, result, *, name="calls"):
    setattr(module, name, getattr(module, name) + 1)


class CountsItself(nn.Linear):
    """A layer that is kept whole, as those of torch are, and counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class ReadsACount(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        return y * self.layer.calls


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_number_that_a_call_of_a_layer_leaves_at_it_is_no_constant(check, mode, with_whole_layers):
    layer = linear()
    layer.calls = 0
    layer.register_forward_hook(_count)

    with pytest.raises(TraceError, match="puts a number into 'calls'") as refused:
        fxplug.trace(ReadsACount(layer), (X,), check=check, mode=mode, manager=with_whole_layers)
    assert refused.value.code == "FXP-T061"
    assert layer.calls == 0

    with pytest.raises(TraceError) as refused:
        fxplug.trace(ReadsACount(layer), (X,), check=check, mode=mode)
    assert refused.value.code == "FXP-T055"
    assert layer.calls == 0


@pytest.mark.parametrize(
    ("mode", "code"), [("symbolic", "FXP-T056"), ("shape", "FXP-T061"), ("value", "FXP-T061")]
)
def test_so_is_one_that_a_layer_of_the_program_leaves_which_is_kept_whole(mode, code, with_whole_layers):
    with pytest.raises(TraceError, match="'calls'") as refused:
        fxplug.trace(ReadsACount(CountsItself(3, 3)), (X,), mode=mode, manager=with_whole_layers)
    assert refused.value.code == code


class LeavesOtherThings(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.mode, self.table, self.sizes = "few", {}, []

    def forward(self, x):
        self.mode = "many" if x.shape[0] > 2 else "few!"
        self.table["rows"] = x.shape[0]
        self.sizes.append(x.shape[0])
        return super().forward(x)


class Reads(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.layer, self.read = LeavesOtherThings(), read

    def forward(self, x):
        y = self.layer(x)
        return self.read(self, y)


OTHER_THINGS = {
    "a text": lambda self, y: y * 2 if self.layer.mode == "many" else y,
    "in a dict": lambda self, y: y * self.layer.table["rows"],
    "in a list": lambda self, y: y * self.layer.sizes[-1],
}


@pytest.mark.parametrize(
    ("mode", "code"), [("symbolic", "FXP-T056"), ("shape", "FXP-T061"), ("value", "FXP-T061")]
)
@pytest.mark.parametrize("name", OTHER_THINGS)
def test_texts_and_containers_that_it_leaves_are_no_constants_either(name, mode, code, with_whole_layers):
    with pytest.raises(TraceError) as refused:
        fxplug.trace(Reads(OTHER_THINGS[name]), (X,), mode=mode, check=False, manager=with_whole_layers)
    assert refused.value.code == code


class KeepsShape(nn.Linear):
    def forward(self, x):
        self.shape = x.shape
        return super().forward(x)


class ReadsShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = KeepsShape(3, 3)

    def forward(self, x):
        return self.layer(x).reshape(x.shape)


def test_what_the_program_reads_of_tensors_is_no_matter(with_whole_layers):
    root = ReadsShape()
    captured = fxplug.trace(root, (X,), mode="symbolic", manager=with_whole_layers)
    assert torch.equal(captured(X), root(X))


class OnlyCounts(ReadsACount):
    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_count_that_only_its_hook_reads_is_kept_by_the_hook(mode):
    layer = linear()
    layer.calls = 0
    layer.register_forward_hook(_count)
    captured = fxplug.trace(OnlyCounts(layer), (X,), mode=mode)

    for count in (1, 2):
        captured(X)
        assert captured.layer.calls == count
