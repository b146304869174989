"""Whatever a layer gave is drawn, or one sentence says why not; and every remedy helps."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import (
    GridOptions,
    SingleChannels,
    channel_statistics,
    draw,
    page_count,
    shared_range,
)

WAYS = {
    "draw": lambda t: draw(t, GridOptions(order="mean", summary="mean,max,pca")).png_bytes(),
    "shrunk": lambda t: draw(t, GridOptions(width=200, channels="1,0", scale="percentile")),
    "statistics": lambda t: draw(t, GridOptions(figure="statistics")).png_bytes(),
    "channel statistics": channel_statistics,
    "single channels": lambda t: list(SingleChannels(t, GridOptions()).images([0])),
    "pages": page_count,
    "shared range": lambda t: shared_range([t]),
}


def freed() -> torch.Tensor:
    tensor = torch.rand(1, 4, 5, 5)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(1, 4, 5, 5)


def escaped() -> torch.Tensor:
    seen: list[torch.Tensor] = []
    torch.vmap(lambda x: seen.append(x) or x)(torch.rand(2, 1, 4, 5, 5))
    return seen[0]


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.rand(1, 4, 5, 5)


READABLE = {
    "nested": lambda: torch.nested.nested_tensor(
        [torch.rand(4, 5), torch.rand(3, 5)], layout=torch.jagged
    ),
    "sparse": lambda: torch.rand(1, 4, 5, 5).relu().to_sparse(),
    "mkldnn": lambda: torch.rand(1, 4, 5, 5).to_mkldnn(),
    "complex": lambda: torch.randn(1, 4, 5, 5, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(1, 4, 5, 5, dtype=torch.complex64).conj(),
    "negative view": lambda: torch.randn(1, 4, 5, 5, dtype=torch.complex64).conj().imag,
    "bool": lambda: torch.rand(1, 4, 5, 5) > 0.5,
    "float8": lambda: torch.rand(1, 4, 5, 5).to(torch.float8_e4m3fn),
    "another float8": lambda: torch.rand(1, 4, 5, 5).to(torch.float8_e5m2fnuz),
    "uint16": lambda: torch.randint(0, 60_000, (1, 4, 5, 5)).to(torch.uint16),
    "uint64": lambda: torch.randint(0, 9, (1, 4, 5, 5)).to(torch.uint64),
    "ends of int64": lambda: torch.tensor([2**63 - 1, -(2**63), 0, 5] * 2).reshape(1, 2, 2, 2),
    "inference": inference,
    "expanded": lambda: torch.rand(1, 1, 1, 1).expand(1, 4, 5, 5),
    "parameter": lambda: nn.Parameter(torch.rand(1, 4, 5, 5)),
    "transposed": lambda: torch.rand(5, 5, 4, 1).permute(3, 2, 0, 1),
    "huge": lambda: torch.tensor([3e38, -3e38, 1e-45, 0] * 2).reshape(1, 2, 2, 2),
}
UNREADABLE = {
    "meta": lambda: torch.rand(1, 4, 5, 5, device="meta"),
    "fake": fake,
    "escaped from vmap": escaped,
    "freed": freed,
    "not initialised": lambda: nn.LazyConv2d(3, 3).weight,
    "no values": lambda: torch.rand(1, 0, 5, 5),
    "packed int4": lambda: torch.zeros(1, 4, 5, 5, dtype=torch.uint8).view(torch.int4),
    "packed float4": lambda: torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "bits": lambda: torch.zeros(1, 4, 5, 5, dtype=torch.uint8).view(torch.bits8),
    "single number": lambda: torch.tensor(3.0),
    "six axes": lambda: torch.rand(1, 1, 1, 2, 2, 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", READABLE.values(), ids=READABLE)
def test_what_can_be_read_is_drawn_in_every_way(make, way):
    WAYS[way](make())


@pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning")
def test_quantised_values_are_those_that_they_stand_for():
    tensor = torch.quantize_per_tensor(torch.rand(1, 4, 5, 5), 0.1, 0, torch.quint8)
    found = channel_statistics(tensor)
    assert found.whole[1] == pytest.approx(float(tensor.dequantize().max()))
    assert "dequantised" in draw(tensor).notes


def test_nested_values_say_that_they_were_padded():
    assert "padded with zeros" in draw(READABLE["nested"]()).notes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_one_sentence_in_every_way(make, way):
    with pytest.raises(RenderError) as caught:
        WAYS[way](make())
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".") or "cannot be read" in str(caught.value)


def test_large_integers_are_compared_exactly():
    tensor = torch.tensor([2**60, 2**60 + 512, 2**60 + 1024, 0]).reshape(1, 1, 2, 2)
    drawing = draw(tensor, GridOptions(scale="fixed", vmin=float(2**60 + 512), vmax=float(2**61)))
    assert drawing.below == 2


def test_a_page_too_large_for_memory_is_refused_and_the_remedy_helps():
    tensor = torch.rand(1, 3000, 60, 60)
    options = GridOptions(width=20_000, per_page=3000, ncols=1, labels=False)
    with pytest.raises(RenderError, match=r"20000 × \d+ pixels") as caught:
        draw(tensor, options)
    assert "fewer maps on a page, more of them in a row" in str(caught.value)
    draw(tensor[:, :8], options.replace(per_page=4, width=1200))
    draw(tensor[:, :8], options.replace(ncols=8, width=1200))


@pytest.mark.parametrize(
    "options",
    [
        {"channels": 3},
        {"title": 5},
        {"figure": 3},
        {"summary": None},
        {"order": None},
        {"width": 333, "dpi": 1200},
        {"cmap": [1]},
        {"percentile": "ab"},
        {"grid": "22"},
    ],
    ids=str,
)
def test_options_of_a_wrong_type_are_refused_before_anything_is_drawn(options):
    (name, value), *_ = options.items()
    assert f"{name} is {value!r}" in refused(lambda: GridOptions.of(**options))


def test_a_figure_too_narrow_for_its_texts_is_refused_and_the_remedy_helps():
    said = refused(lambda: GridOptions(width=333, dpi=1200))
    assert "at least 1680, or dpi smaller" in said
    for options in (GridOptions(width=1680, dpi=1200), GridOptions(width=333, dpi=200)):
        for tensor in (torch.rand(1, 4, 5, 5), torch.rand(1, 1), torch.rand(1, 400)):
            assert draw(tensor, options).png_bytes()
            assert draw(tensor, options.replace(figure="statistics")).png_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_no_options_and_no_tensor_draw_a_raw_error(seed):
    rng = random.Random(seed)  # noqa: S311  # nothing secret
    shapes = [(1,), (5,), (1, 7), (3, 300), (4, 5, 6), (1, 197, 8), (1, 1, 1, 1), (1, 4, 1, 1)]
    shapes += [(1, 8, 14, 14), (1, 1, 90, 2), (1, 2, 1, 90), (1, 4, 3, 5, 6), (0, 3)]
    drawn = 0
    for _ in range(60):
        options = {name: rng.choice(CHOICES[name]) for name in rng.sample(sorted(CHOICES), 4)}
        tensor = torch.randn(rng.choice(shapes))
        if rng.random() < 0.2:
            tensor.view(-1)[:2] = torch.tensor([torch.nan, -torch.inf])[: tensor.numel()]
        try:
            draw(tensor, GridOptions.of(**options), background=photo()).png_bytes()
            drawn += 1
        except RenderError as error:
            assert "failed:" not in str(error), (options, tensor.shape)  # noqa: PT017
    assert drawn > 5


CHOICES = {
    "figure": ["auto", "statistics", "nothing"],
    "per_page": [1, 64, 10**9],
    "page": [0, 5, -1],
    "channels": [None, "0", "0-3,1", (), (0, 1)],
    "order": ["index", "max", "norm", "similarity:1"],
    "scale": ["auto", "channel", "percentile", "fixed"],
    "vmin": [None, 0, -1e308],
    "vmax": [None, 1, 1e308, 5e-324],
    "frame": [None, 0, 3],
    "axes": ["auto", "maps", "tokens", "vector", "signal", "volume", "attention"],
    "grid": [None, (2, 2), (14, 14)],
    "width": [200, 333, 1200],
    "dpi": [20, 100, 133],
    "ncols": [None, 1, 10**9],
    "shrink": ["mean", "nearest"],
    "overlay": [False, 0.3],
    "summary": ["none", "mean,max,pca"],
    "colorbar": [True, False],
    "labels": [True, False],
}


def test_running_out_of_memory_is_a_sentence(monkeypatch):
    def fail(*_args, **_settings):
        raise MemoryError

    monkeypatch.setattr("hookviz.render._maps._mosaic", fail)
    with pytest.raises(RenderError, match="not enough memory"):
        draw(torch.rand(1, 4, 5, 5))


def drawn(tensor: torch.Tensor) -> list[bytes]:
    """Bytes of figures that go through every kind of computation."""
    everything = GridOptions(style="light", summary="mean,max,pca", order="similarity:1")
    return [
        draw(tensor, everything).png_bytes(),
        draw(tensor, everything.replace(width=200, shrink="nearest", order="sparsity")).png_bytes(),
        draw(tensor, everything.replace(width=200, channels="2,0", order="variance")).png_bytes(),
        draw(tensor, GridOptions(style="light", figure="statistics")).png_bytes(),
        draw(tensor[0, :, 0, 0][None], GridOptions(style="light")).png_bytes(),
    ]


def states() -> dict[str, object]:
    return {
        "default device": torch.device("meta"),
        "float64": torch.float64,
        "float16": torch.float16,
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "no gradients": torch.no_grad(),
    }


@pytest.fixture(scope="module")
def plain():
    """A tensor, and its figures where nothing of torch is switched."""
    tensor = torch.randn(1, 5, 300, 290)
    tensor[0, 3, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return tensor, drawn(tensor)


@pytest.mark.parametrize("name", states())
def test_no_global_state_of_torch_matters_or_moves(name, plain):
    from hookviz.render import _levels

    tensor, before = plain
    state = states()[name]
    _levels._coverage.cache_clear()  # what is kept must not bear the state's mark
    if isinstance(state, torch.dtype):
        usual = torch.get_default_dtype()
        torch.set_default_dtype(state)
        try:
            inside = drawn(tensor)
            assert torch.get_default_dtype() is state
        finally:
            torch.set_default_dtype(usual)
    else:
        with state:
            inside = drawn(tensor)
    assert inside == before
    assert drawn(tensor) == before


def test_deterministic_mode_and_random_numbers_stay_as_they_are():
    tensor, state = torch.randn(1, 5, 30, 29), torch.get_rng_state()
    before = drawn(tensor)
    torch.use_deterministic_algorithms(True)
    try:
        assert drawn(tensor) == before
        draw(tensor, GridOptions(scale="percentile"))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(torch.get_rng_state(), state)


def test_many_threads_draw_the_same_at_once():
    tensor = torch.randn(1, 5, 60, 59)
    before = drawn(tensor)
    results: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: results.append(drawn(tensor))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [before] * 4


def refused(make) -> str:
    with pytest.raises(RenderError) as caught:
        make()
    return str(caught.value)


def test_every_remedy_of_a_refusal_does_what_it_says():
    tensor = torch.rand(1, 6, 5, 5)
    dead = torch.zeros(1, 3, 5, 5)
    said = refused(lambda: draw(dead, GridOptions(hide_dead=True)))
    assert "hide_dead=False shows them" in said
    assert draw(dead, GridOptions(hide_dead=False)).total == 3

    said = refused(lambda: draw(torch.rand(1, 6), GridOptions(overlay=True), background=photo()))
    assert "Draw it without overlay" in said
    draw(torch.rand(1, 6), GridOptions(), background=photo())

    said = refused(lambda: draw(tensor, GridOptions(overlay=True)))
    assert "Pass it as background=" in said
    draw(tensor, GridOptions(overlay=True), background=photo())

    said = refused(lambda: GridOptions(vmin=0.0))
    assert "Give both and scale='fixed'" in said
    draw(tensor, GridOptions(vmin=0.0, vmax=1.0, scale="fixed"))

    said = refused(lambda: GridOptions(scale="shared"))
    assert "shared_range finds them" in said
    low, high = shared_range([tensor, dead])
    draw(tensor, GridOptions(scale="shared", vmin=low, vmax=high))

    said = refused(lambda: GridOptions(cmap="nonsense"))
    for name in ("viridis", "gray", "RdBu_r"):
        assert repr(name) in said
        draw(tensor, GridOptions(cmap=name))

    said = refused(lambda: draw(torch.rand(1, 2, 2, 3, 4, 5)))
    assert "tensor[:, 0]" in said
    draw(torch.rand(1, 2, 2, 3, 4, 5)[:, 0])

    said = refused(lambda: draw(tensor, GridOptions(channels="6")))
    assert "channels 0 to 5" in said
    draw(tensor, GridOptions(channels="0,5"))

    said = refused(lambda: draw(tensor, GridOptions(channels=())))
    assert "for example '0'" in said
    draw(tensor, GridOptions(channels="0"))

    said = refused(lambda: draw(tensor, GridOptions(page=3)))
    assert "only page 0" in said
    said = refused(lambda: draw(tensor, GridOptions(page=3, per_page=2)))
    assert "0 to 2" in said
    draw(tensor, GridOptions(page=2, per_page=2))

    said = refused(lambda: draw(tensor, GridOptions(order="similarity:9")))
    assert "channels 0 to 5" in said
    draw(tensor, GridOptions(order="similarity:5"))

    said = refused(lambda: draw(tensor, GridOptions(sample=1)))
    assert "legal: 0" in said


@pytest.mark.parametrize(
    ("axes", "wrong"), [(1, "maps"), (2, "volume"), (3, "volume"), (4, "tokens"), (5, "maps")]
)
def test_each_layout_that_a_refusal_calls_legal_is_drawn(axes, wrong):
    tensor = torch.rand([1, 4, 5, 6, 7][:axes])
    said = refused(lambda: draw(tensor, GridOptions(axes=wrong)))
    legal = [part.strip(" '.") for part in said.partition("legal: ")[2].split(",")]
    assert legal
    for name in legal:
        assert draw(tensor, GridOptions(axes=name)).channels


def photo() -> np.ndarray:
    return np.zeros((5, 5, 3), np.uint8)


def test_one_layer_that_cannot_be_drawn_does_not_stop_the_others(tmp_path):
    import hookviz

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.good, self.bad = nn.Conv2d(3, 4, 3), nn.Identity()

        def forward(self, x):
            return self.bad(self.good(x)[:, :0]), x

    model = hookviz.load_model(Both())
    run = hookviz.feature_maps(model, hookviz.sample_image(), ["good", "bad"])
    assert run.figure("good")
    with pytest.raises(RenderError, match="holds no values to draw"):
        run.figure("bad")
    assert run.export(tmp_path, name="both").files


def test_a_bare_record_is_drawn_like_its_tensor():
    tensor = torch.rand(1, 3, 4, 4)
    record = Activation("", 1, 1, 1, 1, "output", "", "", tensor)
    options = GridOptions(title="same")
    assert draw(record, options).png_bytes() == draw(tensor, options).png_bytes()
