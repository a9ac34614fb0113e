"""Where a rank's records lie, which rank a file is of, and how one is opened.

A path is a stranger's word: pipes and devices are not opened, and what belongs to another user is not read for this one
(whoever runs mltop as root lends nobody his eyes). Python 3.9.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltop.probes.collect.records.values import rank_number
from mltop.probes.model.sample import START_SLACK_S
from mltop.probes.model.units import size_words
from mltop.probes.system.files import BadFile, blocks, open_regular

# torch's prefixes end where the rank's number begins, and the user may choose any; NVRx, Ray and people add an ending.
_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,8})(?:\.(?:json|pickle|pkl|pt|trace))?", re.DOTALL)
_OLD_PREFIX = "/tmp/nccl_trace_rank_"  # where torch wrote until 2.8
_ASCEND_PREFIX = "/tmp/hccl_trace_rank_"
_IN_CACHE = "torch/comm_lib_trace_rank_"
_TORCHCOMMS_NAME = ".cache/torchcomm_fr_trace_"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def rank_of_name(name: str) -> int | None:
    """7 of ``comm_lib_trace_rank_7``, ``_dump_7.json``, ``rank_7.json``; None of a name without a number at its end."""
    match = _NAME.fullmatch(name)
    return rank_number(match["rank"]) if match is not None and match["prefix"] else None


def places_of(environ: Mapping[str, str], rank: int, cwd: str = "") -> list[str]:
    """Where the records of a rank with these variables lie, the first that exists counts. Relative to ``cwd``."""
    chosen = [
        environ[name] for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE") if environ.get(name)
    ]
    prefixes = chosen[:1]  # the job's choice before what torch does by itself
    torchcomms = environ.get("TORCHCOMM_FR_DUMP_TEMP_FILE", "")
    prefixes += [torchcomms] if torchcomms else []
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    prefixes += [f"{cache}/{_IN_CACHE}"] if cache and not chosen else []
    prefixes += [_OLD_PREFIX] if not chosen else []
    prefixes += [f"{home}/{_TORCHCOMMS_NAME}"] if home and not torchcomms else []
    prefixes += [_ASCEND_PREFIX]
    return [os.path.join(cwd, f"{prefix}{rank}") for prefix in prefixes if cwd or prefix.startswith("/")]


def pipe_of(environ: Mapping[str, str], rank: int) -> str:
    """The pipe by which a rank would write a record at once when asked, "" for none."""
    prefix = environ.get(PIPE, "")
    return f"{prefix}{rank}.pipe" if prefix else ""


def error_json(data: bytes) -> tuple[str, int | None, dict[str, Any]] | None:
    """What torchelastic's error.json says (torch elastic/multiprocessing/errors/error_handler.py): the message, when it
    was raised (unix s), and what else it has; None of something else.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    message: Any = content.get("message") if isinstance(content, dict) else None
    details = message if isinstance(message, dict) else {}
    text = details.get("message") if details else message
    if not isinstance(text, str):
        return None
    more = details.get("extraInfo")
    more = more if isinstance(more, dict) else {}
    said = str(more.get("timestamp", ""))
    return text.strip(), int(said) if said.isascii() and said.isdigit() and len(said) < 12 else None, more


MOST_BYTES = 32 << 20  # 2,000 entries with their stacks have 8 MB


class Unusable(Exception):
    """It cannot be used; the text says why in a few words, without the path."""


def read_of(
    path: Path | str, most_bytes: int, *, started_at: float | None = None, uid: int | None = None, links: bool = True
) -> tuple[bytes, float]:
    """The content, and when it was written (unix s). Raises Unusable."""
    too_large = f"it is larger than {size_words(most_bytes)}, the most that mltop reads of such a file"
    try:
        descriptor = open_regular(path, links=links)
    except BadFile:
        raise Unusable("it is no regular file") from None
    except OSError as error:
        raise Unusable(f"it cannot be opened: {error.strerror or error}") from None
    try:
        status = os.fstat(descriptor)
        if uid is not None and status.st_uid != uid:
            raise Unusable("it belongs to another user than the rank")
        if started_at is not None and status.st_mtime < started_at - START_SLACK_S:
            raise Unusable("it is older than the process: an earlier job wrote it")
        if status.st_size > most_bytes:
            raise Unusable(too_large)
        return b"".join(blocks(descriptor, most_bytes, Path(path))), status.st_mtime
    except BadFile:
        raise Unusable(too_large) from None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
