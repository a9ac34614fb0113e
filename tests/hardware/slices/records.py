"""What NCCL and torch leave behind when a collective times out: logs, RAS answers, flight recorder dumps.

Two ranks (jobs.py says how one GPU holds both), of which the last never enters the fourth all-reduce. What is looked
for is one table (anchors.py); all of it is saved. Where NCCL refuses, gloo's own records take its place, and NCCL's log
is that of one rank.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.hardware import anchors, ras
from tests.hardware.anchors import Anchor
from tests.hardware.checks import Check, NotTriedError, Told, compare, not_tried
from tests.hardware.context import Context
from tests.hardware.jobs import TURN_S, TWO_HOSTS, Backend, Job
from tests.hardware.loads import free_gpus
from tests.ports import free_port

SHORT_S = 90.0  # with less time than this everything is shorter
TIMEOUT_S, SHORT_TIMEOUT_S = 15.0, 1.5
SETTLE_S = 2.0  # until the waiter waits
END_S = 60.0  # from the timeout until the dumps are written and the waiter is aborted
NCCL_READY_S = 90.0
MOST_LOG = 200_000  # characters of a log that are saved, from its end
OP = "ALLREDUCE"
ANCHORS = (*anchors.NCCL, *anchors.WATCHDOG, *anchors.GLOO)
DUMPS = ("plain data", "version", "keys", "entry keys", "pg_status keys", "last entry", "one behind")
RAS = ("answers", "keys", "communicator keys", "rank keys", "pids", "one behind", "hash", "text")
CHECKS: tuple[str, ...] = (
    *(f"line: {anchor.name}" for anchor in ANCHORS),
    "timeout: op and limit",
    "timeout: waiter is one ahead",
    *(f"dump: {name}" for name in DUMPS),
    *(f"ras: {name}" for name in RAS),
)
EARLY = 0.9  # of the timeout: who ends before has met something else
SLOW_S = 5.0  # from the timeout until it is told; the absent rank's dump after the waiter's
_NCCL_HOST = re.compile(r"[\w.-]+(:\d+:\d+ \[\d+\] )")
# As "eth0:10.1.2.3<0>" in logs, as "host": "10.1.2.3" in answers. The loopback interface's own stay.
_IPV4 = re.compile(r"(?<![\w.])(?!127\.)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])")
_IPV6 = re.compile(
    r"(?<![0-9a-zA-Z])(?!::1\b)(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]*:){5})[0-9a-fA-F:.]+(?:%\w+)?(?=[<\"\]])"
)
SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,COLL,NET,ENV",
    "TORCH_CPP_LOG_LEVEL": "INFO",  # of the dump's path there is an INFO line only
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{directory}/dump.",
    "TORCH_FR_DUMP_TEMP_FILE": "{directory}/dump.",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
    "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
}


class Plain(pickle.Unpickler):
    """Numbers, texts, lists and dicts, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


@dataclass
class Had:
    """``logs`` and ``dumps`` by rank; a dump that is no plain data says why, as a text. ``nccl_log``: of any rank.

    ``ras``: two answers, in JSON and text. ``why``: of what is not there, by "nccl", "dump", "ras".
    """

    backend: Backend
    timeout_s: float
    pids: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    nccl_log: str = ""
    dumps: dict[int, Any] = field(default_factory=dict)
    opcodes: list[str] = field(default_factory=list)
    ras: list[ras.Answer] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Had:
        dumps = {int(rank): dump for rank, dump in data["dumps"].items()}
        return cls(**{**data, "dumps": dumps, "ras": [ras.Answer(**one) for one in data["ras"]]})

    def log(self, anchor: Anchor) -> str:
        if anchor in anchors.NCCL:
            return self.nccl_log
        return "\n".join(
            self.logs if anchor.place == "any" else self.logs[:1] if anchor.place == "waiter" else self.logs[1:]
        )


