"""For the API pages: examples in docstrings become blocks of code, which Markdown would not see."""

from __future__ import annotations

from typing import Any

import griffe


class FenceDoctests(griffe.Extension):
    """Puts a fence around every doctest."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of whatever was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence from each prompt to the next blank line.

    >>> print(fenced("What it does.\\n\\n>>> 1 + 1\\n2\\n\\nMore."))
    What it does.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    More.
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, *(["```"] if inside else [])])
