from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from hookviz.widget._worker import Worker


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


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


class TestDelays:
    def test_the_last_of_quick_events_is_seen_without_another_one(self, worker: Worker) -> None:
        events: list[int] = []
        seen: list[int] = []
        for event in range(20):
            events.append(event)
            # The earlier of two times counts: a stream of events cannot put the task off.
            worker.later("show", lambda _c: seen.append(len(events)), 0.4 if event == 0 else 9)
        assert worker.wait(0.01)  # what is not due yet is not waited for
        until(lambda: seen)
        assert seen == [20]

    def test_a_task_that_is_forgotten_and_asked_again_begins_anew(self, worker: Worker) -> None:
        called: list[float] = []
        for _ in range(8):
            worker.forget("still")
            worker.later("still", lambda _c: called.append(time.monotonic()), 0.6)
            last = time.monotonic()
            time.sleep(0.1)
        until(lambda: called)
        time.sleep(0.2)
        assert len(called) == 1
        assert called[0] >= last + 0.6

    def test_a_task_asked_for_by_itself_runs_again(self, worker: Worker) -> None:
        calls: list[int] = []

        def task(_cancelled: object) -> None:
            calls.append(1)
            if len(calls) == 1:
                worker.later("again", task, 0.01)

        worker.later("again", task, 0.01)
        until(lambda: len(calls) == 2)

    def test_what_is_not_due_waits_behind_nothing_and_holds_nothing_up(
        self, worker: Worker
    ) -> None:
        seen: list[str] = []
        worker.later("late", lambda _c: seen.append("late"), 0.8)
        worker.later("now", lambda _c: seen.append("now"))
        worker.start("job", lambda _c: seen.append("job"))
        until(lambda: len(seen) == 3)
        assert seen[-1] == "late"

    def test_closing_drops_what_waits_and_reopening_begins_again(self, worker: Worker) -> None:
        calls: list[int] = []
        worker.later("a", lambda _c: calls.append(1), 0.3)
        worker.close()
        worker.later("a", lambda _c: calls.append(2), 0.3)
        worker.reopen()
        time.sleep(0.6)  # a call that came would come within 0.3 s
        assert calls == []
        worker.later("a", lambda _c: calls.append(3), 0.05)
        until(lambda: calls)
        assert calls == [3]

    def test_what_a_late_task_raises_is_reported_and_it_can_be_asked_again(
        self, worker: Worker, errors: list[BaseException]
    ) -> None:
        def task(_cancelled: object) -> None:
            raise ValueError("late")

        for count in (1, 2):
            worker.later("a", task, 0.01)
            until(lambda count=count: len(errors) == count)
        assert [str(e) for e in errors] == ["late", "late"]


def test_two_threads_that_ask_at_once_lose_nothing(worker: Worker) -> None:
    seen: set[int] = set()
    askers = [
        threading.Thread(
            target=lambda n=n: [
                worker.later((n, i), lambda _c, n=n, i=i: seen.add((n, i)), 0.001 * (i % 3))
                for i in range(200)
            ]
        )
        for n in range(2)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    until(lambda: len(seen) == 400)
