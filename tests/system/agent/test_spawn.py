"""Children that mltop starts: ended with all that they started, and not outliving the thread that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from mltop.probes.system.spawn import end_child, signal_group, start_child
from tests.processes import is_gone
from tests.waiting import wait_until

# Prints the pid of a child of its own; both ignore SIGTERM.
DEAF = ["/bin/sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait"]


def first_number(child: subprocess.Popen[bytes]) -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def test_a_child_that_does_not_heed_is_killed_with_what_it_started() -> None:
    child = start_child(DEAF)
    grandchild = first_number(child)
    assert end_child(child, term_s=0.2, kill_s=30.0)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout is not None and child.stdout.closed
    wait_until(lambda: is_gone(grandchild), what="the end of what it started")


def test_a_child_that_heeds_is_not_killed() -> None:
    heeds = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    code = f"import signal, sys; {heeds}; print(1, flush=True); signal.pause()"
    child = start_child([sys.executable, "-c", code])
    first_number(child)
    assert end_child(child, term_s=30.0)
    assert child.returncode == 3


def test_nothing_is_sent_to_one_that_was_collected() -> None:
    child = start_child(["/bin/true"])
    assert child.wait() == 0
    signal_group(child, signal.SIGKILL)
    assert end_child(child) and child.returncode == 0


def test_errors_and_output_come_through_one_pipe_and_its_stdin_is_empty() -> None:
    child = start_child(["/bin/sh", "-c", "cat; echo out; echo err >&2"])
    assert child.communicate()[0] == b"out\nerr\n"


def test_it_dies_with_the_thread_that_started_it() -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(start_child(["/bin/sleep", "600"])))
    thread.start()
    thread.join()
    assert started[0].wait(30) == -signal.SIGKILL
    end_child(started[0])


# A session keyring of its own with a key in it, as root's login has one; where there are no keys nothing is lost.
WITH_A_KEY = """
import ctypes, os, sys
from mltop.probes.system.spawn import confined, end_child, start_child
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219), "ppc64le": (269, 271)}[os.uname().machine]
libc = ctypes.CDLL(None)
libc.syscall(keyctl, 1, None)
libc.syscall(add_key, b"user", b"mltop-secret", b"x", ctypes.c_size_t(1), -3)
child = start_child(["/bin/sh", "-c", sys.argv[1]], **confined())
print(child.communicate()[0].decode())
end_child(child)
"""


def confined_says(commands: str) -> str:
    """``commands`` of a shell."""
    command = [sys.executable, "-c", WITH_A_KEY, commands]
    environ = {**os.environ, "SECRET": "x"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


STATUS = 'while read -r line; do echo "$line"; done </proc/self/status'


def test_what_is_not_ours_is_confined() -> None:
    """No rights can be gained, nothing of the environment is there, no core is left."""
    assert "NoNewPrivs:\t1\n" in confined_says(STATUS)
    limits = confined_says('pwd; echo "secret $SECRET"; ulimit -c; ulimit -v')
    assert limits.split("\n")[:4] == ["/", "secret ", "0", str(1 << 20)]
