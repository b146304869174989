"""Trainings on several devices or processes, and compiled ones."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookviz

from .conftest import Small, batches, train

# Two processes of one program, each with what it says in a file of its own.
RANKS = """
import os, signal, sys, warnings, torch, hookviz
from torch import nn
warnings.simplefilter("default")  # a channel of this small net is dead
folder = sys.argv[1]
ranks = []
for rank in (0, 1):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        break
else:
    print(*[os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks], flush=True)
    os._exit(0)
said = open(f"{folder}/said{rank}", "w")
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hookviz.monitor(model, stats_every=1, out=f"{folder}/run") as m:
    for number in range(4):
        optimizer.zero_grad()
        x = torch.full((2, 3), float(rank + 1 + number))
        model(x).sum().backward()
        optimizer.step()
        m.step(loss=number)
        assert bool(net[0]._forward_hooks) == (rank == 0)
        if number == 0:
            print(repr(torch.cat([p.grad.reshape(-1) for p in net[0].parameters()]).norm().item()),
                  net[0](x).double().mean().item() if rank else 0, file=said, flush=True)
    torch.distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_rank_0_shows_and_what_it_wrote_is_there_after_it_was_killed(
    tmp_path: Path, fresh_python: Any
) -> None:
    done = fresh_python.run(RANKS, str(tmp_path), cwd=tmp_path)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 2, done.stderr
    said = [(tmp_path / f"said{rank}").read_text() for rank in (0, 1)]
    found = hookviz.open_monitor(tmp_path / "run")
    assert found.state == "interrupted"
    assert found.scalar()[1].tolist() == [0, 1, 2, 3]
    assert found.values("0", "mean")[0].tolist() == [1, 2, 3, 4]
    assert "rank 0 of 2" in found.notes[""]
    # Gradients are those of both ranks, outputs those of rank 0's share.
    gradient = float(said[0].split()[0])
    assert gradient == float(said[1].split()[0])
    assert found.values("0", "gradient")[1][0] == pytest.approx(gradient, rel=1e-5)
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    assert found.values("0", "mean")[1][0] == pytest.approx(net(torch.ones(2, 3)).mean().item())


def test_replicas_in_threads_are_joined(small: Small) -> None:
    """As ``DataParallel`` does it on several GPUs: replicas in threads, each with its share."""
    import threading

    parts = [x for x, _ in batches(2)]
    with hookviz.monitor(nn.DataParallel(small), ["conv1", "relu"], stats_every=1) as m:
        replicas = []
        for _ in parts:
            twins = {module: module._replicate_for_data_parallel() for module in small.modules()}
            for module, twin in twins.items():
                for name, child in module.named_children():
                    twin._modules[name] = twins[child]
                for name, p in module.named_parameters(recurse=False):
                    setattr(twin, name, p.clone())
                for name, buffer in module.named_buffers(recurse=False):
                    twin._buffers[name] = buffer.clone()
            replicas.append(twins[small])
        kept: list[Tensor] = []  # replicas share the hooks of the module that they are of
        small.conv1.register_forward_hook(lambda _m, _a, out: kept.append(out.detach()))
        threads = [
            threading.Thread(target=replica, args=(x,))
            for replica, x in zip(replicas, parts, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        m.step()
    assert m.calls("relu") == 2
    whole = torch.cat(kept).double()
    assert len(whole) == 8
    assert m.values("conv1", "mean")[1][0] == pytest.approx(whole.mean().item(), rel=1e-5)


OF_DYNAMO = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
"""It looks at .grad of the tensors that it meets after a graph break."""


@OF_DYNAMO
def test_a_model_that_is_compiled_afterwards_is_seen(small: Small) -> None:
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Small()
        with hookviz.monitor(model, stats_every=1) as m:
            called: Any = torch.compile(model, backend="eager") if compiles else model
            train(called, batches(3), m.step)
        assert m.notes == {}
        found.append({p: m.values(p.layer, "mean", call=p.call)[1].tolist()
                      for p in m.places() if p.call})  # fmt: skip
    assert found[0] == found[1]
    assert not small.conv1._forward_hooks


@OF_DYNAMO
def test_a_model_that_was_compiled_before_has_a_reason(small: Small) -> None:
    compiled = torch.compile(small, backend="eager")
    train(compiled, batches(1))
    with hookviz.monitor(compiled, ["conv1"], stats_every=1) as m:
        train(compiled, batches(2), m.step)
    assert m.values("conv1", "gradient")[0].tolist() == [1, 2]
    if m.has("mean"):
        assert m.notes == {}
    else:
        assert "enter the monitor first and compile then" in m.notes["conv1"]
