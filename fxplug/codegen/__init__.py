"""Python code generation. Importing this package makes ``Graph.python_code`` work; it needs no torch."""

from __future__ import annotations

from fxplug.codegen.compiled import CompiledFunction, compile_code
from fxplug.codegen.emitters import AUGMENTED, INFIX, PREFIX
from fxplug.codegen.generator import CodeGen
from fxplug.codegen.globals import register_named_type, register_root, register_value_type
from fxplug.codegen.pytree import PyTreeCodeGen, TreeParameter
from fxplug.codegen.readable import as_identifier
from fxplug.codegen.signature import Parameter, Signature, signature_of
from fxplug.ir import install_generator, last_uses

__all__ = [
    "AUGMENTED",
    "INFIX",
    "PREFIX",
    "CodeGen",
    "CompiledFunction",
    "Parameter",
    "PyTreeCodeGen",
    "Signature",
    "TreeParameter",
    "as_identifier",
    "compile_code",
    "last_uses",
    "register_named_type",
    "register_root",
    "register_value_type",
    "signature_of",
]

install_generator(CodeGen())
