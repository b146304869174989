"""Only the page's uint8 levels and a few numbers per channel leave the tensor's device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookviz.render import GridOptions, SingleChannels, channel_statistics, draw

LEAVING = {
    "cpu", "numpy", "tolist", "item", "__float__", "__int__", "__bool__", "__array__",
    "__iter__", "to",
}  # fmt: skip


class Watched(torch.Tensor):
    """A tensor that records what is read off its device, as do all that come from it."""

    taken: list[tuple[torch.dtype, int]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        away = name != "to" or "cpu" in map(str, (*args[1:], *kwargs.values()))
        if name in LEAVING and away and args and isinstance(args[0], Watched):
            with torch._C.DisableTorchFunctionSubclass():
                Watched.taken.append((args[0].dtype, args[0].numel()))
        result = super().__torch_function__(func, types, args, kwargs)
        if name in ("cpu", "to") and away and isinstance(result, torch.Tensor):
            return result.as_subclass(torch.Tensor)  # it has left, and is counted once
        return result


@pytest.fixture(autouse=True)
def _as_if_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in main memory may be read there by NumPy: nothing leaves."""
    monkeypatch.setattr("hookviz.render._measure._in_main_memory", lambda _tensor: False)


def watched(tensor: torch.Tensor) -> Watched:
    Watched.taken = []
    return tensor.as_subclass(Watched)


CHANNELS, SIDE = 96, 40

OPTIONS = [
    GridOptions(),
    GridOptions(scale="channel", page=1),
    GridOptions(order="variance"),
    GridOptions(order="similarity:3", hide_dead=True),
    GridOptions(scale="percentile"),
    GridOptions(scale="full"),
    GridOptions(scale="fixed", vmin=-1.0, vmax=1.0),
    GridOptions(channels="5,9,2", width=300),
]


def test_the_watch_sees_what_leaves():
    tensor = watched(torch.rand(4, 4))
    (tensor * 2).cpu()
    tensor.sum().item()
    float(tensor[0, 0])
    assert [count for _, count in Watched.taken] == [16, 1, 1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spoil", [False, True])
def test_only_levels_and_a_few_numbers_leave(options, spoil):
    tensor = torch.randn(1, CHANNELS, SIDE, SIDE)
    if spoil:
        tensor[0, 7, 3, 3:5] = torch.tensor([torch.nan, torch.inf])
    drawing = draw(watched(tensor), options)
    page = len(drawing.channels) * SIDE * SIDE
    levels = [count for dtype, count in Watched.taken if dtype == torch.uint8]
    numbers = sum(count for dtype, count in Watched.taken if dtype != torch.uint8)
    assert levels
    assert max(levels) <= page
    assert len(levels) <= 2  # levels, and flags where there are any
    assert numbers <= 12 * CHANNELS + 16


def test_summary_and_statistics_leave_the_rest_where_it_is():
    tensor = torch.randn(1, CHANNELS, SIDE, SIDE)
    draw(watched(tensor), GridOptions(scale="full", summary="mean,max,pca", per_page=4, page=2))
    numbers = sum(count for dtype, count in Watched.taken if dtype != torch.uint8)
    assert numbers <= 4 * CHANNELS + 32
    assert sum(c for d, c in Watched.taken if d == torch.uint8) <= (4 + 5 + 2) * SIDE * SIDE
    channel_statistics(watched(tensor))
    assert sum(count for _, count in Watched.taken) <= 8 * CHANNELS + 16


def test_single_channels_leave_as_levels():
    tensor = watched(torch.rand(1, 8, SIDE, SIDE))
    layer = SingleChannels(tensor, GridOptions(scale="full"))
    assert len(list(layer.images(range(8)))) == 8
    assert sum(c for d, c in Watched.taken if d != torch.uint8) <= 64
    assert sum(c for d, c in Watched.taken if d == torch.uint8) == 8 * SIDE * SIDE


@pytest.mark.cuda
def test_a_picture_from_cuda_is_that_from_cpu():
    tensor = torch.randn(1, 70, 20, 20)
    for options in OPTIONS[:5]:
        one, other = draw(tensor, options), draw(tensor.cuda(), options)
        assert one.channels == other.channels
        difference = one.pixels().astype(int) - other.pixels().astype(int)
        assert abs(difference).max() <= 3
