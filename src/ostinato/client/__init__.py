"""Talk to a server: `Client` and `AsyncClient`, with the types that the server itself uses.

>>> client = Client("http://127.0.0.1:8000", key="ost_...")  # doctest: +SKIP
>>> client.predict("gate-4", ["frame.jpg"]).images[0].guesses[0].name  # doctest: +SKIP
'cat'
"""

from __future__ import annotations

from ostinato.client._asynchronous import AsyncClient
from ostinato.client._sync import Client
from ostinato.client._transport import ServerError

__all__ = ["AsyncClient", "Client", "ServerError"]
