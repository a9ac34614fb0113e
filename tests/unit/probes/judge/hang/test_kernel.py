"""What a rank's node says of the place in the kernel that it does not come back from."""

from __future__ import annotations

import pytest

from mltop.probes.model import BlockedProcess, FilesystemSample, GpuSample, HostSample, KernelEvent, Sample, Verdict
from tests.builders.stack_evidence import (
    Child,
    Rank,
    all_reduce,
    dataset,
    evidence,
    judge_job,
    loader_wait,
    worker_stuck,
)

NOW = 2_000.0


def node(events: tuple[KernelEvent, ...] = (), stalled_s: float | None = 48.0) -> Sample:
    mounts = [
        FilesystemSample("/data", "fs01:/export/data", "nfs4", is_network=True, stalled_s=stalled_s),
        FilesystemSample("/scratch", "lustre@tcp:/scratch", "lustre", is_network=True, stalled_s=300.0),
        FilesystemSample("/home", "fs02:/home", "nfs4", is_network=True),
    ]
    gpus = [GpuSample(index, f"GPU-{index}", pci_bus_id=f"00000000:{0x1B + index:02X}:00.0") for index in range(4)]
    host = HostSample(filesystems=mounts, blocked=[BlockedProcess(4002, "python", 95.0, "nfs_wait_bit_killable", 2)])
    return Sample("n1", NOW, gpus=gpus, host=host, kernel_events=list(events))


def judged(stuck: Rank, sample: Sample) -> Verdict:
    given = evidence({**{number: Rank(all_reduce()) for number in (0, 1, 3)}, 2: stuck})
    given.samples = {"n1": sample}
    for seen in given.roster:
        seen.sample.gpus = [seen.sample.rank or 0]
    verdict = judge_job(given)
    assert [culprit.rank for culprit in verdict.culprits] == [2]
    return verdict


def reason(stuck: Rank, sample: Sample) -> str:
    return judged(stuck, sample).culprits[0].reason


def blocked(wchan: str | None) -> Rank:
    return Rank(dataset(), state="D", wchan=wchan)


@pytest.mark.parametrize(
    ("wchan", "said"),
    [
        ("nfs_wait_bit_killable", "/data on server fs01 has not answered for 48 s; it has been blocked for 1 min 35 s"),
        ("rpc_wait_bit_killable", "/data on server fs01 has not answered for 48 s"),
        ("ll_file_read", "/scratch on server lustre@tcp has not answered for 5 min"),
        ("folio_wait_bit", "/scratch on server lustre@tcp has not answered for 5 min; /data on server fs01"),
    ],
)
def test_the_filesystem_that_a_rank_waits_for_is_told(wchan: str, said: str) -> None:
    told = reason(blocked(wchan), node())
    assert f"uninterruptible in the kernel in {wchan} (state D in all of 4 dumps): " in told
    assert said in told


@pytest.mark.parametrize("wchan", [None, "futex_wait_queue", "nvme_submit_sync_cmd"])
def test_other_waits_have_nothing_to_do_with_what_else_is_broken(wchan: str | None) -> None:
    assert "answered" not in reason(blocked(wchan), node())
    assert "driver" not in reason(blocked(wchan), node())


def test_a_server_of_which_the_kernel_complained() -> None:
    lost, back = KernelEvent(NOW - 60, "nfs", "fs01"), KernelEvent(NOW - 30, "nfs_ok", "fs01")
    told = reason(blocked("nfs_wait_bit_killable"), node((lost,), None))
    assert "the kernel says that server fs01 does not respond (1 min ago)" in told
    assert "respond" not in reason(blocked("nfs_wait_bit_killable"), node((lost, back), None))


def test_the_driver_and_the_xids_of_the_ranks_own_gpu() -> None:
    mine = KernelEvent(NOW - 12, "xid", "PCI:0000:1d:00", 119)
    others = KernelEvent(NOW - 12, "xid", "PCI:0000:1b:00", 48)
    old = KernelEvent(NOW - 9000, "xid", "PCI:0000:1d:00", 31)
    told = reason(blocked("uvm_va_space_down_write"), node((old, others, mine)))
    assert told.endswith(": it is in the NVIDIA driver; GPU 2 had Xid 119 (12 s ago)")
    assert "Xid" not in reason(blocked("_nv045678rm"), node((old, others)))


def test_a_worker_in_the_kernel_has_its_reason_too() -> None:
    worker = Child(4711, worker_stuck(), state="D", wchan="nfs_wait_bit_killable")
    told = reason(Rank(loader_wait(), children=[worker]), node())
    assert told.endswith("below DS.__getitem__ (job/case.py:14): /data on server fs01 has not answered for 48 s")


def test_where_most_ranks_are_in_the_kernel_it_is_told_and_nobody_accused() -> None:
    given = evidence({number: blocked("nfs_wait_bit_killable") for number in range(4)})
    given.samples = {"n1": node()}
    verdict = judge_job(given)
    assert verdict.culprits == []
    line = "ranks 0-3 in the kernel on n1 in nfs_wait_bit_killable: /data on server fs01 has not answered for 48 s"
    assert any(text.startswith(line) for text in verdict.evidence), verdict.evidence
