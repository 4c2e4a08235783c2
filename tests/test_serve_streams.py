"""Streams over HTTP: answers, sequence numbers, and what operators do to states."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from ostinato import adapt, collect_statistics
from ostinato.data.embedded import STATISTICS, asset_path, embedded_images, embedded_model
from ostinato.data.mosaic import mosaic_model
from ostinato.serve.fleet import Fleet

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
ask, teach, batches, serving = (small[n] for n in ("ask", "teach", "batches", "serving"))
Server = tuple[TestClient, Fleet]
pytestmark = pytest.mark.usefixtures("trusting_throughout")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as found:
        teach(*found, "gate", batches(6))
        yield found


def test_an_answer_is_the_librarys_at_the_version_it_names(server: Server) -> None:
    client, fleet = server
    adapted = adapt(
        embedded_model(), "ostinato", statistics=asset_path(STATISTICS), **small["METHOD"]
    )
    for images in batches(6):
        adapted.predict(images)
        adapted.learn()
    fresh = batches(7)[6]
    expected = adapted.predict(fresh, source=True).softmax(1)
    fleet.streams["gate"].frozen = True
    answer = ask(client, "gate", fresh, top=0, source=True).json()
    fleet.streams["gate"].frozen = False
    assert answer["version"].endswith(".6")
    for row, image in enumerate(answer["images"]):
        given = {guess["label"]: guess["probability"] for guess in image["guesses"]}
        ordered = torch.tensor([given[label] for label in range(10)])
        torch.testing.assert_close(ordered, expected[row], atol=1e-5, rtol=0)
        assert image["domain"] == adapted.last.domains[row]  # type: ignore[union-attr]
    assert any(image["trust"] > 0 for image in answer["images"])
    assert answer["images"][0]["guesses"] != answer["images"][0]["source"]
    assert not answer["learning"]


def test_a_repeated_sequence_number_is_answered_from_the_record(server: Server) -> None:
    client, fleet = server
    before = fleet.streams["gate"].learned
    first = ask(client, "gate", batches(6)[2], sequence=2).json()
    assert first["repeated"]
    assert first["version"].endswith(".2")
    assert fleet.streams["gate"].learned == before
    other = ask(client, "gate", batches(6)[3], sequence=2)
    assert other.status_code == 409
    assert "count on" in other.json()["error"]


def test_recorded_answers_take_the_room_of_their_text_and_long_ones_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, fleet = server
    answer = ask(client, "room", batches(1)[0], sequence=1, top=0)
    kept = fleet.streams["room"].record._known
    assert kept[1].body.result() == answer.content
    monkeypatch.setattr("ostinato.serve._routes_predict.LONGEST", 100)
    assert ask(client, "room", batches(2)[1], sequence=2, top=0).status_code == 200
    assert list(kept) == [1]
    small["wait_for"](lambda: 2 in fleet.streams["room"].met)
    again = ask(client, "room", batches(2)[1], sequence=2, top=0).json()
    assert again["repeated"]
    assert not again["learning"]


def test_streams_know_nothing_of_one_another(server: Server) -> None:
    client, _ = server
    answer = ask(client, "door", batches(1)[0], source=True).json()
    assert {image["domain"] for image in answer["images"]} == {0}
    assert all(image["guesses"] == image["source"] for image in answer["images"])


def test_pictures_are_resized_and_several_come_in_one_request(
    server: Server, tmp_path: Path
) -> None:
    from PIL import Image

    client, _ = server
    parts = []
    for kind in ("png", "jpeg", "webp"):
        path = tmp_path / f"one.{kind}"
        Image.new("RGB", (50, 40), (200, 30, 30)).save(path)
        parts.append(("images", (path.name, path.read_bytes(), f"image/{kind}")))
    answer = client.post("/v1/streams/door/predict", files=parts, params={"top": 2})
    assert answer.status_code == 200, answer.text
    assert [len(image["guesses"]) for image in answer.json()["images"]] == [2, 2, 2]
    assert client.get("/v1/streams/door").json()["answered"] >= 3


def test_freezing_stops_learning_and_nothing_else(server: Server) -> None:
    client, fleet = server
    client.post("/v1/streams/frozen/freeze", json={})  # there is none yet
    client.post("/v1/streams", json={"name": "frozen", "start": "gate"})
    client.post("/v1/streams/frozen/freeze", json={})
    version = fleet.streams["frozen"].version
    answer = ask(client, "frozen", batches(7)[6]).json()
    assert not answer["learning"]
    assert answer["version"] == version
    client.post("/v1/streams/frozen/unfreeze", json={})
    assert ask(client, "frozen", batches(7)[6]).json()["learning"]


def test_a_copy_answers_as_its_origin_does_and_goes_its_own_way(server: Server) -> None:
    client, fleet = server
    made = client.post("/v1/streams", json={"name": "copy", "start": "gate"})
    assert made.status_code == 201, made.text
    fresh = batches(7)[6]
    fleet.streams["gate"].frozen = fleet.streams["copy"].frozen = True
    ours, theirs = (ask(client, name, fresh).json()["images"] for name in ("copy", "gate"))
    fleet.streams["gate"].frozen = fleet.streams["copy"].frozen = False
    assert [one["guesses"] for one in ours] == [one["guesses"] for one in theirs]
    client.post("/v1/streams/copy/reset", json={})
    assert client.get("/v1/streams/copy").json()["domains"] == 0
    assert client.get("/v1/streams/gate").json()["domains"] > 0


def test_going_back_to_a_checkpoint_gives_its_answers_again(server: Server) -> None:
    client, fleet = server
    client.post("/v1/streams", json={"name": "back", "start": "gate"})
    fresh = batches(7)[6]

    def answers() -> Any:
        fleet.streams["back"].frozen = True
        found = [one["guesses"] for one in ask(client, "back", fresh).json()["images"]]
        fleet.streams["back"].frozen = False
        return found

    first = answers()
    kept = client.post("/v1/streams/back/checkpoints", json={"name": "good"})
    assert kept.status_code == 201
    teach(client, fleet, "back", batches(10)[6:])
    assert answers() != first
    back = client.post("/v1/streams/back/rollback", json={"to": "good"})
    assert back.status_code == 200
    assert answers() == first
    assert back.json()["version"] != kept.json()["version"]
    assert client.post("/v1/streams/back/rollback", json={"to": "none"}).status_code == 409
    assert client.delete("/v1/streams/back/checkpoints/good").status_code == 204
    assert client.post("/v1/streams/back/rollback", json={"to": "good"}).status_code == 409


def test_one_domain_can_be_kept_taken_out_put_in_and_brought_back(server: Server) -> None:
    client, _ = server
    where = "/v1/streams/one"

    def domains(answer: Any) -> list[int]:
        assert answer.status_code in (200, 201), answer.text
        return [one["domain"] for one in answer.json()["details"]]

    first, *others = domains(client.post("/v1/streams", json={"name": "one", "start": "gate"}))
    kept = client.post(f"{where}/freeze", json={"domain": first}).json()["details"]
    assert [one["frozen"] for one in kept] == [True, *(False for _ in others)]
    client.post(f"{where}/unfreeze", json={"domain": first})
    file = client.get(f"{where}/export", params={"domain": first}).content
    client.post(f"{where}/checkpoints", json={"name": "whole"})
    assert domains(client.post(f"{where}/reset", json={"domain": first})) == others
    gone = client.post(f"{where}/rollback", json={"to": "whole", "domain": first})
    assert gone.status_code == 409
    *rest, again = domains(client.post(f"{where}/import", content=file))
    assert rest == others
    assert again not in (first, *others)
    client.post("/v1/streams", json={"name": "two", "frozen": True})
    assert domains(client.post("/v1/streams/two/import", content=file)) == [1]
    answer = ask(client, "two", batches(1)[0]).json()
    assert {image["domain"] for image in answer["images"]} == {1}
    assert domains(client.post(f"{where}/rollback", json={"to": "whole"})) == [first, *others]
    part = client.post(f"{where}/rollback", json={"to": "whole", "domain": first})
    assert domains(part) == [*others, first] or domains(part) == [first, *others]


def test_an_exported_state_loads_in_the_library_and_damaged_ones_nowhere(
    server: Server, tmp_path: Path
) -> None:
    client, fleet = server
    data = client.get("/v1/streams/gate/export", params={"images": True}).content
    path = tmp_path / "state.safetensors"
    path.write_bytes(data)
    adapted = adapt(
        embedded_model(), "ostinato", statistics=asset_path(STATISTICS), **small["METHOD"]
    )
    adapted.load(path)
    assert adapted.bank.domains.keys() == fleet.streams["gate"].method.bank.domains.keys()
    client.post("/v1/streams", json={"name": "import"})
    version = fleet.streams["import"].version
    for wrong in (b"", b"junk", data[:-100], bytes([*data[:500], data[500] ^ 1, *data[501:]])):
        refused = client.post("/v1/streams/import/import", content=wrong)
        assert refused.status_code == 409, refused.text
    assert fleet.streams["import"].version == version
    assert client.post("/v1/streams/import/import", content=data).json()["domains"] > 0


def test_numbers_of_the_wrong_shape_are_refused_before_they_harm_others(
    server: Server, tmp_path: Path
) -> None:
    from ostinato.ops.snapshot import load_state, save_state

    client, fleet = server
    path = tmp_path / "state.safetensors"
    path.write_bytes(client.get("/v1/streams/gate/export").content)
    state, header = load_state(path)
    name = next(key for key in state.tensors if key.endswith("maps.down.0"))
    state.tensors[name] = torch.zeros(3, 3)
    save_state(path, state, header)
    version = fleet.streams["gate"].version
    refused = client.post("/v1/streams/gate/import", content=path.read_bytes())
    assert refused.status_code == 409
    assert fleet.streams["gate"].version == version
    assert ask(client, "gate", batches(1)[0]).status_code == 200


def test_a_full_queue_is_told_to_come_back_and_a_passed_deadline_too(tmp_path: Path) -> None:
    with serving(tmp_path, batching={"waiting": 8, "images": 8, "wait_ms": 0}) as (client, fleet):
        ask(client, "gate", batches(1)[0])
        holding, release = threading.Event(), threading.Event()
        run = fleet.batcher.forwards.answer

        def held(jobs: Any) -> None:
            holding.set()
            release.wait()
            run(jobs)

        fleet.batcher.forwards.answer = held  # type: ignore[method-assign]
        found: list[Any] = []

        def post(**query: Any) -> threading.Thread:
            thread = threading.Thread(
                target=lambda: found.append(ask(client, "gate", batches(1)[0], **query))
            )
            thread.start()
            return thread

        first = post()
        holding.wait()
        late = post(deadline_ms=1)
        small["wait_for"](lambda: fleet.batcher.waiting == 8)
        refused = ask(client, "gate", batches(1)[0])
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        release.set()
        first.join()
        late.join()
        assert sorted(one.status_code for one in found) == [200, 429]


def test_streams_are_declared_limited_and_removed(tmp_path: Path) -> None:
    given = {"limits": {"streams": 2}, "streams": {"door": {"preset": "forward-only"}}}
    with serving(tmp_path, **given) as (client, fleet):
        assert client.get("/v1/streams/door").json()["preset"] == "forward-only"
        assert ask(client, "gate", batches(1)[0]).status_code == 200
        assert ask(client, "yard", batches(1)[0]).status_code == 409
        assert client.post("/v1/streams", json={"name": "gate"}).status_code == 409
        client.post("/v1/streams/gate/checkpoints", json={"name": "x"})
        place = fleet.store.place(fleet.streams["gate"].id)
        assert list(place.iterdir())
        assert client.delete("/v1/streams/gate").status_code == 204
        assert not place.exists()
        assert client.get("/v1/streams/gate").status_code == 404
        assert ask(client, "yard", batches(1)[0]).status_code == 200
    with serving(tmp_path, **given) as (client, _):
        assert {one["name"] for one in client.get("/v1/streams").json()} == {"door", "yard"}


def test_a_segmenter_answers_with_a_label_map(tmp_path: Path) -> None:
    import base64
    import io

    from PIL import Image

    def mosaics(tiles: torch.Tensor) -> torch.Tensor:
        cut = tiles.view(-1, 2, 3, 3, 32, 32)
        return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, 64, 96)

    clean = mosaics(embedded_images("tune")[0][:240])
    collect_statistics(mosaic_model("cpu"), clean).save(tmp_path / "statistics")
    rows = mosaics(batches(1, 6)[0])
    given = {"model": "embedded-mosaic", "statistics": tmp_path / "statistics"}
    with serving(tmp_path / "data", **given) as (client, fleet):
        assert fleet.served.task == "segmentation"
        answer = ask(client, "road", rows, source=True).json()["images"][0]
        picture = Image.open(io.BytesIO(base64.b64decode(answer["label_map"])))
        assert picture.size == (96, 64)
        plain = client.post(
            "/v1/streams/road/predict",
            content=small["npy"](rows),
            headers={"content-type": "application/x-npy", "accept": "image/png"},
        )
        assert plain.headers["x-ostinato-domain"] == "0"
        assert Image.open(io.BytesIO(plain.content)).tobytes() == picture.tobytes()
