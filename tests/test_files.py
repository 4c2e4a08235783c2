"""Writing a file under faults: the old one or the new one, never half, nothing left behind."""

from __future__ import annotations

import errno
import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ostinato.errors import StateError
from ostinato.ops import files
from ostinato.ops.files import write_atomically
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.running.results import RunFolder
from ostinato.scoring.record import Record

disk = runpy.run_path(str(Path(__file__).with_name("_small_disk.py")))
OLD, NEW = b"old content", b"the new content, which is longer"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "file"
    place.write_bytes(OLD)
    return place


def names(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def fail(code: int):
    def raising(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return raising


def cut(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A disk that is full after so many bytes."""
    real, left = os.write, [after]

    def write(handle: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(handle, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(files.os, "write", write)


@pytest.mark.parametrize("after", [0, 1, len(NEW) // 2, len(NEW) - 1])
def test_a_full_disk_leaves_the_old_file(path, monkeypatch, after):
    cut(monkeypatch, after)
    with pytest.raises(StateError, match="No space left"):
        write_atomically(path, NEW)
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["file"]


def test_short_writes_are_gone_on_with(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(files.os, "write", lambda handle, data: real(handle, data[:3]))
    write_atomically(path, NEW)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("step", ["fsync", "replace", "open", "write"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EDQUOT])
def test_every_failing_step_leaves_the_old_file(path, monkeypatch, step, code):
    monkeypatch.setattr(files.os, step, fail(code))
    with pytest.raises(StateError, match="Cannot save"):
        write_atomically(path, NEW)
    monkeypatch.undo()
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupt_leaves_the_old_file(path, monkeypatch, step):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, NEW)
    monkeypatch.undo()
    assert path.read_bytes() == OLD
    assert names(path.parent) == ["file"]


def test_links_are_followed(tmp_path, path):
    link = tmp_path / "link"
    link.symlink_to(path)
    write_atomically(link, NEW)
    assert link.is_symlink()
    assert path.read_bytes() == NEW
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "later")
    write_atomically(dangling, NEW)
    assert dangling.is_symlink()
    assert (tmp_path / "later").read_bytes() == NEW


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(StateError, match="Cannot save"):
        write_atomically(tmp_path / "a", NEW)


def test_the_mode_is_kept_and_a_new_file_has_the_usual_one(path, tmp_path):
    path.chmod(0o640)
    write_atomically(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_atomically(tmp_path / "new", NEW)
    (tmp_path / "plain").write_bytes(NEW)
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_folders_devices_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(StateError, match="it is"):
            write_atomically(place, NEW)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert names(tmp_path) == ["folder", "pipe"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StateError, match="does not exist"):
        write_atomically(tmp_path / "no" / "file", NEW)


def test_write_protected_files_are_refused(path, monkeypatch):
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write everything
    with pytest.raises(StateError, match="write-protected"):
        write_atomically(path, NEW)
    assert path.read_bytes() == OLD


KILLED = """
import os, sys
from ostinato.ops import files
real = getattr(os, sys.argv[2])
def die(*arguments):
    if sys.argv[2] == "write":
        real(arguments[0], arguments[1][:5])
    os.kill(os.getpid(), 9)
setattr(files.os, sys.argv[2], die)
files.write_atomically(sys.argv[1], b"never seen whole")
"""


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_what_a_kill_leaves_is_gone_after_the_next_write(path, step):
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), step], check=False)
    assert done.returncode == -9
    assert path.read_bytes() == OLD
    assert len(names(path.parent)) == 2
    write_atomically(path, NEW)
    assert names(path.parent) == ["file"]


def test_what_others_are_writing_is_left_alone(path, monkeypatch):
    real = os.fsync
    seen: list[list[str]] = []

    def meanwhile(handle: int) -> None:
        monkeypatch.setattr(files.os, "fsync", real)
        write_atomically(path, b"by another")
        seen.append(names(path.parent))
        real(handle)

    monkeypatch.setattr(files.os, "fsync", meanwhile)
    write_atomically(path, NEW)
    assert len(seen[0]) == 2  # the one that was being written is still there
    assert path.read_bytes() == NEW
    assert names(path.parent) == ["file"]


def test_files_of_a_similar_name_are_left_alone(path):
    others = [".file.notes.tmp", ".file.tmp", "file.12345678.tmp", ".files.12345678.tmp"]
    for other in others:
        (path.parent / other).write_text("mine")
    write_atomically(path, NEW)
    assert names(path.parent) == sorted(["file", *others])


def test_a_file_too_large_for_the_disk_is_a_state_error(tmp_path):
    """Not a stub: the system itself refuses to write on."""
    code = (
        "import resource, sys, torch\n"
        "from ostinato.ops.snapshot import State, save_state\n"
        "from ostinato.errors import StateError\n"
        "save_state(sys.argv[1], State({'a': torch.zeros(10)}), {})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n    save_state(sys.argv[1], State({'a': torch.zeros(10000)}), {})\n"
        "except StateError as error:\n    print(error)\n"
    )
    place = tmp_path / "s"
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True
    )
    assert "Cannot save" in done.stdout
    assert load_state(place)[0].tensors["a"].numel() == 10
    assert names(tmp_path) == ["s"]


@pytest.mark.parametrize("after", [0, 1, 7, 8, 9, 100, -1])
def test_a_state_file_cut_anywhere_leaves_the_old_state(tmp_path, monkeypatch, after):
    """Before, in and after the length, in the header, and one byte before the end."""
    place = tmp_path / "s"
    save_state(place, State({"a": torch.ones(3)}), {})
    size = place.stat().st_size
    cut(monkeypatch, after % size)
    with pytest.raises(StateError, match="Cannot save"):
        save_state(place, State({"a": torch.zeros(3)}), {})
    assert torch.equal(load_state(place)[0].tensors["a"], torch.ones(3))
    assert names(tmp_path) == ["s"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_run_keeps_its_last_checkpoint_when_one_fails(tmp_path, monkeypatch, step):
    run = RunFolder.create(tmp_path / "run", {"method": "x"})
    run.checkpoint(State({"a": torch.ones(1)}))
    real = getattr(os, step)

    def failing(*arguments: object) -> None:
        # The records' own file is handed to the disk before the checkpoint is written.
        if step == "fsync" and arguments[0] == run._file.fileno():
            real(*arguments)
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, step, failing)
    with pytest.raises(StateError, match="No space left"):
        run.checkpoint(State({"a": torch.zeros(1)}))
    monkeypatch.undo()
    assert torch.equal(load_state(run.state_path)[0].tensors["a"], torch.ones(1))
    assert not [name for name in names(run.path) if name.endswith(".tmp")]
    run.close()


def _record(run: RunFolder, index: int) -> Record:
    return Record(
        run=run.hash, index=index, domain="fog", images=2, correct=1, counted=2, hits="01",
        confidence=(0.5, 0.75), loss=0.5, trained=1, seconds=0.5,
    )  # fmt: skip


def test_a_disk_that_is_really_full_keeps_states_records_and_checkpoints(tmp_path):
    """Not a stub either: a small file system without one free byte."""
    place = tmp_path / "disk"
    with disk["small_disk"](place):
        state, run = place / "s", RunFolder.create(place / "run", {"method": "x"})
        save_state(state, State({"a": torch.ones(3)}), {})
        run.checkpoint(State({"a": torch.ones(3)}))
        lines = (run.path / "records.jsonl").read_bytes()
        with disk["filled"](place):
            for save in (
                lambda: save_state(state, State({"a": torch.zeros(9000)}), {}),
                lambda: run.checkpoint(State({"a": torch.zeros(9000)})),
                lambda: [run.append(_record(run, index)) for index in range(500)],
            ):
                with pytest.raises(StateError, match="No space left"):
                    save()
            assert torch.equal(load_state(state)[0].tensors["a"], torch.ones(3))
            assert torch.equal(load_state(run.state_path)[0].tensors["a"], torch.ones(3))
            found = (run.path / "records.jsonl").read_bytes()
            assert found.startswith(lines)
            assert not found or found.endswith(b"\n")
        assert not [path for path in place.rglob("*") if path.suffix == ".tmp"]
        save_state(state, State({"a": torch.zeros(3)}), {})
        run.close()
