"""A store on the loopback interface that answers Google's own clients, for tests: what of its JSON API is used here.

That is the client in Python, and Google's connector for Hadoop, which moves objects, and lists folders that are objects
with a slash at the end.

What it believes is Google's description: an upload is visible once it is done, `ifGenerationMatch` is judged in the
same step, lists come in pages. What it is not: Google's, several machines, or anybody who asks for credentials.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

from crc32c import crc32c

UNFULFILLED = "At least one of the pre-conditions you specified did not hold."
PAGE = 2
"""Names in a page of a list: few, so that there are several."""


class Bucket:
    """All objects, by name: generation and content. `lock` makes each request one step.

    Attributes:
        is_careless: conditions are not looked at.
        lost_answers: so many of the next uploads are done, and not answered.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.uploads: dict[str, tuple[str, int | None, bytearray]] = {}
        self.lock = threading.Lock()
        self.generation = 0
        self.is_careless = False
        self.lost_answers = 0

    def put(self, name: str, condition: int | None, content: bytes) -> bool:
        """Put an object, if its generation is as the condition says; returns whether it is."""
        with self.lock:
            if not self.is_careless and condition not in (
                None,
                self.objects.get(name, (0, b""))[0],
            ):
                return False
            self.generation += 1
            self.objects[name] = self.generation, content
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    content: bytes

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        name, query = self._asked()
        with self.bucket.lock:
            objects = dict(self.bucket.objects)
        if urlsplit(self.path).path.endswith("/storageLayout"):
            self._answer(200, {"hierarchicalNamespace": {"enabled": False}})
        elif name is None:
            self._answer(200, _page(self._bucket_name(), objects, query))
        elif (
            name not in objects
            or int(query.get("generation", objects[name][0])) != objects[name][0]
        ):
            self._fail(404, f"No such object: {name}")
        elif query.get("alt") == "media":
            self._send(objects[name][1])
        else:
            self._answer(200, _described(self._bucket_name(), name, *objects[name]))

    def do_DELETE(self) -> None:
        name, query = self._asked()
        condition = int(query["ifGenerationMatch"]) if "ifGenerationMatch" in query else None
        with self.bucket.lock:
            generation = self.bucket.objects.get(str(name), (None, b""))[0]
            is_meant = condition in (None, generation)
            if is_meant:
                self.bucket.objects.pop(str(name), None)
        if generation is None:
            self._fail(404, f"No such object: {name}")
        elif not is_meant:
            self._fail(412, UNFULFILLED)
        else:
            self._answer(204, None)

    def do_POST(self) -> None:
        moved, query = self._asked()
        body = self.content
        condition = int(query["ifGenerationMatch"]) if "ifGenerationMatch" in query else None
        if "uploadType" not in query:
            source, _, target = str(moved).partition("/moveTo/o/")
            self._move(source, target, condition)
            return
        if query["uploadType"] == "multipart":
            boundary = self.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
            _, described, content, _ = body.split(b"--" + boundary)
            name = json.loads(described.partition(b"\r\n\r\n")[2])["name"]
            self._put(name, condition, content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n"))
            return
        upload, name = uuid4().hex, query.get("name") or json.loads(body)["name"]
        self.bucket.uploads[upload] = name, condition, bytearray()
        where = (
            f"http://{self.headers['Host']}/upload/b/{self._bucket_name()}/more?upload_id={upload}"
        )
        self._answer(200, {}, Location=where)

    def do_PUT(self) -> None:
        _, query = self._asked()
        name, condition, content = self.bucket.uploads[query["upload_id"]]
        content += self.content
        if self.headers["Content-Range"].endswith("/*"):
            self._answer(308, None, Range=f"bytes=0-{len(content) - 1}")
        else:
            self._put(name, condition, bytes(content))

    def _move(self, source: str, target: str, condition: int | None) -> None:
        with self.bucket.lock:
            found = self.bucket.objects.get(source)
            is_meant = condition in (None, self.bucket.objects.get(target, (0, b""))[0])
            if found is not None and is_meant:
                del self.bucket.objects[source]
                self.bucket.generation += 1
                self.bucket.objects[target] = self.bucket.generation, found[1]
        if found is None:
            self._fail(404, f"No such object: {source}")
        elif not is_meant:
            self._fail(412, UNFULFILLED)
        else:
            self._answer(200, _described(self._bucket_name(), target, *self.bucket.objects[target]))

    def _put(self, name: str, condition: int | None, content: bytes) -> None:
        if not self.bucket.put(name, condition, content):
            self._fail(412, UNFULFILLED)
        elif self.bucket.lost_answers:
            self.bucket.lost_answers -= 1
            self.close_connection = True
        else:
            self._answer(200, _described(self._bucket_name(), name, *self.bucket.objects[name]))

    def _asked(self) -> tuple[str | None, dict[str, str]]:
        """Read the request; return the object's name, None for all of the bucket, and what stands behind the mark."""
        self.content = self._body()
        parts = urlsplit(self.path)
        name = parts.path.partition("/o/")[2]
        return unquote(name) or None, {key: each[0] for key, each in parse_qs(parts.query).items()}

    def _bucket_name(self) -> str:
        return self.path.partition("/b/")[2].partition("/")[0]

    def _body(self) -> bytes:
        """Read what the request brings, in chunks where it says so: what is left is taken for the next request."""
        if self.headers.get("Transfer-Encoding", "identity") == "identity":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()  # the end of the chunk
        while self.rfile.readline().strip():
            pass  # what may follow the last one, up to a blank line
        return content

    def _send(self, content: bytes) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        if int(first) >= len(content) > 0:
            self._fail(416, "The requested range cannot be satisfied.")
            return
        end = int(first) + len(part) - 1
        headers = {"Content-Range": f"bytes {first}-{end}/{len(content)}"} if content else {}
        self._write(206 if content else 200, part, headers)

    def _fail(self, code: int, message: str) -> None:
        self._answer(code, {"error": {"code": code, "message": message}})

    def _answer(self, code: int, value: object, **headers: str) -> None:
        content = b"" if value is None else json.dumps(value).encode()
        self._write(code, content, {"Content-Type": "application/json", **headers})

    def _write(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, text in headers.items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _described(bucket: str, name: str, generation: int, content: bytes) -> dict[str, Any]:
    checksum = b64encode(crc32c(content).to_bytes(4, "big")).decode()
    size = str(len(content))
    described = {"name": name, "generation": str(generation), "size": size, "crc32c": checksum}
    times = dict.fromkeys(("timeCreated", "updated"), "2026-01-31T12:00:00.000Z")
    return described | times | {"bucket": bucket, "metageneration": "1"}


def _page(
    bucket: str, objects: dict[str, tuple[int, bytes]], query: dict[str, str]
) -> dict[str, Any]:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    found: set[str] = set()
    folders: set[str] = set()
    for name in objects:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            folder, slash, below = rest.partition("/") if delimiter else (rest, "", "")
            if slash:
                folders.add(f"{prefix}{folder}/")
            if not slash or (not below and "includeTrailingDelimiter" in query):
                found.add(name)
    start, size = int(query.get("pageToken", 0)), min(PAGE, int(query.get("maxResults", PAGE)))
    every = sorted(found | folders)
    names = every[start : start + size]
    page = {
        "items": [_described(bucket, each, *objects[each]) for each in names if each in found],
        "prefixes": [each for each in names if each in folders],
    }
    return page | ({"nextPageToken": str(start + size)} if len(every) > start + size else {})


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # 5 else: a client that opens more at once waits for a second


@contextmanager
def google_store() -> Iterator[tuple[str, Bucket]]:
    """Run the store; gives its address, and what it holds. Every name of a bucket is of the same one."""
    bucket = Bucket()
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bucket
        finally:
            server.shutdown()
            thread.join()
