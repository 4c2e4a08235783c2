"""Folders have doors: what carries no underscore is what other folders may use."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "src" / "ostinato"
MOST = 640
"""Public names, as `benchmarks/walk.py` counts them, beside methods, commands and the like."""


def dotted(path: Path) -> str:
    parts = path.relative_to(HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(HOME.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imports(name: str) -> Iterator[tuple[str, str]]:
    """What a module imports from the package: a module, and the name taken from it or nothing."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from ((item.name, "") for item in node.names if item.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative path: write it out"
            for item in node.names:
                if f"{node.module}.{item.name}" in FILES:
                    yield f"{node.module}.{item.name}", ""
                elif node.module in FILES:
                    yield node.module, item.name


USES = {name: list(imports(name)) for name in FILES}


def lies_in(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}.")


def folder_of(name: str) -> str:
    return name.rpartition(".")[0]


def internal(name: str) -> str | None:
    """The outermost part of a module's path that begins with an underscore."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[: place + 1])
    return None


def registers(tree: ast.Module) -> bool:
    """Whether a module gives something a name by which it is found."""
    called = [
        node.func
        for statement in tree.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and (not isinstance(statement, ast.ClassDef | ast.FunctionDef) or node in decorators(tree))
    ]
    names = {ast.unparse(one) for one in called}
    return any(one.endswith(".register") or one in {"command", "corruption"} for one in names)


def decorators(tree: ast.Module) -> list[ast.expr]:
    kinds = ast.ClassDef | ast.FunctionDef
    return [one for node in tree.body if isinstance(node, kinds) for one in node.decorator_list]


def words() -> str:
    """All that speaks to users: the pages, the examples, the project's own files."""
    places = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docs/_site/*.py"),
        *ROOT.glob("examples/**/*.py"),
    ]
    files = ("README.md", "pyproject.toml", "mkdocs.yml")
    return "\n".join(p.read_text(encoding="utf-8") for p in [*places, *(ROOT / f for f in files)])


def test_what_is_internal_is_imported_in_its_own_folder_alone() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, uses in USES.items()
        for used, _ in uses
        if (hidden := internal(used)) and not lies_in(name, folder_of(hidden))
    ]
    assert wrong == [], (
        "Take it from an open module of that folder, move it where it belongs, or drop the "
        "underscore of the file."
    )


def test_names_with_an_underscore_stay_in_their_module() -> None:
    wrong = [
        f"{name} takes {taken} from {used}"
        for name, uses in USES.items()
        for used, taken in uses
        if taken.startswith("_") and not taken.startswith("__")
    ]
    assert wrong == [], "Drop the underscore of the name, or do without it."


def test_an_open_module_is_there_for_others() -> None:
    text = words()
    wrong = []
    for name, path in FILES.items():
        folder = folder_of(name)
        if path.stem.startswith("__") or folder in {"", "ostinato"} or internal(name):
            continue
        from_outside = any(
            used == name and not lies_in(other, folder)
            for other, uses in USES.items()
            for used, _ in uses
        )
        named = re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)
        if not (from_outside or named or registers(TREES[name])):
            wrong.append(name)
    assert wrong == [], (
        "Nothing outside its folder imports it, no page or example names it and it registers "
        "nothing: give the file an underscore (git mv x.py _x.py)."
    )


def registered(tree: ast.Module) -> int:
    """How many of a module's classes and functions are found by a name: methods, commands, ..."""
    kinds = ast.ClassDef | ast.FunctionDef
    return sum(
        any(names_it(one) for one in node.decorator_list)
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_")
    )


def names_it(decorator: ast.expr) -> bool:
    called = ast.unparse(decorator.func) if isinstance(decorator, ast.Call) else ""
    return called.endswith(".register") or called in {"command", "corruption"}


def test_public_names_do_not_become_more() -> None:
    count = runpy.run_path(str(ROOT / "benchmarks" / "walk.py"))["public_names"]()
    count -= sum(registered(tree) for name, tree in TREES.items() if not internal(name))
    assert count <= MOST, (
        f"{count} public names, {MOST} at most: give those an underscore that only their own "
        "module uses, and files that only their own folder uses."
    )
