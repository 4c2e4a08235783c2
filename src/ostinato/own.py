"""This project's own presets, and which of its two methods each belongs to; needs no torch."""

from __future__ import annotations

METHOD_OF = {
    "robust": "ostinato",
    "forward-only": "ostinato",
    "source-free": "dual_expert",
    "paper": "dual_expert",
}
OURS = frozenset(METHOD_OF.values())


def choose_method(
    method: str | None, preset: str | None, statistics: bool
) -> tuple[str, str | None]:
    """Which method and preset a user means who named one of them, or neither.

    Presets of this project's own are known by name alone, whichever of its two methods is named.

    >>> choose_method(None, None, True), choose_method(None, None, False)
    (('ostinato', 'robust'), ('dual_expert', 'source-free'))
    >>> choose_method("dual_expert", "robust", True), choose_method("tent", None, True)
    (('ostinato', 'robust'), ('tent', None))
    """
    if method is not None and method not in OURS:
        return method, preset
    if preset is None:
        if method is None:
            preset = "robust" if statistics else "source-free"
        else:
            preset = "robust" if method == "ostinato" else "source-free"
    return METHOD_OF.get(preset, method or "ostinato"), preset
