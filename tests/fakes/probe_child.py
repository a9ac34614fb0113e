"""A probe process that does what its order's ``options["do"]`` says; the supervisor starts it like a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from mltop.probes.active import child
from mltop.probes.active.child import Order
from mltop.probes.model.probe import ProbeEvent


def main() -> None:
    order = child.read_order()
    for name, do in DOINGS.items():
        if order.options.get("do") == name:
            do(order)


def measure(order: Order) -> None:
    child.end_with_stdin()
    for stage in ("import torch", "device", "warm"):
        child.stage(stage)
    child.stage("warm", fraction=0.5)
    for device in order.devices:
        seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
        data = {"uuid": device.uuid, "gpu": device.index, "node": order.node, "seen": seen, "cwd": os.getcwd()}
        child.say(ProbeEvent("result", device=device.uuid, data=data))


def hang(order: Order) -> None:
    """In the stage "warm", with a child of its own that would stay for ever; ``deaf``: to SIGTERM, both.

    Else it makes the file ``asked`` when it is asked to end.
    """

    def asked(_number: int, _frame: object) -> None:
        open(order.options["asked"], "w").close()
        os._exit(0)

    child.stage("import torch")
    if order.options.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(600)"])
    if "asked" in order.options:
        signal.signal(signal.SIGTERM, asked)
    child.stage("warm", data={"pids": [os.getpid(), grandchild.pid]})
    time.sleep(600)


def progress(order: Order) -> None:
    """Says for ever that it is half way."""
    while True:
        child.stage("warm", fraction=0.5)
        time.sleep(0.02)


def die(order: Order) -> None:
    child.stage("import torch")
    sys.stderr.write(order.options.get("says", ""))
    sys.stderr.flush()
    if "signal" in order.options:
        os.kill(os.getpid(), order.options["signal"])
    os._exit(order.options.get("code", 0))


def garbage(order: Order) -> None:
    """Noise of every kind around one result."""
    noise = [b"hello\n", b"{\n", b'{"event": 5}\n', b'{"event": "stage", "stage": 7}\n', b"[" * 100_000 + b"\n"]
    noise += [b'{"event": "result", "data": {"a": NaN}}\n', b"\xff\xfe\x00\n", b"x" * 3_000_000 + b"\n", b"\n" * 100]
    child.stage("warm")
    for data in noise:
        while data:
            data = data[os.write(1, data) :]
    child.say(ProbeEvent("result", data={"uuid": order.devices[0].uuid}))
    os.write(1, b'{"event": "result"')  # cut off


def flood(order: Order) -> None:
    while True:
        os.write(1, (b"y" * 1000 + b"\n") * 64)


def silence(order: Order) -> None:
    """Closes its output, and lives on."""
    child.stage("warm", data={"pids": [os.getpid()]})
    os.close(1)
    time.sleep(600)


def linger(order: Order) -> None:
    """Does not end after its result, and has closed nothing."""
    child.say(ProbeEvent("result", data={"uuid": order.devices[0].uuid}))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def leave(order: Order) -> None:
    """Ends after its result; what it started would stay."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(600)"])
    child.say(ProbeEvent("result", data={"uuid": order.devices[0].uuid, "pids": [grandchild.pid]}))


def launch(order: Order) -> None:
    """Waits for rounds, as all_reduce does."""
    child.stage("join")
    child.say(ProbeEvent("ready", data={"options": order.options, "devices": [one.uuid for one in order.devices]}))
    for line in map(json.loads, sys.stdin):
        if line.get("tell") == "end":
            return
        child.stage("measure 1 MiB", rank=0)
        child.say(ProbeEvent("times", rank=0, data={"round": line.get("round")}))
        child.say(ProbeEvent("round", data={"round": line.get("round")}))


def stuck(order: Order) -> None:
    """In a system call that nothing ends but the file system's answer."""
    child.stage("device", data={"pids": [os.getpid()]})
    os.statvfs(order.options["path"])


DOINGS = {
    "measure": measure,
    "hang": hang,
    "progress": progress,
    "die": die,
    "garbage": garbage,
    "flood": flood,
    "silence": silence,
    "linger": linger,
    "leave": leave,
    "launch": launch,
    "stuck": stuck,
}
