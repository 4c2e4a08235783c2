"""`ostinato verify`."""

from __future__ import annotations

from ostinato.cli._command import command
from ostinato.cli._serving import check_extra, open_store
from ostinato.cli._words import File, Named, Place


@command("verify", "STREAM: make its states again from its event log, and compare", "serving")
def verify_command(name: Named, /, *, config: File = None, data: Place = None) -> None:
    """Make a stream's states again from its event log, and compare them with its snapshots.

    Needs a server that ran with --record and has been stopped.

    Args:
        name: of the stream.
        config: the settings that the server ran with.
        data: its folder, where it is not in them.
    """
    check_extra()
    from ostinato.serve.loading import load_served
    from ostinato.serve.replaying import verify
    from ostinato.serve.settings import Settings

    settings = Settings() if config is None else Settings.from_yaml(config)
    if data is not None:
        settings = settings.replace(data=data)
    store = open_store(settings.data)
    found = verify(store, settings, load_served(settings), name)
    for version, same in found:
        print(f"{version:24} {'the same' if same else 'DIFFERENT'}")
    if not all(same for _, same in found):
        raise SystemExit(1)
