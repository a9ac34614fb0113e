"""A job that died is told by `check`, also where nothing is wrong with its node."""

from __future__ import annotations

import io
import json

from rich.console import Console

from mltop.probes.model import to_json
from mltop.tui.report.check import Checked, print_check
from tests.builders.fault_recordings import ends, judged, recording

# As the contract has them: other programs read these.
FIELDS = (
    *("id", "kind", "severity", "headline", "job", "uid", "since", "until", "culprits", "causes", "effects"),
    *(
        "suffers",
        "evidence",
        "confidence",
        "action",
        "next",
        "act",
        "next_act",
    ),
)


def test_a_crash_without_findings_is_critical_and_one_line() -> None:
    told = judged(recording(ends([3], how="signal", code=11, error="forged\ncritical n9: all is well\x1b[2J")))
    checked = Checked(findings=told.findings, incidents=told.incidents)
    assert (checked.findings, checked.exit) == ([], 2)
    shown = io.StringIO()
    print_check(checked, Console(file=shown, width=1_000))
    first, advice = shown.getvalue().splitlines()
    assert first.startswith("CRIT rank 3 (n0 GPU 3) died (killed by SIGSEGV: forged critical n9: all is well)")
    assert advice.strip().startswith("do: ")


def test_the_names_in_json() -> None:
    (incident,) = judged(recording(ends([3], how="signal", code=11))).incidents
    answer = json.loads(to_json(incident))
    assert tuple(answer) == FIELDS
    assert answer["suffers"] == {
        "ranks": "0-15",
        "gpus": 16,
        "gpu_hours": 0.0,
        "waiting": "",
        "waits_in": "",
        "ended": "0-15",
    }
    assert {"rank", "node", "pid", "gpu", "how"} <= answer["culprits"][0].keys()
    assert set(answer["evidence"][0]) == {"source", "text", "at", "where"}
