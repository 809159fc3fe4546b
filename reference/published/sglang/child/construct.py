"""Makes the constructors of upstream's managers run where there is no engine.

Such a constructor binds sockets, registers memory and asks the engine how many ranks there are. None of that is here,
so it would end at the first of these. But what else it sets is the manager's state: containers, flags, locks, and
whatever a patch has added. So each statement is put into a `try` of its own, and one that raises is passed over. What
`parts.attributes` lists takes the place of what was passed over, and of what must not be real.
"""

from __future__ import annotations

import ast
from typing import Final

_MANAGERS: Final = ("KVManager", "Mixin")
_NEEDS_ENGINE: Final = ("register_to_bootstrap", "register_buffer_to_engine", "init_engine")
"""Methods that a constructor calls and that need an engine or a network: left out, as are those that start threads."""


def lenient(source: bytes | str, path: str) -> ast.Module:
    """A module of the wheel, with the constructors of its managers made to pass over what raises."""
    module = ast.parse(source, path)
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith(_MANAGERS):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    method.body = _block(method.body)
    return ast.fix_missing_locations(module)


def _block(statements: list[ast.stmt]) -> list[ast.stmt]:
    return [_tried(statement) for statement in statements if not _left_out(statement)] or [ast.Pass()]


def _tried(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, ast.If):
        statement.body = _block(statement.body)
        statement.orelse = _block(statement.orelse) if statement.orelse else []
    if isinstance(statement, (ast.With, ast.For)):
        statement.body = _block(statement.body)
    passed_over = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    return ast.copy_location(ast.Try([statement], [passed_over], [], []), statement)


def _left_out(statement: ast.stmt) -> bool:
    """A loop that could wait for ever, or a call of what needs an engine."""
    value = getattr(statement, "value", None)
    method = value.func if isinstance(value, ast.Call) else None
    needs = isinstance(method, ast.Attribute) and (method.attr in _NEEDS_ENGINE or method.attr.startswith("_start_"))
    return needs or isinstance(statement, ast.While)
