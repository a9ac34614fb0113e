"""What a user of a node does to hold up the agent: samples go on, one gap says why, and it ends with its caller."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mltop.probes.agent.protocol import Message, Request, encode, payload_of
from mltop.probes.model import Sample
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.reach.receiving import own_type
from tests.builders.flight_records import as_pickle, done_to, operation, record
from tests.builders.hostile_records import HOSTILE as HOSTILE_RECORDS
from tests.fakes.silent_fuse import needs_fuse
from tests.strangers import needs_root

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
# Writes as fast as it can for so many seconds.
FLOOD = """
import sys, time
until = time.monotonic() + 30
text = sys.argv[1].encode().decode("unicode_escape") * 20
while time.monotonic() < until:
    sys.stdout.write(text); sys.stdout.flush(); time.sleep(0.01)
"""
TRACEBACK = r'Traceback (most recent call last):\n  File "t.py", line 5, in f\nValueError: bad\n'
HOSTILE = {
    "tracebacks": TRACEBACK,
    "endless lines": "again and again collective operation timeout " * 300,
    "long lines": "[rank1]: Watchdog caught collective operation timeout: " * 290 + r"\n",
}
COSTLY = ("65,536 ranks in 1,024 groups", "one text in all places", "a memo of millions", "JSON with millions of texts")


class Running:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.at: list[float] = []
        self.records: list[RankRecords] = []
        self.answered: set[int] = set()

    def ask(self, number: int, op: str, **args: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(Request("request", id=number, op=op, args=args)))
        self.process.stdin.flush()

    def samples(self, seconds: float) -> Iterator[Sample]:
        until = time.monotonic() + seconds
        assert self.process.stdout is not None
        while time.monotonic() < until:
            payload = payload_of(self.process.stdout.readline().rstrip(b"\n"))
            message = DECODER.decode(payload) if payload else None
            if message is not None and message.kind == "sample" and message.sample is not None:
                self.at.append(time.monotonic())
                yield message.sample
            elif message is not None and message.records is not None:
                self.records.append(message.records)
            elif message is not None and message.kind in ("done", "error"):
                assert not message.error
                self.answered.add(message.id)

    def longest_gap_s(self) -> float:
        return max(after - before for before, after in zip(self.at, self.at[1:], strict=False))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def most_bytes(self) -> int:
        """The most memory that it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def exit_s(self) -> float:
        began = time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        return time.monotonic() - began


@contextmanager
def agent() -> Iterator[Running]:
    words = [sys.executable, "-m", "mltop.probes.agent", "--node", "here"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(encode(Request("watch", args={"seconds": 3600.0})))
            process.stdin.flush()
            yield Running(process)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", HOSTILE)
def test_text_that_is_slow_to_read_delays_no_sample(kind: str, tmp_path: Path) -> None:
    with (tmp_path / "out.log").open("wb") as out:
        rank = subprocess.Popen([sys.executable, "-c", FLOOD, HOSTILE[kind]], env=RANK, stdout=out)
    try:
        with agent() as running:
            for _ in running.samples(3.0):
                pass
            before, began = running.cpu_s(), time.monotonic()
            gaps = {gap.why for sample in running.samples(8.0) for gap in sample.gaps if gap.what == "logs"}
            share = (running.cpu_s() - before) / (time.monotonic() - began)
            assert any(why.startswith("too much text from ") and why.endswith(" skipped") for why in gaps), gaps
            assert running.longest_gap_s() < 3.0
            print(kind, f"{100 * share:.1f} % of a core, longest gap {running.longest_gap_s():.2f} s")
            assert share < 0.3, "the whole agent"
            assert running.exit_s() < 5.0
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.parametrize("kind", COSTLY)
def test_records_that_cost_much_delay_no_sample(kind: str, tmp_path: Path) -> None:
    """Two ranks have left such a record, and one a good one."""
    contents = [HOSTILE_RECORDS[kind]()] * 2 + [as_pickle(record(done_to(1, operation(2, state="scheduled"))))]
    ranks = []
    for number, content in enumerate(contents):
        (tmp_path / f"fr_{number}").write_bytes(content)
        env = {**RANK, "RANK": str(number), "WORLD_SIZE": "3", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
        ranks.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env))
    pids = [rank.pid for rank in ranks]
    try:
        with agent() as running:
            for sample in running.samples(30.0):
                if not running.at[3:] and {rank.pid for rank in sample.ranks} >= set(pids):
                    running.ask(1, "stacks", records=True, pids=pids)
                if running.answered:
                    break
            for _ in running.samples(2.5):
                pass
            assert running.answered == {1}
            print(kind, f"longest gap {running.longest_gap_s():.2f} s, {running.most_bytes() >> 20} MB")
            assert running.longest_gap_s() < 3.0
            assert running.most_bytes() < 100 << 20
            assert running.exit_s() < 5.0
        by_pid = {told.pid: told for told in running.records}
        for pid in pids[:2]:
            (why,) = [gap.why for gap in by_pid[pid].gaps] or [""]
            assert by_pid[pid].progress or "fr_" in why or why == "its record could not be read in time"
        assert any("fr_0: " in gap.why for told in running.records for gap in told.gaps) or by_pid[pids[0]].progress
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@needs_root
@needs_fuse
@pytest.mark.serial  # whatever reads the memory of processes, as ps does, waits as long
def test_memory_that_never_answers_holds_up_one_thread(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.fakes.silent_memory", str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as silent:
        try:
            assert silent.stdout is not None
            pid = int(silent.stdout.readline())
            with agent() as running:
                gaps = set()
                for sample in running.samples(8.0):
                    gaps |= {gap.why for gap in sample.gaps}
                    if len(running.at) == 1:
                        running.ask(1, "stacks", records=True, pids=[pid])
                for _ in running.samples(30.0):
                    if running.answered:
                        break
                assert running.answered == {1}
                assert any(f"the memory of pid {pid} of " in why for why in gaps), gaps
                assert running.longest_gap_s() < 3.5
                print(f"longest gap {running.longest_gap_s():.2f} s")
                assert running.process.stdin is not None and running.process.stdout is not None
                running.process.stdin.close()
                assert select.select([running.process.stdout], [], [], 5.0)[0]
                began = time.monotonic()
                running.process.stdout.read()  # its end: whoever waits for its output goes on
                assert time.monotonic() - began < 5.0
                silent.kill()  # else the kernel keeps the agent
        finally:
            silent.kill()  # frees what the kernel holds
