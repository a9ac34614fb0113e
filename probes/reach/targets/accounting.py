"""What Slurm knows of a job that may have ended: its state, nodes, and where its output is (scontrol(1), sacct(1))."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path

from mltop.probes.model.units import duration_words
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.programs import run_program
from mltop.probes.reach.targets.slurm import JOB_ID, failure_of

TIMEOUT_S = 10.0
_FIELD = re.compile(
    r"(?:^|\s)(JobId|JobState|Reason|ExitCode|NodeList|StdOut|StdErr|JobName|UserId|WorkDir)=(.*?)(?=\s+\w[\w:/]*=|$)"
)
_PATTERN = re.compile(r"%(\d*)([%AaJjNnstux])")


@dataclass(frozen=True)
class PastJob:
    """``state`` as Slurm spells it ("FAILED", "TIMEOUT", "COMPLETED"); ``outputs``: files that exist."""

    job: str
    state: str
    nodes: str
    outputs: tuple[str, ...]


def past_job(text: str) -> PastJob:
    """Raises UsageProblem where Slurm does not know it, or not where it wrote."""
    what = f"--job {text}"
    if JOB_ID.fullmatch(text) is None:
        raise UsageProblem(f"--job {text!r}", "is not a Slurm job id", "a number such as 123 or 123_4: `sacct`")
    failures: list[str] = []
    told = _by_sacct(text, failures)
    # It knows nothing of jobs that ended more than minutes ago.
    lines = _asked(("scontrol", "--oneliner", "show", "job", text), failures)
    told.update(_FIELD.findall(lines[0]) if lines else ())
    if not told:
        why = "; ".join(dict.fromkeys(failures)) or "Slurm knows no such job"
        raise UsageProblem(what, why, "give its log files: mltop explain PATH…")
    outputs = tuple(
        dict.fromkeys(name for key in ("StdOut", "StdErr") for name in _files(told.get(key, ""), told, text))
    )
    state = (told.get("JobState", "").split() or [""])[0]
    if not outputs:
        where = told.get("StdOut", "")
        why = f"its output {where} is not to be found here" if where else "Slurm does not say where its output is"
        raise UsageProblem(what, f"{why}, it is {state.lower() or 'of unknown state'}", "give it: mltop explain PATH…")
    return PastJob(text, state, told.get("NodeList", ""), outputs)


def _by_sacct(job: str, failures: list[str]) -> dict[str, str]:
    """Of all jobs, where accounting is on. Before Slurm 23.11 it does not know StdOut."""
    fields = "JobID,State,ExitCode,NodeList,JobName,User,WorkDir,StdOut,StdErr"
    for names in (fields, fields.rpartition(",StdOut")[0]):
        asks = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={names}")
        of_this: list[str] = []
        lines = _asked(asks, of_this)
        if lines:
            keys = ("JobId", "JobState", "ExitCode", "NodeList", "JobName", "UserId", "WorkDir", "StdOut", "StdErr")
            return {key: value for key, value in zip(keys, lines[0].split("|"), strict=False) if value}
    failures += of_this
    return {}


def _asked(command: tuple[str, ...], failures: list[str]) -> list[str]:
    """The lines that it prints. None when it does not know the job; or when it failed: why is added to ``failures``."""
    name, *options = command
    program = shutil.which(name)
    if program is None:
        failures.append(f"Slurm's {name} is not on this machine")
        return []
    try:
        done = run_program((program, *options), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        fix = "does Slurm's controller run? `scontrol ping`"
        raise UsageProblem("--job", f"{name} did not answer within {duration_words(TIMEOUT_S)}", fix) from None
    except OSError as error:
        raise UsageProblem("--job", f"cannot start {program}: {error.strerror}") from None
    if done.returncode == 0:
        return [line for line in done.stdout.splitlines() if line.strip()]
    said = failure_of(name, done)
    if "Invalid job id" not in said:
        failures.append(said)
    return []


def _files(pattern: str, told: dict[str, str], job: str) -> Iterator[str]:
    """The files of a name that may have Slurm's patterns in it."""
    if not pattern or pattern == "/dev/null":
        return
    number, _, task = told.get("JobId", job).partition("_")
    known = {"j": number, "A": number, "J": number, "a": task, "x": told.get("JobName", ""), "%": "%"}
    known["u"] = told.get("UserId", "").partition("(")[0]
    parts, at = [], 0
    for match in _PATTERN.finditer(pattern):
        parts.append(escape(pattern[at : match.start()]))
        value = known.get(match[2], "")
        parts.append(escape(value.zfill(int(match[1])) if match[1] and value.isdigit() else value) if value else "*")
        at = match.end()
    name = "".join((*parts, escape(pattern[at:])))
    if not name.startswith("/"):
        name = f"{escape(told.get('WorkDir', '.'))}/{name}"
    yield from (found for found in sorted(glob(name)) if Path(found).is_file())  # noqa: PTH207 - of a whole path
