"""Runs slices one after the other, each in a child process with a deadline: what one of them does costs no other."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tests.hardware import child, machine, report
from tests.hardware.checks import Check
from tests.hardware.context import Machine, Pythons
from tests.hardware.slices import LIMIT_S, SLICES, module_of

AGREES, DIFFERS, USAGE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
MINUTES = 45.0
GRACE_S = 10.0  # from SIGTERM to SIGKILL
KILL_WAIT_S = 5.0  # then it is in the driver, where no signal reaches it: it is left behind
LEAST_S = 5.0  # with less a slice is not begun


def main(words: Sequence[str]) -> int:
    if words[:1] == ["--child"]:
        return child.main(words[1])
    asked = parse(words)
    try:
        directory = new_directory(asked.o)
    except OSError as error:
        print(f"tests.gpu: -o {asked.o}: {error.strerror}", file=sys.stderr)
        return USAGE
    pythons = machine.find_pythons(directory)
    found = machine.describe(pythons)
    print(report.header(found, pythons), flush=True)
    run = Run(directory, pythons, found, time.monotonic() + 60 * asked.minutes)
    interrupted = False
    try:
        for name in dict.fromkeys(asked.only or SLICES):
            run.slice(name)
    except KeyboardInterrupt:
        interrupted = True
        run.skip(list(dict.fromkeys(asked.only or SLICES)), "the run was interrupted")
    run.save(interrupted)
    print(f"\n{report.summary(run.checks)}\n{directory / 'report.txt'}\n{directory / 'results.json'}")
    if (directory / "fixtures").is_dir():
        print(f"{directory / 'fixtures'}: to contribute it, copy what is in it to tests/fixtures/gpu/")
    return INTERRUPTED if interrupted else exit_code(run.checks)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Ends the process with USAGE for words that it does not know."""
    names = "\n".join(
        f"  {name:<12} {one.purpose} (needs {', '.join(one.needs)}; about {one.seconds:g} s)"
        for name, one in SLICES.items()
    )
    parser = argparse.ArgumentParser(
        prog="tests/gpu",
        description="Is mltop right about this machine's GPUs? Nothing on the machine is changed.",
        epilog=f"slices:\n{names}\n\nexit: 0 nothing differs, 1 something differs, 2 usage, 3 nothing could be tried",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=positive, default=MINUTES, metavar="N", help=f"in all (default {MINUTES:g})")
    parser.add_argument("--only", nargs="+", action="extend", choices=list(SLICES), metavar="NAME", help="these slices")
    parser.add_argument("-o", metavar="DIR", help="where results go (default: a new folder)")
    return parser.parse_args(words)


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("a number of minutes above 0")
    return value


def new_directory(wanted: str | None) -> Path:
    """OSError where it cannot be made, or holds results already."""
    path = Path(tempfile.mkdtemp(prefix="mltop-gpu-")) if wanted is None else Path(wanted).absolute()
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise FileExistsError(17, "it is not empty: results are not mixed")
    (path / "slices").mkdir()
    return path


def exit_code(checks: list[Check]) -> int:
    outcomes = {check.outcome for check in checks}
    if "differs" in outcomes:
        return DIFFERS
    return AGREES if "agrees" in outcomes else NOTHING


class Run:
    """``checks``: all so far, written to the directory after every slice."""

    def __init__(self, directory: Path, pythons: Pythons, found: Machine, deadline_s: float) -> None:
        self.checks: list[Check] = []
        self._seconds: dict[str, float] = {}
        self._directory = directory
        self._pythons = pythons
        self._machine = found
        self._deadline_s = deadline_s

    def slice(self, name: str) -> None:
        why = self._why_not(name)
        began_s = time.monotonic()
        if not why:
            why = self._in_child(name, min(LIMIT_S, self._deadline_s - began_s - GRACE_S - KILL_WAIT_S))
        self._take(name, why)
        self._seconds[name] = round(time.monotonic() - began_s, 1)
        print(report.of_slice(name, self.checks, self._seconds[name]), flush=True)
        self.save(False)

    def skip(self, names: list[str], why: str) -> None:
        for name in names:
            if name not in self._seconds:
                self._take(name, why)

    def save(self, interrupted: bool) -> None:
        data = {
            "schema": 1,
            "versions": self._machine.versions,
            "gpus": self._machine.gpus,
            "pythons": asdict(self._pythons),
            "gaps": self._machine.gaps,
            "interrupted": interrupted,
            "seconds": self._seconds,
            "checks": [asdict(check) for check in self.checks],
        }
        text = report.header(self._machine, self._pythons) + "\n\n" + report.lines(self.checks)
        _write(self._directory / "results.json", json.dumps(data, indent=1) + "\n")
        _write(self._directory / "report.txt", f"{text}\n\n{report.summary(self.checks)}\n")

    def _why_not(self, name: str) -> str:
        for need in SLICES[name].needs:
            if need == "root" and os.geteuid() != 0:
                return "it needs root"
            if need in self._machine.gaps:
                return self._machine.gaps[need]
        if self._deadline_s - time.monotonic() - GRACE_S - KILL_WAIT_S < LEAST_S:
            return "the time given with --minutes is over"
        return ""

    def _in_child(self, name: str, seconds: float) -> str:
        """Why it broke off, "" when it came to its end. KeyboardInterrupt after the child was ended."""
        order = {
            "slice": name,
            "directory": str(self._directory),
            "seconds": seconds,
            "parent": os.getpid(),
            "pythons": asdict(self._pythons),
            "machine": asdict(self._machine),
        }
        log = self._directory / "slices" / f"{name}.log"
        with open(log, "wb") as output:
            try:
                process = subprocess.Popen(
                    child.command(order),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return f"it cannot be started: {error}"
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"it took more than {seconds:.0f} s" + end(process)
            except BaseException:
                end(process)
                self._take(name, "the run was interrupted")
                self._seconds[name] = 0.0
                raise
            end(process)  # what it left behind
        said = child.why_file(self._directory, name)
        if said.exists():
            return said.read_text(encoding="utf-8")
        return "" if code == 0 else f"it {_ended_with(code)}: {_last_line(log)}"

    def _take(self, name: str, why: str) -> None:
        """The checks that a slice wrote; those that it did not come to are not tried for ``why``."""
        path = child.checks_file(self._directory, name)
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                found.append(Check(**json.loads(line)))
            except (ValueError, TypeError):  # cut off in the middle
                continue
        self.checks += found
        names = {check.name for check in found}
        if why:
            missed = [one for one in module_of(name).CHECKS if one not in names]
            # Of several GPUs the last ones may be missing where every name was seen.
            self.checks += [Check(one, "not tried", why=why, slice=name) for one in missed or ["the rest"]]
        elif not found:
            self.checks.append(Check(name, "not tried", why="it found nothing to compare", slice=name))


def end(process: subprocess.Popen[bytes]) -> str:
    """The child with its whole group; what is said when it does not end."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal(process, signal.SIGKILL)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return f"; process {process.pid} is stuck in the driver and was left behind"
    return ""


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in its group
        os.killpg(process.pid, number)


def _ended_with(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with {code}"


def _last_line(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{said[-1]} ({log})" if said else f"without a word ({log})"


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".writing")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
