"""torch's cache of weights: what is in it, and downloads into it.

The download is our own and not torch's, for three things that torch.hub lacks: a broken one goes
on where it stopped (over up to 4 connections), it can be cancelled within a quarter of a second,
and being offline is said within 5 seconds instead of after the system's time limits. The file grows
under a name of its own (``NAME.XXXX.partial``) in the same folder and is renamed when its hash is
right; on every failure it is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import queue
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from hookviz._text import bytes_text
from hookviz.errors import RunCancelled, WeightsError
from hookviz.models._checkpoint import read_checkpoint

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0 where unknown) and the file's name, 10 times a second
at most, and once at the end."""

CONNECT_SECONDS = 4.5
"""For name, connection and first answer together: offline has to be said within 5 seconds."""
STALL_SECONDS = 20.0
"""Longest silence in the middle of a file."""
ATTEMPTS = 4
"""Connections for one file, the first one included."""
_PIECE = 1 << 17
_REPORT_SECONDS = 0.1
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.")  # the rule of torch.hub


class _BrokenError(Exception):
    """The connection broke; what has arrived is good for resuming."""


class _RefusedError(Exception):
    """The server will not give the file, or gives another one."""


def download(
    url: str,
    target: Path,
    *,
    expected: str = "",
    start_from: Path | None = None,
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
    remedy: str = "",
) -> Path:
    """Fetch a file, whole and checked, or leave nothing behind.

    Args:
        url: "http://…" or "https://…".
        target: Where the file goes; its folder is made.
        expected: Beginning of its SHA-256 in hex; "" checks the size alone.
        start_from: A file with the first bytes of it, for example a broken download; resumed if
            the server can, and left alone.
        progress: True shows a bar with bytes and speed on stderr; or a callable.
        cancelled: Asked several times a second.
        remedy: Said after every failure.

    Returns:
        ``target``.

    Raises:
        WeightsError: Not reachable within 5 seconds, refused, broken ``ATTEMPTS`` times, of a
            wrong hash, or the folder cannot be written.
        RunCancelled: ``cancelled`` said so.
    """
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if start_from is not None:
            shutil.copyfile(start_from, partial)
        else:
            partial.touch(exist_ok=False)
        with _reporting(progress, target.name) as report:
            _fetch_checked(url, partial, expected, report, cancelled or (lambda: False))
        partial.replace(target)
    except OSError as error:
        where = error.filename or target.parent
        raise WeightsError(
            f"{target.name} cannot be written to {target.parent}: {error.strerror} ({where}).",
            remedy="Set TORCH_HOME to a folder that can be written.",
        ) from error
    except (_BrokenError, _RefusedError) as error:
        raise WeightsError(
            f"{target.name} could not be downloaded from {_host(url)}: {error}.",
            remedy=remedy or None,
            code="download-failed",
            details={"file": target.name, "folder": str(target.parent), "url": url},
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def _host(url: str) -> str:
    return urllib.request.Request(url).host or url  # noqa: S310 - parsed, not opened


def _fetch_checked(
    url: str, partial: Path, expected: str, report: Progress, cancelled: Callable[[], bool]
) -> None:
    """Fetch into ``partial``; once more from the start if what was resumed proves wrong."""
    resumed = partial.stat().st_size > 0
    _fetch(url, partial, report, cancelled)
    found = file_hash(partial, cancelled)
    if resumed and expected and not found.startswith(expected):
        partial.write_bytes(b"")
        _fetch(url, partial, report, cancelled)
        found = file_hash(partial, cancelled)
    if not found.startswith(expected):
        raise _RefusedError(
            f"its SHA-256 begins with {found[: len(expected)]}, expected {expected}"
        )


def _fetch(url: str, partial: Path, report: Progress, cancelled: Callable[[], bool]) -> None:
    """All bytes of the file, over as many connections as it takes."""
    for attempt in range(1, ATTEMPTS + 1):
        before = partial.stat().st_size
        try:
            _fetch_once(url, partial, report, cancelled)
        except _BrokenError as error:
            # A first connection that fails is "offline" and said at once; later ones are tried
            # again as long as each brings something.
            progressed = partial.stat().st_size > before
            if attempt == ATTEMPTS or not progressed:
                raise _BrokenError(
                    f"{error} (after {attempt} attempt{'s' * (attempt > 1)})"
                ) from None
            _pause(0.2 * attempt, cancelled)
        else:
            return


def _pause(seconds: float, cancelled: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _stop_if(cancelled)
        time.sleep(0.05)


def _stop_if(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise RunCancelled("The download was cancelled; nothing was kept.")


def _fetch_once(url: str, partial: Path, report: Progress, cancelled: Callable[[], bool]) -> None:
    have = partial.stat().st_size
    headers = {"User-Agent": "hookviz", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https of torchvision's enums or what the user set in its place
    with _connection(request) as pieces:
        answer = _next(pieces, CONNECT_SECONDS, cancelled, "no answer")
        if isinstance(answer, Exception):
            _explain(answer)
            return  # 416: nothing after what is there; the hash will tell
        start = have if answer.status == 206 and _range_start(answer) == have else 0
        length = answer.headers.get("Content-Length") or ""
        total = start + int(length) if length.isdigit() else 0
        if answer.headers.get_content_type() == "text/html":
            raise _RefusedError("the server answered with a web page instead of the file")
        free = shutil.disk_usage(partial.parent).free
        if total - start > free:
            raise _RefusedError(f"it needs {bytes_text(total)} and {bytes_text(free)} are free")
        with partial.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            done = start
            while True:
                broke = f"the connection broke at {done} of {total or 'unknown'} bytes"
                piece = _next(pieces, STALL_SECONDS, cancelled, f"{broke}, nothing more came")
                if isinstance(piece, Exception):
                    raise _BrokenError(f"{broke} ({piece})")
                if not piece:
                    break
                file.write(piece)
                done += len(piece)
                report(done, total, "")
        if total and done < total:
            raise _BrokenError(f"the connection broke at {done} of {total} bytes")


def _range_start(answer: Any) -> int:
    text = answer.headers.get("Content-Range", "")
    start = text.removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else -1


@contextlib.contextmanager
def _connection(request: urllib.request.Request) -> Iterator[queue.Queue[Any]]:
    """A queue of what a server sends: its answer, then pieces, then b""; or an exception.

    Looking up a name has no time limit of its own, and no blocking read can be cancelled, so a
    daemon thread does both; it is left behind where it hangs.
    """
    pieces: queue.Queue[Any] = queue.Queue(maxsize=16)
    gone = threading.Event()

    def put(item: Any) -> None:
        while not gone.is_set():
            with contextlib.suppress(queue.Full):
                pieces.put(item, timeout=0.1)
                return

    def stream() -> None:
        try:
            with urllib.request.urlopen(request, timeout=STALL_SECONDS) as answer:  # noqa: S310 - see _fetch_once
                put(answer)
                while not gone.is_set():
                    piece = answer.read1(_PIECE)
                    put(piece)
                    if not piece:
                        return
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            put(error)

    threading.Thread(target=stream, name="hookviz-download", daemon=True).start()
    try:
        yield pieces
    finally:
        gone.set()


def _next(
    pieces: queue.Queue[Any], seconds: float, cancelled: Callable[[], bool], said: str
) -> Any:
    """The next item of a connection, waited for while looking out for a cancel."""
    end = time.monotonic() + seconds
    while True:
        _stop_if(cancelled)
        try:
            return pieces.get(timeout=0.05)
        except queue.Empty:
            if time.monotonic() > end:
                raise _BrokenError(f"{said} within {seconds:g} seconds") from None


def _explain(error: Exception) -> None:
    """Raise what an exception of the connection means; return for 416."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code == 416:
            return
        raise _RefusedError(f"the server answered {error.code} {error.reason}")
    if isinstance(error, OSError | http.client.HTTPException | ValueError):
        reason = getattr(error, "reason", error)
        raise _BrokenError(f"no connection ({getattr(reason, 'strerror', None) or reason})")
    raise error


def mirrored(url: str) -> str:
    """A URL, with the host that the environment sets in place of torchvision's.

    ``HOOKVIZ_WEIGHTS_HOST=https://mirror.example/torch`` turns
    ``https://download.pytorch.org/models/x.pth`` into
    ``https://mirror.example/torch/models/x.pth``.
    """
    host = os.environ.get("HOOKVIZ_WEIGHTS_HOST", "").strip().rstrip("/")
    if not host.startswith(("http://", "https://")):
        return url
    return f"{host}/{url.partition('://')[2].partition('/')[2]}"


@contextlib.contextmanager
def _reporting(progress: bool | Progress, name: str) -> Iterator[Progress]:
    """A callable that is cheap to call for every piece."""
    bar: Any = None
    last = 0.0
    state = (0, 0)

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if callable(progress):
            progress(done, total, name)
        elif progress and done:
            if bar is None:  # not before something arrives: offline shows a sentence, no bar
                bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, desc=name)
            bar.total = total or None
            bar.update(done - bar.n)

    def report(done: int, total: int, _name: str) -> None:
        nonlocal last, state
        state = (done, total)
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            tell(done, total)

    try:
        yield report
        tell(*state)
    finally:
        if bar is not None:
            bar.close()


# --- the cache ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CachedFile:
    """A file in torch's cache.

    Attributes:
        path: Where it lies.
        bytes: Its size.
        models: Which weights it is, for example ("vgg16 IMAGENET1K_V1",); () where unknown.
        state: "whole" (hash checked), "corrupt", "partial" (left by a broken download),
            "unchecked", or "no hash" (its name carries none).
    """

    path: Path
    bytes: int
    models: tuple[str, ...]
    state: str


def cache_folder() -> Path:
    """Where torch keeps downloaded weights: ``torch.hub.get_dir()/checkpoints``."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def expected_hash(file: str) -> str:
    """The beginning of a file's SHA-256 that its name carries; "" where it carries none.

    Examples:
        >>> expected_hash("resnet18-f37072fd.pth")
        'f37072fd'
        >>> expected_hash("my.pth")
        ''
    """
    match = _HASH_IN_NAME.search(file)
    return match.group(1) if match else ""


_checked: dict[tuple[str, int, int, int], str] = {}


def file_hash(path: Path, cancelled: Callable[[], bool] | None = None) -> str:
    """A file's SHA-256; remembered while its size and times of change stay the same.

    Raises:
        OSError: The file cannot be read.
        RunCancelled: ``cancelled`` said so.
    """
    stat = path.stat()
    key = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _checked:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                if cancelled is not None and cancelled():
                    raise RunCancelled(f"Checking {path.name} was cancelled.")
                digest.update(piece)
        _checked[key] = digest.hexdigest()
    return _checked[key]


def hash_matches(path: Path, cancelled: Callable[[], bool] | None = None) -> bool:
    """Whether a file is what its name says; True where the name carries no hash."""
    expected = expected_hash(path.name)
    return not expected or file_hash(path, cancelled).startswith(expected)


def is_whole(path: Path, cancelled: Callable[[], bool] | None = None) -> bool:
    """Whether a file is there, has something in it, and its hash is right."""
    try:
        return path.is_file() and path.stat().st_size > 0 and hash_matches(path, cancelled)
    except OSError:
        return False


def fetch_state(
    url: str,
    *,
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The state dict behind a URL, from the cache or downloaded into it.

    A file in the cache with a wrong hash is fetched again: resumed where it is only cut off, and
    replaced when the new one is whole.

    Raises:
        WeightsError: Not there and not to be had; names the file, the folder and the way out.
        RunCancelled: ``cancelled`` said so.
    """
    path = cache_folder() / url.rpartition("/")[2]
    if not is_whole(path, cancelled):
        cached = path.is_file()
        damaged = "the file there is damaged and " if cached else ""
        download(
            mirrored(url),
            path,
            expected=expected_hash(path.name),
            start_from=path if cached and path.stat().st_size else None,
            progress=progress,
            cancelled=cancelled,
            remedy=f"Put {path.name} into {path.parent} ({damaged}it is at {url}), or use "
            "weights=None for an untrained model.",
        )
    content = read_checkpoint(path)
    if not isinstance(content, dict):
        raise WeightsError(f"{path.name} holds a {type(content).__name__}, no state dict.")
    return content


def cached_files(owners: Mapping[str, tuple[str, ...]], *, check: bool = False) -> list[CachedFile]:
    """What torch's cache holds.

    Args:
        owners: Which weights a file is, by its name.
        check: Read every file and compare its hash with its name (about a second per GB).

    Returns:
        Its files by name; empty where the folder does not exist.
    """
    try:
        paths = sorted(path for path in cache_folder().iterdir() if path.is_file())
    except OSError:
        return []
    return [
        CachedFile(path, path.stat().st_size, owners.get(path.name, ()), _state(path, check))
        for path in paths
    ]


def _state(path: Path, check: bool) -> str:
    if path.suffix == ".partial":
        return "partial"
    if not expected_hash(path.name):
        return "no hash"
    if not check:
        return "unchecked"
    try:
        return "whole" if hash_matches(path) else "corrupt"
    except OSError:
        return "unchecked"
