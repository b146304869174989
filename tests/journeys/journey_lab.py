"""In: a Playwright page and a JupyterLab server. Out: a person's moves in JupyterLab, as methods.

Must not know: hookviz. What the app looks like is in ``journey_app.py``; here are only the
notebook, its kernel and its browser tab.

Nothing sleeps: every method waits for the state that it promises, in the page itself.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import nbformat
from journey_servers import LabServer
from playwright.sync_api import ConsoleMessage, Dialog, Error, Locator, Page, WebSocket, expect

PATIENCE_MS = 60_000
"""How long anything may take before a journey fails: generous, the machine may be loaded."""

BROWSER_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser(own: str) -> str | None:
    """The system's Chromium, else Playwright's ``own`` where it has been installed, else None."""
    found = next(filter(None, map(shutil.which, BROWSER_NAMES)), None)
    return found or (own if Path(own).exists() else None)


IGNORED_CONSOLE_ERRORS = (
    # JupyterLab asks a kernel that is being restarted or shut down for its debugger's state.
    re.compile("debugger state"),
    # JupyterLab cancels its own open requests when a kernel goes away.
    re.compile("Canceled future"),
    # Voila's own page asks a content network for an icon font; the journeys need no network.
    re.compile("fontawesome-free"),
    # Notebook 7.6 itself asks for a setting's schema before it has loaded it.
    re.compile("reading 'schema'"),
    # … and for a command of JupyterLab's that it lacks.
    re.compile("'filebrowser:open-path' not registered"),
    # The workspace of `?reset` is asked for before it exists; the browser logs the 404 itself.
    re.compile(r"status of 404.*/api/workspaces"),
    # JupyterLab itself asks for its language servers, which its server has only by an extension.
    re.compile(r"status of 404.*/lsp/status"),
    # React inside JupyterLab, which redraws its own toolbars while a kernel is restarted. No
    # script of ours calls removeChild: its methods are remove() and replaceChildren().
    re.compile("execute 'removeChild' on 'Node'"),
)

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"

OPENED = """async () => {
  await jupyterapp.restored;
  const panel = jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
}"""

# In a JupyterLab that is open already: another notebook in the place of all that is there.
OPEN_NEXT = """async path => {
  const {shell, serviceManager, commands} = jupyterapp;
  await serviceManager.sessions.refreshRunning();
  await commands.execute('docmanager:open', {path, factory: 'Notebook'});
  for (const widget of [...shell.widgets('main')]) {
    if (widget !== shell.currentWidget) widget.dispose();
  }
  if (shell.leftCollapsed) shell.expandLeft();
}"""

# … and nothing of a journey that has ended: a document that is disposed of asks nothing.
CLOSE = """() => {
  for (const widget of [...jupyterapp.shell.widgets('main')]) widget.dispose();
  localStorage.clear();
  sessionStorage.clear();
}"""

IDLE = """() => {
  const session = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session;
  const kernel = session?.kernel;
  return kernel?.status === 'idle' && kernel?.connectionStatus === 'connected';
}"""

RUN_PYTHON = """async code => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({code, store_history: false, stop_on_error: false});
  let text = '';
  future.onIOPub = message => {
    const content = message.content;
    if (message.header.msg_type === 'stream') text += content.text;
    if (message.header.msg_type === 'error') text += content.traceback.join('\\n');
  };
  const late = new Promise((_, reject) => setTimeout(
    () => reject(new Error(`The kernel did not answer: ${code}`)), PATIENCE));
  const reply = await Promise.race([future.done, late]);
  return {status: reply.content.status, text};
}""".replace("PATIENCE", str(PATIENCE_MS))

# Leaves a kernel as it was at its start, but for what has been imported; says whether it is.
CLEAN = """
def _clean():
    import gc, threading, ipywidgets
    ipywidgets.Widget.close_all()
    ours = [thread for thread in threading.enumerate() if "hookviz" in thread.name.lower()]
    for thread in ours:
        thread.join(5)
    get_ipython().reset(new_session=True)
    gc.collect()
    print(not any(thread.is_alive() for thread in ours))
