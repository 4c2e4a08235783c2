"""Trust on first use: the SHA-256 of files for which nobody publishes one.

MD5 shows damage on the way, but not a file that was made to have the same one. The first download
is held to the published MD5 and its SHA-256 is written down; later ones are held to both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ostinato.errors import DataError
from ostinato.ops.files import write_atomically

LIST = ".first-use.sha256.json"


def hold(path: Path, url: str) -> str:
    """Hold a download to what was written down when its address was first used; a note about it.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "a.tar"
    >>> _ = place.write_bytes(b"first")
    >>> hold(place, "https://example.org/a.tar")[:20], hold(place, "https://example.org/a.tar")[-6:]
    ('a.tar: SHA-256 a7937', 'before')
    """
    found, known = sha256(path), _read(path.parent)
    if url not in known:
        text = json.dumps({**known, url: found}, indent=1, sort_keys=True)
        write_atomically(path.parent / LIST, text.encode())
        return f"{path.name}: SHA-256 {found}, of this first download; none is published to compare"
    if known[url] != found:
        path.unlink()
        raise DataError(
            f"{path.name} from {url} is not the file that was first downloaded: its SHA-256 is "
            f"{found}, not {known[url]} ({path.parent / LIST}). It was removed. If you know that "
            "the file was published anew, delete that line and fetch again."
        )
    return f"{path.name}: SHA-256 {found}, as before"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(root: Path) -> dict[str, str]:
    place = root / LIST
    if not place.is_file():
        return {}
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        if not all(isinstance(v, str) and len(v) == 64 for v in known.values()):
            raise ValueError("its entries are no hashes")
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{place} cannot be read ({error}): restore it, or delete it to trust anew."
        ) from None
    return known if isinstance(known, dict) else {}
