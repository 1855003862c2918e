"""Finds where SGLang's source casts KV pool buffers and where it decides on their dtype, by its syntax trees.

A function's values are followed in a simple way: what a pool getter returns is a whole pool; views and slices of it
still are; indexing it with anything but slices gives rows; a local name is what was last assigned to it.
"""

from __future__ import annotations

import ast
import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Where attention and pools live, under the sglang package.
SCANNED = ("srt/layers/attention", "srt/mem_cache", "srt/models/deepseek_common", "srt/speculative")

WHOLE_GETTERS = {"get_key_buffer", "get_value_buffer", "get_kv_buffer"}
ROW_GETTERS = {"get_mla_kv_buffer"}
POOL_ATTRIBUTES = {"kv_buffer", "k_buffer", "v_buffer"}
POOL_PARAMETERS = {"kv_cache", "k_cache", "v_cache"}
VIEWS = {"view", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "contiguous"}
DTYPE_NAMES = {"kv_cache_dtype", "kv_data_type", "kv_dtype", "store_dtype", "data_type"}


class Kind(enum.Enum):
    """What a place in the source does."""

    WHOLE_POOL = "casts the whole pool"
    ROWS = "casts rows in use"
    DTYPE = "sets a dtype"


class Site(NamedTuple):
    """One place in SGLang's source."""

    path: str
    """Relative to the sglang package."""
    line: int
    function: str
    """Qualified name inside the module."""
    kind: Kind
    code: str


def scan(package: Path) -> list[Site]:
    """Return all sites under the sglang package's folder, in the order of path and line."""
    sites: list[Site] = []
    for folder in SCANNED:
        for path in sorted((package / folder).rglob("*.py")):
            sites += scan_source(path.read_text(), path.relative_to(package).as_posix())
    return sites


def scan_source(source: str, path: str) -> list[Site]:
    """Return the sites of one module's source."""
    sites: list[Site] = []
    for name, function in functions(ast.parse(source)):
        sites += _Function(path, name, function).sites()
    return sorted(set(sites), key=lambda site: site.line)


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield a module's functions and methods with their qualified names, nested ones too."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(tree, "")


class _Held(enum.Enum):
    NOTHING = 0
    ROWS = 1
    WHOLE = 2


class _Function:
    def __init__(self, path: str, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._path, self._name, self._function = path, name, function
        arguments = function.args
        self._names = {
            argument.arg: _Held.WHOLE
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            if argument.arg in POOL_PARAMETERS
        }

    def sites(self) -> Iterator[Site]:
        yield from self._statements(self._function.body)

    def _statements(self, body: list[ast.stmt]) -> Iterator[Site]:
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue  # has a name of its own
            yield from self._expressions(statement)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets: list[ast.expr] = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield from self._assign(statement, targets, statement.value)
            for field in ("body", "orelse", "finalbody"):
                yield from self._statements(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from self._statements(handler.body)

    def _assign(self, statement: ast.stmt, targets: list[ast.expr], value: ast.expr) -> Iterator[Site]:
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if isinstance(name, ast.Name):
                    self._names[name.id] = self._held(value)
                    if name.id in DTYPE_NAMES:
                        yield self._site(statement, Kind.DTYPE)
                elif isinstance(name, ast.Attribute) and name.attr in DTYPE_NAMES:
                    yield self._site(statement, Kind.DTYPE)

    def _expressions(self, statement: ast.stmt) -> Iterator[Site]:
        """Look at the expressions of a statement itself, not at those of the statements inside it."""
        pending = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr | ast.withitem)]
        while pending:
            node: ast.AST = pending.pop()
            if isinstance(node, ast.Call):
                kind = self._cast(node)
                if kind is not None:
                    yield self._site(node, kind)
            pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]  # type: ignore[misc]

    def _cast(self, call: ast.Call) -> Kind | None:
        function = call.func
        held = _Held.NOTHING
        if isinstance(function, ast.Attribute) and function.attr in ROW_GETTERS:
            takes_dtype = len(call.args) > 2 or any(keyword.arg == "dst_dtype" for keyword in call.keywords)
            return Kind.ROWS if takes_dtype else None
        if isinstance(function, ast.Attribute) and function.attr == "to" and call.args and _names_dtype(call.args[0]):
            held = self._held(function.value)
        elif "quantize" in _last_name(function):
            held = max((self._held(argument) for argument in call.args), key=lambda h: h.value, default=held)
            if held is _Held.WHOLE and any(_lists_rows(argument) for argument in call.args):
                held = _Held.ROWS
        return {_Held.WHOLE: Kind.WHOLE_POOL, _Held.ROWS: Kind.ROWS}.get(held)

    def _held(self, node: ast.expr) -> _Held:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, _Held.NOTHING)
        if isinstance(node, ast.Attribute):
            return _Held.WHOLE if node.attr in POOL_ATTRIBUTES else _Held.NOTHING
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name in WHOLE_GETTERS:
                return _Held.WHOLE
            if name in ROW_GETTERS:
                return _Held.ROWS
            if name in VIEWS and isinstance(node.func, ast.Attribute):
                return self._held(node.func.value)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Attribute) and node.value.attr in POOL_ATTRIBUTES:
                return _Held.WHOLE  # a list of layers: the index picks one
            held = self._held(node.value)
            return held if held is not _Held.WHOLE or _only_slices(node.slice) else _Held.ROWS
        return _Held.NOTHING

    def _site(self, node: ast.stmt | ast.expr, kind: Kind) -> Site:
        return Site(self._path, node.lineno, self._name, kind, ast.unparse(node))


def _only_slices(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(isinstance(part, ast.Slice | ast.Constant) for part in parts)


def _lists_rows(argument: ast.expr) -> bool:
    return any(word in ast.unparse(argument) for word in ("indices", "loc", "page_table"))


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _names_dtype(argument: ast.expr) -> bool:
    text = ast.unparse(argument)
    return "dtype" in text or any(word in text for word in ("float", "half", "fp8", "uint8", "data_type"))
