"""`GET /preview`: the frame in which the page shows HTML and SVG of an answer.

What runs there is as untrusted as a download. Its policy allows its own text and nothing else: no address of a server,
no form, no frame of another page. The sandbox gives it an origin of its own, also where it is opened without the page,
so that it has no storage, no cookies, and no access to the page or the server. Where the frame itself may go is up to
the policy of the page around it: `frame-src 'self'`. No policy covers WebRTC and hints to look up a name; the empty
list of connections does, in browsers that know it (Chromium 156 does), and also keeps the frame from going to other
addresses of this server.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.api.http.static_file import COMPRESSED, STATIC_DIR, UNCHANGED, StaticFile

_FILE = "reading/preview.html"
_CSP = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
_NO_CONNECTIONS = {"connection-allowlist": "()", "x-dns-prefetch-control": "off"}


class Preview:
    """The document of the frame, read once at startup. It gets what it shows from the page, by a message."""

    def __init__(self) -> None:
        content = (STATIC_DIR / _FILE).read_bytes()
        self._file = StaticFile.prepare(_FILE, content, _CSP, STATIC_DIR / COMPRESSED, _NO_CONNECTIONS)

    async def show(self, request: Request) -> Response:
        """Answer `GET /preview`."""
        return self._file.answer(request, UNCHANGED)
