"""What a broken plugin did is undone, and what it does later stays its own affair."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import Tracer, is_tracing
from fxplug.errors import FxplugError, PluginError
from fxplug.ir import Graph
from fxplug.plugins import PluginWarning, discover

HOOK = "from fxplug import hookimpl\n\n@hookimpl\ndef fxplug_is_leaf_module(module):\n    return True\n"


class Block(nn.Module):
    def forward(self, x):
        return x + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return torch.relu(self.block(x))


def patched():
    """Return what a trace exchanges while it runs."""
    tables = (nn.Module, torch.Tensor, torch, nn.functional, Block)
    return [dict(vars(table)) for table in tables], Block.forward.__code__, is_tracing()


def write_package(site, name, plugin, **files):
    """Install a plugin whose entry module is a module of a package."""
    site.install(name, target=f"fake_plugin_pkg_{name}.plugin")
    package = site.folder / f"fake_plugin_pkg_{name}"
    package.mkdir(exist_ok=True)
    for module, text in {"__init__": "", "plugin": plugin, **files}.items():
        (package / f"{module}.py").write_text(text)
    importlib.invalidate_caches()
    return package


# -- imports that fail -------------------------------------------------------------------------------------------


def test_a_failed_import_leaves_no_module_of_the_package_and_a_repaired_plugin_loads(site):
    package = write_package(
        site,
        "half",
        "from fake_plugin_pkg_half import helper\nimport missing_library\n",
        helper="import colorsys\n",
    )
    with pytest.warns(PluginWarning, match="No module named 'missing_library'"):
        site.manager()

    assert not [name for name in sys.modules if name.startswith("fake_plugin_pkg_half")]
    assert "colorsys" in sys.modules, "what belongs to others stays"

    (package / "helper.py").write_text("VALUE = 'repaired helper'\n")
    (package / "plugin.py").write_text(f"from fake_plugin_pkg_half.helper import VALUE\n{HOOK}")
    importlib.invalidate_caches()
    assert site.manager().plugin_info("half").hooks == ("fxplug_is_leaf_module",)


SETTINGS = """
import os, sys, torch
sys.path.insert(0, "/nowhere")
class Finder:
    find_spec = staticmethod(lambda *arguments: None)
