"""The app in a real kernel without a page: an executed notebook, and the toolbar's ■."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
nbconvert = pytest.importorskip("nbconvert")

START = """
import threading, time, hookviz
from torch import nn

class Slow(nn.Module):
    def forward(self, x):
        if not x.is_meta:  # loading tries a size on tensors without values
            time.sleep(0.05)
        return x

def net(count):
    return nn.Sequential(nn.Conv2d(3, 4, 3), *(Slow() for _ in range(count)))

image = hookviz.sample_image()
"""


def executed(*cells: str) -> Any:
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(source) for source in (START, *cells)]
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    return book


def pictures(cell: Any) -> list[Image.Image]:
    found = [o["data"]["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
    return [Image.open(io.BytesIO(base64.b64decode(png))) for png in found]


def test_an_executed_notebook_holds_the_results_and_so_does_its_html(tmp_path: Path) -> None:
    book = executed(
        "app = hookviz.explore(net(3), image, ['0'])\napp",
        "print(app.run.layers, app.status['outcome'])",
        "hookviz.explore(net(1), image, ['0'], run=False)",
        "hookviz.explore(net(1), layers=['0'])",
    )
    _, app, later, asked_not_to, no_image = book.cells
    (picture,) = pictures(app)
    assert picture.width > 300
    assert len(picture.convert("RGB").getcolors(1 << 20)) > 16
    assert later.outputs[0]["text"] == "('0',) ok\n"
    assert pictures(asked_not_to) == pictures(no_image) == []
    html, _ = nbconvert.HTMLExporter().from_notebook_node(book)
    (png,) = (o.data["image/png"] for o in app.outputs if "image/png" in o.get("data", {}))
    assert f"base64,{png.strip()}" in html


def test_a_run_that_fails_ends_the_cell_and_the_next_one_runs() -> None:
    book = executed(
        "net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(5, 4, 3))\n"
        "app = hookviz.explore(net, image, ['0', '1'])\n"
        "app",
        "print(app.status['outcome'], app.alert['message'][:30])",
    )
    assert book.cells[-1].outputs[0]["text"] == "failed The forward failed in layer '1\n"
    assert len(pictures(book.cells[1])) == 1


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """A kernel with hookviz imported: its manager, its client, and what runs code in it."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def run(code: str) -> str:
        texts: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text", "") or content.get("ename", "") or "")

        client.execute_interactive(code, timeout=120, output_hook=hear, store_history=False)
        return "".join(texts)

    try:
        run(START)
        yield manager, client, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_the_kernels_interrupt_cancels_a_run_of_an_idle_kernel_and_of_a_waiting_cell(
    kernel: Any,
) -> None:
    manager, _, run = kernel
    run("app = hookviz.explore(net(2000), image, ['0'], run=False)")
    assert run("print(app.start_run())") == "True\n"
    manager.interrupt_kernel()
    until = "end = time.time() + 20\nwhile app.jobs.busy and time.time() < end: time.sleep(0.02)"
    assert run(f"{until}\nprint(app.status['outcome'])") == "cancelled\n"

    # An interrupt of a cell goes to that cell: here it waits for the run.
    run("app.start_run(); threading.Timer(1, lambda: __import__('os').kill("
        "__import__('os').getpid(), 2)).start()")  # fmt: skip
    assert "KeyboardInterrupt" in run("app.wait(100)")
    assert run(f"{until}\nprint(app.status['outcome'])") == "cancelled\n"
    assert run("print(1)") == "1\n"


@pytest.mark.parametrize("sends", ["nobody", "a cell", "a thread"])
def test_what_is_sent_during_a_cell_does_not_have_the_page_wait_for_its_end(
    kernel: Any, sends: str
) -> None:
    _, client, run = kernel
    if "kernel subshells" not in client.kernel_info(reply=True)["content"]["supported_features"]:
        pytest.skip("this kernel has no subshells")
    client.control_channel.send(client.session.msg("create_subshell_request"))
    subshell = client.control_channel.get_msg(timeout=30)["content"]["subshell_id"]
    comm = run(
        "app = hookviz.explore(net(0), run=False)\n"
        "heard = threading.Semaphore(0)\n"
        "app.on_msg(lambda *_: heard.release())\n"
        "print(app.comm.comm_id)"
    ).strip()

    def ask() -> None:
        content = {"comm_id": comm, "data": {"method": "custom", "content": {"type": "ping"}}}
        message = client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)

    send = "app.send({'type': 'news'})"
    if sends == "nobody":
        send = "pass"  # nor has the page asked before
    else:
        ask()
        assert run("print(heard.acquire(timeout=60))") == "True\n"
    if sends == "a thread":
        send = f"sender = threading.Thread(target=lambda: {send}); sender.start(); sender.join()"
    # The cell goes on until it has seen the page's message, so that its end frees nobody.
    cell = client.execute(f"{send}\nprint('sent')\nprint(heard.acquire(timeout=20))")
    said = ""
    while said.count("\n") < 2:  # a kernel sends what is printed in pieces
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != cell or message["msg_type"] != "stream":
            continue
        said += message["content"]["text"]
        if said == "sent\n":
            ask()
    assert said == "sent\nTrue\n"
