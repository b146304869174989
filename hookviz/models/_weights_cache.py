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

_Report = Callable[[int, int], None]

CONNECT_SECONDS = 4.5
"""For name, connection and first answer together: offline has to be said within 5 seconds."""
STALL_SECONDS = 20.0
"""Longest silence in the middle of a file."""
ATTEMPTS = 4
"""Connections for one file, the first one included."""
_PAUSE = 0.2
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
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
    remedy: str = "",
) -> Path:
    """Fetch a file, whole and checked, or leave nothing behind.

    A file that is there, for example of a broken download, is resumed if the server can, and stays
    as it is until the new one is whole.

    Args:
        url: "http://…" or "https://…".
        target: Where the file goes; its folder is made. The hash in its name, if any, is checked.
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
        if target.is_file():
            shutil.copyfile(target, partial)
        else:
            partial.touch(exist_ok=False)
        with _shown(progress, target.name) as report:
            hash_ = expected_hash(target.name)
            _fetch_checked(url, partial, hash_, report, cancelled or (lambda: False))
        partial.replace(target)
    except OSError as error:
        where = error.filename or target.parent
        raise WeightsError(
            f"{target.name} cannot be written to {target.parent}: {error.strerror} ({where}).",
            remedy="Set TORCH_HOME to a folder that can be written.",
        ) from error
    except (_BrokenError, _RefusedError) as error:
        host = urllib.request.Request(url).host or url  # noqa: S310 - parsed, not opened
        raise WeightsError(
            f"{target.name} could not be downloaded from {host}: {error}.",
            remedy=remedy or None,
            code="download-failed",
            details={"file": target.name, "folder": str(target.parent), "url": url},
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def _fetch_checked(
    url: str, partial: Path, expected: str, report: _Report, cancelled: Callable[[], bool]
) -> None:
    """Fetch into ``partial``; once more from the start if what was resumed proves wrong."""
    resumed = partial.stat().st_size > 0
    _fetch(url, partial, report, cancelled)
    found = file_hash(partial, cancelled)
    if not found.startswith(expected):
        if not resumed:
            raise _RefusedError(
                f"its SHA-256 begins with {found[: len(expected)]}, expected {expected}"
            )
        partial.write_bytes(b"")
        _fetch_checked(url, partial, expected, report, cancelled)


def _fetch(url: str, partial: Path, report: _Report, cancelled: Callable[[], bool]) -> None:
    """All bytes of the file, over as many connections as it takes."""
    for attempt in range(1, ATTEMPTS + 1):
        before = partial.stat().st_size
        connection = _Connection(url, partial)
        try:
            connection.watch(report, cancelled)
        except _BrokenError as error:
            # A first connection that fails is "offline" and said at once; later ones are tried
            # again as long as each brings something.
            if attempt == ATTEMPTS or partial.stat().st_size <= before:
                raise _BrokenError(
                    f"{error} (after {attempt} attempt{'s' * (attempt > 1)})"
                ) from None
            time.sleep(_PAUSE)
        else:
            return
        finally:
            connection.gone.set()


class _Connection(threading.Thread):
    """Writes what a server sends behind what a file has.

    Looking up a name has no time limit of its own, and no blocking read can be cancelled, so a
    daemon thread does both; it is left behind where it hangs, and writes nothing more.
    """

    def __init__(self, url: str, partial: Path) -> None:
        super().__init__(name="hookviz-download", daemon=True)
        self.url, self.partial = url, partial
        self.done, self.total = partial.stat().st_size, 0
        self.answered = False
        self.gone = threading.Event()
        self.error: Exception | None = None

    def watch(self, report: _Report, cancelled: Callable[[], bool]) -> None:
        """Wait for the last byte, looking out for a cancel and for silence."""
        self.start()
        seen, since, alive = -1, time.monotonic(), True
        while alive:
            self.join(_REPORT_SECONDS)
            alive = self.is_alive()
            if cancelled():
                raise RunCancelled("The download was cancelled; nothing was kept.")
            limit = STALL_SECONDS if self.answered else CONNECT_SECONDS
            if self.answered and self.done != seen:
                seen, since = self.done, time.monotonic()
                report(self.done, self.total)
            elif alive and time.monotonic() - since > limit:
                what = f"{self._broke()}, nothing more came" if self.answered else "no answer"
                raise _BrokenError(f"{what} within {limit:g} seconds")
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Fetch in the thread, and keep what goes wrong for the one who waits."""
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - raised by `watch`
            self.error = error

    def _broke(self) -> str:
        return f"the connection broke at {self.done} of {self.total or 'unknown'} bytes"

    def _receive(self) -> None:
        have = self.done
        headers = {"User-Agent": "hookviz", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310 - https of torchvision's enums or what the user set in its place
        try:
            answer = urllib.request.urlopen(request, timeout=STALL_SECONDS)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                return  # nothing after what is there; the hash will tell
            raise _RefusedError(f"the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or reason
            raise _BrokenError(f"no connection ({why})") from None
        with answer:
            resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            self.done = have if answer.status == 206 and resumed else 0
            length = answer.headers.get("Content-Length") or ""
            self.total = self.done + int(length) if length.isdigit() else 0
            if answer.headers.get_content_type() == "text/html":
                raise _RefusedError("the server answered with a web page instead of the file")
            free = shutil.disk_usage(self.partial.parent).free
            if self.total - self.done > free:
                needed = bytes_text(self.total)
                raise _RefusedError(f"it needs {needed} and {bytes_text(free)} are free")
            self.answered = True
            piece = b"?"
            while piece:
                try:
                    piece = answer.read1(_PIECE)
                except (OSError, http.client.HTTPException) as error:
                    raise _BrokenError(f"{self._broke()} ({error})") from None
                if self.gone.is_set():
                    return
                # Opened for each piece: a file left open could not be removed on every system.
                with self.partial.open("r+b") as file:
                    file.truncate(self.done)
                    file.seek(self.done)
                    self.done += file.write(piece)
        if self.done < self.total:
            raise _BrokenError(self._broke())


def reachable(url: str) -> bool:
    """Whether a server answers, whatever it says; asked in a thread as downloads are."""
    answers = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - the hub's address
            urllib.request.urlopen(request, timeout=CONNECT_SECONDS).close()  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, http.client.HTTPException, ValueError):
            return
        answers.append(True)

    thread = threading.Thread(target=ask, name="hookviz-knock", daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return bool(answers)


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
def _shown(progress: bool | Progress, name: str) -> Iterator[_Report]:
    """What to call with the bytes done and in all: the user's callable, or a bar on stderr."""
    if callable(progress):
        yield lambda done, total: progress(done, total, name)
        return
    units: Any = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "mininterval": 0}
    # With a delay, however short, nothing is shown before the first bytes.
    with tqdm(desc=name, disable=not progress, delay=1e-9, **units) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total or None
            bar.update(done - bar.n)

        yield show


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


def is_whole(path: Path, cancelled: Callable[[], bool] | None = None) -> bool:
    """Whether a file is there, has something in it, and its hash is what its name says, if any."""
    try:
        expected = expected_hash(path.name)
        there = path.is_file() and path.stat().st_size > 0
        return there and (not expected or file_hash(path, cancelled).startswith(expected))
    except OSError:
        return False


def fetch_state(url: str, progress: bool | Progress, cancelled: Callable[[], bool] | None) -> Any:
    """The state dict behind a URL, from the cache or downloaded into it.

    A file in the cache with a wrong hash is fetched again: resumed where it is only cut off, and
    replaced when the new one is whole.

    Raises:
        WeightsError: Not there and not to be had; names the file, the folder and the way out.
        RunCancelled: ``cancelled`` said so.
    """
    path = cache_folder() / url.rpartition("/")[2]
    if not is_whole(path, cancelled):
        damaged = "the file there is damaged and " if path.is_file() else ""
        download(
            mirrored(url),
            path,
            progress=progress,
            cancelled=cancelled,
            remedy=f"Put {path.name} into {path.parent} ({damaged}it is at {url}), or use "
            "weights=None for an untrained model.",
        )
    return read_checkpoint(path)


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
    return "whole" if is_whole(path) else "corrupt"
