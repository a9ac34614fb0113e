"""Probes asked for through a real hub, of a real agent over the fake NVML: refusals, results, tells, cancels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import psutil
import pytest

from mltop.probes.agent import one_shot
from mltop.probes.model import Sample
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import local
from mltop.probes.reach.requests import Pending
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.probes import modules_variable, torch_python, torchless_python
from tests.hubs import DEADLINE_S, await_state, opened
from tests.nvml_sources import fake_here
from tests.processes import is_gone
from tests.system.agent.test_one_shot import DECODER, start
from tests.waiting import wait_until

GIB = 1 << 30
Event = dict[str, Any]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setenv("MLTOP_PROBE_MODULES", modules_variable())
    monkeypatch.setenv("MLTOP_PROBE_PYTHON", torch_python(tmp_path / "with-torch"))
    return fake_here(tmp_path / "nvml", monkeypatch, count=2)


@pytest.fixture
def hub(fake: FakeNvml) -> Iterator[Hub]:
    (channel,) = local.launch(("n1",), LaunchOptions(interval_s=0.2))
    with opened(channel) as hub:
        await_state(hub, "live")
        wait_until(lambda: hub.node("n1").sample.gpus, DEADLINE_S, "the GPUs")
        yield hub


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody's process, that may hold a GPU."""
    found = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(600)", "--name", "train"])
    try:
        yield found
    finally:
        found.kill()
        found.wait()


def args(do: str, **more: Any) -> Event:
    return {"key": "k1", "kind": "matmul", "options": {"do": do}, **more}


def answers(pending: Pending) -> tuple[list[Event], Event]:
    """The events, and the data of the end."""
    events = []
    for answer in pending.answers(DEADLINE_S):
        message = answer.message
        if message.kind == "part":
            events.append(message.data)
        else:
            assert message.kind == "done", message.error
            return events, message.data
    raise AssertionError(f"no end: {events}")


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def ask(hub: Hub, do: str, **more: Any) -> list[Event]:
    events, end = answers(hub.request("probe", args(do, **more)))
    assert end == {"cancelled": False}
    return events


def test_a_gpu_that_somebody_uses_is_refused_and_the_other_measured(
    hub: Hub, fake: FakeNvml, process: subprocess.Popen[bytes]
) -> None:
    fake.set("gpu.0.processes", [(process.pid, GIB, "compute")])
    fake.write()
    wait_until(lambda: hub.node("n1").sample.gpus[0].processes, DEADLINE_S, "the process in a sample")
    events = ask(hub, "measure")
    (refusal,) = of(events, "refused")
    uuids = [gpu.uuid for gpu in hub.node("n1").sample.gpus]
    assert refusal["device"] == uuids[0]
    user = psutil.Process(process.pid).username()
    assert refusal["why"].startswith(f"in use by {user}: {sys.executable} -c ")
    assert refusal["why"].endswith(f"--name train (pid {process.pid})")
    assert "--force" in refusal["fix"]
    assert [event["device"] for event in of(events, "result")] == uuids[1:]
    assert len(of(ask(hub, "measure", force=True), "result")) == 2


@pytest.mark.parametrize(
    ("key", "value", "field", "why"),
    [
        ("gpu.0.busy_percent", 40, "busy", "busy: 40 %"),
        ("gpu.0.memory_used_bytes", 3 * GIB, "memory_used_bytes", "3 GiB of its memory are in use"),
        ("gpu.0.remap_pending", 1, "remap.pending", "waits for a reset"),
    ],
)
def test_other_signs_of_use(key: str, value: int, field: str, why: str, hub: Hub, fake: FakeNvml) -> None:
    def seen(sample: Sample) -> bool:
        return bool(sample.gpus) and bool(attrgetter(field)(sample.gpus[0]))

    fake.set(key, value)
    fake.write()
    times: set[float] = set()

    def in_three_samples() -> bool:
        sample = hub.node("n1").sample
        if sample is not None and seen(sample):
            times.add(sample.sampled_at)
        return len(times) >= 3

    wait_until(in_three_samples, DEADLINE_S, "it in three samples")
    (refusal,) = of(ask(hub, "measure", gpus=["0"]), "refused")
    assert refusal["why"].startswith(why)