sys.meta_path.append(Finder)
os.environ["FAKE_SETTING"] = "changed"
os.environ["FAKE_NEW"] = "new"
del os.environ["FAKE_GONE"]
torch.set_default_dtype(torch.float64)
"""


@pytest.mark.parametrize("end", ["import missing_library", "raise SystemExit"])
def test_a_failed_import_leaves_the_settings_of_the_process(site, monkeypatch, end):
    monkeypatch.setenv("FAKE_SETTING", "kept")
    monkeypatch.setenv("FAKE_GONE", "kept")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    site.install("settings", SETTINGS + end)
    before = [*sys.path], [*sys.meta_path], dict(os.environ)

    with pytest.warns(PluginWarning, match="settings"):
        site.manager()

    assert (sys.path, sys.meta_path, dict(os.environ)) == before
    assert torch.get_default_dtype() is torch.float32


def test_modules_of_the_package_that_were_there_before_stay(site):
    write_package(site, "used", "import missing_library\n", tools="VALUE = 1\n")
    tools = importlib.import_module("fake_plugin_pkg_used.tools")

    with pytest.warns(PluginWarning):
        site.manager()

    assert sys.modules["fake_plugin_pkg_used.tools"] is tools
    assert "fake_plugin_pkg_used.plugin" not in sys.modules


def test_a_failed_import_takes_its_warning_filters_along(site):
    site.install("quiet", "import warnings\nwarnings.simplefilter('ignore')\nimport missing_library")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        before = list(warnings.filters)
        site.manager()
        assert list(warnings.filters) == before


SILENT = "import warnings\nwarnings.filterwarnings('ignore')\nfrom fxplug import hookimpl, PassRecord\n"
REFUSED_LATER = {
    "a misspelt hook": "@hookimpl\ndef fxplug_is_laef_module(module): pass\n",
    "a wrong record": "@hookimpl\ndef fxplug_register_passes(): return [1]\n",
    "a wrong order": "PLUGIN_BEFORE = 3\n",
    "a wrong declaration": "PLUGIN_HOOKSPECS = 3\n",
}


@pytest.mark.parametrize("fault", REFUSED_LATER.values(), ids=REFUSED_LATER)
def test_a_plugin_that_is_refused_behind_its_import_leaves_neither_filters_nor_modules(site, fault):
    package = write_package(site, "quiet", f"from . import helper\n{SILENT}{fault}", helper="")
    site.install("broken", "import missing_library")
    before = list(warnings.filters)

    with pytest.warns(PluginWarning) as caught:
        site.manager()

    text = " ".join(str(entry.message) for entry in caught)
    assert "'quiet'" in text
    assert "'broken'" in text
    assert list(warnings.filters)[-len(before) :] == before
    assert not [name for name in sys.modules if name.startswith("fake_plugin_pkg_quiet")]

    (package / "plugin.py").write_text(f"# repaired\n{HOOK}")
    importlib.invalidate_caches()
    assert site.manager(disable=["broken"]).plugin_info("quiet").hooks == ("fxplug_is_leaf_module",)


def test_a_plugin_that_takes_part_changes_no_filters_and_silences_nobody(site):
    site.install(
        "quiet", SILENT + HOOK + "@hookimpl\ndef fxplug_register_passes():\n    " + SILENT.splitlines()[1]
    )
    site.install("broken", "import missing_library")
    before = list(warnings.filters)

    with pytest.warns(PluginWarning, match="'broken'"):
        manager = site.manager()

    assert manager.plugin_info("quiet").status == "active"
    assert list(warnings.filters) == before


def test_modules_that_a_plugin_shares_with_one_that_takes_part_stay(site):
    write_package(
        site,
        "both",
        "from . import tools\nPLUGIN_BEFORE = 3\n",
        tools="VALUE = 1\n",
        other="from . import tools\n",
    )
    site.install("twin", target="fake_plugin_pkg_both.other")

    with pytest.warns(PluginWarning, match="'both'"):
        manager = site.manager()

    assert manager.plugin_info("twin").status == "active"
    assert "fake_plugin_pkg_both.tools" in sys.modules


def test_what_is_no_exception_is_isolated_too(site):
    site.install("panic", "class Panic(BaseException): pass\nraise Panic('the engine gave up')")
    site.install("good", HOOK)

    with pytest.warns(
        PluginWarning, match=r"'panic' \(fxplug-panic 1.0\).* raised Panic: the engine gave up"
    ):
        manager = site.manager()

    assert manager.plugin_info("good").status == "active"


def test_an_interrupt_leaves_no_module_behind(site):
    write_package(site, "slow", "import fake_plugin_pkg_slow.helper\nraise KeyboardInterrupt\n", helper="")

    with pytest.raises(KeyboardInterrupt):
        site.manager()

    assert not [name for name in sys.modules if name.startswith("fake_plugin_pkg_slow")]


def test_a_module_that_cannot_be_looked_at_is_refused(site):
    site.install("lazy", "def __dir__():\n    raise RuntimeError('no names')\n")
    site.install("good", HOOK)

    with pytest.warns(PluginWarning, match="looking for its hooks raised RuntimeError: no names"):
        manager = site.manager()

    assert [entry.plugin for entry in manager._implementations("fxplug_is_leaf_module")] == ["good", "core"]


def test_what_a_module_does_about_missing_names_is_no_matter(site):
    site.install("lazy", "def __getattr__(name):\n    raise RuntimeError(f'no {name}')\n" + HOOK)

    assert site.manager().plugin_info("lazy").hooks == ("fxplug_is_leaf_module",)


# -- the working directory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["", ".", "absolute"])
def test_metadata_in_the_working_directory_is_not_even_read(site, tmp_path, monkeypatch, entry):
    project = tmp_path / "project"
    project.mkdir()
    (project / "fake_plugin_evil.py").write_text("raise AssertionError('imported')\n")
    info = project / "fxplug_evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fxplug-evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fxplug]\nevil = fake_plugin_evil\n")
    site.install("good", HOOK)
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project) if entry == "absolute" else entry)

    names = [candidate.name for candidate in discover()]

    assert "good" in names
    assert "evil" not in names


@pytest.mark.parametrize("kind", ["module", "package"])
def test_a_file_that_takes_the_place_of_an_installed_plugin_is_not_imported(
    site, tmp_path, monkeypatch, kind
):
    module = site.install("good", HOOK)
    project = tmp_path / "project"
    project.mkdir()
    evil = project / f"{module}.py" if kind == "module" else project / module / "__init__.py"
    evil.parent.mkdir(exist_ok=True)
    evil.write_text("raise AssertionError('imported')\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend("")
    importlib.invalidate_caches()

    with pytest.warns(
        PluginWarning, match="in the working directory has the name of its package, and nothing is loaded"
    ):
        manager = site.manager()

    assert manager.plugin_info("good").status == "failed"
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    assert site.manager().plugin_info("good").status == "active"


@pytest.mark.parametrize("entry", ["", ".", "absolute"])
def test_what_a_plugin_imports_does_not_come_from_the_working_directory(site, tmp_path, monkeypatch, entry):
    site.install("needy", f"import fake_plugin_missing\n{HOOK}")
    project = tmp_path / "project"
    project.mkdir()
    (project / "fake_plugin_missing.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project) if entry == "absolute" else entry)
    finders = list(sys.meta_path)

    with pytest.warns(
        PluginWarning,
        match="No module named 'fake_plugin_missing' is installed; .* in the working directory does not count",
    ):
        manager = site.manager()

    assert manager.plugin_info("needy").status == "failed"
    assert sys.meta_path == finders
    (site.folder / "fake_plugin_missing.py").write_text("")
    importlib.invalidate_caches()
    assert site.manager().plugin_info("needy").status == "active", "the installed one counts"


@pytest.mark.parametrize("way", ["a path file", "a finder"])
def test_what_is_installed_in_the_working_directory_may_be_imported(site, tmp_path, monkeypatch, way):
    site.install("needy", f"import fake_plugin_library\n{HOOK}")
    project = tmp_path / "project"
    project.mkdir()
    (project / "fake_plugin_library.py").write_text("")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    if way == "a path file":
        monkeypatch.setattr("site.getsitepackages", lambda: [str(site.folder)])
        (site.folder / "library.pth").write_text(f"# a library\nimport os\n{project}\n")
    else:
        where = importlib.machinery.PathFinder.find_spec("fake_plugin_library", [str(project)])

        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                return where if name == "fake_plugin_library" else None

        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])

    assert site.manager(strict=True).plugin_info("needy").status == "active"


def test_other_threads_import_from_the_working_directory_meanwhile(site, tmp_path, monkeypatch):
    site.install(
        "slow",
        """
        import importlib, threading
        found = []
        thread = threading.Thread(target=lambda: found.append(importlib.import_module("fake_plugin_local")))
        thread.start()
        thread.join()
        assert found
        """,
    )
    project = tmp_path / "project"
    project.mkdir()
    (project / "fake_plugin_local.py").write_text("")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend("")

    assert site.manager(strict=True).plugin_info("slow").status == "active"


@pytest.mark.parametrize("metadata", ["fxplug-9.9.dist-info/METADATA", "fxplug.egg-info/PKG-INFO"])
def test_metadata_of_another_fxplug_in_the_working_directory_does_not_count(
    site, tmp_path, monkeypatch, metadata
):
    site.install("good", HOOK, requires=[f"fxplug=={fxplug.__version__}"])
    project = tmp_path / "project"
    (project / metadata).parent.mkdir(parents=True)
    (project / metadata).write_text("Metadata-Version: 2.1\nName: fxplug\nVersion: 9.9\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend("")

    assert site.manager(version=None, strict=True).plugin_info("good").status == "active"


def test_ranges_are_checked_also_where_fxplug_was_never_installed(site, monkeypatch):
    site.install("old", HOOK, requires=["fxplug<0.0.1"])
    candidates = site.candidates()
    monkeypatch.setattr("importlib_metadata.distributions", lambda **_: [])
    monkeypatch.setattr("importlib_metadata.Distribution.discover", lambda **_: [])

    with pytest.warns(
        PluginWarning, match=f"requires fxplug <0.0.1, but fxplug {fxplug.__version__} is running"
    ):
        manager = site.manager(version=None, candidates=candidates)

    assert manager.plugin_info("old").status == "incompatible"


def test_an_editable_installation_works_in_the_folder_of_its_sources(site, tmp_path, monkeypatch):
    module = site.install("mine", HOOK)
    project = tmp_path / "a project"
    project.mkdir()
    (site.folder / f"{module}.py").rename(project / f"{module}.py")
    (site.folder / "fxplug_mine-1.0.dist-info" / "direct_url.json").write_text(
        f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": true}}}}'
    )
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))

    assert site.manager().plugin_info("mine").status == "active"


# -- hooks that fail later ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "definition",
    [
        "def fxplug_is_leaf_module(module):",
        "def fxplug_node_created(node):",
        "def fxplug_create_proxy():",
        "def fxplug_leaf_functions():",
        "def fxplug_unwrap_module(module):",
    ],
)
def test_a_question_that_fails_ends_the_trace_with_its_plugin_named_and_nothing_patched(site, definition):
    site.install(
        "broken", f"@hookimpl\n{definition}\n    raise ZeroDivisionError('by zero')\n", version="2.1"
    )
    manager = site.manager()
    before = patched()

    with pytest.raises(FxplugError) as caught:
        Tracer(policy=manager.trace_policy()).trace(Model())

    hook = definition[4:].partition("(")[0]
    assert f"Hook {hook!r} of plugin 'broken' (fxplug-broken 2.1) raised ZeroDivisionError: by zero" in str(
        caught.value
    )
    assert "FXPLUG_DISABLE_PLUGINS=broken" in str(caught.value)
    assert isinstance(caught.value, PluginError)
    assert patched() == before
    assert [failure.hook for failure in manager.plugin_info("broken").failures] == [hook]
    # The next trace, without the plugin, is as good as the first.
    graph = Tracer(policy=site.manager(disable=["broken"]).trace_policy()).trace(Model())
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "call_function", "output"]


@pytest.mark.parametrize("hook", ["fxplug_trace_started", "fxplug_trace_finished"])
def test_an_observer_that_fails_is_a_warning_and_the_trace_goes_on(site, hook):
    site.install("broken", f"@hookimpl\ndef {hook}(event):\n    raise ZeroDivisionError('by zero')\n")
    manager = site.manager()

    with pytest.warns(PluginWarning, match=rf"Hook '{hook}' of plugin 'broken' \(fxplug-broken 1.0\) raised"):
        graph = Tracer(policy=manager.trace_policy()).trace(Model())

    assert isinstance(graph, Graph)
    with pytest.raises(PluginError, match="by zero"):
        Tracer(policy=site.manager(strict=True).trace_policy()).trace(Model())


@pytest.mark.parametrize(
    "definition",
    [
        "def fxplug_is_leaf_module(module):",
        "def fxplug_node_created(node):",
        "def fxplug_unwrap_module(module):",
        "def fxplug_leaf_functions():",
        "def fxplug_trace_started(event):",
    ],
)
def test_a_hook_that_leaves_the_process_is_one_that_fails(site, definition):
    site.install("leaver", f"@hookimpl\n{definition}\n    raise SystemExit('bye')\n")

    with pytest.raises(
        PluginError, match=r"of plugin 'leaver' \(fxplug-leaver 1\.0\) raised SystemExit: bye"
    ):
        fxplug.symbolic_trace(Model(), manager=site.manager(strict=True))
