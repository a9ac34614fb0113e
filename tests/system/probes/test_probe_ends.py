"""Ends that a supervisor does not see: its own death by SIGKILL, and processes that SIGKILL does not end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.probes import Runs, gpu, idle, of, torch_python
from tests.fakes.silent_fuse import needs_fuse
from tests.processes import is_gone
from tests.waiting import wait_until

DEADLINE_S = 240
START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from mltop.probes.active.child import fields_of
import pytest

from tests.fakes.probes import Runs, gpu, idle, of, pids_in

def tell(event):
    print(json.dumps(fields_of(event)), flush=True)

runs = Runs(sys.argv[2])
"""
HANGING = 'runs.run(idle(gpu(0), gpu(1)), "hang", tell, deaf=True)'
# As in an agent, whose threads end one after the other.
HANGING_IN_A_THREAD = f"""
import threading
for _ in range(8):
    threading.Thread(target=threading.Event().wait).start()
threading.Thread(target=lambda: {HANGING}).start()
"""
STUCK = """
import os, signal, time
from tests.fakes.silent_fuse import SilentFuse, private_mounts
private_mounts()
mount = sys.argv[3]
fuse = SilentFuse(mount)
stuck = runs.run(idle(gpu(0)), "stuck", path=mount, deadlines_s={"device": 0.3})
(pid,) = pids_in(stuck)
alive = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
refused = runs.run(idle(gpu(0), gpu(1)), "measure", force=True)
fuse.answer()
for _ in range(3000):
    try:
        if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z":
            break
    except OSError:
        break
    time.sleep(0.01)
free = runs.run(idle(gpu(0)), "measure")
events = [[fields_of(event) for event in found] for found in (stuck, refused, free)]
print(json.dumps({"pid": pid, "state": alive, "events": events}), flush=True)
"""


def program(code: str, *args: str) -> subprocess.Popen[str]:
    path = json.dumps([entry for entry in sys.path if entry])
    argv = [sys.executable, "-c", START + code, path, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("code", [HANGING, HANGING_IN_A_THREAD], ids=["main thread", "one of many threads"])
def test_a_killed_agent_takes_all_processes_with_it(code: str, tmp_path: Path) -> None:
    with program(code, torch_python(tmp_path)) as agent:
        pids: list[int] = []
        while len(pids) < 4:
            assert agent.stdout is not None
            line = agent.stdout.readline()
            assert line, agent.stderr.read() if agent.stderr else ""
            pids += json.loads(line).get("data", {}).get("pids", [])
        assert not any(is_gone(pid) for pid in pids)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        wait_until(
            lambda: all(is_gone(pid) for pid in pids), DEADLINE_S, "the end of both processes and their children"
        )


def test_what_a_process_leaves_behind_is_ended(tmp_path: Path) -> None:
    events = Runs(torch_python(tmp_path)).run(idle(gpu()), "leave")
    (result,) = of(events, "result")
    assert of(events, "failed") == []
    assert all(is_gone(pid) for pid in result.data["pids"])


@needs_fuse
def test_a_process_that_cannot_be_ended_is_left_and_its_device_not_touched(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with program(STUCK, torch_python(tmp_path), str(mount)) as agent:
        output, errors = agent.communicate(timeout=DEADLINE_S)
    assert output, errors
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    pid, (stuck, refused, free) = said["pid"], said["events"]
    assert said["state"] == "D"
    (failure,) = [event for event in stuck if event["event"] == "failed"]
    assert failure["device"] == "GPU-0"
    assert failure["why"].startswith("stage 'device' was not over within 0.3 s")
    assert ", stuck in the driver (D state, in " in failure["why"]
    assert failure["why"].endswith(f"), pid {pid}: not even SIGKILL ends it")
    (refusal,) = [event for event in refused if event["event"] == "refused"]
    assert refusal["device"] == "GPU-0"
    assert refusal["why"] == f"pid {pid} of an earlier probe still holds it and cannot be ended"
    assert [event["device"] for event in refused if event["event"] == "result"] == ["GPU-1"]
    assert [event["device"] for event in free if event["event"] == "result"] == ["GPU-0"]
