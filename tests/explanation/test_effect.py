"""The effect of edits on a target, as one number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookviz
from hookviz.capture import zero
from hookviz.errors import HookvizError, LayerError
from hookviz.explanation import effect_on
from hookviz.images import Preprocessing, sample_image
from hookviz.run import feature_maps


@pytest.fixture
def model() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    size = Preprocessing(crop=(24, 24), fit="squash")
    return hookviz.load_model(net, categories=("ant", "bee", "cat"), preprocess=size)


def test_the_likeliest_class_is_that_of_the_run_before(model):
    before = feature_maps(model, sample_image(), ["2"])
    best = int(before.output[0].argmax())
    edits = next(
        [zero("0", channels=c)] for c in range(6)
        if abs(float((feature_maps(model, sample_image(), "2", edits=[zero("0", channels=c)]).output
                      - before.output)[0, best])) > 1e-4
    )  # fmt: skip
    after = feature_maps(model, sample_image(), ["2"], edits=edits)
    found = effect_on(before, after)
    assert found.target == f"class {best} ({model.categories[best]})"
    assert found.before == float(before.output[0, best])
    assert found.after == float(after.output[0, best])
    assert found.difference == pytest.approx(found.after - found.before)
    assert effect_on(before, before, "bee").difference == 0


def test_a_channel_and_a_place_of_a_captured_layer(model):
    before = feature_maps(model, sample_image(), ["2"], stop_early=True)
    after = feature_maps(model, sample_image(), ["2"], edits=[zero("0")], stop_early=True)
    found = effect_on(before, after, "channel 1 of 2")
    maps = [run.select("2").tensor[0, 1] for run in (before, after)]
    assert (found.before, found.after) == tuple(
        pytest.approx(float(m.mean()), rel=1e-6) for m in maps
    )
    found = effect_on(before, after, "channel 1 of 2 at 3, 4")
    assert (found.before, found.after) == tuple(float(m[3, 4]) for m in maps)


def test_bad_input_is_one_sentence(model):
    whole = feature_maps(model, sample_image(), ["2"])
    early = feature_maps(model, sample_image(), ["2"], stop_early=True)
    for runs, target, kind, part in (
        ((whole, early), None, HookvizError, "ended early"),
        ((whole, whole), "channel 0 of 0", LayerError, "was not captured"),
        ((whole, whole), ["ant", "bee"], HookvizError, "2 were named"),
        ((whole, whole), "cow", HookvizError, "No class is called 'cow'"),
    ):
        with pytest.raises(kind) as caught:
            effect_on(*runs, target)
        assert part in str(caught.value)
