"""A cache of weights in a temporary folder, and a server in place of torchvision's host."""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv


@dataclass
class WeightsServer:
    """Files over loopback, each served in its own good or bad way.

    ``ways``: "good"; "slow" (pauses between pieces); "cut" (breaks off halfway; resumable);
    "cut without ranges" (breaks off and knows no Range); "always cut" (a few bytes, each time);
    "stalls" (says nothing more from the middle on); "silent" (accepts and says nothing);
    "page" (HTML); or an HTTP status such as "404".
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def url(self, name: str) -> str:
        return f"{self.address}/models/{name}"


def _handler(server: WeightsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            wanted = self.headers.get("Range", "")
            server.requests.append((name, wanted))
            self.close_connection = True
            way = server.ways.get(name, "good")
            body = server.files.get(name)
            if way == "silent":
                time.sleep(8)
                return
            if way.isdigit() or body is None:
                self.send_error(int(way) if way.isdigit() else 404)
                return
            if way == "page":
                self._answer(200, b"<!DOCTYPE html><title>Sign in</title>", "text/html")
                return
            start = 0
            if wanted and way != "cut without ranges":
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
            first = sum(asked == name for asked, _ in server.requests) == 1
            stop = len(body)
            if way == "always cut":
                stop = min(start + 10, len(body) - 1)
            elif way.startswith(("cut", "stalls")) and first:
                stop = len(body) // 2
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            try:
                for at in range(start, stop, 1 << 16):
                    self.wfile.write(body[at : min(at + (1 << 16), stop)])
                    if way == "slow":
                        time.sleep(0.01)
                if way == "stalls" and first:
                    time.sleep(4)
            except OSError:  # the client went away: cancelled
                pass

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@pytest.fixture
def weights_server() -> Iterator[WeightsServer]:
    served = WeightsServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    http.daemon_threads = True
    http.block_on_close = False
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    served.address = f"http://127.0.0.1:{http.server_address[1]}"
    yield served
    http.shutdown()
    http.server_close()


@pytest.fixture
def torch_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's cache in a folder of this test alone (not made yet)."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "torch" / "hub" / "checkpoints"


def state_bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@dataclass
class ServedModel:
    """A torchvision model whose DEFAULT weights the server has."""

    name: str
    file: str
    body: bytes
    state: dict[str, torch.Tensor]
    member: Any


@pytest.fixture(scope="session")
def squeezenet_state() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return dict(tv.squeezenet1_1(weights=None).state_dict())


@pytest.fixture
def served_squeezenet(
    weights_server: WeightsServer,
    squeezenet_state: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> ServedModel:
    """squeezenet1_1's DEFAULT under the server's address, its name carrying the right hash."""
    body = state_bytes(squeezenet_state)
    file = f"squeezenet1_1-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    weights_server.files[file] = body
    member = tv.SqueezeNet1_1_Weights.DEFAULT
    monkeypatch.setattr(member.value, "url", weights_server.url(file))
    return ServedModel("squeezenet1_1", file, body, squeezenet_state, member)


@pytest.fixture(scope="session")
def as_file() -> Any:
    """What torch.save makes of something, as bytes."""
    return state_bytes


class _Writes:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "ran"))


@pytest.fixture
def malicious(tmp_path: Path) -> tuple[bytes, Path]:
    """A checkpoint that would write a file when it is unpickled, and that file."""
    trace = tmp_path / "trace.txt"
    return state_bytes({"state_dict": {"w": torch.zeros(2), "x": _Writes(trace)}}), trace
