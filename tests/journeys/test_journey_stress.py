"""Impatience: cancel, interrupt, double clicks, fifty ticks, a model that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# A model of twenty layers; each waits until the test lets it go on (or for two minutes at most).
# Trials on torch's meta device, which find sizes and shapes, are no forwards.
SLOW = """import threading, torch, hookviz
from torch import nn

forwards, gate = [], threading.Semaphore(3)

class Wait(nn.Module):
    def forward(self, x):
        if not x.is_meta:
            gate.acquire(timeout=120)
        return x + 1

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(*[Wait() for _ in range(20)])
    def forward(self, x):
        if not x.is_meta:
            forwards.append(1)
        return self.steps(x)

photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore(Slow(), photo, [f"steps.{i}" for i in range(20)], run=False)
app"""

QUICK = """import hookviz, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(60)])
forwards = []
net.register_forward_pre_hook(lambda module, args: forwards.append(1))
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore(net, photo, ["0"], run=False)
app"""

FAILING = """import hookviz, torch
from torch import nn
class Fragile(nn.Module):
    broken = True
    def forward(self, x):
        if self.broken:
            raise ValueError("shape of the third kind")
        return x
net = nn.Sequential(nn.Conv2d(3, 8, 3), Fragile(), nn.Conv2d(8, 4, 3))
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore(net, photo, ["0", "1", "2"], run=False)
app"""


def test_cancel_keeps_what_is_finished(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(SLOW)
    app.run_button.click()
    app.wait_state("running")
    app.painted("steps.0")  # shown as soon as it is there, in the middle of the run
    app.painted("steps.1")
    lab.screenshot("stress_1_running")
    app.part("cancel").click()
    lab.python("gate.release(1)")  # one layer's own work ends; the next must not start
    app.wait_idle()
    lab.expect_value("len(forwards)", 1)
    done = lab.value("len(app.run.activations)") if lab.value("app.run is not None") else 3
    assert 2 <= done < 20
    app.painted("steps.0")
    lab.screenshot("stress_2_cancelled")
    # and again, to the end
    lab.python("gate.release(100)")
    app.run("steps.19")
    lab.expect_value("len(forwards)", 2)
    app.expect_no_alert()


def test_a_double_click_runs_once(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(SLOW)
    app.run_button.dblclick()
    app.wait_state("running")
    app.run_button.click(force=True)  # it is marked as disabled, and may be clicked all the same
    lab.python("gate.release(100)")
    app.painted("steps.19")
    app.wait_idle()
    lab.expect_value("len(forwards)", 1)


def test_interrupting_the_kernel_leaves_a_usable_app(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(SLOW)
    app.run_button.click()
    app.painted("steps.1")
    lab.interrupt()
    lab.python("gate.release(100)")
    app.wait_idle()
    app.run("steps.19")
    lab.screenshot("stress_3_after_interrupt")


def test_fifty_rapid_ticks_end_in_the_right_state(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(QUICK)
    app.expect_image("chelsea.png")
    app.button("Tick all shown").click()
    app.run("0", "59")
    app.button("Untick all shown").click()
    expect(app.cards()).to_have_count(0)
    # fifty ticks faster than any hand: in one task of the browser
    app.part("treebox").evaluate(
        """tree => { for (let i = 0; i < 50; i++) {
          tree.querySelector(`[data-hv="row"][data-name="${i % 10}"] [data-hv="tick"]`).click();
        } }"""
    )
    # each of the ten was clicked five times: all are ticked now
    for i in range(10):
        expect(app.row(str(i))).to_have_attribute("aria-checked", "true")
        app.painted(str(i))
    expect(app.cards()).to_have_count(10)
    lab.expect_value("sorted(app.layers, key=int)", [str(i) for i in range(10)])
    assert lab.value("len(forwards)") == 1, "ticking what is captured ran the model again"


def test_a_forward_that_fails_is_one_alert_and_keeps_what_was_captured(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(FAILING)
    app.expect_image("chelsea.png")
    app.run_button.click()
    alert = app.expect_alert("shape of the third kind")
    app.wait_idle()
    app.painted("0")
    expect(app.root.get_by_role("alert").filter(visible=True)).to_have_count(1)
    alert.locator("summary").click()
    expect(alert.locator("pre")).to_contain_text("ValueError")
    lab.screenshot("stress_4_failed_forward")
    lab.python("net[1].broken = False")
    app.run("0", "1", "2")
    app.expect_no_alert()
