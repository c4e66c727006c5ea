"""The chat page and its files: read once at startup, served from memory.

Names are looked up in a table, not on the disk, so no path can leave the folder.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from app.contract.errors import NotFound

STATIC_DIR = Path(__file__).parent.parent / "static"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)
_VERSIONED = re.compile(r"vendor/.+-\d+\.\d+\.\d+\.\w+")
_CSP = (
    "default-src 'none'; script-src 'self'{import_map}; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify quire"
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page, and the headers of its response."""

    content: bytes
    headers: dict[str, str]


class Page:
    """The files of `static/`; the import map of index.html is the only inline script that the page may run."""

    def __init__(self, folder: Path = STATIC_DIR) -> None:
        index = (folder / "index.html").read_bytes()
        policy = content_security_policy(index)
        self._files = {
            name: _read(path, name, policy)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
        }

    async def file(self, request: Request) -> Response:
        """Answer `GET /` and `GET /static/{name}`."""
        file = self._files.get(request.path_params.get("name", "index.html"))
        if file is None:
            raise NotFound("The page has no such file.")
        tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.headers["etag"] in tags:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)


def content_security_policy(index: bytes) -> str:
    """Return the policy for a page whose inline import map, if any, is that of `index`."""
    found = _IMPORT_MAP.search(index)
    digest = "" if found is None else base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
    return _CSP.format(import_map=f" 'sha256-{digest}'" if digest else "")


def _read(path: Path, name: str, policy: str) -> StaticFile:
    content = path.read_bytes()
    forever = "public, max-age=31536000, immutable"
    headers = {
        "content-type": _MEDIA_TYPES.get(path.suffix, "text/plain; charset=utf-8"),
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "cache-control": forever if _VERSIONED.fullmatch(name) else "no-cache",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    return StaticFile(content, headers)
