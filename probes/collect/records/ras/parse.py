"""What RAS answers, as data: JSON of NCCL 2.28.7 and later, also as 2.28 writes it (a comma is missing exactly when a
rank is), and the text of 2.24 and later, which tells only of the ranks that differ from the others. Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mltop.probes.collect.records.pickles import CutOff, Malformed
from mltop.probes.collect.records.ras.text import parse_text
from mltop.probes.collect.records.values import entries_of, name_text, rank_number, read_json, table_of, whole
from mltop.probes.model.evidence.ras import (
    MOST_COMMUNICATORS,
    MOST_RANKS,
    RasAnswer,
    RasCommunicator,
    RasFormat,
    RasRank,
    RasState,
)

_READY, _IN_PROGRESS = 0, 7  # ncclSuccess, ncclInProgress
MOST_KINDS = 32  # of operations
# 2.28.7 and 2.28.9: `"nvml_dev": 1` and on the next line `"status": {`, without a comma between the two.
_NO_COMMA = re.compile(rb'([\d"\]}])([ \t]*\r?\n[ \t]*"\w+"[ \t]*:)')


class Unreadable(Exception):
    """It is no answer of RAS, or half of one; the text says why."""


def parse_answer(content: bytes, kind: RasFormat, *, received_at: float, took_s: float = 0.0) -> RasAnswer:
    """Raises Unreadable."""
    if kind == "text":
        version, communicators, timeouts = parse_text(content.decode("utf-8", "replace"))
        if not version:
            raise Unreadable("its answer is no report of RAS")
        return RasAnswer(version, kind, communicators, received_at, took_s, timeouts)
    top = _decoded(content)
    if not isinstance(top, dict) or not isinstance(top.get("communicators"), list):
        raise Unreadable("its answer is no report of RAS")
    communicators = tuple(map(_communicator, entries_of(top["communicators"], MOST_COMMUNICATORS)))
    timeouts = whole(table_of(top.get("ras")).get("timeouts_count")) or 0
    version = name_text(top.get("nccl_version"), 40)
    return RasAnswer(version, kind, communicators, received_at, took_s, max(0, timeouts))


def _decoded(content: bytes) -> Any:
    try:
        try:
            return read_json(content)
        except Malformed:
            return read_json(_NO_COMMA.sub(rb"\1,\2", content))
    except CutOff:
        raise Unreadable("its answer is cut off in the middle") from None
    except Malformed as why:
        raise Unreadable(f"its answer cannot be read: {why}") from None


def _communicator(told: object) -> RasCommunicator:
    table = table_of(told)
    names = [name_text(table.get(name), 64) for name in ("hash", "secondary_hash")]
    ranks = [*_ranks(table.get("ranks"), is_missing=False), *_ranks(table.get("missing_ranks"), is_missing=True)]
    return RasCommunicator(" ".join(filter(None, names)), rank_number(table.get("size")), tuple(ranks), hash=names[0])


def _ranks(told: object, *, is_missing: bool) -> Iterable[RasRank]:
    for entry in entries_of(told, MOST_RANKS):
        table = table_of(entry)
        number = rank_number(table.get("rank"))
        if number is None:
            continue
        status = table_of(table.get("status"))
        error = whole(status.get("async_error"))
        yield RasRank(
            number,
            name_text(table.get("host"), 64),
            rank_number(table.get("pid")),
            rank_number(table.get("nvml_dev")),
            "gone" if is_missing else _state(status),
            _counts(table.get("collective_counts")),
            error if error not in (_READY, _IN_PROGRESS) else None,
            status.get("unresponsive") is True,
            status.get("considered_dead") is True,
        )


def _state(status: dict[Any, Any]) -> RasState:
    if status.get("abort_flag") is True:
        return "abort"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "finalize"
    init = whole(status.get("init_state"))
    if init in (_READY, None):
        return "running"
    return "init" if init == _IN_PROGRESS else "error"


def _counts(told: object) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(told, dict) or len(told) > MOST_KINDS:
        return None
    counts = [(name_text(kind, 40), whole(count)) for kind, count in told.items()]
    return tuple((kind, count) for kind, count in counts if count is not None and count >= 0)
