"""Filesystems and disks: full, read-only, stalled, failing."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.host.system import duration, size
from mltop.probes.judge.health.rule import DRIVER, EVENT_LISTED_S, Hit, Moment, Rule
from mltop.probes.judge.health.trails import Series
from mltop.probes.model import FilesystemSample, KernelEvent, Sample

WARNING_SHARE, CRITICAL_SHARE = 0.80, 0.95
FULL_WITHIN_S = 86_400.0
SLOPE_KEEP_S, SLOPE_SPAN_S = 21_600.0, 1_800.0  # shorter ones are one checkpoint
STEADY = 0.5
STALL_CRITICAL_S = 10.0
RETRANSMISSIONS_A_MINUTE = 100
_OWN_RULE = ("/dev/shm",)


def full(moment: Moment) -> Iterator[Hit]:
    for one in moment.now.host.filesystems:
        if one.read_only or one.mount in _OWN_RULE:
            continue
        share, inodes = _used(one), _used_inodes(one)
        worst = max(share or 0.0, inodes or 0.0)
        if worst >= WARNING_SHARE:
            yield Hit(one.mount, _how_full(one, share, inodes), severity=_severity(worst))
            continue
        left_s = _left_s(moment, one)
        if left_s is not None and left_s < FULL_WITHIN_S:
            yield Hit(
                one.mount, f"{one.mount} full in {duration(left_s)} at this rate", severity="warning", key="slope"
            )


def _severity(share: float) -> str:
    return "critical" if share >= CRITICAL_SHARE else "warning"


def _used(one: FilesystemSample) -> float | None:
    if not one.total_bytes or one.available_bytes is None:
        return None
    return 1.0 - one.available_bytes / one.total_bytes


def _used_inodes(one: FilesystemSample) -> float | None:
    if not one.inodes_total or one.inodes_free is None:
        return None
    return 1.0 - one.inodes_free / one.inodes_total


def _how_full(one: FilesystemSample, share: float | None, inodes: float | None) -> str:
    if share is None or (inodes or 0.0) > share:
        return f"{one.mount}: {inodes:.0%} of its inodes are used"
    slow = ", a shared filesystem gets slow" if one.is_network and share < CRITICAL_SHARE else ""
    return f"{one.mount} {share:.0%} full, {size(one.available_bytes or 0)} left{slow}"


def _left_s(moment: Moment, one: FilesystemSample) -> float | None:
    series = moment.series(one.mount, "used_bytes")
    if series is None or series.span_s < SLOPE_SPAN_S or one.available_bytes is None:
        return None
    slope = series.slope_per_s()
    if slope is None or slope <= 0 or not _goes_on(series, slope):
        return None
    return one.available_bytes / slope


def _goes_on(series: Series, slope: float) -> bool:
    """A copy that is done, or checkpoints of which the oldest go, fill nothing up."""
    half = len(series.values) // 2
    passed_s = series.times[-1] - series.times[half]
    return passed_s > 0 and (series.values[-1] - series.values[half]) / passed_s > STEADY * slope


def read_only(moment: Moment) -> Iterator[Hit]:
    """A mount that could be written to when it was first looked at, or of which the kernel says so."""
    for one in moment.now.host.filesystems:
        if one.read_only:
            series = moment.series(one.mount, "read_only")
            if series is not None and min(series.values) == 0:
                yield Hit(one.mount, f"{one.mount} went read-only")
    for device, event in _newest(moment, "remount_ro").items():
        yield Hit(
            device or "disk", f"{device or 'a filesystem'} was remounted read-only", (event.text,), since=event.at
        )


def io(moment: Moment) -> Iterator[Hit]:
    for device, event in _newest(moment, "disk_io").items():
        yield Hit(device or "disk", f"{device or 'a disk'} is failing", (event.text,), since=event.at)


def stall(moment: Moment) -> Iterator[Hit]:
    now = moment.now.sampled_at
    for one in moment.now.host.filesystems:
        if one.stalled_s is not None:
            kind = f"{one.kind} " if one.kind else ""
            text = f"{kind}{one.mount} ({one.device}) has not answered for {duration(one.stalled_s)}"
            severity = "critical" if one.stalled_s >= STALL_CRITICAL_S else "warning"
            yield Hit(one.mount, text, severity=severity, since=now - one.stalled_s)
        grown = moment.increase(one.mount, "retrans", 60.0)
        if grown is not None and grown.amount > RETRANSMISSIONS_A_MINUTE:
            text = f"{one.mount}: {grown.amount:.0f} requests sent again within a minute"
            yield Hit(one.mount, text, severity="warning", key="retrans")
    answered = {server: event.at for server, event in _newest(moment, "nfs_ok").items()}
    for server, event in _newest(moment, "nfs").items():
        if answered.get(server, 0.0) <= event.at:
            text = f"NFS {server} not answering for {duration(now - event.at)}"
            yield Hit(f"NFS {server}", text, (event.text,), since=event.at)
    lustre = moment.now.host.lustre_health
    if lustre and lustre != "healthy":
        yield Hit("Lustre", f"Lustre says: {lustre}")


def _newest(moment: Moment, kind: str) -> dict[str, KernelEvent]:
    """By subject, of the last hour."""
    now = moment.now.sampled_at
    events = [event for event in moment.now.kernel_events if event.kind == kind and now - event.at < EVENT_LISTED_S]
    return {event.subject: event for event in events}


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for one in sample.host.filesystems:
        retrans = one.counters.get("retrans")
        if retrans is not None:
            yield one.mount, "retrans", retrans


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    for one in sample.host.filesystems:
        if one.read_only is not None:
            yield one.mount, "read_only", float(one.read_only), 86_400.0
        if one.total_bytes and one.available_bytes is not None and not one.read_only:
            yield one.mount, "used_bytes", float(one.total_bytes - one.available_bytes), SLOPE_KEEP_S


COUNTERS = (counters,)
GAUGES = (gauges,)

RULES = (
    Rule(
        "disk.full",
        "warning",
        0.0,
        "clean up, or write elsewhere",
        full,
        meaning="a filesystem runs out of space or inodes",
        threshold="80 %, critical 95 % of bytes or inodes; full within 24 h at the rate of the last hours*",
        clear_s=60.0,
        source="statvfs; NHC, imbue, gcm",
        needs=("host.filesystems",),
    ),
    Rule(
        "disk.ro",
        "critical",
        0.0,
        "fsck, or replace the disk",
        read_only,
        meaning="a filesystem that could be written to cannot any more",
        threshold="any",
        source="/proc/self/mounts, kernel log; NHC, gpud",
        needs=("host.filesystems", "kernel_log"),
        precedence=DRIVER,
    ),
    Rule(
        "disk.io",
        "critical",
        0.0,
        "replace the disk",
        io,
        meaning="the kernel reports errors of a disk",
        threshold="any, for an hour",
        source="kernel log: NVMe timeouts, buffer I/O errors, md; gpud",
        needs=("kernel_log",),
        precedence=DRIVER,
        explains_node=("disk.ro",),
    ),
    Rule(
        "fs.stall",
        "critical",
        0.0,
        "call the storage team; processes that use it hang until it answers",
        stall,
        meaning="a filesystem or its server does not answer",
        threshold="statvfs > 2 s (critical: 10 s); NFS server silent; Lustre not healthy; 100 requests/min sent again*",
        source="statvfs with a deadline, kernel log, mountstats, lustre health_check; gpud",
        needs=("host.filesystems", "host.filesystems.counters", "host.lustre_health", "kernel_log"),
        grows=("host",),
        precedence=DRIVER,
        explains_node=("cpu.dstate", "cpu.hung"),
    ),
)