def run(context: Context) -> Iterator[Check]:
    free, _ = free_gpus(context)
    had = timed_out(context, [gpu["uuid"] for gpu in free])
    context.record_json("records.json", had.to_json())
    yield from checks_of(had)


def timed_out(context: Context, free: list[str]) -> Had:
    """By NCCL where it allows it, else by gloo."""
    timeout_s = TIMEOUT_S if context.left_s() >= SHORT_S else SHORT_TIMEOUT_S
    port = free_port()
    settings = {**SETTINGS, "JOB_TIMEOUT_S": str(timeout_s), "NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
    two = free[:2] if len(free) > 1 else [free[0], free[0]]
    of_nccl = settings if len(free) > 1 else {**settings, **TWO_HOSTS}
    try:
        with Job(context, "collective", two, "nccl", of_nccl, ready_s=NCCL_READY_S) as job:
            had = Had("nccl", timeout_s, job.pids)
            time.sleep(min(SETTLE_S, timeout_s / 3))
            had.ras = [without_addresses(ras.ask(port, as_json)) for as_json in (True, False)]
            collect(context, job, had)
            had.nccl_log = "\n".join(had.logs)
            return had
    except NotTriedError as error:
        why = str(error)
    had = Had("gloo", timeout_s, why={"nccl": why, "ras": f"NCCL holds no two ranks here: {why}"})
    try:
        with Job(context, "collective", [free[0]], "nccl", settings, ready_s=NCCL_READY_S) as job:
            had.nccl_log = shown(job, 0)
    except NotTriedError as error:
        had.why["NCCL's log"] = str(error)
    with Job(context, "collective", [free[0], free[0]], "gloo", settings) as job:
        had.pids = job.pids
        collect(context, job, had)
    return had


def collect(context: Context, job: Job, had: Had) -> None:
    """Until the waiter has ended, or has said all (NCCL's waiter is held for a minute, torch's exit takes seconds)."""
    until = time.monotonic() + min(had.timeout_s + END_S, context.left_s() - 5)
    dumping = dumps_of(job) if had.backend == "nccl" else dumps_of(job)[:1]
    while job.wait_end(0, 0.2) is None and time.monotonic() < until:
        if all(path.exists() for path in dumping) and (had.backend == "nccl" or "RuntimeError: " in shown(job, 0)):
            job.wait_end(0, min(10.0, had.timeout_s))
            break
    had.why.update(why_no_timeout(job, had))
    until = min(until, time.monotonic() + SLOW_S)
    while "watchdog" not in had.why and time.monotonic() < until and not all(path.exists() for path in dumping):
        time.sleep(TURN_S)
    had.logs = [shown(job, rank) for rank in range(len(job.pids))]
    for rank, path in enumerate(dumps_of(job)):
        if path.exists():
            had.dumps[rank], opcodes = read_dump(path.read_bytes())
            had.opcodes = sorted({*had.opcodes, *opcodes})
    if not had.dumps:
        none = "no rank left a dump (is torch's flight recorder in this build?)"
        had.why["dump"] = had.why.get("watchdog", none)


def why_no_timeout(job: Job, had: Had) -> dict[str, str]:
    """Where the waiter met something else before, as a screen's GPU that ends long kernels; or where time was short."""
    lasted_s, code = job.stood_s(0), job.wait_end(0, 0)
    of = f"{lasted_s:.0f} s of the {had.timeout_s:g} s that it was to wait"
    if code is not None and (lasted_s < EARLY * had.timeout_s or code == -signal.SIGSEGV):
        return {"watchdog": f"rank 0 ended ({code}) after {of}: {job.last_word(0)}"}
    if code is None and lasted_s < had.timeout_s + SLOW_S and not any(path.exists() for path in dumps_of(job)):
        return {"watchdog": f"the slice's time was resolved after {of}: --minutes with more"}
    return {}


def dumps_of(job: Job) -> list[Path]:
    return [job.directory / f"dump.{rank}" for rank in range(len(job.pids))]


def shown(job: Job, rank: int) -> str:
    """A rank's log, without its folder and its host."""
    text = job.log(rank).read_text(errors="replace")[-MOST_LOG:].replace(str(job.directory), "/job")
    return _IPV6.sub("2001:db8::1", _IPV4.sub("192.0.2.1", _NCCL_HOST.sub(r"host\1", text)))


def without_addresses(answer: ras.Answer) -> ras.Answer:
    return replace(answer, text=_IPV6.sub("2001:db8::1", _IPV4.sub("192.0.2.1", answer.text)))


def read_dump(raw: bytes) -> tuple[Any, list[str]]:
    """What is in it, or a text that says why it cannot be read; and the kinds of pickle opcodes."""
    try:
        opcodes = sorted({opcode.name for opcode, _, _ in pickletools.genops(raw)})
        return json.loads(json.dumps(Plain(io.BytesIO(raw)).load(), default=repr)), opcodes
    except (pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}", []


def checks_of(had: Had) -> Iterator[Check]:
    yield from (line_check(had, anchor) for anchor in ANCHORS)
    yield from timeout_checks(had)
    yield from dump_checks(had)
    yield from ras_checks(had)


def line_check(had: Had, anchor: Anchor) -> Check:
    name = f"line: {anchor.name}"
    of_gloo = anchor in anchors.GLOO
    if not of_gloo and anchor not in anchors.NCCL and had.backend != "nccl":
        return not_tried(name, f"NCCL holds no two ranks here: {had.why.get('nccl')}")
    if of_gloo and had.backend != "gloo":
        return not_tried(name, "the ranks talk by NCCL: gloo's lines are looked at where NCCL refuses")
    if anchor in anchors.NCCL and "NCCL's log" in had.why:
        return not_tried(name, had.why["NCCL's log"])
    if anchor not in anchors.NCCL and "watchdog" in had.why:
        return not_tried(name, had.why["watchdog"])
    text = had.log(anchor)
    found = anchor.find(text)
    details = {"source": "this log", "place": anchor.place}
    if found:
        return Check(name, "agrees", anchor.pattern, found[0].strip(), "", "", details)
    return Check(name, "differs", anchor.pattern, anchor.nearest(text) or "no such line", "", "", details)


def _group(had: Had, anchor_name: str, *groups: str) -> dict[str, str] | None:
    anchor = next(one for one in ANCHORS if one.name == anchor_name)
    found = anchor.find(had.log(anchor))
    return {group: found[group] for group in groups} if found else None


def timeout_checks(had: Had) -> Iterator[Check]:
    told = _group(had, "watchdog timeout", "op", "timeout_ms")
    truth = {"op": OP, "timeout_ms": str(round(1000 * had.timeout_s))}
    yield _of(had, "timeout: op and limit", told, truth, "watchdog")
    waiter = _group(had, "PG status", "enqueued")
    absent = _group(had, "dump signal", "enqueued")
    ahead = None if waiter is None or absent is None else int(waiter["enqueued"]) - int(absent["enqueued"])
    yield _of(had, "timeout: waiter is one ahead", ahead, 1, "watchdog")


def _of(had: Had, name: str, ours: Any, truth: Any, what: str) -> Check:
    """What a record says against what this slice knows; without the record it is not tried."""
    if ours is None:
        return not_tried(
            name, had.why.get(what) or had.why.get("nccl") or f"the lines or parts that say it ({what}) are not there"
        )
    return compare(name, ours, Told(truth), source="truth")


def dump_checks(had: Had) -> Iterator[Check]:
    if not had.dumps:
        yield from (not_tried(f"dump: {name}", had.why.get("dump", "there is none")) for name in DUMPS)
        return
    texts = [dump for dump in had.dumps.values() if isinstance(dump, str)]
    yield _of(had, "dump: plain data", texts[0] if texts else "plain", "plain", "dump")
    dump = had.dumps.get(0)
    if not isinstance(dump, dict):
        yield from (not_tried(f"dump: {name}", "rank 0 left none that can be read") for name in DUMPS[1:])
        return
    yield _of(had, "dump: version", str(dump.get("version", "")).partition(".")[0], "2", "dump")
    yield missing_keys("dump: keys", dump, anchors.DUMP_KEYS)
    entries = dump.get("entries") or [{}]
    yield missing_keys("dump: entry keys", entries[-1], anchors.ENTRY_KEYS)
    status = next(iter((dump.get("pg_status") or {"": {}}).values()))
    yield missing_keys("dump: pg_status keys", status, anchors.PG_STATUS_KEYS)
    last = [entries[-1].get("profiling_name"), entries[-1].get("state") in anchors.ENTRY_STATES]
    yield _of(had, "dump: last entry", last, [f"{had.backend}:all_reduce", True], "dump")
    ahead = [_enqueued(had.dumps.get(rank)) for rank in (0, 1)]
    behind = None if ahead[0] is None or ahead[1] is None else ahead[0] - ahead[1]
    yield _of(had, "dump: one behind", behind, 1, "the absent rank's dump")


def _enqueued(dump: Any) -> int | None:
    status = dump.get("pg_status") if isinstance(dump, dict) else None
    return max((int(one["last_enqueued_collective"]) for one in status.values()), default=None) if status else None


def missing_keys(name: str, found: dict[str, Any], claimed: frozenset[str]) -> Check:
    missing = sorted(claimed - found.keys())
    more = sorted(found.keys() - claimed)
    all_of_them = f"all {len(claimed)} keys"
    there = f"all but {', '.join(missing)}" if missing else all_of_them
    return compare(name, all_of_them, Told(there), source="this record", more=more)


def ras_checks(had: Had) -> Iterator[Check]:
    why = had.why.get("ras") or next((one.why for one in had.ras if one.why), "")
    if why:
        hint = "" if "NCCL holds" in why else ": NCCL before 2.24 has none"
        yield from (not_tried(f"ras: {name}", why + hint) for name in RAS)
        return
    in_json, in_text = had.ras
    yield _of(had, "ras: answers", "SERVER PROTOCOL" in in_json.greeting, True, "ras")
    try:
        data = in_json.data()
    except ValueError as error:
        refused = "ERROR" in in_json.greeting
        reason = "this NCCL (before 2.28.7) answers no JSON" if refused else f"it is no JSON: {error}"
        yield from (not_tried(f"ras: {name}", reason) for name in RAS[1:-1])
    else:
        yield from ras_json_checks(had, data)
    found = anchors.RAS_TEXT.find(in_text.text)
    text = found[0] if found else in_text.text[:500]
    outcome: Any = "agrees" if found else "differs"
    yield Check("ras: text", outcome, anchors.RAS_TEXT.pattern, text, details={"source": "this answer"})


def ras_json_checks(had: Had, data: dict[str, Any]) -> Iterator[Check]:
    yield missing_keys("ras: keys", data, anchors.RAS_KEYS)
    communicator = (data.get("communicators") or [{}])[0]
    yield missing_keys("ras: communicator keys", communicator, anchors.COMMUNICATOR_KEYS)
    ranks = sorted(communicator.get("ranks") or [{}], key=lambda rank: rank.get("rank", 0))
    yield missing_keys("ras: rank keys", ranks[0], anchors.RANK_KEYS)
    yield _of(had, "ras: pids", [rank.get("pid") for rank in ranks], had.pids, "ras")
    counts = [sum(rank.get("collective_counts", {}).values()) for rank in ranks]
    yield _of(had, "ras: one behind", counts[0] - counts[1] if len(counts) > 1 else None, 1, "the absent rank's counts")
    logged = _group(had, "NCCL init", "hash")
    told = communicator.get("hash")
    yield _of(had, "ras: hash", told if logged else None, logged["hash"] if logged else None, "NCCL init")
