"""Fetching against a server on this machine: resuming, refusing, unpacking, saying what to do."""

from __future__ import annotations

import hashlib
import io
import json
import runpy
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from ostinato.data._download import ResumingDownloader, unpack
from ostinato.data._first_use import LIST
from ostinato.data.check import check
from ostinato.data.corruptions import COMMON
from ostinato.data.fetch import _download, fetch
from ostinato.data.sources import SOURCES, RemoteFile, Source
from ostinato.errors import ConfigError, DataError, UnknownName
from ostinato.registry import DATASETS

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))

pytest.importorskip("pooch")


class Files(BaseHTTPRequestHandler):
    """Serves bytes by name, honours ranges, and hangs up early where told."""

    content: ClassVar[dict[str, bytes]] = {}
    hang_up_after: ClassVar[list[int]] = []
    ranges: ClassVar[bool] = True
    requests: ClassVar[list[tuple[str, str | None, int]]] = []

    def do_GET(self) -> None:
        body = self.content.get(self.path)
        asked = self.headers.get("Range") if self.ranges else None
        if body is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.requests.append((self.path, asked, 0))
            self.end_headers()
            return
        rest = body[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(rest)))
        sent = rest[: self.hang_up_after.pop(0)] if self.hang_up_after else rest
        self.requests.append((self.path, asked, len(sent)))
        self.end_headers()
        self.wfile.write(sent)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    Files.content, Files.hang_up_after, Files.requests, Files.ranges = {}, [], [], True
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=lambda: httpd.serve_forever(0.01), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def md5(data: bytes) -> str:
    return "md5:" + hashlib.md5(data).hexdigest()


def blob(size: int = 1_000_000) -> bytes:
    return np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()


def test_an_interrupted_download_goes_on_where_it_stopped(server: str, tmp_path: Path) -> None:
    body = blob()
    Files.content["/a.bin"] = body
    file = RemoteFile(f"{server}/a.bin", md5(body), unpack=False)
    # First run: the connection breaks, and goes on breaking, before half of it is there.
    Files.hang_up_after = [300_000, 100_000, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match=r"stopped after 400,000 bytes.*again to go on"):
        _download(file, tmp_path)
    part = tmp_path / "a.bin.part"
    assert part.read_bytes() == body[:400_000]
    assert not (tmp_path / "a.bin").exists()
    # Second run: only the missing bytes are asked for and sent.
    Files.hang_up_after, Files.requests = [], []
    path = _download(file, tmp_path)
    assert path.read_bytes() == body
    assert not part.exists()
    assert Files.requests == [("/a.bin", "bytes=400000-", 600_000)]
    # Third run: the file is there and right, so that nothing is asked.
    Files.requests = []
    _download(file, tmp_path)
    assert Files.requests == []


def test_a_break_within_one_run_is_bridged(server: str, tmp_path: Path) -> None:
    body = blob()
    Files.content["/a.bin"] = body
    Files.hang_up_after = [123_456]
    seen: list[tuple[str, int, int | None]] = []
    file = RemoteFile(f"{server}/a.bin", md5(body), unpack=False)
    _download(file, tmp_path, lambda *state: seen.append(state))
    assert (tmp_path / "a.bin").read_bytes() == body
    assert [r[1] for r in Files.requests] == [None, "bytes=123456-"]
    assert seen[-1] == ("a.bin", 1_000_000, 1_000_000)


