"""Which method and preset a user means who named one of them, or neither.

Everything is read from what methods declare: which are this project's own, the preset each means
where none is named, and what each preset needs.
"""

from __future__ import annotations

from ostinato.methods.contract import Need, resolve_config
from ostinato.registry import METHODS


def own_methods() -> list[str]:
    """The names of this project's own methods.

    >>> own_methods()
    ['dual_expert', 'ostinato']
    """
    return [name for name in METHODS.names() if METHODS[name].info.own]


def is_own(method: str) -> bool:
    """Whether a method is this project's own; False for a name that nobody registered."""
    return method in METHODS and bool(METHODS[method].info.own)


def owner_of(preset: str) -> str | None:
    """The own method that has a preset of this name.

    >>> owner_of("robust"), owner_of("paper"), owner_of("imagenet-c")
    ('ostinato', 'dual_expert', None)
    """
    return next((name for name in own_methods() if preset in METHODS[name].presets), None)


def _needs_of(method: str, preset: str | None) -> frozenset[Need]:
    """The help that a method needs under a preset."""
    kind = METHODS[method]
    found: frozenset[Need] = kind.needs(resolve_config(kind, preset, {}))
    return found


def free_presets(method: str, need: Need) -> list[str]:
    """Presets without a need that can stand in for this method's; own methods share theirs."""
    names = own_methods() if is_own(method) else [method]
    return [p for name in names for p in METHODS[name].presets if need not in _needs_of(name, p)]


def choose_method(
    method: str | None, preset: str | None, statistics: bool
) -> tuple[str, str | None]:
    """The method and preset that are meant.

    Presets of own methods are known by name alone, whichever of these methods is named. Where
    neither is named, it is the own method that makes use of most of what is given.

    >>> choose_method(None, None, True), choose_method(None, None, False)
    (('ostinato', 'robust'), ('dual_expert', 'source-free'))
    >>> choose_method("dual_expert", "robust", True), choose_method("tent", None, True)
    (('ostinato', 'robust'), ('tent', None))
    """
    if method is not None and not is_own(method):
        return method, preset
    if preset is None:
        chosen = method or _fitting(statistics)
        return chosen, METHODS[chosen].default_preset
    return owner_of(preset) or method or _fitting(True), preset


def _fitting(statistics: bool) -> str:
    """The own method whose default preset needs most of what there is, and nothing else."""
    given: frozenset[Need] = frozenset({"source statistics"}) if statistics else frozenset()
    needs = {name: _needs_of(name, METHODS[name].default_preset) for name in own_methods()}
    able = [name for name, wanted in needs.items() if wanted <= given]
    return max(able, key=lambda name: len(needs[name]))
