"""A manager's own functions, rewritten so that each access to what threads may share is seen before it is made.

:func:`rewritten` puts a hook around the object of every attribute, subscript, ``in``, ``for``, augmented assignment and
call of a C function, and around names that are declared ``global`` or ``nonlocal``: ``self.table[room]`` becomes, as
it were, ``content(attribute(self, "table").table)[room]``. So private names, ``super()`` and tracebacks stay right.
An object is evaluated before its hook and used right after it. :class:`Instrumented` gives functions their rewritten
code, in place, and takes it away again: no class is made anew, nothing is imported twice.

What runs while a module is imported is left alone, and so are writes to ``self`` in a constructor: nobody shares
that yet.
"""

from __future__ import annotations

import ast
import builtins
import gc
import linecache
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar

HOOKS: Final = ("attribute", "store", "content", "change", "item", "iterate", "call", "name", "stored")
"""The hooks, by what they are called for; see ``sharing.py``."""
_PREFIX: Final = "_kvlatch_"
_SLICE: Final = f"{_PREFIX}slice"
"""The built-in one: a module may have a ``slice`` of its own."""
_CONSTRUCTORS: Final = ("__init__", "__new__", "__post_init__", "__attrs_post_init__", "__setstate__")
_ITSELF: Final = ("super", "locals", "globals", "vars", "dir", "eval", "exec", "isinstance", "type", "print", "cast")
"""Names of functions that look at their caller's frame, or at nothing that changes."""

Hooks = Mapping[str, Callable[..., Any]]
_Node = TypeVar("_Node", bound=ast.AST)


