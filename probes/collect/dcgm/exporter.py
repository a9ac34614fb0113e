"""dcgm-exporter over HTTP, and the profiling metrics in its Prometheus text. Only from the source's own thread:
everything here may wait.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mltop.probes.collect.dcgm.rows import PROFILING, Row, Snapshot
from mltop.probes.collect.redaction.shapes import masked, without_user

PREFIX = "DCGM_FI_PROF_"
_FIELD_OF = {name: field for field, (_, *names) in PROFILING.items() for name in names}
# Label values may hold any character, quotes and backslashes escaped.
_LINE = re.compile(
    PREFIX + r'(\w+)\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s+(\S+)(?:\s+(-?\d+))?\s*', re.ASCII
)  # name, labels, value, unix ms
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)


def is_of_dcgm(text: str) -> bool:
    """Whether it is dcgm-exporter that speaks, with or without profiling metrics."""
    return text.startswith("DCGM_") or "\nDCGM_" in text or "# HELP DCGM_" in text


def parse(text: str, now: float, now_s: float) -> list[Row]:
    """Returns a row for each GPU and GPU instance. ``now``: unix s, for lines with a time; ``now_s``: monotonic."""
    rows: dict[tuple[str, str, str, str], Row] = {}
    for name, labels, value, at in _samples(text):
        # "uuid" is the label in the exporter's old namespace (--use-old-namespace).
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        key = (uuid, labels.get("pci_bus_id", ""), labels.get("gpu", ""), labels.get("GPU_I_ID", ""))
        row = rows.get(key)
        if row is None:
            row = rows[key] = Row(key[0], key[1], _number(key[2]), _number(key[3]), now_s)
        if at is not None:
            row.taken_s = min(row.taken_s, now_s - max(0.0, now - at))
        row.put(name, value)
    return list(rows.values())


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float, float | None]]:
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        sample = _LINE.fullmatch(line)
        field = _FIELD_OF.get(sample[1]) if sample else None
        if sample is None or field is None:
            continue
        with contextlib.suppress(ValueError):  # a line that is none
            at_ms = sample[4]
            yield field, dict(_LABEL.findall(sample[2])), float(sample[3]), int(at_ms) / 1000 if at_ms else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


DEFAULT_URL = "http://127.0.0.1:9400/metrics"
MAX_BYTES = 8 << 20
CHUNK_BYTES = 1 << 16


@dataclass
class Silence:
    """Why there is nothing from the exporter. ``lacks_profiling``: it is one, but exports other metrics only."""

    why: str
    lacks_profiling: bool = False


class Exporter:
    """One exporter. ``timeout_s`` is for connecting, for each wait for data, and three times that for all of it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._wrong = ""
        try:
            from urllib.parse import urlsplit

            split = urlsplit(url)
            self.address = without_user(split.netloc)  # said in gaps
            self._host = split.hostname or ""
            self._port = split.port or (443 if split.scheme == "https" else 80)
        except ValueError as error:
            self._wrong = str(error)
        else:
            if split.scheme not in ("http", "https") or not self._host:
                self._wrong = "an address is http://HOST:PORT/metrics"

    def scrape(self) -> Snapshot | Silence:
        """Returns what the exporter says now. Never raises, whatever a server does."""
        if self._wrong:
            return Silence(f"{masked(self._url)!r} is no address of an exporter ({self._wrong})")
        try:  # whether anything listens there, for the price of one system call or two
            socket.create_connection((self._host, self._port), self._timeout_s).close()
        except ConnectionRefusedError:
            return Silence(f"nothing listens on {self.address}")
        except (OSError, OverflowError) as error:
            return Silence(f"{self.address} {reason(error, self._timeout_s)}")
        # Costs some megabytes and milliseconds, which machines without an exporter should not pay.
        import http.client
        import urllib.error
        import urllib.request

        class Straight(urllib.request.HTTPRedirectHandler):
            """Whoever has the port here does not choose where else this machine asks."""

            def redirect_request(self, *_: object) -> None:
                return None

        # A proxy's 127.0.0.1 is another one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Straight)
        try:
            with opener.open(self._url, timeout=self._timeout_s) as response:
                text = self._read(response)
        except urllib.error.HTTPError as error:
            error.close()
            return Silence(f"{self.address} answers, but not as dcgm-exporter (HTTP {error.code})")
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Silence(f"{self.address} {reason(error, self._timeout_s)}")
        return self._understand(text)

    def _read(self, response: object) -> str:
        deadline_s = time.monotonic() + 3 * self._timeout_s
        received = bytearray()
        while True:
            data = response.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
            if not data:
                return received.decode("utf-8", "replace")
            received += data
            if len(received) > MAX_BYTES:
                raise ValueError(f"sent more than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > deadline_s:
                raise TimeoutError

    def _understand(self, text: str) -> Snapshot | Silence:
        rows = parse(text, time.time(), time.monotonic())
        if rows:
            return Snapshot(rows, f"dcgm-exporter on {self.address}")
        if not is_of_dcgm(text):
            return Silence(f"{self.address} answers, but not as dcgm-exporter")
        why = f"dcgm-exporter on {self.address} exports no activity (DCGM_FI_PROF_SM_ACTIVE and others)"
        return Silence(why, lacks_profiling=True)


def reason(error: Exception, timeout_s: float) -> str:
    """Why a connection failed, as the end of a sentence."""
    inner = getattr(error, "reason", error)
    if isinstance(inner, (TimeoutError, socket.timeout)):
        return f"does not answer within {timeout_s:g} s"
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return f"cannot be read: {text}"