_clean()
"""

AXE = """async selector => {
  const result = await axe.run({include: [selector]}, {resultTypes: ['violations']});
  return result.violations
    .filter(violation => ['serious', 'critical'].includes(violation.impact))
    .flatMap(violation => violation.nodes.map(node => `${violation.impact} ${violation.id}: `
      + `${violation.help}: ${node.target.join(' ')}: ${node.failureSummary} ${node.html}`));
}"""


def write_notebook(path: Path, cells: Iterable[str], kernel: str = "python3") -> Path:
    """Write a notebook of these code cells."""
    spec = {"name": kernel, "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(cells)],
        metadata={"kernelspec": spec},
    )
    nbformat.write(notebook, path)
    return path


class Lab:
    """One notebook in one browser tab.

    Args:
        page: An empty page, or one that shows JupyterLab without a notebook.
        server: The running server.
        pictures: The folder where screenshots are kept.
    """

    def __init__(self, page: Page, server: LabServer, pictures: Path) -> None:
        self.page = page
        self.server = server
        self.pictures = pictures
        self.console: list[str] = []
        self.frames = 0
        self.name = ""
        self.own_kernel = True
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self._listeners: dict[Any, Any] = {
            "console": self._on_console,
            "pageerror": self._on_page_error,
            "dialog": self._on_dialog,
            "websocket": self._on_websocket,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    # --- what the browser says ------------------------------------------------------------

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            where = message.location.get("url", "")
            self.console.append(f"{message.text} ({where})")

    def _on_page_error(self, error: Error) -> None:
        self.console.append(f"uncaught: {error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        # "Leave page?" when a notebook with unsaved changes is reloaded.
        if dialog.type == "beforeunload":
            dialog.accept()
        else:
            self.console.append(f"unexpected dialog: {dialog.message}")
            dialog.dismiss()

    def _on_websocket(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._on_frame)

    def _on_frame(self, _payload: object) -> None:
        self.frames += 1

    def console_errors(self) -> list[str]:
        """What the browser's console reported as errors, without those that mean nothing here."""
        return [
            line
            for line in self.console
            if not any(ignored.search(line) for ignored in IGNORED_CONSOLE_ERRORS)
        ]

    # --- the notebook ---------------------------------------------------------------------

    def open(
        self, name: str, cells: Sequence[str] | None = None, *, own_kernel: bool = True
    ) -> None:
        """Open a notebook (written first if cells are given) and wait for its kernel.

        Without a kernel of its own it may get that of the journey before: emptied, but with
        torch and hookviz imported, which takes longer than most journeys.
        """
        if cells is not None:
            write_notebook(self.server.root / name, cells, self.server.kernel)
        first = not self.name
        self.name = name
        self.own_kernel = own_kernel
        if not own_kernel:
            self.server.hand_over(name)
        if first and self._shows_lab():
            self.page.evaluate(OPEN_NEXT, name)
            if self.page.evaluate("document.body.dataset.jpThemeLight") != "true":
                self.theme("light")
        else:
            self.page.goto(self.server.notebook_url(name))
        self._await_opened()

    def _shows_lab(self) -> bool:
        """Whether the page shows this server's JupyterLab."""
        here = self.page.url.startswith(f"{self.server.url}/lab")
        return here and bool(self.page.evaluate("() => !!window.jupyterapp?.shell"))

    def _await_opened(self) -> None:
        self.page.wait_for_function("() => !!window.jupyterapp?.shell?.currentWidget?.context")
        self.page.evaluate(OPENED)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until the kernel is connected and has nothing to do."""
        self.page.wait_for_function(IDLE)

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Run a JupyterLab command and wait for it."""
        self.page.evaluate(
            "async ([name, args]) => { await jupyterapp.commands.execute(name, args ?? {}); }",
            [name, arguments],
        )

    def run_all(self) -> None:
        """Run all cells; fails with the traceback if one of them raised."""
        self.command("notebook:run-all-cells")
        self.wait_idle()
        self.assert_no_cell_errors()

    def run_cell(self, index: int) -> None:
        """Select one cell and run it."""
        self.page.evaluate(
            "index => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index
        )
        self.command("notebook:run-cell")
        self.wait_idle()
        self.assert_no_cell_errors()

    def assert_no_cell_errors(self) -> None:
        errors = self.cell_errors()
        assert not errors, "\n".join(errors)

    def cells(self) -> list[dict[str, Any]]:
        """The notebook's cells as they are in the browser now, as notebook JSON."""
        cells: list[dict[str, Any]] = self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
            ".map(cell => cell.toJSON())"
        )
        return cells

    def sources(self) -> list[tuple[str, str]]:
        """Type and source of each cell: what a leaked key would change."""
        return [(cell["cell_type"], cell["source"]) for cell in self.cells()]

    def cell_errors(self) -> list[str]:
        """Each error among the cells' outputs, with its traceback."""
        return [
            "\n".join([f"{output['ename']}: {output['evalue']}", *output["traceback"]])
            for cell in self.cells()
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        ]

    def wait_output(self, mime: str) -> None:
        """Wait until a cell has an output of this kind."""
        self.page.wait_for_function(
            "mime => jupyterapp.shell.currentWidget.content.model.sharedModel.cells.some("
            "cell => (cell.toJSON().outputs ?? []).some(output => output.data?.[mime]))",
            arg=mime,
        )

    def output(self, index: int) -> Locator:
        """The output area of a cell."""
        return self.page.locator(
            f'{PANEL} .jp-Cell[data-windowed-list-index="{index}"] .jp-Cell-outputArea'
        )

    def save(self) -> Path:
        """Save the notebook; the path of its file."""
        self.command("docmanager:save")
        self.page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty")
        return self.server.root / self.name

    # --- the kernel -----------------------------------------------------------------------

    def python(self, code: str) -> str:
        """Run code in the notebook's kernel, past the notebook; what it printed."""
        answer: dict[str, str] = self.page.evaluate(RUN_PYTHON, code)
        assert answer["status"] == "ok", answer["text"]
        return answer["text"]

    def value(self, expression: str) -> Any:
        """The value of an expression in the notebook's kernel (anything that JSON can carry)."""
        return json.loads(self.python(f"import json as _json; print(_json.dumps({expression}))"))

    def expect_value(self, expression: str, expected: object) -> None:
        """Wait until an expression in the notebook's kernel has this value.

        For what follows from a move in the page: JupyterLab hands a widget's messages to a
        subshell of the kernel, beside the shell that this question goes to, and ipywidgets holds
        a change back while another is under way. So the first answer may be that of before.
        """
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (value := self.value(expression)) != expected and time.monotonic() < deadline:
            pass
        assert value == expected, expression

    def interrupt(self) -> None:
        """Press the toolbar's Interrupt, and wait until the kernel has been interrupted."""
        with self.page.expect_response(re.compile("/interrupt")):
            self.page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="interrupt"]').click()

    @contextlib.contextmanager
    def restarting(self) -> Iterator[None]:
        """Wait at the end until the kernel has been started anew."""
        self.page.evaluate(
            """() => {
              window.__restarted = new Promise(resolve => {
                const session = jupyterapp.shell.currentWidget.sessionContext;
                const seen = (_, status) => {
                  if (status === 'restarting' || status === 'autorestarting') {
                    session.statusChanged.disconnect(seen);
                    resolve(true);
                  }
                };
                session.statusChanged.connect(seen);
              });
            }"""
        )
        yield
        self.page.evaluate("async () => { await window.__restarted; }")
        self.wait_idle()

    def restart(self) -> None:
        """Press the toolbar's Restart, confirm, and wait for the new kernel."""
        with self.restarting():
            toolbar = self.page.locator(".jp-NotebookPanel-toolbar")
            toolbar.locator('[data-jp-item-name="restart"]').click()
            self.page.locator(".jp-Dialog button.jp-mod-accept").click()

    def reload(self) -> None:
        """Reload the page and wait for the notebook and its kernel."""
        # `&reset` in the address would forget the workspace and with it the open notebook.
        self.page.goto(self.server.notebook_url(self.name).replace("&reset", ""))
        self._await_opened()

    def leave(self, *, keep_kernel: bool) -> None:
        """At the end of a journey: keep its kernel, emptied, for the next one, or end it.

        JupyterLab itself stays, without a notebook: its start takes longer than most journeys.
        """
        clean = False
        try:
            if keep_kernel and not self.own_kernel:
                clean = self.python(CLEAN).strip() == "True"
        finally:
            if clean:
                self.server.kept = self.page.evaluate(
                    "() => jupyterapp.shell.currentWidget.sessionContext.session.id"
                )
            else:
                self.shutdown()
            if self._shows_lab():
                self.page.evaluate(CLOSE)
            for event, listener in self._listeners.items():
                self.page.remove_listener(event, listener)

    def shutdown(self) -> None:
        """End the kernel, so that the next journey has the machine."""
        self.page.evaluate(
            "async () => {"
            " const session = window.jupyterapp?.shell?.currentWidget?.sessionContext;"
            " if (session?.session) await session.shutdown(); }"
        )

    # --- hands ----------------------------------------------------------------------------

    def drop(self, target: Locator, *paths: Path) -> None:
        """Drop files onto an element, as the browser does when a person does it."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None, "the drop target is not on the screen"
        session = self.page.context.new_cdp_session(self.page)
        try:
            for kind in ("dragEnter", "dragOver", "drop"):
                session.send(
                    "Input.dispatchDragEvent",
                    {
                        "type": kind,
                        "x": box["x"] + box["width"] / 2,
                        "y": box["y"] + box["height"] / 2,
                        "data": {
                            "items": [],
                            "files": [str(path) for path in paths],
                            "dragOperationsMask": 1,
                        },
                    },
                )
        finally:
            session.detach()

    def copy_image(self, png: Path) -> None:
        """Put a PNG picture on the clipboard, as a screenshot program does."""
        self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page.evaluate(
            """async data => {
              const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
              const blob = new Blob([bytes], {type: 'image/png'});
              await navigator.clipboard.write([new ClipboardItem({'image/png': blob})]);
            }""",
            base64.b64encode(png.read_bytes()).decode(),
        )

    def theme(self, which: Literal["light", "dark"]) -> None:
        """Change JupyterLab's theme and wait until the page wears it."""
        name = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[which]
        self.command("apputils:change-theme", {"theme": name})
        self.page.wait_for_function(
            "name => document.body.dataset.jpThemeName === name && getComputedStyle(document.body)"
            ".getPropertyValue('--jp-layout-color1').trim() !== ''",
            arg=name,
        )

    def await_picture(self, picture: Locator) -> None:
        """Wait until an <img> shows its picture."""
        expect(picture).to_be_visible()
        handle = picture.element_handle()
        self.page.wait_for_function("img => img.complete && img.naturalWidth > 0", arg=handle)

    def axe(self, source: str, selector: str) -> list[str]:
        """What axe-core finds serious or critical below a selector, one line each.

        Args:
            source: The text of axe.min.js.
            selector: Only what is below it is checked (JupyterLab's own page is not ours).
        """
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(source)
        found: list[str] = self.page.evaluate(AXE, selector)
        return found

    def screenshot(self, name: str, target: Locator | None = None) -> Path:
        """Keep a picture of the page (or of one element) among the artefacts."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        path = self.pictures / f"{name}.png"
        (target or self.page).screenshot(path=path, animations="disabled")
        return path
