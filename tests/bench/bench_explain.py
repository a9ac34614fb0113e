"""How well `mltop explain` tells who failed first on generated logs (``tests/builders/job_logs.py``), and how fast."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mltop.probes.investigate.explain import Explained, explain
from tests.bench.table import Goal, print_table
from tests.builders.job_logs import LAUNCHED, STORIES, Case, Truth, case, launched_case, write

CASES, QUICK = 680, 17
BIG_BYTES = 1_000_000_000


def verdict(found: Explained, truth: Truth) -> str:
    """ "right", "cannot tell", or "VICTIM": somebody is named who was not it."""
    incidents = [job.incident for job in found.jobs if job.incident is not None]
    culprits = [culprit for incident in incidents for culprit in incident.culprits]
    for culprit in culprits:
        if culprit.rank is not None and culprit.rank not in truth.ranks:
            return "VICTIM"
        if culprit.rank is None and culprit.node not in truth.nodes:
            return "VICTIM"
    if culprits:
        return "right"
    if truth.ended == "well":
        return "right" if not incidents else "cannot tell"
    if truth.ended == "outside":
        return "right" if any(incident.kind == "stopped" for incident in incidents) else "cannot tell"
    if any(incident.kind == "stopped" for incident in incidents) or not incidents:
        return "WRONG"
    return "cannot tell" if truth.ranks or truth.nodes else "right"


def judged(asked: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        truth = write(asked, Path(folder))
        return verdict(explain([folder], lambda _: None), truth)


def quality(count: int) -> list[tuple[Case, str]]:
    told: dict[str, Counter[str]] = {name: Counter() for name in (*STORIES, *LAUNCHED)}
    wrong = []
    cases = [*map(case, range(count)), *map(launched_case, range(count // 3))]
    count = len(cases)
    for asked in cases:
        answer = judged(asked)
        told[asked.story][answer] += 1
        if answer in ("VICTIM", "WRONG"):
            wrong.append((asked, answer))
    print(
        f"\nexplain: {count} generated jobs, of 4 to 512 ranks\n  {'':<22}{'jobs':>6}{'right':>8}{'cannot':>8}{'wrong':>8}{'victim':>8}"
    )
    for name, counts in told.items():
        row = (sum(counts.values()), counts["right"], counts["cannot tell"], counts["WRONG"], counts["VICTIM"])
        print(f"  {name:<22}" + f"{row[0]:>6}" + "".join(f"{value:>8}" for value in row[1:]))
    total = sum((counts for counts in told.values()), Counter())
    print_table(
        "explain, shares in percent",
        [
            ("first failure named rightly", 100 * total["right"] / count, None),
            ("neither right nor said to be unknown", 100 * (total["WRONG"] + total["VICTIM"]) / count, Goal(5.0)),
            ("a victim accused", 100 * total["VICTIM"] / count, Goal(0.0)),
        ],
    )
    return wrong


_MEASURE = """
import resource, sys, time
from mltop.probes.investigate.explain import explain
before = resource.getrusage(resource.RUSAGE_SELF)
found = explain(sys.argv[1:], lambda _: None)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024, len(found.jobs))
"""


def measured(path: str) -> tuple[float, float]:
    """Seconds of one core, and MiB."""
    done = subprocess.run([sys.executable, "-c", _MEASURE, path], capture_output=True, text=True, check=True)
    cpu_s, peak_mib, _ = done.stdout.split()
    return float(cpu_s), float(peak_mib)


def big_file(path: Path, size_bytes: int) -> None:
    """A log of training as it is: progress, warnings, in the end a timeout."""
    lines = []
    for step in range(20_000):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_762_160_400 + step))
        lines.append(
            f"[{stamp},{step % 1000:03d}] [INFO] [trainer.py:{step % 900}:train_step] iteration {step:8d}/ 500000 | consumed samples: "
            f"{step * 512} | elapsed time per iteration (ms): {step % 977}.2 | learning rate: 1.0E-04 | lm loss: 2.1E+00 | grad norm: 1.02 |\n"
        )
        if step % 200 == 0:
            lines.append(
                "[rank3]:[W1103 10:00:05.123456789 socket.cpp:752] Warning: error while resolving, falling back (function operator())\n"
            )
    block = "".join(lines).encode()
    with path.open("wb") as file:
        for _ in range(max(1, size_bytes // len(block))):
            file.write(block)
        file.write(
            b'[rank3]: Traceback (most recent call last):\n[rank3]:   File "/a.py", line 1, in f\n[rank3]: ValueError: no\n'
        )


def many_files(folder: Path, count: int) -> None:
    """Small logs of so many ranks, one of which failed."""
    folder.mkdir()
    steps = "".join(f"step {step} loss 2.{step:03d}\n" for step in range(30))
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(1_762_160_400)).lstrip("0")
    for rank in range(count):
        said = f"[E{stamp}.123456789 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
        if rank == count // 2:
            said = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no'
        (folder / f"rank_{rank}.log").write_text(steps + "".join(f"[rank{rank}]:{line}\n" for line in said.split("\n")))


def flood(path: Path, line: str, size_bytes: int, before: str = "") -> None:
    """One line, over and over, with a number in it."""
    with path.open("w") as file:
        file.write(before)
        for number in range(size_bytes // len(line)):
            file.write(line.format(number % 7, number))


def floods(folder: Path, size_bytes: int) -> None:
    """What costs more than ordinary lines, as a multiple of their time."""
    died = (
        '[rank9]: Traceback (most recent call last):\n[rank9]:   File "/a.py", line 1, in f\n[rank9]: ValueError: no\n'
    )
    rows: list[tuple[str, float, Goal | None]] = []
    path, ordinary_s = folder / "flood.log", 0.0
    for name, line, before in (
        ("ordinary lines", "[rank{}]: step {:8d} loss 2.113 of the last shard\n", ""),
        ("every line with an error", "[rank{}]: fetch error: retry {:8d} of the shard\n", ""),
        ("after the traceback of a rank that is dead", "[rank{}]: step {:8d} loss 2.113 of the last shard\n", died),
    ):
        flood(path, line, size_bytes, before)
        cpu_s, _ = measured(str(path))
        ordinary_s = ordinary_s or cpu_s
        rows.append((name, cpu_s / ordinary_s, Goal(3.0)))
        path.unlink()
    print_table(f"explain, {size_bytes >> 20} MiB of lines: times the time of ordinary ones", rows)


def main(quick: bool) -> None:
    wrong = quality(QUICK if quick else CASES)
    for asked, answer in wrong[:10]:
        print(f"  {answer}: {asked}")
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder) / "big.log"
        share = 0.01 if quick else 1.0
        big_file(big, int(BIG_BYTES * share))
        cpu_s, peak_mib = measured(str(big))
        big.unlink()
        many = Path(folder) / "many"
        write(Case(1, "never_entered", "torchrun_folders", 64 if quick else 512, "plain", "nothing", False, ""), many)
        many_s, many_mib = measured(str(many))
        files = 100 if quick else 10_000
        many_files(Path(folder) / "small", files)
        small_s, small_mib = measured(str(Path(folder) / "small"))
        floods(Path(folder), (1 if quick else 200) << 20)
    print_table(
        "explain, cost",
        [
            (f"{share:g} GB in one file: seconds of a core", cpu_s, Goal(10.0 * share)),
            ("  memory at most, MiB", peak_mib, Goal(200.0)),
            (f"{files} small files, each a rank's: seconds of a core", small_s, Goal(20.0 * files / 10_000)),
            ("  memory at most, MiB", small_mib, Goal(200.0)),
            (f"logs of {64 if quick else 512} ranks: seconds of a core", many_s, Goal(5.0)),
            ("  memory at most, MiB", many_mib, Goal(200.0)),
        ],
    )
    if wrong:
        print(f"{len(wrong)} of them wrong", file=sys.stderr)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
