"""The chat page and its files: read once at startup, served from memory, compressed for browsers that accept it.

Names are looked up in a table, not on the disk, so no path can leave the folder. The page's own files are also served
below a path with the hash of all of them, which index.html names: browsers keep them for ever, and a new version is a
new path. The wheel contains compressed copies, made by hatch_build.py and named by the hash of what they contain,
so that none can be stale; where one is missing (a checkout), the file is compressed here with gzip.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from app.contract.errors import NotFound

STATIC_DIR = Path(__file__).parent.parent / "static"
COMPRESSED = "compressed"
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
_NO_WEIGHT = re.compile(r"q=0(\.0*)?")
_OWN_ADDRESS = re.compile(rb'"/static/(?!vendor/)')
_ENCODINGS = {"br": ".br", "gzip": ".gz"}  # the first that a browser accepts is sent
_GZIP_LEVEL = 6
_FOREVER = "public, max-age=31536000, immutable"
_CSP = (
    "default-src 'none'; script-src 'self'{import_map}; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page: its content, also compressed by encoding, and the headers of its response."""

    content: bytes
    encoded: Mapping[str, bytes]
    headers: Mapping[str, str]

    def response(self, accepted: str, tags: str, cache: str) -> Response:
        """Answer a request with these headers `accept-encoding` and `if-none-match`."""
        encoding = next((name for name in self.encoded if _accepts(accepted, name)), None)
        headers = {**self.headers, "cache-control": cache}
        if encoding is not None:
            headers |= {"content-encoding": encoding, "etag": f'{headers["etag"][:-1]}-{encoding}"'}
        if headers["etag"] in (tag.strip().removeprefix("W/") for tag in tags.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content if encoding is None else self.encoded[encoding], headers=headers)


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
        self._files = {name: _prepare(name, content, policy, folder / COMPRESSED) for name, content in contents.items()}

    async def file(self, request: Request) -> Response:
        """Answer `GET /` and `GET /static/{name}`."""
        given: str = request.path_params.get("name", "index.html")
        name = given.removeprefix(f"{self.version}/")
        file = self._files.get(name)
        if file is None:
            raise NotFound("The page has no such file.")
        is_fixed = name != given or _VERSIONED.fullmatch(name)
        headers = request.headers
        return file.response(
            ",".join(headers.getlist("accept-encoding")),
            headers.get("if-none-match", ""),
            _FOREVER if is_fixed and name != "index.html" else "no-cache",
        )


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


def _prepare(name: str, content: bytes, policy: str, compressed: Path) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()
    encoded = {
        encoding: path.read_bytes()
        for encoding, suffix in _ENCODINGS.items()
        if (path := compressed / f"{digest}{suffix}").is_file()
    }
    if "gzip" not in encoded:
        encoded["gzip"] = gzip.compress(content, _GZIP_LEVEL, mtime=0)
    headers = {
        "content-type": _MEDIA_TYPES.get(Path(name).suffix, "text/plain; charset=utf-8"),
        "etag": f'"{digest[:32]}"',
        "vary": "Accept-Encoding",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    smaller = {encoding: data for encoding, data in encoded.items() if len(data) < len(content)}
    return StaticFile(content, smaller, headers)


def _accepts(accepted: str, encoding: str) -> bool:
    """Return whether an `accept-encoding` header allows an encoding; a weight of 0 forbids it."""
    weights = {}
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        weights[name.strip()] = weight.replace(" ", "")
    weight = weights.get(encoding, weights.get("*", "q=0"))
    return _NO_WEIGHT.fullmatch(weight) is None