def test_a_server_without_ranges_starts_over(server: str, tmp_path: Path) -> None:
    body = blob(5000)
    Files.content["/a.bin"], Files.ranges = body, False
    (tmp_path / "a.bin.part").write_bytes(body[:1000])
    _download(RemoteFile(f"{server}/a.bin", md5(body)), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == body


def test_a_whole_part_file_needs_no_bytes(server: str, tmp_path: Path) -> None:
    body = blob(5000)
    Files.content["/a.bin"] = body
    (tmp_path / "a.bin.part").write_bytes(body)
    _download(RemoteFile(f"{server}/a.bin", md5(body)), tmp_path)
    assert Files.requests == [("/a.bin", "bytes=5000-", 0)]
    # One that is longer than the real file is thrown away and fetched anew.
    (tmp_path / "b.bin.part").write_bytes(body + b"more")
    Files.content["/b.bin"] = body
    _download(RemoteFile(f"{server}/b.bin", md5(body)), tmp_path)
    assert (tmp_path / "b.bin").read_bytes() == body


def test_a_wrong_checksum_is_refused_and_the_file_removed(server: str, tmp_path: Path) -> None:
    Files.content["/a.tar"] = blob(2000)
    file = RemoteFile(f"{server}/a.tar", md5(b"something else"))
    with pytest.raises(DataError, match=r"a\.tar .* wrong checksum and was removed"):
        _download(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_is_refused_too(server: str, tmp_path: Path) -> None:
    body = blob(4000)
    Files.content["/a.tar"] = body
    (tmp_path / "a.tar.part").write_bytes(b"x" * 1000)
    file = RemoteFile(f"{server}/a.tar", md5(body))
    with pytest.raises(DataError, match="wrong checksum"):
        _download(file, tmp_path)
    assert _download(file, tmp_path).read_bytes() == body


def test_a_missing_address_is_not_tried_again(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answered 404"):
        _download(RemoteFile(f"{server}/gone.tar", None), tmp_path)


def test_no_connection_keeps_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"half")
    # A port that was free a moment ago: nobody answers there.
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    port = closed.server_address[1]
    closed.server_close()
    loader = ResumingDownloader(tmp_path / "a.part", attempts=2)
    with pytest.raises(DataError, match="stopped after 4 bytes"):
        loader(f"http://127.0.0.1:{port}/a", tmp_path / "a", None)
    assert (tmp_path / "a.part").read_bytes() == b"half"


def tar_of(folder: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for child in sorted(folder.iterdir()):
            tar.add(child, child.name)
    return out.getvalue()


def test_fetch_downloads_unpacks_and_checks(server: str, tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path / "made", COMMON[:8])
    first = tar_of(tmp_path / "made")
    trees.imagenet_c_tree(tmp_path / "more", COMMON[8:])
    second = tar_of(tmp_path / "more")
    Files.content.update({"/noise.tar": first, "/rest.tar": second})
    files = (
        RemoteFile(f"{server}/list.txt", None, unpack=False, required=False),
        RemoteFile(f"{server}/noise.tar", md5(first)),
        RemoteFile(f"{server}/rest.tar", None),
    )
    root = tmp_path / "root"
    result = fetch(
        "imagenet-c", root, progress=False, sources={"imagenet-c": Source("page", files)}
    )
    assert result.status == "fetched"
    assert result.files == ("noise.tar", "rest.tar")
    assert any("list.txt could not be had" in note for note in result.notes)
    assert any("rest.tar has no published checksum" in note for note in result.notes)
    assert result.report is not None
    assert result.report.ok, result.report
    assert not list(root.glob("*.tar"))
    assert not list(root.glob(".unpacking-*"))
    Files.requests = []
    again = fetch("imagenet-c", root, progress=False, sources={"imagenet-c": Source("page", files)})
    assert again.status == "present"
    assert Files.requests == []
    assert "already there" in str(again)
    # What was lost after unpacking is fetched anew.
    shutil.rmtree(root / COMMON[0])
    repaired = fetch(
        "imagenet-c", root, progress=False, sources={"imagenet-c": Source("page", files)}
    )
    assert repaired.report is not None
    assert repaired.report.ok, repaired.report


def test_fetch_goes_on_with_the_archives_that_lack(server: str, tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path / "made", COMMON[:8])
    trees.imagenet_c_tree(tmp_path / "more", COMMON[8:])
    first, second = tar_of(tmp_path / "made"), tar_of(tmp_path / "more")
    Files.content.update({"/a.tar": first, "/b.tar": second})
    files = (RemoteFile(f"{server}/a.tar", md5(first)), RemoteFile(f"{server}/b.tar", md5(second)))
    sources = {"imagenet-c": Source("page", files)}
    root = tmp_path / "root"
    Files.hang_up_after = [len(first), 1000, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match="again to go on"):
        fetch("imagenet-c", root, progress=False, sources=sources)
    report = check("imagenet-c", root)
    assert any("b.tar.part is a half-finished download" in text for text in report.problems)
    Files.hang_up_after, Files.requests = [], []
    assert fetch("imagenet-c", root, progress=False, sources=sources).report.ok
    assert Files.requests == [("/b.tar", "bytes=1000-", len(second) - 1000)]


def test_fetch_unpacks_nothing_that_is_not_what_was_first_used(server: str, tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path / "made", COMMON)
    body = tar_of(tmp_path / "made")
    Files.content["/a.tar"] = body
    sources = {"imagenet-c": Source("page", (RemoteFile(f"{server}/a.tar", md5(body)),))}
    root = tmp_path / "root"
    root.mkdir()
    known = {f"{server}/a.tar": hashlib.sha256(b"the first one").hexdigest()}
    (root / LIST).write_text(json.dumps(known))
    with pytest.raises(DataError, match="not the file that was first downloaded"):
        fetch("imagenet-c", root, progress=False, sources=sources)
    assert [place.name for place in root.iterdir()] == [LIST]
    known[f"{server}/a.tar"] = hashlib.sha256(body).hexdigest()
    (root / LIST).write_text(json.dumps(known))
    assert fetch("imagenet-c", root, progress=False, sources=sources).report.ok


def test_fetch_shows_a_bar_by_default(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees.cifar_c_tree(tmp_path / "made" / "CIFAR-10-C")
    body = tar_of(tmp_path / "made")
    Files.content["/CIFAR-10-C.tar"] = body
    source = Source("page", (RemoteFile(f"{server}/CIFAR-10-C.tar", md5(body)),))
    result = fetch("cifar10-c", tmp_path / "root", sources={"cifar10-c": source})
    assert "CIFAR-10-C.tar" in capsys.readouterr().out
    assert result.report is not None
    assert result.report.count == 15 * 6


@pytest.mark.parametrize("name", ["imagenet-val", "acdc", "cityscapes", "camvid"])
def test_terms_and_steps_are_spelled_out(tmp_path: Path, name: str) -> None:
    result = fetch(name, tmp_path)
    assert result.status == "manual"
    assert SOURCES[name].page in str(result)
    assert f"ostinato data check {name} --root {tmp_path}" in str(result)
    assert "{" not in str(result)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_fetched_is_answered(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'imagenet-a'"):
        fetch("imagenet-aa", tmp_path)
    with pytest.raises(ConfigError, match="your own images"):
        fetch("folder", tmp_path)


def test_every_data_set_but_ones_own_has_a_source() -> None:
    assert set(SOURCES) == set(DATASETS.names()) - {"array", "folder"}
    for source in SOURCES.values():
        assert source.page.startswith("https://")
        assert bool(source.files) != bool(source.steps)
        for file in source.files:
            assert file.url.startswith("https://")
            kind, _, digest = (file.checksum or "none:").partition(":")
            assert len(digest) == {"md5": 32, "sha256": 64, "none": 0}[kind]
            assert file.checksum is not None or not file.unpack


def test_unpacking_refuses_what_would_land_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo("../outside.txt")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as bundle:
        bundle.writestr("../outside.txt", "abc")
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "../outside.txt"
        tar.addfile(info)
    for name, text in (("bad.tar", "outside"), ("bad.zip", "outside"), ("link.tar", "neither")):
        with pytest.raises(DataError, match=f"cannot be unpacked.*{text}"):
            unpack(tmp_path / name, root)
    assert list(root.iterdir()) == []
    assert not (tmp_path / "outside.txt").exists()


def test_unpacking_joins_folders_and_leaves_no_halves(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in (1, 2):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as bundle:
            bundle.writestr(f"sketch/n{number}/a.txt", str(number))
        unpack(tmp_path / f"{number}.zip", root)
    assert sorted(p.name for p in (root / "sketch").iterdir()) == ["n1", "n2"]
    whole = tar_of(root)
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(DataError, match=r"cut\.tar cannot be unpacked"):
        unpack(tmp_path / "cut.tar", root)
    assert sorted(p.name for p in root.iterdir()) == ["sketch"]


def test_every_download_has_a_checksum_and_all_but_zenodo_s_five_a_strong_one() -> None:
    weak = []
    for source in SOURCES.values():
        for file in source.files:
            assert file.checksum is not None, file.url
            kind, _, digest = file.checksum.partition(":")
            if kind == "sha256":
                assert len(digest) == 64
            else:
                weak.append(file.name)
    assert sorted(weak) == ["blur.tar", "digital.tar", "extra.tar", "noise.tar", "weather.tar"]
