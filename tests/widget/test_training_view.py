"""A watched training as a widget."""

from __future__ import annotations

import base64
import io
import re
import threading
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.widget import TrainingView


def shown(value: str) -> Any:
    found = re.search(r'src="data:image/png;base64,([^"]+)"', value)
    assert found is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB"))


def test_a_view_follows_a_training() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with hookviz.monitor(
        net, every=1, stats_every=1, probe=hookviz.sample_image(), on_alert="record", width=300
    ) as m:
        view = TrainingView(m)
        before = threading.active_count()

        def step() -> None:
            net(torch.rand(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()
            m.step()
            view.refresh()

        step()
        assert view.time.options == (0, 1)
        assert view.time.value == 1  # the newest
        assert view.drawn.options == ("0, maps", "0, filters")
        assert np.array_equal(shown(view._map.value), np.asarray(m.picture("0").convert("RGB")))
        view.time.value = 0
        first = np.asarray(m.picture("0", step=0).convert("RGB"))
        assert np.array_equal(shown(view._map.value), first)
        step()
        assert view.time.options == (0, 1, 2)
        assert view.time.value == 0  # who has gone back stays there
        assert np.array_equal(shown(view._map.value), first)
        view.quantity.value = "mean"
        view.layer.value = 2
        assert 'alt="mean of 1 over the steps"' in view._curves.value
        view.quantity.value = "loss"
        assert "There is no quantity" in view._curves.value  # step() was given none
        view.close()
        assert threading.active_count() <= before


def test_names_are_texts_not_markup() -> None:
    net = nn.Sequential()
    net.add_module("<b>x</b>", nn.Linear(2, 2))
    with hookviz.monitor(net, stats_every=1, on_alert="record") as m:
        net(torch.full((1, 2), float("nan"))).sum().backward()
        m.step()
    view = TrainingView(m)
    assert "&lt;b&gt;x&lt;/b&gt;" in view._alerts.value
    assert "<b>x" not in view._alerts.value + view._curves.value
    view.close()
