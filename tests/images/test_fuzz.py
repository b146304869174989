from __future__ import annotations

import importlib.util
import sys

import pytest

SEED = 1
COUNT = 500


@pytest.fixture(scope="module")
def fuzz(request):
    """The script, which lies beside the package and not in it."""
    path = request.config.rootpath / "benchmarks" / "fuzz_images.py"
    spec = importlib.util.spec_from_file_location("hookviz_fuzz_images", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def files(fuzz):
    return fuzz.seeds()


def test_the_seeds_are_pictures(files):
    from hookviz.images import read_image

    for kind, seeds in files.items():
        for data in seeds:
            assert read_image(data, name=f"seed.{kind.lower()}").image.mode == "RGB", kind


def test_a_mutation_can_be_made_again(fuzz, files):
    assert [fuzz.mutation(i, SEED, files) for i in range(40)] == [
        fuzz.mutation(i, SEED, files) for i in range(40)
    ]


@pytest.mark.parametrize("part", range(5))
def test_500_mutations_end_in_a_picture_or_a_sentence(fuzz, files, part):
    tally = fuzz.Tally()
    each = COUNT // 5
    fuzz.examine(part * each, each, SEED, files, tally)
    assert tally.faults == []
    assert sum(tally.counts.values()) == each
    outcomes = {outcome for _, outcome in tally.counts}
    assert outcomes == {"picture", "refused"}


def test_the_script_finds_what_it_looks_for(fuzz, files, monkeypatch):
    # An exception, a slow file and a wrong picture are each seen as a fault.
    import hookviz.images

    for broken in (lambda *a, **k: 1 / 0, lambda *a, **k: None):
        monkeypatch.setattr(hookviz.images, "read_image", broken)
        tally = fuzz.Tally()
        fuzz.examine(0, 3, SEED, files, tally)
        assert len(tally.faults) == 3
