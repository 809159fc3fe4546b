"""Mechanical mutants of a Python module: one small change each, named by function and text, so that names last.

The operators are those of mutation testing since Mothra: a statement goes, two change places, a function returns at
once, a comparison turns round, a constant is off by one, a connective is the other one, a test or a tuple loses a part.
One is for this trade: a ``with`` (a lock) goes, and its body stays.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

import attrs

_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SIMPLE: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Raise, ast.Continue, ast.Break)


@attrs.frozen
class Mutant:
    """A changed module: ``name`` is "function: what was done to which text"."""

    name: str
    source: str = attrs.field(repr=False)


def mutants(
    source: str, classes: frozenset[str], leave: frozenset[str] = frozenset(), functions: frozenset[str] = frozenset()
) -> Iterator[Mutant]:
    """Every mutant of these functions, and of the methods of these classes but those in ``leave``.

    Each source comes once, and none is the original.

    A second mutant of one name has " (2)" at its end, and so on.
    """
    seen, names = {ast.unparse(ast.parse(source))}, Counter[str]()
    for name, text in _changed(ast.parse(source), classes, leave, functions):
        names[name] += 1
        if text not in seen:
            seen.add(text)
            yield Mutant(name if names[name] == 1 else f"{name} ({names[name]})", text)


def _changed(
    tree: ast.Module, classes: frozenset[str], leave: frozenset[str], functions: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for cls in tree.body:
        if isinstance(cls, ast.FunctionDef) and cls.name in functions:
            yield from _of_function(tree, cls)
        if isinstance(cls, ast.ClassDef) and cls.name in classes:
            for function in cls.body:
                if isinstance(function, ast.FunctionDef) and function.name not in leave:
                    yield from _of_function(tree, function)


def _of_function(tree: ast.Module, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """A change is made in place, the whole tree becomes text, and the change is undone."""
    for node in _parts(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                for what, undo in _in_block(block, node is function and field == "body"):
                    yield f"{function.name}: {what}", ast.unparse(tree)
                    block[:] = undo
        yield from ((f"{function.name}: {what}", text) for what, text in _in_expression(tree, node))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, but for annotations, which nobody runs."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _parts(child)


def _in_block(block: list[ast.stmt], whole: bool) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Each change of a block, made; with the block as it was."""
    was = list(block)
    if whole:
        block[:] = [ast.Return(), *was]
        yield "return at once", was
    for i, statement in enumerate(was):
        first = ast.unparse(statement).splitlines()[0]
        if isinstance(statement, _SIMPLE):
            block[i : i + 1] = [ast.Pass()]
            yield f"without {first!r}", was
        if isinstance(statement, ast.With):
            block[i : i + 1] = statement.body
            yield f"without {first!r} around its body", was
        if isinstance(statement, ast.If):
            block[i : i + 1] = statement.body
            yield f"always {first!r}", was
            block[i : i + 1] = statement.orelse or [ast.Pass()]
            yield f"never {first!r}", was
        if i + 1 < len(was) and isinstance(statement, _SIMPLE):
            block[i : i + 2] = [was[i + 1], statement]
            yield f"{first!r} one later", was


def _in_expression(tree: ast.Module, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each change of one node that keeps its place in the tree."""
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [_TURNED[type(op)]()]
            yield f"{text!r} turned round", ast.unparse(tree)
            node.ops = [op]
        case ast.BoolOp(op=op, values=values):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{text!r} with the other connective", ast.unparse(tree)
            node.op = op
            if len(values) > 1:
                for i, value in enumerate(values):
                    node.values = values[:i] + values[i + 1 :]
                    yield f"{text!r} without {ast.unparse(value)!r}", ast.unparse(tree)
                node.values = values
        case ast.Constant(value=bool() as value):
            node.value = not value
            yield f"{text} is {not value}", ast.unparse(tree)
            node.value = value
        case ast.Constant(value=int() as value):
            for off in (value - 1, value + 1):
                node.value = off
                yield f"{text} is {off}", ast.unparse(tree)
            node.value = value
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op):
            node.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield f"{ast.unparse(node)!r} instead of its opposite", ast.unparse(tree)
            node.op = op
        case ast.Tuple(elts=elements) if len(elements) > 1 and isinstance(node.ctx, ast.Load):
            for i, element in enumerate(elements):
                node.elts = elements[:i] + elements[i + 1 :]
                yield f"{text!r} without {ast.unparse(element)!r}", ast.unparse(tree)
            node.elts = elements
