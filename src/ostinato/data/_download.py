"""A downloader for pooch that goes on where it was interrupted, and safe unpacking."""

from __future__ import annotations

import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostinato.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes there are and the bytes there will be."""

CHUNK = 1 << 18


class ResumingDownloader:
    """Downloads through a `.part` file, which a later attempt continues by an HTTP range.

    pooch calls it with an address and a temporary path; the part file lies beside the final one
    and moves to that path when it is complete, where pooch checks it.

    >>> ResumingDownloader(Path("a.tar.part")).attempts
    5
    """

    def __init__(
        self,
        part: Path,
        progress: Progress | None = None,
        attempts: int = 5,
        timeout: float = 60.0,
    ) -> None:
        self.part = part
        self.progress = progress
        self.attempts = attempts
        self.timeout = timeout

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        """Fetch the address to a path."""
        problem: Exception | None = None
        for _ in range(self.attempts):
            before = self._have()
            try:
                if self._attempt(url):
                    shutil.move(self.part, output_file)
                    return
                problem = None
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise DataError(
                        f"{url} answered {error.code} {error.reason}. The address may have moved; "
                        f"download the file by hand from the data set's page."
                    ) from None
                problem = error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            if self._have() == before and problem is None:
                break
        raise DataError(
            f"The download of {url} stopped after {self._have():,} bytes"
            f"{f' ({problem})' if problem else ''}. Run the same command again to go on: what "
            f"there is stays in {self.part}."
        )

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self, url: str) -> bool:
        """Fetch what is missing; True when the file is complete."""
        start = self._have()
        request = urllib.request.Request(url, headers={"User-Agent": "ostinato"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return self._receive(response, start)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # Nothing lies beyond what we have: it is whole, or it is longer than the real file.
            whole = (error.headers.get("Content-Range") or "").rpartition("/")[2] == str(start)
            if not whole:
                self.part.unlink()
            return whole

    def _receive(self, response: http.client.HTTPResponse, start: int) -> bool:
        resumed = response.status == 206
        have = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with self.part.open("ab" if resumed else "wb") as out:
            while block := response.read(CHUNK):
                out.write(block)
                have += len(block)
                if self.progress is not None:
                    self.progress(self.part.stem, have, total)
        return total is None or have == total


def unpack(archive: Path, root: Path) -> None:
    """Unpack an archive into `root`; what is unpacked by half does not appear there.

    Members that would land outside, links and devices are refused.
    """
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as folder:
        place = Path(folder)
        try:
            if zipfile.is_zipfile(archive):
                _unpack_zip(archive, place)
            else:
                _unpack_tar(archive, place)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(
                f"{archive} cannot be unpacked ({error}). Delete it and fetch it again."
            ) from None
        for child in place.iterdir():
            _merge(child, root / child.name)


def _unpack_tar(archive: Path, place: Path) -> None:
    # By hand, since the filter that makes `extractall` safe came with Python 3.11.4.
    with tarfile.open(archive) as tar:
        for member in tar:
            target = _inside(place, member.name)
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)
            elif member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                raise tarfile.ReadError(f"{member.name} is neither a file nor a folder")
        # tarfile takes an archive that breaks off between members for a whole one; a whole one
        # ends with a block of zeros.
        if tar.fileobj is not None:
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it breaks off before its end")


def _unpack_zip(archive: Path, place: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        for name in bundle.namelist():
            _inside(place, name)
        bundle.extractall(place)


def _inside(place: Path, name: str) -> Path:
    """Where a member goes, which is below `place`."""
    target = (place / name).resolve()
    if not target.is_relative_to(place.resolve()):
        raise OSError(f"{name} would land outside")
    return target


def _merge(source: Path, target: Path) -> None:
    """Move a file or folder, joining folders that are there already."""
    if not (source.is_dir() and target.is_dir()):
        if target.is_file():
            target.unlink()
        shutil.move(source, target)
        return
    for child in source.iterdir():
        _merge(child, target / child.name)