class _Rewriter(ast.NodeTransformer):
    """Rewrites the functions of one module."""

    def __init__(self, label: str, tree: ast.Module) -> None:
        self._label = label
        self._shared = {
            name for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        self._depth = 0
        self._made: str | None = None

    # --- Where ---

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.AST:
        arguments = node.args
        arguments.defaults = [self._visited(one) for one in arguments.defaults]
        arguments.kw_defaults = [one and self._visited(one) for one in arguments.kw_defaults]
        if not isinstance(node, ast.Lambda):
            node.decorator_list = [self._visited(one) for one in node.decorator_list]
        before = self._depth, self._made
        self._depth += 1
        if isinstance(node, ast.Lambda):
            node.body = self._visited(node.body)
        else:
            first = (arguments.posonlyargs + arguments.args)[:1]
            self._made = first[0].arg if node.name in _CONSTRUCTORS and first else None
            node.body = self._block(node.body)
        self._depth, self._made = before
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before, self._depth = self._depth, 0
        node.body = self._block(node.body)
        self._depth = before
        return node

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in body:
            found = self.visit(statement)
            rewritten += found if isinstance(found, list) else [found]
        return rewritten

    def _visited(self, node: ast.expr) -> ast.expr:
        found: ast.expr = self.visit(node)
        return found

    # --- What a hook is put around ---

    def _hook(self, hook: str, at: ast.AST, *arguments: ast.expr) -> ast.Call:
        where = f"{self._label}:{getattr(at, 'lineno', 0)}:{getattr(at, 'end_col_offset', 0)}"
        call = ast.Call(ast.Name(_PREFIX + hook, ast.Load()), [*arguments, ast.Constant(where)], [])
        return ast.copy_location(call, at)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        maker = isinstance(node.value, ast.Name) and node.value.id == self._made
        node.value = self._visited(node.value)
        if self._depth and not (maker and not isinstance(node.ctx, ast.Load)):
            hook = "attribute" if isinstance(node.ctx, ast.Load) else "store"
            node.value = self._hook(hook, node, node.value, ast.Constant(node.attr))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self._visited(node.value)
        simple = _is_simple(node.slice)
        node.slice = self._visited(node.slice)
        if not self._depth:
            return node
        if not isinstance(node.ctx, ast.Load):
            node.value = self._hook("change", node, node.value)
        elif simple:
            node.value = self._hook("content", node, node.value)
        else:
            return self._hook("item", node, node.value, _as_index(node.slice))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        itself = isinstance(node.func, ast.Name) and node.func.id in _ITSELF
        if not (isinstance(node.func, ast.Name) and node.func.id == "super"):
            node.func = self._visited(node.func)
        node.args = [self._visited(one) for one in node.args]
        for keyword in node.keywords:
            keyword.value = self._visited(keyword.value)
        if self._depth and not itself:
            node.func = self._hook("call", node, node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._depth:
            node.comparators = [
                self._hook("content", node, right) if isinstance(op, (ast.In, ast.NotIn)) else right
                for op, right in zip(node.ops, node.comparators, strict=True)
            ]
        return node

    def _loop(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if self._depth and not getattr(node, "is_async", isinstance(node, ast.AsyncFor)):
            node.iter = self._hook("iterate", node.iter, node.iter)
        return node

    visit_For = visit_AsyncFor = visit_comprehension = _loop  # noqa: N815

    def _test(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> ast.AST:
        asked = _is_place(node.test)
        self.generic_visit(node)
        if asked and self._depth:
            node.test = self._hook("content", node.test, node.test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _test  # noqa: N815

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        asked = isinstance(node.op, ast.Not) and _is_place(node.operand)
        self.generic_visit(node)
        if asked and self._depth:
            node.operand = self._hook("content", node.operand, node.operand)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        asked = [_is_place(one) for one in node.values]
        self.generic_visit(node)
        if self._depth:
            node.values = [
                self._hook("content", one, one) if place else one for one, place in zip(node.values, asked, strict=True)
            ]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        right = _is_place(node.right)
        self.generic_visit(node)
        if self._depth and right and isinstance(node.op, (ast.BitOr, ast.Add, ast.Sub, ast.BitAnd)):
            node.right = self._hook("content", node, node.right)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if self._depth and isinstance(node.ctx, ast.Load):
            node.value = self._hook("content", node, node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self._depth and node.id in self._shared and isinstance(node.ctx, ast.Load):
            held = self._hook("name", node, ast.Constant(f"{self._label} {node.id}"))
            pair = ast.Tuple([held, node], ast.Load())
            return _located(ast.Subscript(pair, ast.Constant(1), ast.Load()), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        for target in node.targets:
            if self._depth and isinstance(target, ast.Name) and target.id in self._shared:
                node.value = self._hook("stored", target, ast.Constant(f"{self._label} {target.id}"), node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        """``o.a += v`` in its steps: the object, its attribute, the value, the operation, and the store."""
        if not self._depth:
            return node
        target = node.target
        steps: list[ast.stmt] = []
        here = f"{_PREFIX}{node.lineno}_{node.col_offset}"

        def kept(suffix: str, value: ast.expr) -> ast.Name:
            steps.append(_located(ast.Assign([ast.Name(here + suffix, ast.Store())], value), node))
            return _located(ast.Name(here + suffix, ast.Load()), node)

        if isinstance(target, ast.Name):
            read: ast.expr = _located(ast.Name(target.id, ast.Load()), target)
            write: ast.expr = target
        elif isinstance(target, ast.Attribute):
            thing = kept("o", self._visited(target.value))
            read = ast.Attribute(
                self._hook("attribute", node, thing, ast.Constant(target.attr)), target.attr, ast.Load()
            )
            store = (
                thing if _is_made(target, self._made) else self._hook("store", node, thing, ast.Constant(target.attr))
            )
            write = ast.Attribute(store, target.attr, ast.Store())
        else:
            thing, index = kept("o", self._visited(target.value)), kept("i", _as_index(self._visited(target.slice)))
            read = ast.Subscript(self._hook("content", node, thing), index, ast.Load())
            write = ast.Subscript(self._hook("change", node, thing), index, ast.Store())
        if isinstance(target, ast.Name) and target.id not in self._shared:
            value = kept("v", self._visited(node.value))
            steps.append(_located(ast.Expr(self._hook("change", node, read)), node))
            return [*steps, _located(ast.AugAssign(target, node.op, value), node)]
        old = kept("w", self._visited(read) if isinstance(target, ast.Name) else read)
        value = kept("v", self._visited(node.value))
        steps.append(_located(ast.Expr(self._hook("change", node, old)), node))
        steps.append(_located(ast.AugAssign(ast.Name(here + "w", ast.Store()), node.op, value), node))
        new: ast.expr = ast.Name(here + "w", ast.Load())
        if isinstance(target, ast.Name):
            new = self._hook("stored", node, ast.Constant(f"{self._label} {target.id}"), new)
        steps.append(_located(ast.Assign([write], new), node))
        return steps

    # --- What is left alone ---

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self._visited(node.target)  # type: ignore[assignment]  # a target stays one
        if node.value is not None:
            node.value = self._visited(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard is not None:
            node.guard = self._visited(node.guard)
        node.body = self._block(node.body)
        return node


def _is_made(target: ast.Attribute, made: str | None) -> bool:
    """The object is the one that the constructor around is making."""
    return isinstance(target.value, ast.Name) and target.value.id == made


def _is_simple(node: ast.expr) -> bool:
    """Its evaluation touches nothing that threads share."""
    return all(isinstance(part, (ast.Name, ast.Constant, ast.Tuple, ast.expr_context)) for part in ast.walk(node))


def _is_place(node: ast.expr) -> bool:
    """It names something that may be a container."""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def _as_index(node: ast.expr) -> ast.expr:
    """A slice as a value."""
    if isinstance(node, ast.Slice):
        parts = [one or ast.Constant(None) for one in (node.lower, node.upper, node.step)]
        return ast.copy_location(ast.Call(ast.Name(_SLICE, ast.Load()), parts, []), node)
    if isinstance(node, ast.Tuple):
        node.elts = [_as_index(one) for one in node.elts]
    return node


def _located(node: _Node, at: ast.AST) -> _Node:
    """A new node at the place of another."""
    ast.copy_location(node, at)
    return node


def rewritten(source: str, file: str, label: str) -> CodeType:
    """The code of a module whose functions call the hooks; ``label`` is the file as places name it."""
    tree = ast.parse(source, file)
    tree = ast.fix_missing_locations(_Rewriter(label, tree).visit(tree))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(tree, file, "exec", dont_inherit=True)


def is_rewritten(code: CodeType) -> bool:
    """The code calls hooks."""
    return any(name.startswith(_PREFIX) for name in code.co_names)


# --- In place -----------------------------------------------------------------------------------------------------


class Instrumented:
    """The functions of some files, with their code rewritten until :meth:`restore`."""

    def __init__(self) -> None:
        self._rewritten: dict[FunctionType, CodeType] = {}
        self.blind: set[str] = set()
        """Files whose source is not to be had, or not what has been imported."""

    def add(self, files: Mapping[str, str]) -> None:
        """Rewrite what is there of some files, each with its label."""
        instead: dict[CodeType, CodeType] = {}
        for file, label in files.items():
            source = "".join(linecache.getlines(file))
            try:
                pairs = list(_pairs(compile(source, file, "exec", dont_inherit=True), rewritten(source, file, label)))
            except (SyntaxError, ValueError, RecursionError):
                pairs = []
            if not pairs:
                self.blind.add(file)
            instead |= dict(pairs)
        new_codes = set(instead.values())
        by_name = {(old.co_filename, old.co_qualname, old.co_firstlineno): new for old, new in instead.items()}
        for function in [one for one in gc.get_objects() if type(one) is FunctionType]:
            old = function.__code__
            if old.co_filename not in files or old in new_codes:
                continue
            new = instead.get(old) or by_name.get((old.co_filename, old.co_qualname, old.co_firstlineno))
            if new is not None and len(new.co_freevars) == len(old.co_freevars):
                self._rewritten[function] = old
                function.__code__ = new

    def restore(self) -> None:
        """Give every function its own code back."""
        for function, code in self._rewritten.items():
            function.__code__ = code
        self._rewritten.clear()


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each code object within a module's code, with what it is rewritten to: both trees have the same shape."""
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    for before, after in zip(*inner, strict=True):
        yield before, after
        yield from _pairs(before, after)


def publish(hooks: Hooks) -> None:
    """Let rewritten code find the hooks: as built-in names, so that no module's own names change."""
    for name in HOOKS:
        setattr(builtins, _PREFIX + name, hooks[name])
    setattr(builtins, _SLICE, slice)