def test_instances_of_a_gpu_in_mig_mode_are_measured_by_themselves(fake: FakeNvml) -> None:
    fake.set("gpu.0.mig_enabled", True)
    fake.set("gpu.0.mig.0", "3g.40gb gi=2 uuid=MIG-first")
    fake.set("gpu.0.mig.2", "2g.20gb gi=3 uuid=MIG-second")
    fake.write()
    (channel,) = local.launch(("n1",), LaunchOptions(interval_s=0.2))
    with opened(channel) as hub:
        await_state(hub, "live")
        results = of(ask(hub, "measure", gpus=["0"]), "result")
        (refusal,) = of(ask(hub, "measure", gpus=["0"], kind="all_reduce"), "refused")
    assert sorted(event["data"]["seen"]["CUDA_VISIBLE_DEVICES"] for event in results) == ["MIG-first", "MIG-second"]
    assert refusal["why"] == "in MIG mode: NCCL does not work between MIG instances"


def test_without_a_torch_anywhere_every_place_is_named(hub: Hub, tmp_path: Path) -> None:
    (failure,) = of(ask(hub, "measure", python=torchless_python(tmp_path)), "failed")
    assert failure["why"].endswith("(named for this probe): torch is not installed")
    assert "--torch-python PATH" in failure["fix"]


def test_a_launcher_is_told_lines_and_only_by_its_key(hub: Hub) -> None:
    pending = hub.request("probe", args("launch", kind="all_reduce"))
    events: list[Event] = []
    for answer in pending.answers(DEADLINE_S):
        if answer.message.kind == "done":
            break
        assert answer.message.kind == "part", answer.message.error
        events.append(answer.message.data)
        if events[-1]["event"] == "ready":
            wrong = list(hub.request("probe_tell", {"key": "k2", "line": {}}).answers(DEADLINE_S))
            assert wrong[0].message.error.startswith("no probe with the key k2 runs here: an all_reduce probe of mltop")
            told = list(
                hub.request("probe_tell", {"key": "k1", "line": {"tell": "round", "round": 1}}).answers(DEADLINE_S)
            )
            assert [(one.message.kind, one.message.error) for one in told] == [("done", "")]
        if events[-1]["event"] == "round":
            hub.request("probe_tell", {"key": "k1", "line": {"tell": "end"}})
    assert of(events, "round")[0]["data"] == {"round": 1}
    (late,) = hub.request("probe_tell", {"key": "k1", "line": {}}).answers(DEADLINE_S)
    assert late.message.error == "no probe with the key k1 runs here"


def test_cancel_leaves_nothing(hub: Hub) -> None:
    pending = hub.request("probe", args("hang", options={"do": "hang", "deaf": True}))
    pids: list[int] = []
    for answer in pending.answers(DEADLINE_S):
        if answer.message.kind == "done":
            assert answer.message.data == {"cancelled": True}
            break
        pids += answer.message.data.get("data", {}).get("pids", [])
        if len(pids) == 4:
            pending.cancel()
    assert len(pids) == 4
    assert all(is_gone(pid) for pid in pids)


def test_the_agents_end_is_the_probes_end(hub: Hub) -> None:
    pids: list[int] = []
    for answer in hub.request("probe", args("hang", options={"do": "hang", "deaf": True})).answers(DEADLINE_S):
        pids += answer.message.data.get("data", {}).get("pids", [])
        if len(pids) == 4:
            break
    hub.close()
    wait_until(lambda: all(is_gone(pid) for pid in pids), DEADLINE_S, "the end of all of it")


