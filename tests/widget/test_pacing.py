"""In: quick events. Out: few calls, the last event never forgotten, no thread left."""

from __future__ import annotations

import threading
import time

import pytest

from hookviz.widget._pacing import Quiet, Teller, Throttle


def test_throttle_lets_the_first_through_and_then_one_per_interval() -> None:
    throttle = Throttle(3600)
    assert [throttle.ready() for _ in range(3)] == [True, False, False]
    assert [Throttle(0).ready() for _ in range(2)] == [True, True]


def test_teller_tells_the_last_of_quick_events_without_another_one() -> None:
    told: list[int] = []
    second = threading.Event()
    events: list[int] = []

    def tell() -> None:
        told.append(len(events))
        if len(told) == 2:
            second.set()

    teller = Teller(tell, pytest.fail, interval=0.05)
    for event in range(20):
        events.append(event)
        teller.ask()
    assert second.wait(10)
    assert told == [1, 20]
    teller.end()


def test_teller_is_silent_once_ended() -> None:
    told: list[int] = []
    teller = Teller(lambda: told.append(1), pytest.fail, interval=0.02)
    teller.ask()
    teller.ask()
    teller.end()
    teller.ask()
    time.sleep(0.1)  # a call that came would come within 0.02 s
    assert told == [1]


def test_teller_reports_what_a_late_call_raises() -> None:
    seen: list[BaseException] = []
    reported = threading.Event()
    calls: list[int] = []

    def tell() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("late")

    def report(error: BaseException) -> None:
        seen.append(error)
        reported.set()

    teller = Teller(tell, report, interval=0.02)
    teller.ask()
    teller.ask()
    assert reported.wait(10)
    assert str(seen[0]) == "late"
    teller.end()


def test_quiet_calls_once_after_the_last_question() -> None:
    called: list[float] = []
    done = threading.Event()

    def task() -> None:
        called.append(time.monotonic())
        done.set()

    quiet = Quiet("hookviz-test", task, pytest.fail, rest=0.15)
    for _ in range(8):
        quiet.ask()
        time.sleep(0.03)
    last = time.monotonic() - 0.03
    assert done.wait(10)
    assert len(called) == 1
    assert called[0] >= last + 0.14
    quiet.end()


def test_quiet_hears_a_question_that_comes_while_it_calls() -> None:
    calls: list[int] = []
    twice = threading.Event()
    quiet: Quiet

    def task() -> None:
        calls.append(1)
        if len(calls) == 1:
            quiet.ask()
        else:
            twice.set()

    quiet = Quiet("hookviz-test", task, pytest.fail, rest=0.01)
    quiet.ask()
    assert twice.wait(10)
    quiet.end()


def test_quiet_drops_what_waits_when_it_ends_and_begins_again() -> None:
    calls: list[int] = []
    done = threading.Event()
    quiet = Quiet("hookviz-test", lambda: (calls.append(1), done.set())[0], pytest.fail, rest=0.05)
    quiet.ask()
    quiet.end()
    quiet.ask()
    quiet.begin()
    time.sleep(0.2)  # a call that came would come within 0.05 s
    assert calls == []
    quiet.ask()
    assert done.wait(10)
    assert calls == [1]
    quiet.end()


def test_quiet_reports_what_the_call_raises_and_goes_on() -> None:
    seen: list[BaseException] = []
    reported = threading.Semaphore(0)

    def task() -> None:
        raise ValueError("late")

    def report(error: BaseException) -> None:
        seen.append(error)
        reported.release()

    quiet = Quiet("hookviz-test", task, report, rest=0.01)
    for _ in range(2):
        quiet.ask()
        assert reported.acquire(timeout=10)
    assert [str(e) for e in seen] == ["late", "late"]
    quiet.end()
