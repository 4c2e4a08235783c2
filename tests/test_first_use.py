"""Files without a published SHA-256 are held to the one of their first download."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ostinato.data._first_use import LIST, hold
from ostinato.errors import DataError

URL = "https://example.org/noise.tar"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    place = tmp_path / "noise.tar"
    place.write_bytes(b"content")
    return place


def test_the_first_download_is_written_down_and_told(archive: Path) -> None:
    expected = hashlib.sha256(b"content").hexdigest()
    assert expected in hold(archive, URL)
    assert json.loads((archive.parent / LIST).read_text()) == {URL: expected}
    assert hold(archive, URL).endswith("as before")


def test_another_file_under_the_same_address_is_removed(archive: Path) -> None:
    hold(archive, URL)
    archive.write_bytes(b"other")
    with pytest.raises(DataError, match="not the file that was first downloaded"):
        hold(archive, URL)
    assert not archive.exists()
    assert len(json.loads((archive.parent / LIST).read_text())) == 1


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', "null", "\x00"])
def test_a_list_that_cannot_be_read_is_refused(archive: Path, text: str) -> None:
    (archive.parent / LIST).write_text(text)
    with pytest.raises(DataError, match="cannot be read"):
        hold(archive, URL)
    assert archive.exists()
