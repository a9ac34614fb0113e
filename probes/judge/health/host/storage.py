"""Filesystems and disks: full, read-only, stalled, failing."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.moment import DAY_S, MINUTE_S, Moment
from mltop.probes.judge.health.relations import DRIVER, SLOWS, STOPS
from mltop.probes.judge.health.rule import LIMIT, Hit, critical_if, rule, share
from mltop.probes.model import FilesystemSample, KernelEvent, Sample
from mltop.probes.model.units import duration_words, percent_words, size_words

CRITICAL_SHARE = 0.95
FULL_WITHIN_S = DAY_S
SLOPE_KEEP_S, SLOPE_SPAN_S = 21_600.0, 1_800.0  # shorter ones are one checkpoint
STALL_CRITICAL_S = 10.0
RETRANSMISSIONS_A_MINUTE = 100
_OWN_RULE = ("/dev/shm",)


@rule("disk.full", "warning", clear_s=60.0)(
    meaning="a filesystem runs out of space or inodes",
    threshold=f"{LIMIT}, critical {percent_words(CRITICAL_SHARE)} of bytes or inodes; full "
    f"within {FULL_WITHIN_S / 3600:.0f} h at the rate of the last hours*",
    limit=share(0.80),
    source="statvfs; NHC, imbue, gcm",
    action="clean up, or write elsewhere",
    needs=("host.filesystems",),
    explains_ranks=(*STOPS, *SLOWS),
)
def full(moment: Moment, limit: float) -> Iterator[Hit]:
    for filesystem in moment.now.host.filesystems:
        mount, left = filesystem.mount, filesystem.available_bytes
        if filesystem.read_only or mount in _OWN_RULE:
            continue
        used = _used(filesystem.total_bytes, left)
        inodes = _used(filesystem.inodes_total, filesystem.inodes_free) or 0.0
        worst = max(used or 0.0, inodes)
        series = moment.trails.series(mount, "used_bytes")
        # A copy that is done, or checkpoints of which the oldest go, fill nothing up.
        slope = series.steady_slope_per_s(SLOPE_SPAN_S) if series is not None and worst < limit else None
        if worst >= limit:
            text = f"{mount}: {percent_words(inodes)} of its inodes are used"
            if used is not None and inodes <= used:
                slow = ", a shared filesystem gets slow" if filesystem.is_network and used < CRITICAL_SHARE else ""
                text = f"{mount} {percent_words(used)} full, {size_words(left or 0)} left{slow}"
            yield Hit(mount, text, severity=critical_if(worst >= CRITICAL_SHARE), server=server_of(filesystem))
        elif slope is not None and left is not None and left / slope < FULL_WITHIN_S:
            text = f"{mount} full in {duration_words(left / slope)} at this rate"
            yield Hit(mount, text, key="slope", server=server_of(filesystem))


def _used(total: int | None, free: int | None) -> float | None:
    return 1.0 - free / total if total and free is not None else None


@rule("disk.ro", "critical")(
    meaning="a filesystem that could be written to cannot any more",
    threshold="any",
    source="/proc/self/mounts, kernel log; NHC, gpud",
    action="fsck, or replace the disk",
    needs=("host.filesystems", "kernel_log"),
    precedence=DRIVER,
    explains_ranks=STOPS,
    part_of="disk",
)
def read_only(moment: Moment) -> Iterator[Hit]:
    """A mount that could be written to when it was first looked at, or of which the kernel says so."""
    for filesystem in moment.now.host.filesystems:
        series = moment.trails.series(filesystem.mount, "read_only") if filesystem.read_only else None
        if series is not None and min(series.values) == 0:
            yield Hit(filesystem.mount, f"{filesystem.mount} went read-only")
    for device, event in _newest(moment, "remount_ro").items():
        text = f"{device or 'a filesystem'} was remounted read-only"
        yield Hit(device or "disk", text, (event.text,), since=event.at)


@rule("disk.io", "critical")(
    meaning="the kernel reports errors of a disk",
    threshold="any, for an hour",
    source="kernel log: NVMe timeouts, buffer I/O errors, md; gpud",
    action="replace the disk",
    needs=("kernel_log",),
    precedence=DRIVER,
    explains_node=("disk.ro", "cpu.dstate", "cpu.hung"),
    explains_ranks=(*STOPS, *SLOWS, "job.starved"),
    part_of="disk",
)
def failing(moment: Moment) -> Iterator[Hit]:
    for device, event in _newest(moment, "disk_io").items():
        yield Hit(device or "disk", f"{device or 'a disk'} is failing", (event.text,), since=event.at)


@rule("fs.stall", "critical")(
    meaning="a filesystem or its server does not answer",
    threshold=f"statvfs > 2 s (critical: {STALL_CRITICAL_S:.0f} s); NFS server silent; Lustre not healthy; "
    f"{RETRANSMISSIONS_A_MINUTE} requests/min sent again*",
    source="statvfs with a deadline, kernel log, mountstats, lustre health_check; gpud",
    action="call the storage team; processes that use it hang until it answers",
    needs=("host.filesystems", "host.filesystems.counters", "host.lustre_health", "kernel_log"),
    grows=("host",),
    precedence=DRIVER,
    explains_node=("cpu.dstate", "cpu.hung"),
    explains_ranks=(*STOPS, *SLOWS, "job.starved"),
    part_of="server",
)
def stall(moment: Moment) -> Iterator[Hit]:
    now = moment.now.sampled_at
    for filesystem in moment.now.host.filesystems:
        mount, stalled_s = filesystem.mount, filesystem.stalled_s
        if stalled_s is not None:
            kind = f"{filesystem.kind} " if filesystem.kind else ""
            text = f"{kind}{mount} ({filesystem.device}) has not answered for {duration_words(stalled_s)}"
            severity = critical_if(stalled_s >= STALL_CRITICAL_S)
            yield Hit(mount, text, severity=severity, since=now - stalled_s, server=server_of(filesystem))
        repeated = moment.trails.increase(mount, "retrans", MINUTE_S).amount
        if repeated > RETRANSMISSIONS_A_MINUTE:
            text = f"{mount}: {repeated:.0f} requests sent again within a minute"
            yield Hit(mount, text, severity="warning", key="retrans", server=server_of(filesystem))
    answered = _newest(moment, "nfs_ok")
    for server, event in _newest(moment, "nfs").items():
        if server not in answered or answered[server].at <= event.at:
            text = f"NFS {server} not answering for {duration_words(now - event.at)}"
            yield Hit(f"NFS {server}", text, (event.text,), since=event.at, server=server)
    lustre = moment.now.host.lustre_health
    if lustre and lustre != "healthy":
        servers = {server_of(one) for one in moment.now.host.filesystems if one.kind == "lustre"}
        yield Hit("Lustre", f"Lustre says: {lustre}", server=servers.pop() if len(servers) == 1 else "")


def server_of(filesystem: FilesystemSample) -> str:
    """``10.0.4.11`` of 10.0.4.11:/export, ``mgs@o2ib`` of mgs@o2ib:/scratch; "" of a local one, or without a name."""
    device = filesystem.device
    if not filesystem.is_network:
        return ""
    if device.startswith("["):  # an IPv6 address
        return device[1:].partition("]")[0]
    server, colon, _ = device.partition(":/")
    return server if colon else ""


def _newest(moment: Moment, kind: str) -> dict[str, KernelEvent]:
    """By subject, of the last hour."""
    return {event.subject: event for event in moment.events(kind)}


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for filesystem in sample.host.filesystems:
        retrans = filesystem.counters.get("retrans")
        if retrans is not None:
            yield filesystem.mount, "retrans", retrans


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    for filesystem in sample.host.filesystems:
        mount, total, available = filesystem.mount, filesystem.total_bytes, filesystem.available_bytes
        if filesystem.read_only is not None:
            yield mount, "read_only", float(filesystem.read_only), DAY_S
        if total and available is not None and not filesystem.read_only:
            yield mount, "used_bytes", float(total - available), SLOPE_KEEP_S
