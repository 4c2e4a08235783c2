"""Domains that are stretches of one list of files."""

from __future__ import annotations

import numpy as np

from ostinato.data.datasets.base import Dataset, Indices


class Spans(Dataset):
    """A base: every domain is a span of positions, from its first to before its last."""

    _spans: dict[str, tuple[int, int]]

    def domains(self) -> list[str]:
        """The names of the domains."""
        return list(self._spans)

    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """The positions of a domain's images."""
        if domain not in self._spans:
            raise self._no_domain(domain)
        return np.arange(*self._spans[domain], dtype=np.int64)
