"""One process that makes the machines of ``cluster.py`` and holds them until its stdin ends.

Run as ``python keeper.py DIRECTORY`` with DIRECTORY/spec.json; standard library only. Every machine is an own init in
own mount, network, host name, IPC and PID namespaces; the machine "login" holds the bridge that the others hang on.
Prints one JSON line when all are up: {"pids": {name: pid of its init}} or {"error": "..."}. When stdin ends, or this
process dies in any way, every init ends and its namespaces with it; DIRECTORY is removed unless we were killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
# unshare(2)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
# mount(2)
BIND, REC, PRIVATE = 0x1000, 0x4000, 0x40000
NOSUID, NODEV, NOEXEC = 2, 4, 8

INSIDE = Path("/run/host")  # a machine's own directory, as it sees it
SHARED = Path("/run/shared")  # one directory that all machines see, like a shared file system
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def main() -> None:
    directory = Path(sys.argv[1])
    spec = json.loads((directory / "spec.json").read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    lifeline_read, lifeline_write = os.pipe()
    status_read, status_write = os.pipe()
    if spec["user_namespace"]:
        enter_user_namespace()
    for machine in spec["machines"]:
        if os.fork() == 0:
            os.close(lifeline_write)
            os.close(status_read)
            stand_between(machine, directory, spec, lifeline_read, status_write)
    os.close(lifeline_read)
    os.close(status_write)
    try:
        print(json.dumps(bring_up(spec, status_read, lifeline_write)), flush=True)
        sys.stdin.buffer.read()
    finally:
        os.close(lifeline_write)
        for _ in spec["machines"]:
            os.wait()
        shutil.rmtree(directory, ignore_errors=True)


def bring_up(spec: dict[str, Any], status_fd: int, lifeline_fd: int) -> dict[str, Any]:
    """Wait for every machine's pid, connect them, let them go on, wait until they are ready."""
    count = len(spec["machines"])
    pids: dict[str, int] = {}
    ready = 0
    with os.fdopen(status_fd) as status:
        for line in status:
            word, name, rest = json.loads(line)
            if word == "error":
                return {"error": f"{name}: {rest}"}
            if word == "ready":
                ready += 1
            if word == "pid":
                pids[name] = rest
                if len(pids) == count:
                    wire_up(spec, pids)
                    os.write(lifeline_fd, b"g" * count)
            if ready == count:
                return {"pids": pids}
    return {"error": "a machine ended before it was ready"}


def wire_up(spec: dict[str, Any], pids: dict[str, int]) -> None:
    """A bridge on the login node, and a cable from it to every other machine's eth0."""
    lines = ["link add br0 type bridge", f"addr add {spec['machines'][0]['address']}/16 dev br0", "link set br0 up"]
    for machine in spec["machines"][1:]:
        lines += [
            f"link add {machine['cable']} type veth peer name eth0 netns {pids[machine['name']]}",
            f"link set {machine['cable']} master br0 up",
        ]
    command = ["nsenter", f"--net=/proc/{pids['login']}/ns/net", "ip", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, stdout=sys.stderr)


def stand_between(machine: dict[str, Any], directory: Path, spec: dict[str, Any], lifeline: int, status: int) -> None:
    """Only a process that is forked after unshare(2) is in the new PID namespace: this one waits for it."""
    name = machine["name"]
    code = 1
    try:
        check(LIBC.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET), "unshare")
        pid = os.fork()
        if pid == 0:
            init(machine, directory, spec, lifeline, status)
        say(status, "pid", name, pid)
        os.close(lifeline)
        os.waitpid(pid, 0)
        say(status, "error", name, "its init ended")
        code = 0
    except BrokenPipeError:
        code = 0  # nobody waits for us to be ready any more
    except OSError as error:
        say(status, "error", name, repr(error))
    finally:
        os._exit(code)


def init(machine: dict[str, Any], directory: Path, spec: dict[str, Any], lifeline: int, status: int) -> None:
    """Process 1 of a machine: sets it up, then collects orphans until the keeper is gone."""
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 0)
        os.dup2(quiet, 1)
        # os.environ too: what subprocess.run starts must not see the test run's variables.
        os.environ.clear()
        os.environ.update(CLEAN)
        own_files(machine["name"], directory, spec["keep"])
        assert os.read(lifeline, 1) == b"g"
        own_network(machine)
        if machine["name"] != "login":
            Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
            subprocess.run(spec["sshd"], check=True)
        signal.signal(signal.SIGCHLD, lambda *_: reap())
        reap()
        say(status, "ready", machine["name"], None)
        os.close(status)
        hung_up = select.poll()
        hung_up.register(lifeline, 0)
        hung_up.poll()
        os._exit(0)
    except (OSError, subprocess.SubprocessError, AssertionError):
        say(status, "error", machine["name"], traceback.format_exc())
    finally:
        os._exit(1)


def own_files(name: str, directory: Path, keep: list[str]) -> None:
    """Own /proc, /sys, /run, scratch directories, host name, users and hosts; ``keep`` stays in sight below them."""
    mount(None, "/", None, REC | PRIVATE)
    mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("sysfs", "/sys", "sysfs", NOSUID | NODEV | NOEXEC)
    mount("tmpfs", "/run", "tmpfs", NOSUID | NODEV)
    bind(directory / name, INSIDE)
    bind(directory / "shared", SHARED)
    Path("/run/sshd").mkdir(mode=0o755)
    for number, path in enumerate(keep):
        bind(path, f"/run/keep/{number}")
    for path in SCRATCH:
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "mode=1777")
    for number, path in enumerate(keep):
        bind(f"/run/keep/{number}", path)
    for file in ("passwd", "shadow", "hosts"):
        mount(str(INSIDE / file), f"/etc/{file}", None, BIND)
    socket.sethostname(name)


def own_network(machine: dict[str, Any]) -> None:
    lines = ["link set lo up"]
    if machine["cable"]:
        lines += [f"addr add {machine['address']}/16 dev eth0", "link set eth0 up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def enter_user_namespace() -> None:
    """Without root: an own user namespace in which we are root."""
    uid, gid = os.getuid(), os.getgid()
    check(LIBC.unshare(NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def bind(source: Path | str, target: Path | str) -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    mount(str(source), str(target), None, BIND | REC)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    options = data.encode() if data else None
    check(LIBC.mount(*words, ctypes.c_ulong(flags), options), f"mount {target}")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def say(fd: int, word: str, name: str, rest: object) -> None:
    os.write(fd, json.dumps([word, name, rest]).encode() + b"\n")


if __name__ == "__main__":
    main()
