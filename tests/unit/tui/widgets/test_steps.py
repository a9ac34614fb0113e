"""Long work of the screen, a little at a time."""

import time
from collections import deque

from mltop.tui.widgets.steps import SLICE_S, Steps


class Pump:
    """What waits its turn behind other messages."""

    def __init__(self):
        self.waiting = deque()

    def call_later(self, call, *args):
        self.waiting.append((call, args))

    def turn(self):
        call, args = self.waiting.popleft()
        call(*args)


def long_steps(count, done):
    """Each takes as long as one slice may."""
    for number in range(count):
        until = time.perf_counter() + SLICE_S
        while time.perf_counter() < until:
            pass
        done.append(number)
        yield


def test_few_steps_are_taken_at_once():
    pump, done, ends = Pump(), [], []
    Steps(pump).take("x", (done.append(number) for number in range(3)), lambda: ends.append(len(done)))
    assert (done, ends, len(pump.waiting)) == ([0, 1, 2], [3], 0)


def test_what_comes_meanwhile_goes_between_long_ones():
    pump, done, ends = Pump(), [], []
    Steps(pump).take("x", long_steps(3, done), lambda: ends.append(len(done)))
    for taken in (1, 2, 3):
        assert (len(done), ends) == (taken, [])
        pump.turn()
    assert (ends, len(pump.waiting)) == ([3], 0)


def test_newer_steps_take_the_place_of_those_left():
    pump, old, new, ends = Pump(), [], [], []
    steps = Steps(pump)
    steps.take("x", long_steps(3, old), lambda: ends.append("old"))
    steps.take("x", long_steps(2, new), lambda: ends.append("new"))
    while pump.waiting:
        pump.turn()
    assert (old, new, ends) == ([0], [0, 1], ["new"])


def test_a_step_that_fails_ends_them():
    def failing():
        yield
        raise ValueError("broken")

    pump, ends = Pump(), []
    Steps(pump).take("x", failing(), lambda: ends.append("end"))
    assert (ends, len(pump.waiting)) == (["end"], 0)