def test_bad_requests_are_errors(hub: Hub) -> None:
    (answer,) = hub.request("probe", {"key": "k", "kind": "dance"}).answers(DEADLINE_S)
    assert answer.message.error == "unknown probe 'dance' (there are matmul, all_reduce, memory, copies)"
    (answer,) = hub.request("probe_tell", {"key": "k", "line": 5}).answers(DEADLINE_S)
    assert answer.message.error == "probe_tell needs an object as its line"


def test_an_agent_that_samples_once_a_minute_looks_before_a_probe(fake: FakeNvml) -> None:
    (channel,) = local.launch(("n1",), LaunchOptions(interval_s=60.0))
    with opened(channel, interval_s=60.0) as hub:
        await_state(hub, "live")
        assert len(of(ask(hub, "measure"), "result")) == 2


def test_the_python_of_the_training_job_is_found(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the activated environment of a process that was called as a bare "python"."""
    torch_python(tmp_path / "job", version="2.5.1+cu124", cuda="12.4")
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": f"job-{os.getpid()}", "VIRTUAL_ENV": str(tmp_path / "job")}
    monkeypatch.delenv("MLTOP_PROBE_PYTHON")
    (channel,) = local.launch(("n2",), LaunchOptions(interval_s=0.2))
    training = subprocess.Popen(
        ["python", "-c", "import time\ntime.sleep(600)"],
        executable=sys.executable,
        env={**os.environ, **rank, "NCCL_IB_HCA": "mlx5", "API_TOKEN": "secret"},
    )
    try:
        with opened(channel) as second:
            await_state(second, "live", "n2")
            events = ask(second, "measure")
    finally:
        training.kill()
        training.wait()
    assert of(events, "failed") == []
    (devices,) = of(events, "devices")
    assert (devices["data"]["torch"], devices["data"]["cuda"]) == ("2.5.1+cu124", "12.4")
    assert devices["data"]["python_origin"] == f"of the training process {training.pid}"
    assert devices["data"]["python"] == sys.executable


def test_an_agent_without_a_loop_reads_the_gpus_itself(fake: FakeNvml, process: subprocess.Popen[bytes]) -> None:
    fake.set("gpu.0.processes", [(process.pid, GIB, "compute")])
    fake.write()
    output, _ = start("probe", args("measure", total_s=60)).communicate(timeout=60)
    payloads = [line[line.index(b"{") :] for line in output.splitlines()]
    messages = [DECODER.decode(payload) for payload in payloads]
    events = [message.data for message in messages[:-1]]
    assert (messages[-1].kind, messages[-1].data) == ("done", {"cancelled": False})
    assert [event["why"].startswith("in use by ") for event in of(events, "refused")] == [True]
    assert len(of(events, "result")) == 1


def test_rounds_cannot_be_told_where_requests_do_not_arrive(fake: FakeNvml) -> None:
    output, _ = start("probe", args("launch", kind="all_reduce")).communicate(timeout=60)
    (message,) = [DECODER.decode(line[line.index(b"{") :]) for line in output.splitlines()]
    assert message.kind == "error"
    assert "--via ssh" in message.fix


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_without_a_loop_takes_its_probe_with_it(fake: FakeNvml, number: signal.Signals) -> None:
    agent = start("probe", args("hang", options={"do": "hang", "deaf": True}))
    assert agent.stdout is not None
    pids: list[int] = []
    while len(pids) < 4:
        line = agent.stdout.readline()
        assert line
        pids += json.loads(line[line.index(b"{") :]).get("data", {}).get("data", {}).get("pids", [])
    agent.send_signal(number)
    agent.communicate(timeout=DEADLINE_S)
    wait_until(lambda: all(is_gone(pid) for pid in pids), DEADLINE_S, "the end of all of it")


def test_a_probe_may_take_longer_than_other_requests() -> None:
    probe = {"key": "k", "kind": "copies", "total_s": 200}
    assert one_shot.limit_s("probe", probe) == 200 + one_shot.PROBE_EXTRA_S
    assert one_shot.limit_s("stacks", {"total_s": 5}) == 5
    assert one_shot.limit_s("stacks", {}) == one_shot.TOTAL_S
