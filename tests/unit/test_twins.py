"""No two functions have the same body but for the names of variables: one place can serve both."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import kiln

ROOT = Path(kiln.__file__).resolve().parents[2]
FOLDERS = ("build_tools/kiln", "tests", "benchmarks", "zoo")
LEAST = 28  # nodes of a body's syntax tree; a smaller body is read faster than the call of another function
# Functions that may be equal, by name.
ALLOWED = {
    "_leave",  # of processes with different copies of the tree
    "test_refusals",  # the cases differ
}
_DEF = re.compile(r"^( *)def (\w+)", re.M)


def outlines(text: str) -> Iterator[tuple[str, int, int, str]]:
    """The outline of each function in a file, its first and last line, and its name.

    Equal functions have equal outlines: the body without docstring, spaces and comments, with `n` for a name.
    """
    lines = text.split("\n")
    depths = [len(line) - len(line.lstrip()) if line.strip() else 999 for line in lines]
    unnamed = re.sub(r"[A-Za-z_]\w*", "n", re.sub(r"#.*| +", "", text)).split("\n")
    for first, line in enumerate(lines):
        found = _DEF.match(line)
        if found is None:
            continue
        begin = next((n for n in range(first, len(lines)) if lines[n].endswith(":")), first) + 1
        end = next((n for n in range(begin, len(lines)) if depths[n] <= len(found[1])), len(lines))
        if begin < end and lines[begin].lstrip().startswith('"""'):
            if lines[begin].count('"""') < 2:
                begin = next((n for n in range(begin + 1, end) if '"""' in lines[n]), begin)
            begin += 1
        yield "".join(unnamed[begin:end]), first, end, found[2]


def normal_form(source: str) -> tuple[str, int]:
    """The syntax tree of a function's body as text, with numbers for variables; its number of nodes."""
    function = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    tree, args = ast.Module(body, []), function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    numbers = {argument.arg: number for number, argument in enumerate(named) if argument is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            numbers.setdefault(node.id, len(numbers))
        elif isinstance(node, ast.arg):
            numbers.setdefault(node.arg, len(numbers))
    count = 0
    for node in ast.walk(tree):
        count += 1
        if isinstance(node, ast.Name) and node.id in numbers:
            node.id = f"v{numbers[node.id]}"
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = f"v{numbers[node.arg]}", None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree), count


def twins(texts: Mapping[str, str]) -> list[list[str]]:
    """The functions of files, as `file:line name`, that are equal but for the names of variables."""
    candidates: dict[str, list[tuple[str, int, int, str]]] = {}
    for file, text in texts.items():
        for outline, first, end, name in outlines(text):
            candidates.setdefault(outline, []).append((file, first, end, name))
    by_form: dict[str, list[str]] = {}
    for places in candidates.values():
        for file, first, end, name in places if len(places) > 1 else ():
            try:
                form, count = normal_form("\n".join(texts[file].split("\n")[first:end]))
            except SyntaxError:  # a text that looks like a function
                continue
            if count >= LEAST:
                by_form.setdefault(form, []).append(f"{file}:{first + 1} {name}")
    return [equal for equal in by_form.values() if len(equal) > 1]


def test_equal_functions_are_found() -> None:
    one = '''
        def f(x: int) -> int:
            """A sum."""
            total = 0
            for item in g(x):
                total += item * item + x  # of squares
            return total
    '''
    other = (
        one.replace("total", "count").replace("item", "part").replace("def f", "def h").replace("A", "The")
    )
    another = one.replace("g(x)", "k(x)")
    assert twins({"a.py": one, "b.py": f"class C:{other.replace('A', 'The')}"}) == [["a.py:2 f", "b.py:2 h"]]
    assert twins({"a.py": one, "b.py": another}) == []


def test_no_function_stands_twice() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    equal = twins({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files})
    assert [places for places in equal if not {place.split()[-1] for place in places} <= ALLOWED] == []
