"""How plugins and configuration answer the questions of a trace."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields

import pytest
import torch
from torch import nn

from fxplug.capture import Proxy, TraceContext, Tracer
from fxplug.errors import PluginError, TraceError
from fxplug.plugins import Config, PluginWarning, TraceConfig, hookimpl
from fxplug.plugins.policy import ModuleGlobs


class Block(nn.Module):
    def forward(self, x):
        return x + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x):
        return self.layers(self.block(x))


def marked(name, **options):
    """Return a decorator that makes a function the implementation of a hook, under the name of that hook."""

    def mark(function):
        return {name: hookimpl(specname=name, **options)(function)}

    return mark


def targets(manager, model=None, **arguments):
    graph = Tracer(policy=manager.trace_policy(**arguments)).trace(model or Model())
    return [str(node.target) for node in graph.nodes if node.op == "call_module"]


def test_a_question_that_nobody_answers_is_none(manager_of):
    policy = manager_of({"idle": {}}).trace_policy()

    assert [entry.name for entry in fields(policy) if getattr(policy, entry.name) is not None] == []


@pytest.mark.parametrize(
    ("hook", "question", "function"),
    [
        ("fxplug_is_leaf_module", "is_leaf_module", lambda module: None),
        ("fxplug_create_proxy", "mixins_of_kind", lambda kind: None),
        ("fxplug_node_created", "node_created", lambda node: None),
        ("fxplug_create_argument", "create_argument", lambda value: None),
        ("fxplug_unwrap_module", "unwrap_module", lambda module: None),
        ("fxplug_leaf_functions", "leaf_functions", lambda: None),
        ("fxplug_trace_started", "trace_started", lambda event: None),
        ("fxplug_trace_finished", "trace_finished", lambda event: None),
    ],
)
def test_a_hook_that_is_implemented_costs_its_own_question_only(manager_of, hook, question, function):
    manager = manager_of({"one": marked(hook)(function)})
    policy = manager.trace_policy()

    assert [entry.name for entry in fields(policy) if getattr(policy, entry.name) is not None] == [question]
    assert manager.pass_observers() == ()


def test_the_policy_is_made_once(manager_of):
    manager = manager_of({})

    assert manager.trace_policy() is manager.trace_policy(manager.config) is manager.trace_policy()


# -- leaf modules ------------------------------------------------------------------------------------------------


def test_a_plugin_makes_a_module_a_leaf(manager_of):
    rule = marked("fxplug_is_leaf_module")(lambda module: isinstance(module, Block) or None)

    assert targets(manager_of({})) == ["layers.0", "layers.1"]
    assert targets(manager_of({"one": rule})) == ["block", "layers.0", "layers.1"]


def test_the_first_answer_counts_and_none_passes_the_question_on(manager_of):
    plugins = {
        "a": marked("fxplug_is_leaf_module")(lambda module: None),
        "b": marked("fxplug_is_leaf_module")(lambda module: True),
        "c": marked("fxplug_is_leaf_module")(lambda module: False),
    }

    assert targets(manager_of(plugins)) == ["block", "layers"]


def test_an_implementation_takes_the_arguments_that_it_wants_in_any_order(manager_of):
    heard = []
    model = Model()

    def rule(context, qualified_name):
        heard.append((qualified_name, context.root is model))

    targets(manager_of({"one": marked("fxplug_is_leaf_module")(rule)}), model)

    assert heard == [("block", True), ("layers", True), ("layers.0", True), ("layers.1", True)]


@pytest.mark.parametrize(
    ("leaf", "through", "expected"),
    [
        (["*Block"], [], ["block", "layers.0", "layers.1"]),
        (["block"], [], ["block", "layers.0", "layers.1"]),
        (["torch.nn.*"], [], ["layers"]),
        (["torch.nn.*"], ["torch.nn.Sequential"], ["layers.0", "layers.1"]),
        (["torch.nn.*"], ["torch.nn.modules.container.*"], ["layers.0", "layers.1"]),
        (["*"], ["layers"], ["block", "layers.0", "layers.1"]),
        (["Block"], [], ["layers.0", "layers.1"]),
    ],
)
def test_globs_match_class_paths_and_qualified_names(manager_of, leaf, through, expected):
    config = Config(trace=TraceConfig(tuple(leaf), tuple(through)))

    assert targets(manager_of({}, config=config)) == expected
    assert targets(manager_of({}), config=config) == expected


def test_the_configuration_is_asked_before_the_plugins(manager_of):
    rule = marked("fxplug_is_leaf_module")(lambda module: True)
    config = Config(trace=TraceConfig(through_modules=("layers",)))

    assert targets(manager_of({"one": rule}, config=config)) == ["block", "layers.0", "layers.1"]


def test_globs_import_nothing(tmp_path, monkeypatch):
    (tmp_path / "never_imported").mkdir()
    (tmp_path / "never_imported" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    kind = type("Alien", (nn.Module,), {"__module__": "never_imported.models.layers"})

    globs = ModuleGlobs(["never_imported.*.Alien", "never_imported.Other"], [])

    assert globs.answer(kind(), "x") is True
    assert globs.answer(Block(), "x") is None
    assert "never_imported" not in sys.modules


def test_a_glob_means_the_class_itself_and_not_what_is_derived_from_it():
    class Derived(nn.Linear):
        pass

    globs = ModuleGlobs(["torch.nn.Linear"], [])

    assert globs.answer(nn.Linear(1, 1), "x") is True
    assert globs.answer(Derived(1, 1), "x") is None


# -- nodes, proxies, arguments, wrappers -------------------------------------------------------------------------


def test_notes_of_all_plugins_are_merged_and_the_first_in_order_has_the_say(manager_of):
    plugins = {
        "a": marked("fxplug_node_created")(lambda node: {"shared": "a", "a": node.op}),
        "b": marked("fxplug_node_created")(lambda node: {"shared": "b", "b": node.name}),
        "c": marked("fxplug_node_created", tryfirst=True)(lambda: {"first": 1}),
        "d": marked("fxplug_node_created")(lambda: None),
    }

    graph = Tracer(policy=manager_of(plugins).trace_policy()).trace(Model())

    meta = next(iter(graph.nodes)).meta
    assert {key: meta[key] for key in ("shared", "a", "b", "first")} == {
        "shared": "a",
        "a": "placeholder",
        "b": "x",
        "first": 1,
    }


def test_every_plugin_mixes_into_the_proxy(manager_of):
    class Loud:
        def __mul__(self, other):
            return super().__mul__(other) + 100

    class Doubled:
        def __mul__(self, other):
            return super().__mul__(other * 2)

        def twice(self):
            return self + self

    plugins = {
        "a": marked("fxplug_create_proxy")(lambda: Loud),
        "b": marked("fxplug_create_proxy")(lambda kind: Doubled),
        "c": marked("fxplug_create_proxy")(lambda: Loud),
        "d": marked("fxplug_create_proxy")(lambda: None),
    }
    seen = []

    def function(x):
        seen.append(x)
        return (x * 3).twice()

    graph = Tracer(policy=manager_of(plugins).trace_policy()).trace(function)

    assert [type(proxy).__mro__[1:4] for proxy in seen] == [(Loud, Doubled, Proxy)]
    assert [node.args[1] for node in graph.nodes if node.name in {"mul", "add"}] == [6, 100]


deprecated_node = pytest.mark.filterwarnings(
    "ignore:Plugin .*The argument node of fxplug_create_proxy goes away:DeprecationWarning"
)
NOTING = {
    "nothing": lambda asked: lambda: asked.append(1),
    "kind": lambda asked: lambda kind: asked.append(1),
    "kind and context": lambda asked: lambda context, kind: asked.append(1),
    "node": lambda asked: lambda node: asked.append(1),
}
"""What an implementation takes -> makes one that notes each question."""


def noting(asked, takes):
    return marked("fxplug_create_proxy")(NOTING[takes](asked))


@deprecated_node
@pytest.mark.parametrize(
    ("takes", "times"), [("nothing", 1), ("kind", 1), ("kind and context", 1), ("node", 4)]
)
def test_mixins_are_asked_for_once_in_a_trace_unless_somebody_looks_at_the_nodes(manager_of, takes, times):
    asked = []
    tracer = Tracer(policy=manager_of({"one": noting(asked, takes)}).trace_policy())

    for traces in (1, 2):
        tracer.trace(lambda x, y: (x + 1) * y)
        assert len(asked) == traces * times


@deprecated_node
def test_one_plugin_that_looks_at_the_nodes_has_all_of_them_asked(manager_of):
    asked = []
    plugins = {"one": noting(asked, "nothing"), "two": noting([], "node")}

    Tracer(policy=manager_of(plugins).trace_policy()).trace(lambda x, y: (x + 1) * y)

    assert len(asked) == 4


@deprecated_node
def test_who_looks_at_the_nodes_may_answer_differently_for_each(manager_of):
    class Loud:
        def __add__(self, other):
            return super().__add__(other + 100)

    plugins = {
        "one": marked("fxplug_create_proxy")(lambda node: Loud if node.op == "placeholder" else None),
        "two": marked("fxplug_create_proxy")(lambda: Tagged),
    }
    seen = []

    def function(x):
        more = x + 1
        seen.extend([x, more])
        return more + 1

    graph = Tracer(policy=manager_of(plugins).trace_policy()).trace(function)

    assert [isinstance(proxy, Loud) for proxy in seen] == [True, False]
    assert [proxy.tag for proxy in seen] == ["tagged", "tagged"]
    assert [node.args[1] for node in graph.nodes if node.op == "call_function"] == [101, 1]


def test_to_look_at_the_nodes_is_deprecated_and_the_warning_says_what_to_do(manager_of):
    with pytest.warns(DeprecationWarning, match=r"Plugin 'one' .*asked about\. Leave it out, .*self\.node"):
        manager_of({"one": noting([], "node")}).trace_policy()


class Tagged:
    tag = "tagged"


def test_mixins_of_a_kind_are_at_every_proxy(manager_of):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            made = [x, self.weight, self.inner(x), torch.relu(x), x + 1]
            seen.extend(made)
            return self.inner(made[-1])

    seen = []
    policy = manager_of({"one": marked("fxplug_create_proxy")(lambda: Tagged)}).trace_policy()

    graph = Tracer(policy=policy).trace(Model())

    assert [proxy.tag for proxy in seen] == ["tagged"] * 5
    assert [node.op for node in graph.nodes][-3:] == ["call_function", "call_module", "output"]
    assert type(Tracer().proxy(next(iter(graph.nodes)))) is Proxy


class Window:
    def __init__(self, *sizes):
        self.sizes = sizes


def test_a_foreign_value_becomes_an_argument(manager_of):
    convert = marked("fxplug_create_argument")(
        lambda value: value.sizes if isinstance(value, Window) else None
    )

    def function(x):
        return x.view(Window(2, 3))

    graph = Tracer(policy=manager_of({"one": convert}).trace_policy()).trace(function)

    assert next(node for node in graph.nodes if node.op == "call_method").args[1] == (2, 3)
    with pytest.raises(TraceError, match="fxplug_create_argument"):
        Tracer(policy=manager_of({}).trace_policy()).trace(function)


def test_a_wrapper_is_unwrapped_by_the_first_that_knows_it(manager_of):
    model = Model()
    wrapper = nn.Sequential(model)
    plugins = {
        "a": marked("fxplug_unwrap_module")(lambda module: None),
        "b": marked("fxplug_unwrap_module")(lambda module: module[0] if module is wrapper else None),
    }
    unwrap = manager_of(plugins).trace_policy().unwrap_module

    assert unwrap(wrapper) is model
    assert unwrap(model) is None


def test_functions_of_all_plugins_stay_calls(manager_of):
    def one(x):
        return x if x.sum() > 0 else -x

    def other(x):
        return x if x.sum() < 0 else -x

    plugins = {
        "a": marked("fxplug_leaf_functions")(lambda: (one,)),
        "b": marked("fxplug_leaf_functions")(lambda: None),
        "c": marked("fxplug_leaf_functions")(lambda: [other]),
    }
    graph = Tracer(policy=manager_of(plugins).trace_policy()).trace(lambda x: other(one(x)))

    assert [node.target for node in graph.find_nodes(op="call_function")] == [one, other]


# -- failures ----------------------------------------------------------------------------------------------------


def failing(*_):
    raise ZeroDivisionError("by zero")


def adapted(hook, function):
    """Return an implementation of a hook that takes all its arguments."""
    # A new function each time: a mark stays on the function that it is given.
    arguments = {
        "fxplug_is_leaf_module": lambda module, qualified_name, context: function(module),
        "fxplug_node_created": lambda node, context: function(node),
        "fxplug_create_proxy": lambda kind, context: function(kind),
        "fxplug_create_argument": lambda value, context: function(value),
        "fxplug_unwrap_module": lambda module: function(module),  # noqa: PLW0108
        "fxplug_leaf_functions": lambda: function(None),
    }
    return marked(hook)(arguments[hook])


QUESTIONS = {
    "fxplug_is_leaf_module": lambda policy: policy.is_leaf_module(Block(), "block", TraceContext(None)),
    "fxplug_node_created": lambda policy: policy.node_created(None, TraceContext(None)),
    "fxplug_create_proxy": lambda policy: policy.mixins_of_kind("unknown", TraceContext(None)),
    "fxplug_create_argument": lambda policy: policy.create_argument(Window(), TraceContext(None)),
    "fxplug_unwrap_module": lambda policy: policy.unwrap_module(Block()),
    "fxplug_leaf_functions": lambda policy: policy.leaf_functions(),
}


@pytest.mark.parametrize("hook", QUESTIONS)
def test_a_plugin_that_raises_is_named_with_distribution_version_and_hook(manager_of, hook):
    manager = manager_of({"faulty": adapted(hook, failing)})

    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            QUESTIONS[hook](manager.trace_policy())

    assert str(caught.value) == (
        f"Hook '{hook}' of plugin 'faulty' (fxplug-faulty 1.0) raised ZeroDivisionError: by zero. Report it to its "
        "authors, or switch the plugin off: FXPLUG_DISABLE_PLUGINS=faulty. [FXP-H004]"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    (failure,) = manager.plugin_info("faulty").failures
    assert (failure.hook, failure.reason) == (hook, "raised ZeroDivisionError: by zero")


@pytest.mark.parametrize(
    ("hook", "answer", "allowed"),
    [
        ("fxplug_is_leaf_module", lambda _: "yes", "returned 'yes'; it may return True, False or None"),
        ("fxplug_is_leaf_module", lambda _: 0, "returned 0; it may return True, False or None"),
        (
            "fxplug_node_created",
            lambda _: ["note"],
            "returned ['note']; it may return a mapping of notes, or None",
        ),
        (
            "fxplug_create_proxy",
            lambda _: "Mixin",
            "it may return a class that is not derived from Proxy, or None",
        ),
        (
            "fxplug_create_proxy",
            lambda _: Proxy,
            "it may return a class that is not derived from Proxy, or None",
        ),
        ("fxplug_create_proxy", lambda _: bool, "it may return a class that combines with fxplug's proxy"),
        ("fxplug_create_argument", lambda value: value, "it may return another value, or None"),
        ("fxplug_unwrap_module", lambda module: module, "it may return the module inside, or None"),
        ("fxplug_unwrap_module", lambda _: 3, "returned 3; it may return the module inside, or None"),
        ("fxplug_leaf_functions", lambda _: ["ops"], "returned ['ops']; it may return functions, or None"),
    ],
    ids=[
        "text",
        "number",
        "list",
        "name",
        "proxy",
        "bool",
        "same-value",
        "same-module",
        "no-module",
        "no-function",
    ],
)
def test_an_answer_that_the_hook_does_not_allow_is_refused(manager_of, hook, answer, allowed):
    manager = manager_of({"faulty": adapted(hook, answer)})

    with pytest.raises(PluginError, match=r"of plugin 'faulty' \(fxplug-faulty 1.0\) returned") as caught:
        QUESTIONS[hook](manager.trace_policy())

    assert allowed in str(caught.value)
    assert len(manager.plugin_info("faulty").failures) == 1


def test_mixins_that_cannot_be_combined_are_refused_with_both_names(manager_of):
    class Base:
        pass

    class Derived(Base):
        pass

    manager = manager_of(
        {
            "a": marked("fxplug_create_proxy")(lambda: Base),
            "b": marked("fxplug_create_proxy")(lambda: Derived),
        }
    )

    with pytest.raises(
        PluginError, match=r"of plugin 'b' .* combines with fxplug's proxy beside .*Base of 'a'"
    ):
        manager.trace_policy().mixins_of_kind("unknown", TraceContext(None))


# -- observers ---------------------------------------------------------------------------------------------------


def test_observers_hear_of_the_start_and_the_end_of_a_trace(manager_of):
    heard = []
    plugins = {
        "a": {
            **marked("fxplug_trace_started")(lambda event: heard.append(("started", event.graph))),
            **marked("fxplug_trace_finished")(lambda event: heard.append(("finished", event.graph))),
        }
    }

    graph = Tracer(policy=manager_of(plugins).trace_policy()).trace(Model())

    assert heard == [("started", None), ("finished", graph)]


def test_an_observer_that_fails_is_named_and_does_not_stop_the_trace_or_the_others(manager_of):
    heard = []
    plugins = {
        "a": marked("fxplug_trace_started")(lambda event: failing()),
        "b": marked("fxplug_trace_started")(lambda event: heard.append(event.graph)),
    }
    manager = manager_of(plugins)

    with pytest.warns(
        PluginWarning, match=r"'fxplug_trace_started' of plugin 'a' \(fxplug-a 1.0\) raised ZeroDiv"
    ):
        Tracer(policy=manager.trace_policy()).trace(Model())

    assert len(heard) == 1
    assert len(manager.plugin_info("a").failures) == 1
    with pytest.raises(PluginError):
        Tracer(policy=manager_of(plugins, strict=True).trace_policy()).trace(Model())


def test_observers_of_passes_hear_of_each_start_and_end(manager_of):
    heard = []
    plugins = {
        "a": {
            **marked("fxplug_pass_started")(lambda event: heard.append(("started", event.name))),
            **marked("fxplug_pass_finished")(lambda event: heard.append(("finished", event.name))),
        },
        "b": marked("fxplug_pass_finished")(lambda event: heard.append(("b", event.result.modified))),
    }
    manager = manager_of(plugins)
    from fxplug.execute import GraphModule

    model = Model()
    module = GraphModule(model, Tracer(policy=manager.trace_policy()).trace(model))
    manager.resolve_pipeline(["dead-code"]).run(module, (torch.ones(1, 2),), manager.pass_observers())

    assert heard == [("started", "dead-code"), ("finished", "dead-code"), ("b", False)]


def test_nobody_is_asked_whether_a_layer_of_torch_wraps_something(manager_of):
    asked = []

    def unwrap(module):
        asked.append(type(module).__name__)

    targets(manager_of({"one": marked("fxplug_unwrap_module")(unwrap)}))

    assert "Block" in asked
    assert "Sequential" in asked
    assert not {"Linear", "ReLU"} & set(asked)
