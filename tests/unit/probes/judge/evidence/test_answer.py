"""What is said beside the name: times, evidence, how many ranks there are, and how each of them ended."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import explain
from mltop.probes.model.evidence.logs import ExplainedJob
from tests.unit.probes.judge.evidence.test_first import TRACE, c10, judged, raised, table

EARLIER = "[rank0]:[W1103 09:00:01.000000000 ProcessGroupNCCL.cpp:1250] Warning: using GPU 0"


def answered(folder: Path, *lines: str, end: str = "\n") -> ExplainedJob:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + end)
    (job,) = explain([str(path)], lambda _: None).jobs
    return job


def test_a_failure_without_a_stamp_has_nobody_elses_time(tmp_path: Path) -> None:
    """An hour-old line of another rank stands before it; when it ended is the launcher's word."""
    failure = raised(2, *TRACE, "ValueError: bad sample 4711")
    job = answered(tmp_path, EARLIER, *failure, *table("n1", (2, 1, "10:05:12", 2)))
    assert job.incident is not None
    assert job.incident.culprits[0].rank == 2
    assert [evidence.at for evidence in job.incident.evidence if "ValueError" in evidence.text] == [None]
    death = job.ranks[2].death
    assert death is not None
    assert death.at is not None
    assert job.incident.since == death.at
    alone = answered(tmp_path, EARLIER, *failure)
    assert alone.incident is not None
    assert (alone.incident.since, alone.ranks[2].death.at if alone.ranks[2].death else 0) == (None, None)


CUDA = "Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure"
OFF_BUS = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
BLOCKING = "CUDA_LAUNCH_BLOCKING"


@pytest.mark.parametrize(
    "stamp", ["[Tue Nov  3 09:59:58 2026] ", "2026-11-03T09:59:58.100+0000 n7 kernel: ", "[81.2] "]
)
def test_an_xid_before_a_cuda_error_is_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp: str) -> None:
    monkeypatch.setenv("TZ", "UTC")
    job = answered(
        tmp_path, f"{stamp}{OFF_BUS}", f"{c10(0, 4)}{CUDA}", "srun: error: n7: task 4: Aborted (core dumped)"
    )
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits] == [4]
    assert [one.source for one in job.incident.evidence if "Xid" in one.text] == ["kernel"]
    assert job.incident.action.startswith("Xid 79 on GPU 0000:1b:00: reboot the node")
    assert not any(BLOCKING in setting for setting in job.settings)


def test_an_xid_of_the_program_is_shown_and_the_program_looked_at(tmp_path: Path) -> None:
    xid = "Nov  3 09:59:58 n7 kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, MMU Fault"
    ended = "srun: error: n7: task 4: Aborted (core dumped)"
    job = judged(tmp_path, {3: ["step 3"], 4: [f"{c10(0, 4)}{CUDA}"]}, kernel=[xid], launcher=[ended])
    assert job.incident is not None
    assert job.incident.action.startswith("Xid 31 on GPU 0000:1b:00: debug the program")
    assert any(BLOCKING in setting for setting in job.settings)


@pytest.mark.parametrize(
    "line",
    [
        f"[Mon Nov  2 09:59:58 2026] {OFF_BUS}",  # of the day before
        f"[Tue Nov  3 10:30:00 2026] {OFF_BUS}",  # after it
        f"Nov  3 09:59:58 n8 kernel: {OFF_BUS}",  # of another node
    ],
)
def test_an_xid_of_something_else_is_no_evidence(tmp_path: Path, line: str) -> None:
    error = raised(4, *TRACE, "RuntimeError: CUDA error: unspecified launch failure")
    job = answered(tmp_path, line, f"{c10(0, 4)}using GPU 4", *error, *table("n7.cluster", (4, 1, "10:00:02", 4)))
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits] == [4]
    assert "Xid 79" not in repr(job.incident)
    assert any(BLOCKING in setting for setting in job.settings)


