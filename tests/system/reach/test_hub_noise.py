"""What is not a frame costs little and is not believed."""

from __future__ import annotations

import time

from mltop.probes.reach.channel import Channel
from tests.fakes.agents import program, well_behaved
from tests.hubs import await_state, opened, state
from tests.waiting import wait_until


def test_noise_between_frames_does_not_matter() -> None:
    noise = "print('Welcome!'); sys.stdout.write('x' * 100000); sys.stdout.flush(); os.write(1, bytes(range(256)))"
    with opened(well_behaved(noise)) as hub:
        await_state(hub, "live")


def test_ten_megabytes_without_a_newline_then_a_frame() -> None:
    with opened(well_behaved("sys.stdout.write('y' * 10_000_000); sys.stdout.flush()")) as hub:
        await_state(hub, "live")


def test_a_program_that_never_stops_talking_does_not_hold_the_others() -> None:
    """Neither lines nor lines that look like frames, on stdout and stderr; measured: 14 % of a core."""
    almost = program("import subprocess; subprocess.Popen(['yes', '@MLT1 1 ']); hang()", "almost")
    floods = [Channel(("sh", "-c", "yes & exec yes >&2"), ("flood",)), almost]
    with opened(*floods, well_behaved()) as hub:
        await_state(hub, "live")
        before, started = time.process_time(), time.monotonic()
        wait_until(lambda: time.monotonic() - started > 2.0, what="two seconds")
        share = (time.process_time() - before) / (time.monotonic() - started)
        assert share < 0.5, f"{share:.0%} of a core"
        assert [state(hub, node) for node in ("n1", "flood", "almost")] == ["live", "connecting", "connecting"]


def test_a_frame_whose_size_is_a_lie_does_not_hold_what_follows() -> None:
    liar = 'os.write(1, MARK + b"90000 {\\n" + MARK + b"3 {}\\n" + MARK + b"99999999999 {}\\n")'
    with opened(well_behaved(liar)) as hub:
        await_state(hub, "live")


def test_a_slow_reader_of_its_stdin_does_not_hold_the_others() -> None:
    deaf = program("hello(); beat(); time.sleep(600)", "deaf", opening=lambda: b"x" * 5_000_000 + b"\n")
    with opened(deaf, well_behaved()) as hub:
        await_state(hub, "live")
        await_state(hub, "live", "deaf")
        answers = list(hub.request("echo", {"a": 1}, ["n1"]).answers(10.0))
        assert [answer.message.kind for answer in answers] == ["done"]
