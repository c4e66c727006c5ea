"""A file that is served from memory with fixed headers, compressed for browsers that accept it.

The wheel contains compressed copies, made by hatch_build.py and named by the hash of what they contain, so that none
can be stale; where one is missing (a checkout), the file is compressed here with gzip. Fonts are compressed already.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

STATIC_DIR = Path(__file__).parents[2] / "static"
COMPRESSED = "compressed"
UNCHANGED = "no-cache"  # kept by browsers, and asked for again each time
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".bin": "application/octet-stream",
}
_NO_WEIGHT = re.compile(r"q=0(\.0*)?")
_ENCODINGS = {"br": ".br", "gzip": ".gz"}  # the first that a browser accepts is sent
_COMPRESSED_KINDS = frozenset({".woff2"})
_GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True)
class StaticFile:
    """The content of a file, also compressed by encoding, and the headers of its response."""

    content: bytes
    encoded: Mapping[str, bytes]
    headers: Mapping[str, str]

    @classmethod
    def prepare(
        cls, name: str, content: bytes, policy: str, compressed: Path, more: Mapping[str, str] = NO_HEADERS
    ) -> StaticFile:
        """Return the file `name` under a content security policy, with `more` headers.

        `compressed` is the folder of compressed copies.
        """
        digest = hashlib.sha256(content).hexdigest()
        kind = Path(name).suffix
        headers = {
            "content-type": _MEDIA_TYPES.get(kind, "text/plain; charset=utf-8"),
            "etag": f'"{digest[:32]}"',
            "vary": "Accept-Encoding",
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            **more,
        }
        encoded = {} if kind in _COMPRESSED_KINDS else _encoded(content, compressed / digest)
        return cls(content, {name: data for name, data in encoded.items() if len(data) < len(content)}, headers)

    def answer(self, request: Request, cache: str) -> Response:
        """Answer a GET or HEAD of this file; `cache` is the header `cache-control`. Cheap: no I/O."""
        headers = {**self.headers, "cache-control": cache}
        accepted = ",".join(request.headers.getlist("accept-encoding"))
        encoding = next((name for name in self.encoded if _accepts(accepted, name)), None)
        if encoding is not None:
            headers |= {"content-encoding": encoding, "etag": f'{headers["etag"][:-1]}-{encoding}"'}
        tags = request.headers.get("if-none-match", "").split(",")
        if headers["etag"] in (tag.strip().removeprefix("W/") for tag in tags):
            return Response(status_code=304, headers=headers)
        return Response(self.content if encoding is None else self.encoded[encoding], headers=headers)


def _encoded(content: bytes, copies: Path) -> dict[str, bytes]:
    """Return the content by encoding; the copies are files of the name `copies` with the suffix of an encoding."""
    encoded = {
        encoding: path.read_bytes()
        for encoding, suffix in _ENCODINGS.items()
        if (path := copies.with_name(copies.name + suffix)).is_file()
    }
    if "gzip" not in encoded:
        encoded["gzip"] = gzip.compress(content, _GZIP_LEVEL, mtime=0)
    return encoded


def _accepts(accepted: str, encoding: str) -> bool:
    """Return whether an `accept-encoding` header allows an encoding; a weight of 0 forbids it."""
    weights = {}
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        weights[name.strip()] = weight.replace(" ", "")
    weight = weights.get(encoding, weights.get("*", "q=0"))
    return _NO_WEIGHT.fullmatch(weight) is None
