"""The harness itself, on widgets that are not hookviz's: if these fail, look here first."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest
from journey_kernels import WARM
from journey_lab import Lab, write_notebook
from journey_servers import LabServer, VoilaServer
from PIL import Image
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

BUTTON = """
import ipywidgets as W
presses = []
button = W.Button(description="Press me")
answer = W.Label("nothing yet")
def pressed(_):
    presses.append(1)
    answer.value = f"pressed {len(presses)}"
button.on_click(pressed)
W.VBox([button, answer])
"""

# An anywidget that says which files reached it, by drop, paste or choice.
RECEIVER = """
import anywidget, traitlets
class Receiver(anywidget.AnyWidget):
    _esm = '''
    function render({ model, el }) {
      const zone = document.createElement("div");
      zone.tabIndex = 0;
      zone.setAttribute("role", "button");
      zone.setAttribute("aria-label", "Receiver");
      zone.style.cssText = "height: 80px; background: var(--jp-layout-color2)";
      const take = (how, files) => {
        const named = [...files].map(f => `${how} ${f.name} ${f.size}`);
        model.set("got", [...model.get("got"), ...named]);
        model.save_changes();
      };
      zone.addEventListener("dragover", event => event.preventDefault());
      zone.addEventListener("drop", event => {
        event.preventDefault();
        take("drop", event.dataTransfer.files);
      });
      zone.addEventListener("paste", event => take("paste", event.clipboardData.files));
      model.on("change:got", () => { zone.textContent = model.get("got").join(", "); });
      el.append(zone);
    }
    export default { render };
    '''
    got = traitlets.List().tag(sync=True)
receiver = Receiver()
receiver
"""

ABOUT_ITSELF = """
import os, signal, sys
warm = "torch" in sys.modules
import ipywidgets, matplotlib.pyplot
own = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "HOOKVIZ_WARM_KERNELS")
about = {
    "warm": warm,
    "environment": {name: os.environ[name] for name in os.environ if name not in own},
    "folder": os.getcwd(),
    "program": sys.argv[0],
    "path": sys.path,
    "flags": str(sys.flags),
    "session": os.getsid(0) == os.getpid(),
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "backend": matplotlib.pyplot.get_backend(),
    "comms": sorted(get_ipython().kernel.comm_manager.targets),
}
"""


def test_press_a_button_and_ask_the_kernel(open_notebook: Callable[..., Lab]) -> None:
    lab = open_notebook(BUTTON)
    lab.output(0).get_by_role("button", name="Press me").click()
    expect(lab.output(0)).to_contain_text("pressed 1")
    lab.expect_value("len(presses)", 1)
    assert lab.frames > 0
    lab.screenshot("harness_button")


def test_files_by_drop_and_by_paste(
    open_notebook: Callable[..., Lab], tmp_path: os.PathLike[str]
) -> None:
    lab = open_notebook(RECEIVER)
    picture = lab.server.root / "red.png"
    Image.new("RGB", (4, 3), "red").save(picture)
    zone = lab.output(0).get_by_role("button", name="Receiver")
    lab.drop(zone, picture)
    expect(zone).to_contain_text(f"drop red.png {picture.stat().st_size}")
    lab.copy_image(picture)
    zone.focus()
    lab.page.keyboard.press("Control+V")
    expect(zone).to_contain_text(re.compile("paste image.png"))


def test_dark_theme_reload_restart_interrupt_save(open_notebook: Callable[..., Lab]) -> None:
    lab = open_notebook("x = 41", "x + 1", own_kernel=True)
    lab.theme("dark")
    dark = lab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    lab.theme("light")
    assert lab.page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert lab.save().stat().st_size > 100
    lab.reload()
    assert lab.value("x") == 41  # the kernel lived on
    lab.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    lab.interrupt()
    lab.wait_idle()
    lab.restart()
    assert lab.value("'x' in globals()") is False
    assert lab.sources() == [("code", "x = 41"), ("code", "x + 1")]


def test_a_forked_kernel_is_as_any_other(lab: Lab) -> None:
    found = []
    for kernel in ("python3", lab.server.kernel):
        name = f"{kernel}_is_as_any_other.ipynb"
        write_notebook(lab.server.root / name, [ABOUT_ITSELF], kernel)
        lab.open(name)
        lab.run_all()
        found.append(lab.value("about"))
        lab.shutdown()
    usual, forked = found
    assert (usual.pop("warm"), forked.pop("warm")) == (False, lab.server.kernel == WARM)
    assert forked["environment"].items() >= usual["environment"].items()
    assert {**forked, "environment": usual["environment"]} == usual


def test_a_kernel_that_was_killed_is_started_anew(open_notebook: Callable[..., Lab]) -> None:
    lab = open_notebook("import os\nfirst = os.getpid()", own_kernel=True)
    first = lab.value("first")
    with lab.restarting():
        os.kill(first, signal.SIGKILL)
        told = lab.page.locator(".jp-Dialog")
        expect(told).to_contain_text("The kernel for")  # … has died, and restarts
        told.locator("button.jp-mod-accept").click()
    assert lab.value("'first' in globals()") is False
    assert lab.value("__import__('os').getpid()") != first


def test_an_error_in_a_cell_is_reported(open_notebook: Callable[..., Lab]) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        open_notebook("1 / 0")


def test_a_console_error_is_noticed(lab: Lab) -> None:
    lab.page.evaluate("console.error('something broke')")
    assert any("something broke" in line for line in lab.console_errors())
    lab.console.clear()


def test_the_server_is_our_own(lab: Lab) -> None:
    commands = lab.server.command()
    assert "--ServerApp.ip=127.0.0.1" in commands
    assert f"--IdentityProvider.token={lab.server.token}" in commands
    os.kill(lab.server.pid, 0)  # raises if there is no such process


def test_axe_sees_a_control_without_a_name(
    open_notebook: Callable[..., Lab], axe_source: str
) -> None:
    lab = open_notebook(
        "from IPython.display import HTML, display\n"
        "display(HTML('<div id=good><label>Name <input></label></div>'))\n"
        "display(HTML('<div id=bad><input></div>'))"
    )
    assert lab.axe(axe_source, "#good") == []
    assert any("critical label" in line for line in lab.axe(axe_source, "#bad"))


def test_voila_serves_the_same_widgets(
    page: Page, tmp_path_factory: pytest.TempPathFactory, lab_server: LabServer
) -> None:
    folder = tmp_path_factory.mktemp("voila")
    notebook = write_notebook(folder / "button.ipynb", [BUTTON])
    with VoilaServer(folder / "home", folder, notebook.name) as voila:
        page.goto(voila.url)
        page.get_by_role("button", name="Press me").click()
        expect(page.get_by_text("pressed 1")).to_be_visible()
