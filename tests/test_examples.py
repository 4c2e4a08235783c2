"""Public classes show how they are used: how many of them, and that it does not get less."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ostinato"
LEAST = 0.64
"""Share of public classes with a runnable example; raise it as it grows."""


def public_classes() -> dict[str, bool]:
    """By name: whether the class or one of its methods has an example."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        if any(part.startswith("_") and part != "__init__.py" for part in parts):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                inner = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
                texts = [ast.get_docstring(n) or "" for n in (node, *inner)]
                found[f"{'.'.join(parts)}:{node.name}"] = any(">>>" in text for text in texts)
    return found


def test_most_public_classes_have_an_example() -> None:
    found = public_classes()
    share = sum(found.values()) / len(found)
    without = [name for name, has in found.items() if not has]
    assert share >= LEAST, f"{share:.0%} of {len(found)}; without: {', '.join(without[:20])} ..."
