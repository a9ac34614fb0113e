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
from itertools import chain
from pathlib import Path

from tests.gpu import PACKAGE
from tests.hardware import child, machine, report
from tests.hardware.checks import Check
from tests.hardware.context import Machine, Pythons
from tests.hardware.slices import SLICES, module_of, share

AGREES, DIFFERS, USAGE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
MINUTES = 45.0
GRACE_S = 10.0  # from SIGTERM to SIGKILL
KILL_WAIT_S = 5.0  # then it is in the driver, where no signal reaches it: it is left behind
LEAST_S = 5.0  # with less a slice is not begun, even one that was asked for by name
SAVE_S = 2.0  # what a slice has found so far is in the report so soon


def main(words: Sequence[str]) -> int:
    if words[:1] == ["--child"]:
        return child.main(words[1])
    began_s, asked = time.monotonic(), parse(words)
    try:
        directory = new_directory(asked.o)
    except OSError as error:
        print(f"tests.gpu: -o {asked.o}: {error.strerror}", file=sys.stderr)
        return USAGE
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        pythons = machine.find_pythons(directory)
        run = Run(directory, pythons, machine.describe(pythons), asked, began_s)
        print(run.header(), flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        run.all()
        interrupted = False
    except KeyboardInterrupt:
        run.skip_rest("the run was interrupted")
        interrupted = True
    run.save(interrupted)
    print(f"\n{report.summary(run.checks)}\n{directory / 'report.txt'}\n{directory / 'results.json'}")
    if (directory / "fixtures").is_dir():
        print(f"{directory / 'fixtures'}: to contribute it, copy what is in it to tests/fixtures/gpu/")
    return INTERRUPTED if interrupted else exit_code(run.checks)


def _interrupt(*_: object) -> None:
    """`timeout` and schedulers end with SIGTERM what takes too long: as Ctrl-C does."""
    raise KeyboardInterrupt


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Ends the process with USAGE for words that it does not know."""
    names = "\n".join(
        f"  {name:<12} {one.purpose} (needs {', '.join(one.needs)}; about {one.seconds:g} s, at least {one.least:g} s)"
        for name, one in SLICES.items()
    )
    parser = argparse.ArgumentParser(
        prog="tests/gpu",
        description="Is mltop right about this machine's GPUs? Nothing on the machine is changed.",
        epilog=f"slices, in order of value:\n{names}\n\n"
        "exit: 0 nothing differs, 1 something differs, 2 usage, 3 nothing could be tried",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    within = f"in all (default {MINUTES:g}); what does not fit is skipped, in the order of the list below"
    parser.add_argument("--minutes", type=positive, default=MINUTES, metavar="N", help=within)
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
    """``checks``: of the slices that are over. What is saved has all others, too, at any time: a run may be killed."""

    def __init__(
        self, directory: Path, pythons: Pythons, found: Machine, asked: argparse.Namespace, began_s: float
    ) -> None:
        self.checks: list[Check] = []
        self._seconds: dict[str, float] = {}  # of the slices that are over
        self._directory = directory
        self._pythons = pythons
        self._machine = found
        self._asked = asked
        self._names: list[str] = list(dict.fromkeys(asked.only or SLICES))
        self._deadline_s = began_s + 60 * asked.minutes

    def header(self) -> str:
        """With the slices that lack something here."""
        lacking = [check for name in self._names if (why := self._lacks(name)) for check in self._checks_of(name, why)]
        return report.header(self._machine, self._pythons, lacking)

    def all(self) -> None:
        for place, name in enumerate(self._names):
            self.save(interrupted=True)
            self._slice(name, [other for other in self._names[place + 1 :] if not self._lacks(other)])

    def skip_rest(self, why: str) -> None:
        self.checks = self._all_checks(why)
        self._seconds.update({name: 0.0 for name in self._names if name not in self._seconds})

    def save(self, interrupted: bool) -> None:
        checks = self._all_checks("the run has not come to it")
        data = {
            "schema": 1,
            "versions": self._machine.versions,
            "gpus": self._machine.gpus,
            "pythons": asdict(self._pythons),
            "gaps": self._machine.gaps,
            "interrupted": interrupted,
            "seconds": self._seconds,
            "checks": [asdict(check) for check in checks],
        }
        text = report.header(self._machine, self._pythons, checks) + "\n\n" + report.lines(checks)
        _write(self._directory / "results.json", json.dumps(data, indent=1) + "\n")
        _write(self._directory / "report.txt", f"{text}\n\n{report.summary(checks)}\n")

    def _all_checks(self, why: str) -> list[Check]:
        """With what the slice that runs has found; all others are not tried for ``why``."""
        rest = (self._checks_of(name, self._lacks(name) or why) for name in self._names if name not in self._seconds)
        return [*self.checks, *chain.from_iterable(rest)]

    def _slice(self, name: str, later: list[str]) -> None:
        began_s = time.monotonic()
        left_s = self._deadline_s - began_s - GRACE_S - KILL_WAIT_S
        least_s = LEAST_S if self._asked.only else SLICES[name].least
        why = self._lacks(name)
        if not why and left_s < least_s:
            of_all = f"{max(0.0, left_s):.0f} s are left of --minutes {self._asked.minutes:g}"
            why = f"it takes {least_s:g} s at least, {of_all}"
        if not why:
            why = self._in_child(name, share(name, later, left_s))
        self.checks += self._checks_of(name, why)
        self._seconds[name] = round(time.monotonic() - began_s, 1)
        print(report.of_slice(name, self.checks, self._seconds[name]), flush=True)

    def _lacks(self, name: str) -> str:
        for need in SLICES[name].needs:
            if need == "root" and os.geteuid() != 0:
                return "it needs root"
            if need in self._machine.gaps:
                return self._machine.gaps[need]
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
                    env={**os.environ, PACKAGE: self._pythons.package},
                )
            except OSError as error:
                return f"it cannot be started: {error}"
            try:
                code = self._wait(process, name, seconds)
            except subprocess.TimeoutExpired:
                return f"it took more than {seconds:.0f} s" + end(process)
            except BaseException:
                end(process)
                raise
            end(process)  # what it left behind
        said = child.why_file(self._directory, name)
        if said.exists():
            return said.read_text(encoding="utf-8")
        return "" if code == 0 else f"it {_ended_with(code)}: {_last_line(log)}"

    def _wait(self, process: subprocess.Popen[bytes], name: str, seconds: float) -> int:
        """Its exit code. What it finds is saved meanwhile. Raises TimeoutExpired."""
        until_s, saved = time.monotonic() + seconds, 0
        while True:
            try:
                return process.wait(max(0.0, min(SAVE_S, until_s - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= until_s:
                    raise
            if len(self._found(name)) > saved:
                saved = len(self._found(name))
                self.save(interrupted=True)

    def _checks_of(self, name: str, why: str) -> list[Check]:
        """The checks that a slice wrote; those that it did not come to are not tried for ``why``."""
        found = self._found(name)
        if why:
            names = {check.name for check in found}
            missed = [one for one in module_of(name).CHECKS if one not in names]
            # Of several GPUs the last ones may be missing where every name was seen.
            return found + [Check(one, "not tried", why=why, slice=name) for one in missed or ["the rest"]]
        return found or [Check(name, "not tried", why="it found nothing to compare", slice=name)]

    def _found(self, name: str) -> list[Check]:
        path = child.checks_file(self._directory, name)
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                found.append(Check(**json.loads(line)))
            except (ValueError, TypeError):  # cut off in the middle
                continue
        return found


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
