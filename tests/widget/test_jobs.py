from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

from hookviz.widget._jobs import Worker


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def worker(errors: list[BaseException]) -> Worker:
    worker = Worker("hookviz-test", errors.append, idle=0.2)
    yield worker
    worker.close()


def test_a_second_start_is_refused_while_one_is_going(worker: Worker) -> None:
    gate = threading.Event()
    ran = []

    def job(_cancelled: object) -> None:
        gate.wait(5)
        ran.append(1)

    assert worker.start("run", job)
    assert not worker.start("run", job)
    assert worker.busy == "run"
    gate.set()
    assert worker.wait(5)
    assert ran == [1]
    assert worker.busy == ""
    assert worker.start("run", job)
    assert worker.wait(5)


def test_tasks_of_one_key_are_coalesced_and_the_latest_wins(worker: Worker) -> None:
    gate = threading.Event()
    seen: list[int] = []
    worker.start("block", lambda _c: gate.wait(5))
    for number in range(50):
        worker.later("card", lambda _c, n=number: seen.append(n))
    gate.set()
    assert worker.wait(5)
    assert seen == [49]


def test_small_tasks_go_by_rank(errors: list[BaseException]) -> None:
    gate, seen = threading.Event(), []
    worker = Worker("hookviz-test", errors.append, rank=lambda key: -int(str(key)))
    worker.start("block", lambda _c: gate.wait(5))
    for key in ("1", "3", "2"):
        worker.later(key, lambda _c, k=key: seen.append(k))
    gate.set()
    assert worker.wait(5)
    worker.close()
    assert seen == ["3", "2", "1"]


def test_an_error_is_reported_and_the_next_task_runs(
    worker: Worker, errors: list[BaseException]
) -> None:
    def fail(_cancelled: object) -> None:
        raise KeyboardInterrupt

    done = []
    worker.start("bad", fail)
    worker.later("good", lambda _c: done.append(1))
    assert worker.wait(5)
    assert isinstance(errors[0], KeyboardInterrupt)
    assert done == [1]


def test_cancel_reaches_the_job_and_not_the_next_one(worker: Worker) -> None:
    ended = []

    def job(cancelled: object) -> None:
        while not cancelled():
            time.sleep(0.001)
        ended.append(1)

    assert not worker.cancel()
    worker.start("run", job)
    assert worker.cancel()
    assert worker.wait(5)
    fresh: list[bool] = []
    worker.start("run", lambda cancelled: fresh.append(cancelled()))
    assert worker.wait(5)
    assert ended == [1]
    assert fresh == [False]


def test_the_thread_ends_by_itself_and_comes_back(worker: Worker) -> None:
    worker.later("a", lambda _c: None)
    thread = worker._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    done = []
    worker.later("b", lambda _c: done.append(1))
    assert worker.wait(5)
    assert done == [1]


def test_nothing_starts_after_close_until_it_is_reopened(worker: Worker) -> None:
    worker.close()
    assert not worker.start("run", lambda _c: None)
    worker.reopen()
    assert worker.start("run", lambda _c: None)
    assert worker.wait(5)


def test_a_task_is_let_go_of_when_it_is_done(worker: Worker) -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    worker.later("a", lambda _c, t=thing: None)
    assert worker.wait(5)
    del thing
    until = time.monotonic() + 5
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_grad_mode_is_the_threads_own(worker: Worker) -> None:
    # Why the run enters no_grad inside its job: the mode of the thread that starts it is not its.
    with torch.no_grad():
        seen: list[bool] = []
        worker.start("run", lambda _c: seen.append(torch.is_grad_enabled()))
        assert worker.wait(5)
    assert seen == [True]
