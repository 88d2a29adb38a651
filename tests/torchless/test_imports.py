"""errors, ir and codegen do without torch, and without anything else that is not in the standard library."""

from __future__ import annotations

import json


def test_the_layers_import_where_torch_cannot_be_imported(run_script):
    source = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "pluggy", "pydantic", "click", "rich"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import fxplug.errors, fxplug.ir, fxplug.codegen
import operator
graph = fxplug.ir.Graph()
x = graph.placeholder("x")
graph.output(graph.call_function(operator.add, (x, 1)))
answer = fxplug.codegen.compile_code(graph.python_code()).function(None, 41)
print(json.dumps([answer, sorted(sys.modules)]))
"""

    answer, modules = json.loads(run_script(source))

    assert answer == 42
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & {"torch", "numpy", "pluggy", "pydantic", "click", "rich"}


def test_the_layers_do_not_import_a_layer_above_them(run_script):
    source = """
import json, sys
import fxplug.errors, fxplug.ir, fxplug.codegen
print(json.dumps(sorted(name for name in sys.modules if name.startswith("fxplug."))))
"""

    layers = {name.split(".")[1] for name in json.loads(run_script(source))}

    assert layers == {"errors", "ir", "codegen"}


def test_a_graph_without_the_code_generation_layer_says_what_to_import(run_script):
    source = """
import fxplug.errors, fxplug.ir
try:
    fxplug.ir.Graph().python_code()
except fxplug.errors.CodegenError as error:
    print(error)
"""

    assert run_script(source).strip() == (
        "Cannot generate code: no generator is installed. Import fxplug or fxplug.codegen first. [FXP-C000]"
    )
