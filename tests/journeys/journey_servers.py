"""In: a folder of notebooks. Out: a server of our own on 127.0.0.1: JupyterLab, Voila, marimo.

Must not know: what the notebooks do, and anything about the browser.

Every Jupyter folder (configuration, data, runtime, settings, workspaces, IPython) lies in the
temporary folder given, so a developer's own JupyterLab neither shapes a test nor is touched by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import journey_kernels

REPOSITORY = Path(__file__).resolve().parents[2]

START_SECONDS = 90.0
STOP_SECONDS = 20.0

# A test's JupyterLab asks the network nothing, saves only when told, and keeps all cells in the
# page (windowing would take a cell that is out of view out of the document).
LAB_SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def isolated_environment(home: Path) -> dict[str, str]:
    """This process's environment with every Jupyter folder moved below ``home``."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))
    }
    for name in ("config", "data", "runtime", "settings", "workspaces", "ipython", "torch"):
        (home / name).mkdir(parents=True, exist_ok=True)
    environment |= {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        # The weights in a developer's cache would change what "VGG16" means from one machine to
        # the next: journeys see the bundled weights alone.
        "TORCH_HOME": str(home / "torch"),
        # The checkout under test, whether or not it is installed.
        "PYTHONPATH": os.pathsep.join(
            part for part in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if part
        ),
        "PYTHONUNBUFFERED": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        # marimo keeps its settings and its state here.
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    return environment


class Server:
    """One server process: started, waited for by its own log line, ended by its own pid.

    Args:
        home: A folder for the server's settings and its log.
        root: The folder whose notebooks it serves (its working directory).
    """

    ready_line = "/api/status"

    def __init__(self, home: Path, root: Path) -> None:
        self.home = home
        self.root = root
        self.token = secrets.token_hex(16)
        self.port = 0
        self.log = home / f"{type(self).__name__}.log"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Write what the server reads at its start."""

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(parents=True, exist_ok=True)
        self.prepare()
        # Between asking for a free port and taking it somebody else may take it: three tries.
        for _attempt in range(3):
            self.port = free_port()
            self._ready.clear()
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.root,
                env=isolated_environment(self.home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._reader = threading.Thread(target=self._read_log, daemon=True)
            self._reader.start()
            try:
                ready = self._ready.wait(START_SECONDS) and self._listens()
            except BaseException:  # Ctrl-C while it starts: nobody else would end it
                self.stop()
                raise
            if ready:
                return
            self.stop()
        raise RuntimeError(
            f"{type(self).__name__} did not start; its log ends: …{self.log.read_text()[-3000:]}"
        )

    def _listens(self) -> bool:
        """Whether the port answers; some servers print their address a moment before it does."""
        until = time.monotonic() + START_SECONDS
        while self._process is not None and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return True
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return False

    def _read_log(self) -> None:
        """Copy the server's output into the log; ready when its address has been printed."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("a", encoding="utf-8") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if self.ready_line in line:
                    self._ready.set()
        self._ready.set()  # ended: nobody need wait any longer

    def stop(self) -> None:
        """End the server with SIGTERM (kernels go with it), with SIGKILL if it does not listen."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
        if self._reader is not None:
            self._reader.join(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


class LabServer(Server):
    """JupyterLab with a token, on a free port, with its own settings.

    Args:
        home: See `Server`.
        root: See `Server`.
        base_url: The path that all its addresses begin with, as JupyterHub gives to each person.

    Attributes:
        kernel: The name of the kernels that its notebooks ask for.
        kept: The id of the session whose kernel, with its imports, the next journey may take
            over; "" for none.
    """

    ready_line = "is running at:"
    kernel = "python3"
    kept = ""

    def __init__(self, home: Path, root: Path, base_url: str = "") -> None:
        super().__init__(home, root)
        self.base_url = base_url
        self.proxy: SlowProxy | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port if self.proxy else self.port}{self.base_url}"

    def prepare(self) -> None:
        for name, values in LAB_SETTINGS.items():
            path = self.home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")
        if journey_kernels.ADDRESS in os.environ:
            journey_kernels.offer(self.home / "data", self.home / "config")
            self.kernel = journey_kernels.WARM

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.base_url={self.base_url}/",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.root}",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
            "--LabApp.news_url=",
        ]

    def forget_theme(self) -> None:
        """Go back to the light theme, which the server remembers otherwise."""
        themes = self.home / "settings" / "@jupyterlab" / "apputils-extension"
        (themes / "themes.jupyterlab-settings").unlink(missing_ok=True)

    def notebook_url(self, name: str) -> str:
        return f"{self.url}/lab/tree/{name}?token={self.token}&reset"

    def hand_over(self, name: str) -> None:
        """Give the kernel that was kept to a notebook which is about to be opened."""
        session, self.kept = self.kept, ""
        if not session:
            return
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/api/sessions/{session}",
            json.dumps({"path": name, "name": name, "type": "notebook"}).encode(),
            {"Authorization": f"token {self.token}", "Content-Type": "application/json"},
            method="PATCH",
        )
        # Where the session has gone, JupyterLab starts a new one.
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=START_SECONDS).close()  # noqa: S310

    def end_kernels(self, page: Any) -> None:
        """End all kernels through the server's own interface."""
        headers = {"Authorization": f"token {self.token}"}
        for kernel in page.request.get(f"{self.url}/api/kernels", headers=headers).json():
            page.request.delete(f"{self.url}/api/kernels/{kernel['id']}", headers=headers)

    def notebook_7_url(self, name: str) -> str:
        """The same notebook in Jupyter Notebook 7, which the same server serves."""
        return f"{self.url}/notebooks/{name}?token={self.token}"


class SlowProxy:
    """A way to a server of ours through another port of 127.0.0.1, as slow as a poor connection.

    Args:
        server: Where it leads.

    Attributes:
        port: The port that it listens on.
        bytes_per_second: What each connection carries at most in each direction; 0 for no limit.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.bytes_per_second = 0.0

    def __enter__(self) -> SlowProxy:
        self._thread.start()
        listening = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._listener = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_error: object) -> None:
        async def end() -> None:
            self._listener.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)  # the sockets close at the loop's next turns

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            back.transport.abort()
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(16384):
                writer.write(data)
                await writer.drain()
                if self.bytes_per_second:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
        writer.close()


class VoilaServer(Server):
    """Voila serving one notebook as a page."""

    ready_line = "is running at:"

    def __init__(self, home: Path, root: Path, notebook: str) -> None:
        super().__init__(home, root)
        self.notebook = notebook

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "voila", self.notebook, "--no-browser"),
            "--Voila.ip=127.0.0.1",
            f"--port={self.port}",
            "--port_retries=0",
            "--Voila.open_browser=False",
            # Notebook 7's own extension, where that is installed too, does not load in Voila.
            "--VoilaConfiguration.extension_denylist=@jupyter-notebook/lab-extension",
        ]


class MarimoServer(Server):
    """marimo on one notebook of its kind, as an editor or as an app."""

    ready_line = "URL:"

    def __init__(self, home: Path, root: Path, notebook: str, mode: str = "edit") -> None:
        super().__init__(home, root)
        self.notebook = notebook
        self.mode = mode

    @property
    def page_url(self) -> str:
        return f"{self.url}/?access_token={self.token}"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "marimo", "-y", self.mode),
            *(self.notebook, "--headless", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--token-password", self.token, "--no-sandbox"),
            *(["--skip-update-check"] if self.mode == "edit" else []),
        ]


class SolaraServer(Server):
    """Solara serving one component as a page."""

    ready_line = "Solara server is starting"

    def __init__(self, home: Path, root: Path, module: str) -> None:
        super().__init__(home, root)
        self.module = module

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "solara", "run", self.module, "--no-open"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]


class PanelServer(SolaraServer):
    """Panel serving one script as a page."""

    ready_line = "Bokeh app running at"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "panel", "serve", self.module),
            *("--address", "127.0.0.1", "--port", str(self.port)),
        ]
