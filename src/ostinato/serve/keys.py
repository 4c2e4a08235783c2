"""API keys: shown once, kept as hashes, each with roles."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import time
from collections.abc import Iterable

from ostinato.errors import ConfigError, did_you_mean
from ostinato.serve.schema import ROLES, Role
from ostinato.serve.settings import check_name
from ostinato.serve.store import StorageError, Store

_FRESH = 2.0
"""Seconds after which a server looks for keys that were added or revoked."""


def _hashed(key: str) -> str:
    """A key has 256 random bits: one hash is as good as many.

    >>> len(_hashed("ost_x"))
    64
    """
    return hashlib.sha256(key.encode()).hexdigest()


def add_key(store: Store, name: str, roles: Iterable[str]) -> str:
    """Make a key; it is returned here and can never be seen again."""
    check_name(name, "key")
    given = sorted(set(roles))
    for role in given:
        if role not in ROLES:
            raise ConfigError(f"There is no role {role!r}. {did_you_mean(role, ROLES)}")
    if not given:
        raise ConfigError(f"A key needs a role: {', '.join(ROLES)}.")
    key = f"ost_{secrets.token_urlsafe(32)}"
    try:
        with store.changing() as connection:
            connection.execute(
                "INSERT INTO keys(name, hash, roles, made) VALUES (?, ?, ?, ?)",
                (name, _hashed(key), " ".join(given), time.time()),
            )
    except sqlite3.IntegrityError:
        raise ConfigError(f"There is a key {name!r} already: revoke it first.") from None
    return key


def list_keys(store: Store) -> list[tuple[str, str, float]]:
    """Name, roles and time of every key."""
    return [
        (name, roles, made)
        for name, roles, made in store.rows("SELECT name, roles, made FROM keys ORDER BY name")
    ]


def revoke_key(store: Store, name: str) -> None:
    """Take a key back."""
    with store.changing() as connection:
        found = connection.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount
    if not found:
        hint = did_you_mean(name, [one for one, _, _ in list_keys(store)])
        raise ConfigError(f"There is no key {name!r}. {hint}")


class Keys:
    """The keys that a running server knows.

    Without any key, whoever reaches the server may do everything; a server that began with keys
    stays closed even when the last one is revoked.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[str, tuple[str, frozenset[Role]]] = {}
        self._read_at = -_FRESH
        self._refresh()
        self.closed = bool(self._known)

    def roles(self, key: str | None) -> tuple[str, frozenset[Role]]:
        """Who holds a key, and what they may do; nothing, where it is none of ours."""
        self._refresh()
        if not self.closed:
            return "", frozenset(ROLES)
        if not key:
            return "", frozenset()
        mine = _hashed(key)
        for known, found in self._known.items():
            if hmac.compare_digest(known, mine):
                return found
        return "", frozenset()

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read_at < _FRESH:
            return
        self._read_at = now
        try:
            rows = self.store.rows("SELECT name, hash, roles FROM keys")
        except StorageError:
            return  # those that were known stay known
        self._known = {
            found: (name, frozenset(role for role in ROLES if role in roles.split()))
            for name, found, roles in rows
        }
        if self._known:
            self.closed = True
