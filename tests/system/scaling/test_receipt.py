"""What nodes send is bounded in memory, whatever it repeats: a process of its own keeps thirty such samples."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAD = '{"kind":"sample","sample":{"node":"n1","sampled_at":1763640000.0,'
MEMORY = """
import json, sys
from mltop.probes.model import Sample
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.reach.receiving import RowFrame
from mltop.probes.reach.records import Records
records = Records(["n1"], 1.0)
records.set_phase("n1", "live", "")
head, entry, tail, most = json.loads(sys.stdin.readline())
payload = (head + ",".join([entry] * (most // (len(entry) + 1))) + tail).encode()
row = RowFrame(1.0, pack_row(row_of(Sample("n1", 1.0))))
for at in range(30):
    records.take_news("n1", "sample", payload + b" " * at)
    records.take("n1", row, float(at))
    records.node("n1").sample
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.parametrize(
    ("head", "entry", "tail"),
    [
        ('"gpus":[', '{"index":1}', "]"),
        ('"ranks":[', '{"pid":1}', "]"),
        ('"gaps":[', '{"what":"","why":""}', "]"),
        ('"gpus":[{"index":0,"processes":[', '{"pid":1}', "]}]"),
        ('"host":{"blocked":[', '{"pid":1}', "]}"),
        ('"gpus":[{"index":0,"nvlink":{"links":[', '{"index":1}', "]}}]"),
    ],
    ids=["gpus", "ranks", "gaps", "processes", "blocked", "nvlinks"],
)
@pytest.mark.parametrize("size", [250_000, 3_900_000])
def test_memory_stays_bounded_whatever_is_repeated(head: str, entry: str, tail: str, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        input=json.dumps([HEAD + head, entry, tail + "}}", size]),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    peak_kib = int(done.stdout)  # ru_maxrss would begin with what the test's own process has
    assert peak_kib < 500_000, f"{peak_kib} KiB"
