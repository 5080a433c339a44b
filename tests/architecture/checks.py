"""What a test checks, as its source shows it: for the test that says whether a test can fail.

A test checks something if it asserts, raises, expects an error or waits for a condition, itself or through what it
uses of its own module or of other modules of the tests. It checks nothing *for sure* if each of its assertions stands
in a loop, or in an `all()`, over something computed: that may be empty, and then nothing is compared.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.architecture.sources import ROOT, parsed, statements

EXPECTING = {"fail", "raises", "RaisesGroup", "warns", "xfail"}
"""Calls of pytest after which a test can fail."""

WAITING = {"until", "wait", "wait_until", "run_until"}
"""Calls that wait for a condition and fail when it does not come; a wait without one is not meant."""

CONTAINERS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda, ast.GeneratorExp)
"""Objects that are always true where they are asserted: a tuple in place of a comparison and its message, say."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def each_test(tree: ast.Module) -> Iterator[Function]:
    for node in statements(tree):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def checks_something(test: Function, tree: ast.Module) -> bool:
    """Return True if the test, or a definition that it uses, has a check."""
    return any(_is_check(node) for each in _reachable(test, tree) for node in ast.walk(each))


def checks_only_in_loops(test: Function) -> bool:
    """Return True if the test has assertions, and none is certain to be reached."""
    certain = list(_certainty(test, certain=True, local=_firm_names(test)))
    return bool(certain) and not any(certain)


def always_true(tree: ast.Module) -> Iterator[ast.Assert]:
    """Yield assertions that cannot fail: of a container that is written out, or of something compared with itself."""
    for node in statements(tree):
        match node:
            case ast.Assert(test=test) if isinstance(test, CONTAINERS):
                yield node
            case ast.Assert(test=ast.Compare(left=left, comparators=[right])):
                has_call = any(isinstance(each, ast.Call | ast.Await) for each in ast.walk(left))
                if ast.dump(left) == ast.dump(right) and not has_call:
                    yield node


def any_error_expected(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield `pytest.raises(Exception)` without a pattern: an error in the test itself would do."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="raises"), args=[ast.Name(id="Exception" | "BaseException")]
            ) if all(keyword.arg != "match" for keyword in node.keywords):
                yield node


def _is_check(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Raise():
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            is_contract = name.startswith("check_")  # those that dledger.testing publishes
            return is_contract or name in EXPECTING or (name in WAITING and bool(node.args))
    return False


def _reachable(test: Function, tree: ast.Module) -> Iterator[Definition]:
    """Yield the test, and each definition in the tests whose name it or one of those mentions."""
    waiting: list[tuple[Definition, ast.Module]] = [(test, tree)]
    seen: set[int] = set()
    while waiting:
        definition, module = waiting.pop()
        if id(definition) in seen:
            continue
        seen.add(id(definition))
        yield definition
        known = definitions(module)
        names = [node.id for node in ast.walk(definition) if isinstance(node, ast.Name)]
        waiting += [known[name] for name in names if name in known]


@cache
def definitions(tree: ast.Module) -> dict[str, tuple[Definition, ast.Module]]:
    """Return the functions and classes that a module defines or imports from another module of the tests."""
    known: dict[str, tuple[Definition, ast.Module]] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                known[node.name] = (node, tree)
            case ast.ImportFrom(module=str(module)) if module.startswith("tests."):
                path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                theirs = definitions(parsed(path)) if path.is_file() else {}
                for alias in node.names:
                    if alias.name in theirs:
                        known[alias.asname or alias.name] = theirs[alias.name]
    return known


def _certainty(node: ast.AST, *, certain: bool, local: set[str]) -> Iterator[bool]:
    """Yield for each check under a node whether it is certain to compare something."""
    for child in ast.iter_child_nodes(node):
        here = certain
        if isinstance(node, ast.For | ast.AsyncFor) and child in node.body:
            here = certain and _is_firm(node.iter, local)
        if isinstance(child, ast.Assert):
            yield here and not _may_be_empty(child.test, local)
        elif _is_check(child):
            yield here
        yield from _certainty(child, certain=here, local=local)


def _may_be_empty(test: ast.expr, local: set[str]) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp(generators=[source, *_])]):
            return bool(source.ifs) or not _is_firm(source.iter, local)
    return False


def _firm_names(test: Function) -> set[str]:
    """Return the arguments of a test, which pytest or Hypothesis fills, and its variables that are written out."""
    names = {each.arg for each in (*test.args.args, *test.args.kwonlyargs)}
    for node in ast.walk(test):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_firm(value, names):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_firm(
                value, names
            ):
                names.add(name)
    return names


def _is_firm(source: ast.expr, local: set[str]) -> bool:
    """Return True if a loop over it surely has a round: a constant, an enumeration, a range, or made of such."""
    match source:
        case ast.Tuple() | ast.List() | ast.Set() | ast.Constant():
            return True
        case ast.Dict(keys=[_, *_]):
            return True
        case ast.Name(id=name):
            return name in local or not name.islower()
        case ast.Attribute(attr=name):
            return name.isupper()
        case ast.BinOp(left=left):
            return _is_firm(left, local)
        case ast.ListComp(generators=[each]) | ast.SetComp(generators=[each]):
            return not each.ifs and _is_firm(each.iter, local)
        case ast.DictComp(generators=[each]):
            return not each.ifs and _is_firm(each.iter, local)
        case ast.Call(func=ast.Name(id="range" | "count")):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "values" | "keys" | "split")):
            return _is_firm(value, local)
        case ast.Call(args=[first, *_]) if isinstance(source.func, ast.Name):
            made = {"enumerate", "zip", "sorted", "list", "tuple", "set", "product", "get_args"}
            return source.func.id in made and _is_firm(first, local)
    return False
