"""`ostinato serve`: one source model behind HTTP, and a state of its own for every camera.

Needs the extra `ostinato[serve]`. Nothing here is imported before a command or `ostinato.client`
asks for it. docs/serve.md says what there is; `fleet.py` is the place to begin reading.
"""
