"""What stands behind a process that does not come back from the kernel: a filesystem, the GPU driver.

As far as its node tells. Nothing here names a rank: it says why the one that is named stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.judge.health.names import slot
from mltop.probes.model import FilesystemSample, KernelEvent, Sample
from mltop.probes.model.units import duration_words

# Kernel functions that filesystems and disks sleep in: what kind of filesystem, "" for any.
_STORAGE = (
    (re.compile(r"^(nfs|nlm|rpc_)"), "nfs"),
    (re.compile(r"^(ll_|ldlm|osc_|ptlrpc|cl_|lov_|mdc_|obd_|lustre)"), "lustre"),
    (re.compile(r"^ceph"), "ceph"),
    (re.compile(r"^(cxi|kx|gpfs|mmfs)"), "gpfs"),
    (re.compile(r"^(fuse|request_wait_answer)"), "fuse"),
    (re.compile(r"^(cifs|smb)"), "cifs"),
    (
        re.compile(r"io_schedule|^(wait_on_page|folio_wait|bit_wait_io|jbd2|xfs_|ext4_|blk_|wb_|balance_dirty|autofs)"),
        "",
    ),
)
_DRIVER = re.compile(r"nvidia|uvm|^_?nv(\d{4,}rm|_|kms)|^(os|rm)_acquire")
_XIDS = ("xid", "off_bus")
RECENT_S = 3600.0  # a line of the kernel that is older explains nothing


def kernel_phrases(sample: Sample | None, pid: int, gpus: list[int], wchan: str | None) -> list[str]:
    """What ``pid``'s node says of what it waits for in ``wchan``, a phrase each, the nearest to the cause first."""
    if sample is None or not wchan:
        return []
    if _DRIVER.search(wchan):
        return ["it is in the NVIDIA driver", *_xids(sample, gpus)]
    kind = next((kind for pattern, kind in _STORAGE if pattern.search(wchan)), None)
    if kind is None:
        return []
    blocked = next((process.blocked_s for process in sample.host.blocked if process.pid == pid), 0.0)
    seen = [f"it has been blocked for {duration_words(blocked)}"] if blocked >= 1.0 else []
    return [*_stalled(sample, kind), *_servers(sample, kind), *seen]


def _stalled(sample: Sample, kind: str) -> Iterator[str]:
    """The filesystems that do not answer: those of the kind that the kernel waits for, else all."""
    silent = [mount for mount in sample.host.filesystems if mount.stalled_s is not None]
    alike = [mount for mount in silent if kind and kind in mount.kind]
    for mount in sorted(alike or silent, key=lambda mount: -(mount.stalled_s or 0.0)):
        yield f"{_named(mount)} has not answered for {duration_words(mount.stalled_s or 0.0)}"


def _named(mount: FilesystemSample) -> str:
    """``/data on server fs01``."""
    server, found, _ = mount.device.rpartition(":")
    if found and server and mount.is_network:
        return f"{mount.mount} on server {server}"
    return f"{mount.mount} ({mount.device})" if mount.device else mount.mount


def _servers(sample: Sample, kind: str) -> Iterator[str]:
    """NFS servers of which the kernel has said that they do not respond, and not since that they do."""
    if kind not in ("nfs", ""):
        return
    last: dict[str, KernelEvent] = {}
    for event in sample.kernel_events:
        if event.kind in ("nfs", "nfs_ok"):
            last[event.subject] = event
    for server, event in last.items():
        if event.kind == "nfs" and sample.sampled_at - event.at <= RECENT_S:
            yield f"the kernel says that server {server} does not respond ({_ago(sample, event)})"


def _xids(sample: Sample, gpus: list[int]) -> Iterator[str]:
    """The last ones of the rank's GPUs; of all, when it is not known which are its own."""
    index_of = {slot(gpu.pci_bus_id): gpu.index for gpu in sample.gpus if gpu.pci_bus_id}
    last: dict[int, KernelEvent] = {}
    for event in sample.kernel_events:
        index = index_of.get(slot(event.subject))
        is_recent = event.kind in _XIDS and sample.sampled_at - event.at <= RECENT_S
        if is_recent and index is not None and (not gpus or index in gpus):
            last[index] = event
    for index, event in sorted(last.items()):
        what = "fell off the bus" if event.kind == "off_bus" else f"had Xid {event.code}"
        yield f"GPU {index} {what} ({_ago(sample, event)})"


def _ago(sample: Sample, event: KernelEvent) -> str:
    return f"{duration_words(max(0.0, sample.sampled_at - event.at))} ago"
