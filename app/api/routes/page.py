"""The chat page and its files: read once at startup, served from memory.

Names are looked up in a table, not on the disk, so no path can leave the folder. The page's own files are also served
below a path with the hash of all of them, which index.html names: browsers keep them for ever, and a new version is a
new path.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from app.api.http.static_file import COMPRESSED, STATIC_DIR, UNCHANGED, StaticFile
from app.contract.errors import NotFound

_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)
_VERSIONED = re.compile(r"vendor/.+-\d+\.\d+\.\d+\.\w+")
_OWN_ADDRESS = re.compile(rb'"/static/(?!vendor/)')
_FOREVER = "public, max-age=31536000, immutable"
_CSP = (
    "default-src 'none'; script-src 'self'{import_map}; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)


class Page:
    """The files of `static/`; the import map of index.html is the only inline script that the page may run.

    Attributes:
        version: the hash of the page's own files, a part of their path.
    """

    def __init__(self, folder: Path = STATIC_DIR) -> None:
        contents = {
            name: path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith((".", f"{COMPRESSED}/"))
        }
        self.version = _version(contents)
        address = f'"/static/{self.version}/'.encode()
        contents["index.html"] = _OWN_ADDRESS.sub(address, contents["index.html"])
        policy = content_security_policy(contents["index.html"])
        copies = folder / COMPRESSED
        self._files = {name: StaticFile.prepare(name, content, policy, copies) for name, content in contents.items()}

    async def file(self, request: Request) -> Response:
        """Answer `GET /` and `GET /static/{name}`."""
        given: str = request.path_params.get("name", "index.html")
        name = given.removeprefix(f"{self.version}/")
        file = self._files.get(name)
        if file is None:
            raise NotFound("The page has no such file.")
        is_fixed = name != given or _VERSIONED.fullmatch(name)
        return file.answer(request, _FOREVER if is_fixed and name != "index.html" else UNCHANGED)


def content_security_policy(index: bytes) -> str:
    """Return the policy for a page whose inline import map, if any, is that of `index`."""
    found = _IMPORT_MAP.search(index)
    digest = "" if found is None else base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
    return _CSP.format(import_map=f" 'sha256-{digest}'" if digest else "")


def _version(contents: Mapping[str, bytes]) -> str:
    """Return the hash of all files but the libraries, whose names contain their versions."""
    total = hashlib.sha256()
    for name, content in contents.items():
        if not name.startswith("vendor/"):
            total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:16]