def test_an_xid_is_of_the_rank_that_its_node_says(tmp_path: Path) -> None:
    """The kernel has the node's short name, torchrun its whole one; two ranks of it had errors, so it is nobody's."""
    xid = f"Nov  3 09:59:58 n7 kernel: {OFF_BUS}"
    lines = [xid, f"{c10(0, 4)}{CUDA}", *table("n7.cluster", (4, -6, "10:00:02", 4))]
    job = answered(tmp_path, *lines)
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits] == [4]
    assert "rank 4 (n7.cluster) had Xid 79 on GPU 0000:1b:00" in job.incident.headline
    two = answered(tmp_path, *lines[:2], f"{c10(0, 5)}{CUDA}", *lines[2:])
    assert two.incident is not None
    assert not any("rank" in one.text for one in two.incident.evidence if "Xid" in one.text)


def test_an_ecc_error_is_of_the_gpu(tmp_path: Path) -> None:
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    job = answered(tmp_path, *raised(6, *TRACE, error))
    assert job.incident is not None
    assert "GPU" in job.incident.action
    assert not any(BLOCKING in setting for setting in job.settings)


@pytest.mark.parametrize("ended", ["0", "0-1"])
def test_what_a_launcher_lists_need_not_be_all_ranks(tmp_path: Path, ended: str) -> None:
    """srun has one word for the rank that was killed for want of memory, and another for those that it ended."""
    killed = "srun: error: node-03: task 2: Out Of Memory"
    job = answered(tmp_path, killed, f"srun: error: node-02: task{'s' * (len(ended) > 1)} {ended}: Terminated")
    assert job.incident is not None
    assert [culprit.rank for culprit in job.incident.culprits] == [2]
    assert job.world_size is None
    assert [end.rank for end in job.ranks] == [0, 1, 2]


def test_a_rank_that_went_on_after_its_exception_did_not_fail(tmp_path: Path) -> None:
    handled = raised(1, *TRACE, "ConnectionError: HF hub timed out")
    job = answered(tmp_path, *handled, "step 9000 loss 1", "step 10000 loss 1", "Training completed successfully")
    assert (job.incident, job.is_told) == (None, True)
    assert [end.death for end in job.ranks] == [None, None]


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_that_ends_in_a_traceback_is_not_without_a_failure(tmp_path: Path, packed: bool) -> None:
    """It may be one that was handled, or its message may go on; the line quoted is what was raised."""
    text = "\n".join([EARLIER, *raised(2, *TRACE[:-1], '    raise ValueError("bad sample")', "ValueError: bad sample")])
    path = tmp_path / ("train.log.gz" if packed else "train.log")
    if packed:  # its end is lost, the last line is not
        stream = zlib.compressobj(wbits=31)
        path.write_bytes(stream.compress(f"{text}\n".encode()) + stream.flush(zlib.Z_SYNC_FLUSH))
    else:
        path.write_text(text)
    (job,) = explain([str(path)], lambda _: None).jobs
    assert job.incident is not None
    assert (job.incident.culprits, job.is_told) == ([], False)
    assert "no failure" not in job.incident.headline
    assert "end within a traceback" in job.incident.headline
    (quoted,) = job.incident.evidence
    assert quoted.where == f"{path}:5"
    assert quoted.text.endswith("ValueError: bad sample")


@pytest.mark.parametrize(
    "lines",
    [
        ["step 1 loss 2", "Bus error (core dumped)", "srun: error: n3: task 7: Bus error"],
        [
            "step 10 loss 2",
            "slurmstepd: error: *** STEP 900.0 ON n2 CANCELLED AT 2026-11-03T11:00:02 DUE TO NODE FAILURE, SEE LOG ***",
            "srun: error: Node failure on n9",
        ],
    ],
)
def test_each_line_is_evidence_once(tmp_path: Path, lines: list[str]) -> None:
    job = answered(tmp_path, *lines)
    assert job.incident is not None
    places = [one.where for one in job.incident.evidence]
    assert len(places) > 1
    assert len(set(places)) == len(places)
