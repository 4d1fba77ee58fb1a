"""A stand-in for the Hugging Face hub on this machine: as much of its HTTP interface as huggingface_hub uses here.

Repositories are dictionaries, path → bytes, so a test can put anything in them. Large files go the way of Git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_" + "x" * 32
SHA = "0123456789abcdef0123456789abcdef01234567"
TEXT = (".md", ".json", ".jsonl", ".py")


class Hub(ThreadingHTTPServer):
    """Its `repos`: "models/OWNER/NAME" or "datasets/OWNER/NAME" → files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}  # a lie about a file's size
        self.seen: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_PUT(self) -> None:
        body = self._body()
        self.server.blobs[hashlib.sha256(body).hexdigest()] = body
        self._say(200, b"")

    def do_POST(self) -> None:
        body, parts = self._body(), self._parts()
        if parts[4:5] == ["paths-info"]:
            files, wanted = self.server.repos["/".join(parts[1:4])], parse_qs(body.decode())["paths"]
            found = _tree({path: len(content) for path, content in files.items()}, "", True)
            return self._json(200, [one for one in found if one["path"] in wanted])
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json(401, {"error": "who are you?"})
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked.get('type') or 'model'}s/{asked['organization']}/{asked['name']}"
            if name not in self.server.repos and asked.get("visibility") == "private":
                self.server.private.add(name)
            self.server.repos.setdefault(name, {})
            return self._json(200, {"url": f"{self.server.url}/{name.removeprefix('models/')}"})
        if parts == ["api", "validate-yaml"]:
            wrong = "license: mine" in json.loads(body)["content"]
            return self._json(400 if wrong else 200, {"errors": [{"message": "no such"}] * wrong, "warnings": []})
        if parts[-2:] == ["objects", "batch"]:
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/blobs/{one['oid']}", "header": {}}}}
                for one in json.loads(body)["objects"]
            ]
            return self._json(200, {"transfer": "basic", "objects": objects})
        files, place = self.server.repos["/".join(parts[1:4])], "/".join(parts[1:4]).removeprefix("models/")
        if parts[4] == "preupload":
            modes = [
                {
                    "path": one["path"],
                    "uploadMode": "regular" if one["path"].endswith(TEXT) else "lfs",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for one in json.loads(body)["files"]
            ]
            return self._json(200, {"files": modes})
        assert parts[4] == "commit"
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        return self._json(200, {"commitUrl": f"{self.server.url}/{place}/commit/{SHA}", "commitOid": SHA})

    def _get(self) -> None:
        parts = self._parts()
        if "resolve" in parts:
            at = parts.index("resolve")
            name = "/".join(parts[:at]) if parts[0] == "datasets" else "models/" + "/".join(parts[:at])
            content = self.server.repos.get(name, {}).get("/".join(parts[at + 2 :]))
            if content is None:
                return self._json(404, {}, {"X-Error-Code": "EntryNotFound"})
            tag = hashlib.sha256(content).hexdigest()
            return self._say(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": SHA})
        name, files = "/".join(parts[1:4]), self.server.repos.get("/".join(parts[1:4]))
        if files is None:
            return self._json(404, {}, {"X-Error-Code": "RepoNotFound"})
        if len(parts) > 5 and parts[4] == "revision" and parts[5] not in ("main", SHA):
            return self._json(404, {}, {"X-Error-Code": "RevisionNotFound"})
        sizes = {path: self.server.sizes.get(path, len(content)) for path, content in files.items()}
        if len(parts) > 4 and parts[4] == "tree":
            return self._json(200, _tree(sizes, "/".join(parts[6:]), "recursive=true" in self.path.lower()))
        siblings = [{"rfilename": path, "size": size, "blobId": "0" * 40} for path, size in sizes.items()]
        owner, private = name.split("/", 1)[1], name in self.server.private
        return self._json(
            200, {"id": owner, "modelId": owner, "sha": SHA, "siblings": siblings, "private": private, "tags": []}
        )

    def _parts(self) -> list[str]:
        self.server.seen.append(f"{self.command} {self.path}")
        return [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        self._say(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _tree(sizes: dict[str, int], below: str, recursive: bool) -> list[dict[str, object]]:
    """Files and folders below a folder, as the hub lists them."""
    here = {path: size for path, size in sizes.items() if not below or path.startswith(below + "/")}
    folders = {str(folder) for path in here for folder in PurePosixPath(path).parents} - {".", below}
    depth = below.count("/") + 1 if below else 0
    found = [{"type": "directory", "path": one, "oid": "0" * 40} for one in sorted(folders)]
    found += [{"type": "file", "path": one, "size": size, "oid": "0" * 40} for one, size in here.items()]
    return [one for one in found if recursive or str(one["path"]).count("/") == depth]


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub as long as the block lasts."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


if __name__ == "__main__":
    with serving() as running:
        print(running.url, flush=True)
        threading.Event().wait()
