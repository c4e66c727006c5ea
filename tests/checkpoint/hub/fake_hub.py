"""A hub on the loopback: listings, trees, HEAD with ETags, LFS redirects, ranges, gated repositories.

LFS files are redirected to the same server by another host name, as the hub redirects to its CDN.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS = (".safetensors", ".gguf", ".bin")


@dataclass
class FakeRepo:
    """One repository: its files by path; `commit` names what `main` is."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    is_gated: bool = False


@dataclass
class FakeHub:
    """The server's state; `requests` are (method, path, headers) of all requests so far."""

    repos: dict[str, FakeRepo] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)  # bytes after which the next downloads of LFS files break
    damage: bytes = b""  # sent instead of the content of LFS files
    url: str = ""
    cdn: str = ""

    def sent(self, method: str, part: str) -> list[dict[str, str]]:
        """The headers of all requests of a method whose path contains `part`."""
        return [headers for was, path, headers in self.requests if was == method and part in path]


def blob_id(content: bytes) -> str:
    """The name of a git blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(path: str, content: bytes) -> str:
    """The ETag of a file."""
    return hashlib.sha256(content).hexdigest() if path.endswith(LFS) else blob_id(content)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve `hub` on a free port while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url, hub.cdn = f"http://127.0.0.1:{server.server_port}", f"http://localhost:{server.server_port}/cdn"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
        if path.startswith("/cdn/"):
            return self._send_blob(path.removeprefix("/cdn/"))
        if path.startswith("/api/models/"):
            return self._send_api(path.removeprefix("/api/models/").split("/"))
        return self._send_file(path.strip("/").split("/"))

    def _send_api(self, parts: list[str]) -> None:
        repo = self.hub.repos.get("/".join(parts[:2]))
        if repo is None:
            return self._fail(404, "RepoNotFound")
        revision = parts[3] if len(parts) > 3 else "main"
        if revision not in ("main", repo.commit):
            return self._fail(404, "RevisionNotFound")
        if len(parts) > 2 and parts[2] == "tree":
            return self._send_json([tree_entry(*item) for item in repo.files.items()])
        files = [
            {"rfilename": path, "size": len(content), "blobId": blob_id(content), **lfs(path, content, "sha256")}
            for path, content in repo.files.items()
        ]
        return self._send_json({"id": "/".join(parts[:2]), "sha": repo.commit, "siblings": files, "tags": [],
                                "private": False, "downloads": 0, "likes": 0})  # fmt: skip

    def _send_file(self, parts: list[str]) -> None:
        repo, path = self.hub.repos.get("/".join(parts[:2])), "/".join(parts[4:])
        if repo is None:  # the library also asks for what is no file of a model
            return self._fail(404, "RepoNotFound")
        if repo.is_gated:
            return self._fail(403, "GatedRepo")
        if path not in repo.files:
            return self._fail(404, "EntryNotFound")
        content = repo.files[path]
        about = {"X-Repo-Commit": repo.commit, "ETag": f'"{digest(path, content)}"'}
        if not path.endswith(LFS):
            return self._send(200, content, about)
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": about["ETag"]}
        return self._send(302, b"", {**about, **linked, "Location": f"{self.hub.cdn}/{digest(path, content)}"})

    def _send_blob(self, name: str) -> None:
        files = [item for repo in self.hub.repos.values() for item in repo.files.items()]
        content = next(content for path, content in files if digest(path, content) == name)
        content = self.hub.damage or content
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        about = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
        cut = self.hub.cut_after.pop(0) if self.hub.cut_after and self.command == "GET" else None
        self._send(206 if first else 200, content[first:], about, cut)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(content[:cut])
            except ConnectionError:  # the client has read enough
                self.close_connection = True
        self.close_connection = self.close_connection or cut is not None


def lfs(path: str, content: bytes, name: str) -> dict[str, Any]:
    """The entry of an LFS file in a listing; nothing for others."""
    if not path.endswith(LFS):
        return {}
    return {"lfs": {name: hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}


def tree_entry(path: str, content: bytes) -> dict[str, Any]:
    """The entry of a file in a tree."""
    return {"type": "file", "path": path, "size": len(content), "oid": blob_id(content), **lfs(path, content, "oid")}
