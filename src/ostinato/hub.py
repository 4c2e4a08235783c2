"""Sharing what was learned: settings, statistics and state in a folder or a Hub repository.

An expert pool is small and tied to its base model by fingerprint, like an adapter. Nothing in such
a folder is code, and no image is in it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ostinato.errors import MissingResource, OstinatoError, StateError
from ostinato.methods.base import Method
from ostinato.models import fingerprint
from ostinato.ops.files import write_atomically
from ostinato.text import one_line

SETTINGS, STATISTICS, STATE, CARD = (
    "ostinato.json",
    "statistics.safetensors",
    "state.safetensors",
    "README.md",
)


def save_pretrained(adapted: Method, folder: str | Path, *, base: str = "") -> Path:
    """Write settings, statistics, state and a model card; `base` names the base model."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    statistics = adapted.resources.statistics
    about = {
        "method": adapted.name,
        "settings": adapted.config.model_dump(mode="json"),
        "fingerprint": adapted.fingerprint,
        "normalize": adapted.model.normalize,
        "mean": adapted.model.mean.flatten().tolist(),
        "std": adapted.model.std.flatten().tolist(),
        "base_model": base,
    }
    if statistics is not None:
        statistics.save(place / STATISTICS)
    adapted.save(place / STATE)
    write_atomically(place / SETTINGS, (json.dumps(about, indent=1) + "\n").encode())
    write_atomically(place / CARD, _model_card(adapted, base).encode())
    return place


def push_to_hub(
    adapted: Method, repo: str, *, base: str = "", private: bool = True, api: Any = None
) -> str:
    """Upload what `save_pretrained` writes; the address of the repository.

    Args:
        adapted: what `adapt` returned.
        repo: owner/name.
        base: the base model's name, for the card.
        private: a new repository is private unless this is False.
        api: a `huggingface_hub.HfApi`; None makes one with the token you are logged in with.
    """
    client = api or _client()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(adapted, folder, base=base)
        with _reaching(repo, "Log in, or keep it in a folder: save_pretrained(adapted, DIR)."):
            address = client.create_repo(repo, private=private, exist_ok=True)
            client.upload_folder(repo_id=repo, folder_path=folder)
    return str(address)


def from_pretrained(
    model: nn.Module, place: str | Path, *, targets: Any = None, blocks: Any = ..., api: Any = None
) -> Method:
    """Adapt a model with shared settings and statistics, and go on from the shared state.

    Args:
        model: the base model that the folder was made for; another one is refused.
        place: a folder, or owner/name on the Hub.
        targets: as for `adapt`, where the shared state was made with them.
        blocks: likewise.
        api: as for `push_to_hub`.
    """
    from ostinato.api import adapt

    folder = Path(place)
    if not folder.is_dir():
        with _reaching(place, "Check the name, or pass a folder that save_pretrained wrote."):
            folder = Path((api or _client()).snapshot_download(repo_id=str(place)))
    about = _about(folder)
    mine = fingerprint(model)
    if about["fingerprint"] != mine:
        raise StateError(
            f"{place} belongs to another base model ({about['fingerprint']}, this one is {mine})"
            + (f": load {about['base_model']}." if about["base_model"] else ".")
        )
    statistics = folder / STATISTICS
    adapted = adapt(
        model,
        str(about["method"]),
        statistics=statistics if statistics.is_file() else None,
        targets=targets,
        blocks=blocks,
        normalize=about["normalize"],
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        **about["settings"],
    )
    adapted.load(folder / STATE)
    return adapted


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        wanted = ("method", "settings", "fingerprint", "normalize", "mean", "std", "base_model")
        return {key: about[key] for key in wanted}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingResource(
            f"{folder} holds nothing that ostinato.push_to_hub wrote ({error})."
        ) from None


def _model_card(adapted: Method, base: str = "") -> str:
    """What the repository's page says."""
    head = ["---", "library_name: ostinato", "tags: [test-time-adaptation]"]
    head += [f"base_model: {base}"] if base else []
    statistics = adapted.resources.statistics
    lines = [
        *head,
        "---",
        f"# {adapted.info.title} state",
        "",
        f"What {adapted.info.title} has learned on {base or 'a model'} while it was adapted "
        "online. It holds no image and no weight of the base model, and fits that model alone "
        f"(fingerprint `{adapted.fingerprint}`).",
        "",
        "```",
        adapted.summary(),
        "```",
        *([f"Source statistics: {statistics.describe()}.", ""] if statistics else [""]),
        "```python",
        "import ostinato",
        "adapted = ostinato.from_pretrained(model, 'owner/name')",
        "```",
        "",
    ]
    return "\n".join(lines)


@contextmanager
def _reaching(place: str | Path, hint: str) -> Iterator[None]:
    """Say what to do where the Hub does not answer as it should."""
    try:
        yield
    except OstinatoError:
        raise
    except Exception as error:  # whatever the Hub's client raises without a network or a right
        raise MissingResource(f"The Hub failed for {place} ({one_line(error)}). {hint}") from error


def _client() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingResource("The Hub needs pip install 'ostinato[hub]'.") from None
    return HfApi()
