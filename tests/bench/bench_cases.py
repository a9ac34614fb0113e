"""The table of cases: jobs that hang, crash, or are well, started for real; what mltop says of each, and how soon.

    python -m tests.bench cases [NAME…] [--list] [--watch] [--at-once N] [--python PATH] [--markdown FILE]
                                [--keep DIR | --kept DIR]

NAME: a case, its first words, a framework or a group. ``--python``: that of an environment with the packages
of tests/bench/cases/requirements.txt; of cases whose package it lacks the table says so. ``--watch``: also watch each
case at 1 Hz, until an incident is told. ``--at-once``: so many cases at a time, each in process, network and mount
namespaces of its own, where mltop sees no other; those that cannot be (``Case.apart``) are played after them, one by
one. Exit 1: a wrong rank was accused, or one of a job that is well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

from mltop.probes.system.spawn import die_with_parent
from tests.bench.cases.data import CASES, Case
from tests.bench.cases.judged import BAD, Row, judge
from tests.bench.cases.stage import EXTENSIONS, Order, Seen
from tests.bench.cases.words import line, markdown, summary
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
LONGEST_S = 600.0
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
PORTS = 50  # of one case: each of its launches begins ten further
NODE_ADDRESS = "192.0.2.1"  # for documentation (RFC 5737): nobody has it


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    chosen = selected(options.names)
    if options.list:
        for case in chosen:
            print(f"{case.name:<28} {case.group:<14} {case.framework:<16} {case.truth:<10} {case.ranks} ranks")
        return 0
    rows = {}
    for row in (kept(case, Path(options.kept)) for case in chosen) if options.kept else all_played(chosen, options):
        rows[row.case.name] = row
        print(line(row), flush=True)
    ordered = [rows[case.name] for case in chosen]
    print("\n" + summary(ordered))
    if options.markdown:
        Path(options.markdown).write_text(markdown(ordered))
    return 1 if any(row.outcome in BAD for row in ordered) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.bench cases")
    made.add_argument("names", nargs="*", metavar="NAME")
    made.add_argument("--list", action="store_true")
    made.add_argument("--watch", action="store_true")
    made.add_argument("--at-once", type=int, default=1, metavar="N")
    made.add_argument("--python", default=sys.executable)
    made.add_argument("--markdown", default="")
    made.add_argument("--keep", default="", help="a folder that keeps the logs and what was said, a folder per case")
    made.add_argument("--kept", default="", help="play nothing, judge what such a folder kept")
    return made


def selected(names: Sequence[str]) -> list[Case]:
    """In the order of the table. SystemExit: there is no such case."""
    for name in names:
        if not any(is_meant(case, name) for case in CASES):
            sys.exit(f"tests.bench cases: {name}: no such case (--list shows them)")
    return [case for case in CASES if not names or any(is_meant(case, name) for name in names)]


def is_meant(case: Case, name: str) -> bool:
    return name in (case.group, case.framework) or f"{case.name} ".startswith(f"{name} ")


def all_played(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Row]:
    """Each as soon as it was played. Those in namespaces of their own several at a time, the others by themselves."""
    for lock in EXTENSIONS.glob("**/lock"):  # of a case that was cut off while it compiled: ranks wait for it forever
        lock.unlink()
    players = ThreadPoolExecutor(max(1, options.at_once))
    try:
        playing = [players.submit(played, case, options) for case in cases if case.apart]
        for done in as_completed(playing):
            yield done.result()
    finally:
        players.shutdown(cancel_futures=True)  # Ctrl-C: those that have not begun
    for case in cases:
        if not case.apart:
            yield played(case, options)


def played(case: Case, options: argparse.Namespace) -> Row:
    missing = lacking(case, options.python)
    if missing:
        return Row(case, "not played", headline=missing)
    with tempfile.TemporaryDirectory(prefix="mltop-case-") as scratch:
        directory = directory_of(case, Path(options.keep)) if options.keep else Path(scratch) / "kept"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return judge(case, play(case, directory, scratch, options))


def kept(case: Case, folder: Path) -> Row:
    result = directory_of(case, folder) / "result.json"
    if not result.exists():
        return Row(case, "not played", headline=f"{folder} has nothing of it")
    return judge(case, Seen(**json.loads(result.read_text())))


def directory_of(case: Case, folder: Path) -> Path:
    return folder / case.name.replace(" ", "_")


def lacking(case: Case, python: str) -> str:
    for program in case.programs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    for package in case.packages:
        found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
        if subprocess.run([python, "-c", found], capture_output=True).returncode:
            return f"{python} has no {package}"
    return ""


def play(case: Case, directory: Path, scratch: str, options: argparse.Namespace) -> Seen:
    (directory / "events").mkdir()
    python = str(Path(options.python).absolute())
    order = Order(case.name, str(directory.absolute()), python, free_ports(PORTS)[0], options.watch, scratch=scratch)
    try:
        network = own_network() if case.apart else None
    except OSError as error:
        return Seen(problem=f"needs namespaces of its own: {error}")
    outside = None
    if case.outside:
        order.address = NODE_ADDRESS
        outside = staged(replace(order, part="outside"), network)
    stage = staged(order, network)
    try:
        stage.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        return Seen(problem=f"did not end within {LONGEST_S:g} s")
    finally:
        for process in (stage, outside, network):
            if process is not None:
                process.kill()  # of a namespace: all of it ends
                process.wait()
    result = directory / "result.json"
    return Seen(**json.loads(result.read_text())) if result.exists() else Seen(problem="the stage left no result")


def own_network() -> subprocess.Popen[bytes]:
    """Holds a network namespace and, for who is not root, a user's. Beside the loopback it has an interface, over which
    two nodes meet, and without which Open MPI does not start.
    """
    setup = " && ".join(
        (
            "ip link set lo up",
            "ip link add cluster type veth peer name switch",
            "ip link set switch up",
            "ip link set cluster up",
            f"ip addr add {NODE_ADDRESS}/24 dev cluster",
            "echo ready",
            f"exec sleep {LONGEST_S:.0f}",
        )
    )
    network = subprocess.Popen(
        ["unshare", *AS_ROOT, "--net", "sh", "-c", setup],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=die_with_parent,
    )
    assert network.stdout is not None
    if network.stdout.readline() != b"ready\n":
        _, said = network.communicate()
        raise OSError(said.decode(errors="replace").strip())
    return network


def inside(network: subprocess.Popen[bytes]) -> list[str]:
    """What runs a command in this network and in process and mount namespaces of its own; all ends with it."""
    of_user = ["--preserve-credentials", f"--user=/proc/{network.pid}/ns/user"] if AS_ROOT else []
    return ["nsenter", *of_user, f"--net=/proc/{network.pid}/ns/net", *APART]


def staged(order: Order, network: subprocess.Popen[bytes] | None) -> subprocess.Popen[bytes]:
    """``network``: None plays in the namespaces that all share."""
    directory = Path(order.directory)
    path = directory / f"order{order.part}.json"
    path.write_text(json.dumps(asdict(order)))
    apart = [] if network is None else inside(network)
    command = [*apart, sys.executable, "-m", "tests.bench.cases.stage", str(path)]
    with (directory / f"stage{order.part}").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
