"""Everything that is wrong in a configuration is found in one go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxplug.errors import ConfigError
from fxplug.plugins import (
    BackendRecord,
    PassRecord,
    PluginCandidate,
    check_config,
    hookimpl,
    load_config,
)
from fxplug.plugins.config import examine_config


@dataclass
class Options:
    bits: int = 8


def offers(*records):
    @hookimpl
    def fxplug_register_passes():
        return [record for record in records if isinstance(record, PassRecord)]

    @hookimpl
    def fxplug_register_backends():
        return [record for record in records if isinstance(record, BackendRecord)]

    return {
        "fxplug_register_passes": fxplug_register_passes,
        "fxplug_register_backends": fxplug_register_backends,
    }


QUANT = offers(
    PassRecord("static-int8", object, "", options=Options),
    PassRecord("first", object, "", before=("second",)),
    PassRecord("second", object, "", before=("first",)),
    BackendRecord("engine", object, "", options=Options),
)


@pytest.fixture
def check(tmp_path, plugin_module, monkeypatch):
    """Checks a text as ``fxplug.toml``; returns what was found, the folder cut off, and the report."""
    monkeypatch.chdir(tmp_path)
    candidates = [PluginCandidate.of_module(plugin_module("quant", **QUANT), "quant", version="1.0")]

    def run(text, environ=None, candidates=candidates):
        (tmp_path / "fxplug.toml").write_text(dedent(text))
        report = check_config(environ=environ or {}, candidates=candidates, version="0.1.0")
        return [
            str(found).replace(str(tmp_path / "fxplug.toml"), "FILE") for found in report.findings
        ], report

    return run


def test_what_is_right_is_listed(check):
    found, report = check(
        """\
        [trace]
        leaf_functions = ["math:sqrt"]
        [pipelines.fast]
        passes = ["dead-code", { name = "static-int8", bits = 4 }]
        [backends.engine]
        bits = 4
        """
    )

    assert found == []
    assert report.errors == ()
    assert report.checked[1:] == (
        "plugins: quant",
        "pipeline fast, its order and options: dead-code, quant:static-int8",
        (
            "pipeline inference, its order and options: dead-code, remove-identities, fuse-conv-bn, onednn-fuse, "
            "propagate-shapes"
        ),
        "options of the backends engine",
        "leaf functions math:sqrt",
    )


def test_all_that_is_wrong_is_found_at_once_each_with_its_line_and_the_nearest_name(check):
    found, report = check(
        """\
        [plugins]
        disable = [
          "quant-",
          "qant",
        ]
        require = [
          "quant>=2", "viz",
        ]
        strikt = true
        [trace]
        mode = "valu"
        leaf_functions = ["math:sqrrt"]
        [pipelines.fast]
        passes = [
          3,
          "ded-code",
          { name = "static-int8", bit = 4, bits = "x" },
        ]
        [pipelines.round]
        passes = ["first", "second"]
        [backends.engine]
        bits = 4

        bit = 4
        [backends.engin]
        """
    )

    assert found == [
        "FILE:9: error: there is no key 'strikt' in [plugins]. Did you mean 'strict'?",
        "FILE:11: error: 'trace.mode' is 'valu', but input should be 'symbolic', 'shape' or 'value'.",
        (
            "FILE:15: error: 'pipelines.fast.passes.0' is 3, but input should be a valid string or input should "
            "be a valid table."
        ),
        (
            "FILE:3: error: There is no plugin named 'quant-'. Did you mean 'quant'? The name "
            "stands in plugins.disable at FILE:3."
        ),
        (
            "FILE:4: error: There is no plugin named 'qant'. Did you mean 'quant'? The name "
            "stands in plugins.disable at FILE:4."
        ),
        (
            "FILE:7: error: Plugin 'quant' (fxplug-quant 1.0) does not fit 'quant>=2' in plugins.require at "
            "FILE:7. Install a version that does: pip install 'fxplug-quant>=2'."
        ),
        (
            "FILE:7: error: There is no plugin named 'viz'. Available: 'fxplug-quant', 'quant'. It is required by "
            "plugins.require at FILE:7; install it."
        ),
        (
            "FILE:16: error: There is no pass named 'ded-code'. Did you mean 'dead-code'? The name stands at "
            "FILE:16."
        ),
        (
            "FILE:17: error: Cannot use the options of pass 'quant:static-int8' at FILE:17: there is no key "
            "'bit'. Did you mean 'bits'?"
        ),
        (
            "FILE:20: error: In the pipeline 'round': Cannot order the passes: their 'before' and 'after' form a "
            "cycle: quant:first -> quant:second -> quant:first. Leave one of them out, or change the records that name "
            "each other."
        ),
        (
            "FILE:21: error: Cannot use the options of backend 'quant:engine' at FILE:24: there is no key "
            "'bit'. Did you mean 'bits'?"
        ),
        (
            "FILE:25: error: There is no backend named 'engin'. Did you mean 'engine'? The name stands at "
            "FILE:25."
        ),
        (
            "FILE:12: warning: 'trace.leaf_functions' holds 'math:sqrrt', which names nothing: math has no "
            "'sqrrt'. Did you mean 'sqrt' or 'isqrt'?"
        ),
    ]
    assert len(report.errors) == 12


def test_names_and_flags_of_the_environment_are_checked(check):
    found, _ = check("", {"FXPLUG_LOAD_PLUGINS": "quan", "FXPLUG_STRICT": "perhaps"})

    assert found == [
        "FXPLUG_STRICT: error: Cannot read the environment variable FXPLUG_STRICT: it is 'perhaps'. Set it to 1 or 0.",
        (
            "FXPLUG_LOAD_PLUGINS: error: There is no plugin named 'quan'. Did you mean 'quant'? The name "
            "stands in FXPLUG_LOAD_PLUGINS."
        ),
    ]


@pytest.mark.parametrize(("strict", "severity"), [("false", "warning"), ("true", "error")])
def test_a_plugin_that_is_skipped_is_an_error_where_that_was_asked_for(
    check, plugin_module, strict, severity
):
    broken = plugin_module("broken", fxplug_is_leaf_modul=hookimpl(lambda module: None))
    broken.fxplug_is_leaf_modul.__name__ = "fxplug_is_leaf_modul"

    found, _ = check(
        f"[plugins]\nstrict = {strict}\n", candidates=[PluginCandidate.of_module(broken, "broken")]
    )

    assert found[0].startswith(
        f"{severity}: Plugin 'broken' (fxplug-broken 0) is failed: it implements the unknown"
    )


def test_a_file_that_is_no_toml_is_the_only_finding(check):
    found, report = check("[trace\n")

    assert len(found) == 1
    assert "Correct the TOML" in found[0]
    assert report.checked == ()


def test_a_file_whose_tables_are_none_is_a_finding(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\nfxplug = 3\n")

    (found,) = check_config(tmp_path / "pyproject.toml", environ={}, candidates=[]).findings

    assert (
        str(found) == f"{tmp_path / 'pyproject.toml'}:2: error: the whole is 3, but input should be a table."
    )


# -- leaf functions that name nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("fxp_ops:scale", ""),
        ("fxp_ops.scale", ""),
        ("fxp_ops:Kind.method", ""),
        ("fxp_ops:sc*", ""),
        ("fxp_ops:late", ""),
        ("fxp_open:whatever", ""),
        ("fxp_*:whatever", ""),
        ("fxp_pkg.inner:run", ""),
        ("fxp_pkg.*:run", ""),
        ("fxp_space.part:run", ""),
        ("fxp_ops:scle", "fxp_ops has no 'scle'. Did you mean 'scale'?"),
        ("fxp_ops:x*", "fxp_ops has no function like 'x*'. Correct the glob, or leave it out."),
        (
            "fxp_pkg.iner:run",
            "there is no module 'fxp_pkg.iner'. Correct the name, or install what it belongs to.",
        ),
        (
            "fxp_ops.deep:run",
            "there is no module 'fxp_ops.deep'. Correct the name, or install what it belongs to.",
        ),
    ],
)
def test_leaf_functions_that_name_nothing_are_warned_of_and_nothing_is_imported(
    check, tmp_path, monkeypatch, pattern, reason
):
    body = "raise RuntimeError('imported')\ndef scale(x): ...\nclass Kind: ...\nif True:\n    late = scale\n"
    (tmp_path / "fxp_ops.py").write_text(body)
    (tmp_path / "fxp_open.py").write_text("from fxp_ops import *\n")
    (tmp_path / "fxp_pkg").mkdir()
    (tmp_path / "fxp_pkg" / "__init__.py").write_text(body)
    (tmp_path / "fxp_pkg" / "inner.py").write_text("def run(): ...\n")
    (tmp_path / "fxp_space").mkdir()

    found, report = check(f'[trace]\nleaf_functions = ["{pattern}"]\n')

    wanted = f"FILE:2: warning: 'trace.leaf_functions' holds {pattern!r}, which names nothing: {reason}"
    assert found == ([wanted] if reason else [])
    assert report.errors == ()


# -- lines of the errors that loading and resolving raise --------------------------------------------------------


def test_passes_as_a_list_of_tables_are_located_too(manager_of, config_file):
    config = config_file(
        """\
        [[tool.fxplug.pipelines.fast.passes]]
        name = "dead-code"

        [[tool.fxplug.pipelines.fast.passes]]
        name = "static-int8"
        bit = 4
        """
    )

    with pytest.raises(Exception, match=r"pyproject.toml:6: there is no key 'bit'. Did you mean 'bits'\?"):
        manager_of({"quant": QUANT}).resolve_pipeline("fast", config)


def test_several_bad_options_are_told_at_once_with_their_lines(manager_of, config_file, tmp_path):
    config = config_file("[tool.fxplug.backends.engine]\nbit = 4\nbitz = 3\n")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is what matters
        manager_of({"quant": QUANT}).backend_options("engine", config=config)

    assert str(caught.value) == (
        f"Cannot use the options of backend 'quant:engine' at {tmp_path / 'pyproject.toml'}:1, it has 2 problems:\n"
        "  - line 2: there is no key 'bit'. Did you mean 'bits'?\n"
        "  - line 3: there is no key 'bitz'. Did you mean 'bits'? [FXP-F000]"
    )


def test_a_bad_option_that_is_an_argument_is_not_blamed_on_the_file(manager_of, config_file):
    config = config_file("[tool.fxplug.backends.engine]\nbits = 4\n")

    with pytest.raises(Exception, match=r"options of backend 'quant:engine': 'bits' is 'x'"):
        manager_of({"quant": QUANT}).backend_options("engine", {"bits": "x"}, config)


def test_a_misspelt_plugin_is_named_with_the_line_of_its_entry(manager_of, config_file, tmp_path):
    config = config_file('[tool.fxplug.plugins]\ndisable = [\n"quant",\n"qant",\n]\n')

    with pytest.raises(LookupError, match=rf"stands in plugins.disable at {tmp_path}/pyproject.toml:4"):
        manager_of({"quant": QUANT}, config=config)


def test_loading_reports_the_line_of_an_element(tmp_path):
    path = tmp_path / "fxplug.toml"
    path.write_text('[trace]\nleaf_functions = [\n"a.b",\n"c",\n]\n')

    with pytest.raises(Exception, match=r"line 4: 'trace.leaf_functions' holds 'c', which names no function"):
        load_config(path)


# -- whatever a file says ----------------------------------------------------------------------------------------

KEYS = [
    *("plugins", "plugins.disable", "plugins.strict", "plugins.x"),
    *(
        "trace",
        "trace.mode",
        "trace.leaf_modules",
        "trace.leaf_functions",
        "trace.check",
        "trace.on_guard_failure",
    ),
    *(
        "pipelines",
        "pipelines.a",
        "pipelines.a.passes",
        "pipelines.a.on_error",
        "pipelines.b",
        "pipelines.b.pass",
    ),
    *("backends", "backends.b", "backends.b.c", "trac"),
]
VALUES = [
    *("3", "true", "nan", "''", "'x'", "'shape'", "'eager'", "{}", "{a=1}"),
    *("[]", "['']", "['a.b']", "[3, '', 'a']", "[[1]]", "[{name='x'},{nam='y'}, 3, 'dead-code']"),
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1, max_size=6))
def test_whatever_a_file_says_each_finding_has_a_line_and_the_rest_is_used(values):
    text = "".join(f"{key} = {value}\n" for key, value in values.items())
    with TemporaryDirectory() as folder:
        path = Path(folder, "fxplug.toml")
        path.write_text(text)
        try:
            _, findings = examine_config(path)
        except ConfigError as error:
            assert "Correct the TOML" in str(error)  # noqa: PT017 - one of two ends
            return
        assert all(finding.source.line for finding in findings)
        try:
            load_config(path)
        except ConfigError:
            assert findings
        else:
            assert not findings
