"""What can be seen of a server: figures, events, alarms; and its clients and commands."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ostinato.cli import main
from ostinato.client import AsyncClient, Client, ServerError
from ostinato.client.replay import _frames
from ostinato.errors import DataError, InputError
from ostinato.serve._watch import Watch
from ostinato.serve.fleet import Fleet

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
batches, listening, wait_for = (small[name] for name in ("batches", "listening", "wait_for"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Fleet]]:
    folder = tmp_path_factory.mktemp("data")
    with listening(folder, compare=1, log=str(folder / "log.jsonl")) as found:
        yield found


# Clients and commands.


def test_the_client_speaks_the_servers_types_both_ways(server: tuple[str, Fleet]) -> None:
    url, fleet = server
    images = batches(2)
    with Client(url) as client:
        assert client.server().classes[3] == "cat"
        answer = client.predict("gate", images[0].numpy(), sequence=1, source=True, top=3)
        assert len(answer.images) == 8
        assert answer.images[0].source
        assert client.predict("gate", images[0], sequence=1).repeated
        assert client.stream("gate").version.startswith(fleet.streams["gate"].life)
        with pytest.raises(ServerError, match="no stream") as caught:
            client.stream("nobody")
        assert caught.value.status == 404
        with pytest.raises(InputError, match="uint8"):
            client.predict("gate", images[0].float().numpy())
        client.freeze("gate")
        client.checkpoint("gate", "kept")
        assert [row.name for row in client.snapshots("gate")][:1] == ["kept"]
        assert client.rollback("gate", "kept").frozen
        assert not client.unfreeze("gate").frozen
        client.declare("other", start="gate")
        client.take_in("other", client.export("gate"))
        client.reset("other")
        client.remove("other")
        client.remove_checkpoint("gate", "kept")
        wait_for(lambda: any(one.kind == "checkpoint" for one in client.events("gate")))

    async def both() -> list[Any]:
        async with AsyncClient(url) as client:
            asked = [client.predict("gate", part, top=1) for part in images]
            return [*await asyncio.gather(*asked), await client.streams()]

    first, second, streams = asyncio.run(both())
    assert len(first.images) == len(second.images) == 8
    assert [one.name for one in streams] == ["gate"]


def test_a_busy_server_is_waited_for_as_long_as_was_said(
    server: tuple[str, Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, fleet = server
    monkeypatch.setattr(fleet.batcher, "most", 0)
    monkeypatch.setattr(fleet.batcher, "waiting", 1)
    with Client(url, patience=0.0) as client, pytest.raises(ServerError) as caught:
        client.predict("gate", batches(1)[0])
    assert caught.value.status == 429
    assert caught.value.wait >= 1


def test_commands_operate_streams_and_replay_folders(
    server: tuple[str, Fleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, fleet = server
    for number, image in enumerate(batches(1)[0]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    main(["replay", str(tmp_path), "--to", url, "--stream", "cam", "--batch", "3"])
    assert "8 images" in capsys.readouterr().out
    assert fleet.streams["cam"].watch.answered == 8
    main(["streams", "list", "--url", url])
    assert "cam" in [one["name"] for one in json.loads(capsys.readouterr().out)]
    state = tmp_path / "cam.safetensors"
    main(["streams", "export", "cam", "--file", str(state), "--url", url])
    main(["streams", "import", "cam", "--file", str(state), "--url", url])
    main(["streams", "checkpoint", "cam", "--label", "one", "--url", url])
    main(["streams", "rollback", "cam", "--to", "one", "--url", url])
    main(["streams", "freeze", "cam", "--url", url])
    capsys.readouterr()
    main(["streams", "show", "cam", "--url", url])
    shown = json.loads(capsys.readouterr().out)
    assert shown["frozen"]
    assert shown["rollbacks"] == 1
    for wrong in (["streams", "dance", "cam"], ["streams", "show"], ["streams", "show", "nobody"]):
        with pytest.raises(SystemExit):
            main([*wrong, "--url", url])
    assert "error:" in capsys.readouterr().err


def test_commands_work_on_single_domains(
    server: tuple[str, Fleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, fleet = server
    with Client(url) as client:
        for number, images in enumerate(batches(3), 1):
            client.predict("part", images)
            wait_for(lambda number=number: fleet.streams["part"].learned == number)
        (domain,) = (one.domain for one in client.stream("part").details)

    def said(what: str, *more: str) -> Any:
        capsys.readouterr()
        main(["streams", what, "part", *more, "--url", url])
        found = capsys.readouterr().out
        return json.loads(found) if found else None

    one = ("--domain", str(domain))
    file = tmp_path / "one.safetensors"
    said("checkpoint", "--label", "good")
    assert said("freeze", *one)["details"][0]["frozen"]
    assert not said("unfreeze", *one)["details"][0]["frozen"]
    file.write_bytes(b"what was there before")
    said("export", *one, "--file", str(file))
    assert said("reset", *one)["domains"] == 0
    assert [found["domain"] for found in said("import", "--file", str(file))["details"]] != []
    assert [found["domain"] for found in said("rollback", "--to", "good")["details"]] == [domain]
    assert said("rollback", "--to", "good", *one)["rollbacks"] == 2
    with pytest.raises(SystemExit):
        said("export", "--file", str(tmp_path))  # a folder is never replaced
    assert tmp_path.is_dir()


def test_a_moving_picture_is_replayed_frame_by_frame(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (8, 8), (60 * at, 0, 0)) for at in range(3)]
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:])
    assert len(list(_frames(tmp_path / "film.gif"))) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        list(_frames(tmp_path / "empty"))
    with pytest.raises(DataError):
        list(_frames(tmp_path / "film.mp4"))


# Figures and events.


def test_figures_events_and_the_log_tell_what_happened(server: tuple[str, Fleet]) -> None:
    import httpx

    url, fleet = server
    with Client(url) as client:
        for images in batches(2):
            client.predict("seen", images)
        wait_for(lambda: fleet.streams["seen"].learned == 2)
        text = httpx.get(f"{url}/metrics").text
    for line in (
        'ostinato_stream_answered_images_total{stream="seen"} 16.0',
        'ostinato_stream_learned_requests_total{stream="seen"} 2.0',
        'ostinato_stream_differing_share{stream="seen"}',
        'ostinato_stream_estimated_accuracy{stream="seen"}',
        'ostinato_requests_total{route="/v1/streams/{name}/predict",status="200"}',
        "ostinato_storage_ok 1.0",
    ):
        assert line in text, line
    assert fleet.writer.flush()
    found = httpx.get(f"{url}/v1/streams/seen/events").json()
    assert [one["kind"] for one in found if one["kind"] != "domain"] == ["began", *["learned"] * 2]
    lines = [json.loads(line) for line in Path(str(fleet.settings.log)).read_text().splitlines()]
    assert sum(line["kind"] == "learned" for line in lines) >= 2


def test_the_live_feed_sends_what_changed(server: tuple[str, Fleet]) -> None:
    import httpx

    url, _ = server
    with Client(url) as client:
        client.predict("live", batches(1)[0])
    with httpx.stream("GET", f"{url}/v1/live", params={"stream": "live"}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    message = json.loads(line.removeprefix("data: "))
    assert "live" in {one["name"] for one in message["streams"]}
    assert message["detail"]["answered"] == message["timeline"][0]["images"] == 8


# Alarms.


def note(watch: Watch, labels: list[int], *, far: bool = False) -> None:
    count = len(labels)
    watch.note(
        domains=[0] * count,
        trust=[0.0] * count,
        far=[far] * count,
        distance=[1.0] * count,
        labels=labels,
        confidence=[0.9] * count,
        source=labels,
    )


def kinds(watch: Watch) -> set[str]:
    return {kind for kind, _, _ in watch.alarms()}


def test_alarms_are_raised_for_what_they_name_and_for_nothing_else() -> None:
    usual = Watch(0.0)
    for turn in range(100):
        note(usual, [(turn * 10 + at) % 10 for at in range(10)])
    assert kinds(usual) == set()
    for _ in range(100):
        note(usual, [3] * 10)
    assert kinds(usual) == {"collapse"}

    moved = Watch(0.0)
    for turn in range(200):
        note(moved, [at % 4 + (5 if turn >= 150 else 0) for at in range(10)])
    assert kinds(moved) == {"class mix"}

    lost = Watch(0.0)
    for _ in range(12):
        note(lost, [0, 1, 2, 3, 4, 5], far=True)
    assert kinds(lost) == {"unknown domain"}

    undone = Watch(0.0)
    undone.note_events(("founded domain 1", "rolled back domain 1"))
    assert kinds(undone) == {"collapse"}
    assert undone.founded == 1
