"""`feature_maps` over several images: one run after another, nothing kept, nothing left behind."""

from __future__ import annotations

import gc
import io
import weakref

import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.capture import zero
from hookviz.errors import ImageError, LayerError
from hookviz.images import Preprocessing


@pytest.fixture
def model() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return hookviz.load_model(net.train(), preprocess=Preprocessing(crop=(16, 16), fit="squash"))


def shades(count: int = 4) -> list[Image.Image]:
    return [Image.new("RGB", (16, 16), (40 * n, 10, 255 - 40 * n)) for n in range(count)]


def hooks(model: hookviz.LoadedModel) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())


@pytest.mark.parametrize("several", [list, tuple, iter, lambda found: (one for one in found)])
def test_the_runs_are_those_of_each_image_by_itself(model, several):
    runs = hookviz.feature_maps(model, several(shades()), ["0", "2"])
    assert iter(runs) is runs
    for run, image in zip(runs, shades(), strict=True):
        alone = hookviz.feature_maps(model, image, ["0", "2"])
        assert run.layers == alone.layers == ("0", "2")
        for one, other in zip(run.activations, alone.activations, strict=True):
            assert torch.equal(one.tensor, other.tensor)


def test_frames_of_a_file_give_runs_with_their_number(model):
    file = io.BytesIO()
    first, *others = shades()
    first.save(file, "WEBP", save_all=True, append_images=others, duration=50, lossless=True)
    frames = hookviz.read_frames(file.getvalue(), every=2, name="clip.webp")
    found = [(r.image.number, r.image.seconds) for r in hookviz.feature_maps(model, frames, "0")]
    assert found == [(0, 0.0), (2, 0.1)]


def test_an_image_is_read_when_its_run_is_asked_for_and_no_run_is_kept(model):
    taken = []

    def camera():
        for number, shade in enumerate(shades(50)):
            taken.append(number)
            yield shade

    runs = hookviz.feature_maps(model, camera(), "0")
    assert taken == []
    tensor = weakref.ref(next(runs).activations[0].tensor)
    assert taken == [0]
    assert tensor() is None
    seen = [weakref.ref(run.activations[0].tensor) for run in runs]
    gc.collect()
    assert len(seen) == 49
    assert sum(ref() is not None for ref in seen) <= 1


def test_between_two_runs_and_after_giving_up_the_model_is_as_it_was(model):
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    runs = hookviz.feature_maps(model, iter(shades()), ["0", "1", "2"])
    next(runs)
    assert hooks(model) == 0
    assert model.module.training
    assert model.module[0](torch.zeros(1, 3, 8, 8)).requires_grad
    next(runs)
    runs.close()
    assert hooks(model) == 0
    assert model.module.training
    after = model.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_fault_of_one_image_ends_the_iteration_and_leaves_nothing(model):
    runs = hookviz.feature_maps(model, [shades()[0], b"%PDF-1.7", shades()[1]], "0")
    next(runs)
    with pytest.raises(ImageError, match="PDF"):
        next(runs)
    assert hooks(model) == 0


def test_wrong_layers_are_said_before_the_first_image(model):
    with pytest.raises(LayerError, match="no layer 'conv'"):
        hookviz.feature_maps(model, iter(()), "conv")
    assert list(hookviz.feature_maps(model, iter(()), "0")) == []


def test_selectors_and_edits_that_can_be_gone_through_once_serve_every_run(model):
    edits = iter([zero("0", channels=1)])
    runs = hookviz.feature_maps(model, shades(3), iter(["0"]), edits=edits)
    assert [run.activations[0].tensor[:, 1].abs().max().item() for run in runs] == [0.0] * 3


def test_a_single_image_still_gives_one_run(model):
    for image in (shades()[0], torch.zeros(3, 8, 8), hookviz.read_image(shades()[0])):
        assert isinstance(hookviz.feature_maps(model, image, "0"), hookviz.Run)
