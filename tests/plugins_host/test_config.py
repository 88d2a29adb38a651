"""Where the configuration is found, what it may say, and what is said when it is wrong."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from fxplug.errors import ConfigError
from fxplug.plugins import Config, PluginWarning, load_config
from fxplug.plugins.config import examine_config, flag_from_environment

EVERYTHING = """
[project]
name = "mine"

[tool.fxplug.plugins]
disable = ["viz"]
require = ["quant>=0.1"]
strict = true

[tool.fxplug.trace]
leaf_modules = ["torch.nn.*"]
through_modules = [
  "torch.nn.Sequential",
]

[tool.fxplug.pipelines.inference]
passes = [
  "dead-code",
  { name = "quant:static-int8", engine = "x86" },
]
on_error = "rollback"

[tool.fxplug.backends]
tensorrt.precision = "fp16"

[tool.fxplug.backends.openvino]
"streams" = 2
"""


def test_every_section_is_read(config_file):
    config = config_file(EVERYTHING)

    assert config.plugins.disable == ("viz",)
    assert config.plugins.require == ("quant>=0.1",)
    assert config.plugins.strict is True
    assert config.trace.leaf_modules == ("torch.nn.*",)
    assert config.trace.through_modules == ("torch.nn.Sequential",)
    assert config.pipelines["inference"].passes == (
        "dead-code",
        {"name": "quant:static-int8", "engine": "x86"},
    )
    assert config.pipelines["inference"].on_error == "rollback"
    assert config.backends == {"tensorrt": {"precision": "fp16"}, "openvino": {"streams": 2}}


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("plugins.disable", 6),
        ("plugins.strict", 8),
        ("trace.through_modules", 12),
        ("pipelines.inference.passes", 17),
        ("pipelines.inference.passes.0", 18),
        ("pipelines.inference.passes.1", 19),
        ("pipelines.inference.passes.1.engine", 19),
        ("pipelines.inference.on_error", 21),
        ("backends.tensorrt.precision", 24),
        ("backends.openvino.streams", 27),
    ],
)
def test_every_value_knows_its_source(config_file, tmp_path, key, line):
    assert str(config_file(EVERYTHING).source_of(key)) == f"{tmp_path / 'pyproject.toml'}:{line}"


def test_a_value_that_is_not_set_is_a_default(config_file):
    assert (
        str(config_file("[tool.fxplug.plugins]\nstrict = true\n").source_of("plugins.disable")) == "default"
    )


# -- where it is found -------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    """A folder below one that has a configuration."""
    (tmp_path / "pyproject.toml").write_text('[tool.fxplug.plugins]\ndisable = ["above"]\n')
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    return folder


def found(start, **environ):
    return load_config(start=start, environ=environ)


def test_the_search_goes_upwards_past_projects_that_do_not_mention_fxplug(project, tmp_path):
    (project / "pyproject.toml").write_text("this is not TOML, and none of our business")
    (project.parent / "pyproject.toml").write_text('[project]\nname = "uses-fxplug"\n')

    config = found(project)

    assert config.file == tmp_path / "pyproject.toml"
    assert config.plugins.disable == ("above",)


def test_the_nearest_file_counts_alone(project):
    (project / "fxplug.toml").write_text('[plugins]\nrequire = ["near"]\n')

    config = found(project)

    assert (config.plugins.require, config.plugins.disable) == (("near",), ())


def test_two_files_in_one_folder_are_refused(tmp_path, project):
    (tmp_path / "fxplug.toml").write_text("")

    with pytest.raises(ConfigError) as caught:
        found(project)

    assert str(caught.value) == (
        f"Cannot choose between two configurations: {tmp_path / 'fxplug.toml'} and the table [tool.fxplug] of "
        f"{tmp_path / 'pyproject.toml'}. Keep one of them. [FXP-F000]"
    )


def test_the_variable_names_a_file_and_an_empty_one_means_none(project, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('[plugins]\ndisable = ["other"]\n')

    assert found(project, FXPLUG_CONFIG=str(other)).plugins.disable == ("other",)
    assert found(project, FXPLUG_CONFIG="") == Config()


def test_the_argument_is_stronger_than_the_variable(project, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[plugins]\nstrict = true\n")

    assert load_config(other, environ={"FXPLUG_CONFIG": "missing.toml"}).plugins.strict is True


def test_without_any_file_there_is_an_empty_configuration_and_no_pydantic(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "fxplug.plugins.validation", raising=False)

    config = found(tmp_path)

    assert config == Config()
    assert config.file is None
    assert "fxplug.plugins.validation" not in sys.modules


def test_a_file_that_is_missing_is_an_error_that_says_who_named_it(tmp_path):
    missing = tmp_path / "missing.toml"

    with pytest.raises(ConfigError) as caught:
        found(tmp_path, FXPLUG_CONFIG=str(missing))

    assert str(caught.value) == (
        f"Cannot read the configuration {missing}: No such file or directory. FXPLUG_CONFIG names it. [FXP-F000]"
    )


def test_a_named_project_file_must_have_the_table(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("")

    with pytest.raises(ConfigError, match=r"it has no table \[tool.fxplug\]"):
        load_config(path)


def test_what_is_not_toml_is_an_error_with_its_line(config_file):
    with pytest.raises(ConfigError, match=r"Cannot read the configuration .*line 2.*Correct the TOML"):
        config_file("[tool.fxplug.plugins]\ndisable = \n")


def test_what_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "fxplug.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="it is not UTF-8"):
        load_config(path)


# -- what may be wrong -------------------------------------------------------------------------------------------


def problem(tmp_path, text):
    path = tmp_path / "fxplug.toml"
    path.write_text(dedent(text))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    prefix, suffix = f"Cannot use the configuration {path}", " [FXP-F000]"
    message = str(caught.value)
    assert message.startswith(prefix)
    assert message.endswith(suffix)
    return message[len(prefix) : -len(suffix)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[plugins]\ndisabel = []\n",
            ": line 2: there is no key 'disabel' in [plugins]. Did you mean 'disable'?",
        ),
        ("[plugin]\n", ": line 1: there is no key 'plugin'. Did you mean 'plugins'?"),
        (
            "[pipelines.fast]\n\npases = []\n",
            ": line 3: there is no key 'pases' in [pipelines.fast]. Did you mean 'passes'?",
        ),
        (
            "[tool.fxplug.plugins]\n",
            (
                ": line 1: there is no key 'tool'. Available: 'backends', 'cache', 'pipelines', 'plugins', 'trace'. "
                "In this file the tables stand at the top: [plugins], [trace]."
            ),
        ),
        (
            "[plugins]\ndisable = 'viz'\n",
            ": line 2: 'plugins.disable' is 'viz', but input should be a valid list.",
        ),
        (
            "[pipelines.fast]\npasses = [\n'dead-code',\n3]\n",
            (
                ": line 4: 'pipelines.fast.passes.1' is 3, but input should be a valid string or input should "
                "be a valid table."
            ),
        ),
        (
            "[pipelines.fast]\npasses = []\non_error = 'rolback'\n",
            ": line 3: 'pipelines.fast.on_error' is 'rolback', but input should be 'raise', 'rollback' or 'stop'.",
        ),
        (
            "[pipelines.fast]\npasses = []\nverify = 'numbers'\n",
            (
                ": line 3: 'pipelines.fast.verify' is 'numbers', but input should be 'structure', 'shape', "
                "'numeric', 'gradient' or 'paranoid'."
            ),
        ),
        (
            "[pipelines.fast]\npasses = []\nverify = 'numeric'\nrtol = -1\n",
            ": line 4: 'pipelines.fast.rtol' is -1.0, but input should be finite and not negative.",
        ),
        (
            "[pipelines.fast]\npasses = []\natol = nan\n",
            ": line 3: 'pipelines.fast.atol' is nan, but input should be finite and not negative.",
        ),
        ("[pipelines.fast]\non_error = 'raise'\n", ": line 1: 'pipelines.fast.passes' is missing. Add it."),
        (
            "[pipelines.fast]\npasses = [{ engine = 'x86' }]\n",
            ": line 2: 'pipelines.fast.passes.0' does not say which pass it is. Add name = \"...\".",
        ),
        ("plugins = 3\n", ": line 1: 'plugins' is 3, but input should be a table."),
        (
            "[trace]\nleaf_modules = ['']\n",
            ": line 2: 'trace.leaf_modules' holds an empty text. Write a glob such as 'torch.nn.*'.",
        ),
    ],
)
def test_a_problem_is_named_with_its_line_and_the_nearest_name(tmp_path, text, message):
    assert problem(tmp_path, text) == message


def test_several_problems_are_told_at_once(tmp_path):
    assert problem(tmp_path, "[plugins]\ndisabel = []\n[trace]\nleaf_module = []\n") == (
        ", it has 2 problems:\n"
        "  - line 2: there is no key 'disabel' in [plugins]. Did you mean 'disable'?\n"
        "  - line 4: there is no key 'leaf_module' in [trace]. Did you mean 'leaf_modules'?"
    )


def test_a_flag_that_is_neither_yes_nor_no_is_an_error():
    assert flag_from_environment({"FXPLUG_STRICT": "on"}, "FXPLUG_STRICT") is True
    assert flag_from_environment({"FXPLUG_STRICT": "No"}, "FXPLUG_STRICT") is False
    assert flag_from_environment({}, "FXPLUG_STRICT") is None

    with pytest.raises(ConfigError) as caught:
        flag_from_environment({"FXPLUG_STRICT": "perhaps"}, "FXPLUG_STRICT")

    assert str(caught.value) == (
        "Cannot read the environment variable FXPLUG_STRICT: it is 'perhaps'. Set it to 1 or 0. [FXP-F000]"
    )


@pytest.mark.parametrize("name", ["fxplugg", "fxplg", "fxpulg", "FXplug", "fx_plug"])
def test_a_table_with_nearly_the_name_is_pointed_out(tmp_path, name):
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[project]\nname = 'x'\n[tool.{name}.plugins]\ndisable = ['a']\n[tool.{name}.trace]\n")
    text = f"the table [tool.{name}] is nobody's that fxplug knows of. Did you mean [tool.fxplug]?"

    with pytest.warns(PluginWarning) as caught:
        config = load_config(environ={}, start=tmp_path)

    assert [str(entry.message) for entry in caught] == [f"{path}:3: {text}"]
    assert config.plugins.disable == ()
    assert [str(finding) for finding in examine_config(environ={}, start=tmp_path)[1]] == [
        f"{path}:3: warning: {text}"
    ]
    with pytest.raises(ConfigError, match=rf"no table \[tool\.fxplug\]\. Rename \[tool\.{name}\] if"):
        load_config(path)


def test_tables_of_others_are_no_matter(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.fxplug-quant]\n[tool.ruff]\n[tool.plugin]\n[tool.fxplug.plugins]\nstrict = true\n[tool.fixup]\n"
    )

    assert load_config(environ={}, start=tmp_path).plugins.strict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[trace]\nautowrap = "yes"', "'trace.autowrap' is 'yes', but input should be true or false."),
        ("[trace]\ncheck = 0", "'trace.check' is 0, but input should be true or false."),
        ('[plugins]\nstrict = "true"', "'plugins.strict' is 'true', but input should be true or false."),
        ('[cache]\nsize_limit = "10"', "'cache.size_limit' is '10', but input should be a whole number."),
        ("[cache]\nsize_limit = 10.0", "'cache.size_limit' is 10.0, but input should be a whole number."),
        ('[cache]\nfolder = "  "', "'cache.folder' has no name."),
        ('[cache]\nfolder = "~no-such-user-here/x"', "is '~no-such-user-here/x', and there is no such user."),
        (
            '[pipelines.a]\npasses = []\ntime_limit = "3"',
            "'pipelines.a.time_limit' is '3', but input should be a number.",
        ),
        (
            "[pipelines.a]\npasses = []\nrtol = true",
            "'pipelines.a.rtol' is True, but input should be a number.",
        ),
        ('[pipelines.""]\npasses = []', "a pipeline has no name."),
        ('[trace]\nleaf_modules = [" torch.nn.*"]', "holds ' torch.nn.*', which no name can match."),
        ('[trace]\nthrough_modules = ["torch..nn"]', "holds 'torch..nn', which no name can match."),
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path, text, message):
    (tmp_path / "fxplug.toml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "fxplug.toml")
    assert message in str(caught.value)

    config, findings = examine_config(tmp_path / "fxplug.toml")
    assert [finding.severity for finding in findings] == ["error"]
    assert config.trace.autowrap is False


def test_numbers_may_be_whole_where_others_are_allowed(config_file):
    config = config_file("[tool.fxplug.pipelines.a]\npasses = []\ntime_limit = 3\nrtol = 0\n")

    assert (config.pipelines["a"].time_limit, config.pipelines["a"].rtol) == (3, 0)
