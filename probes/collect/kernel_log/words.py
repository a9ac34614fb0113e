"""Kernel text as something that can be shown: nothing in it controls a terminal or is a secret, and it has an end."""

from __future__ import annotations

import re

from mltop.probes.collect.ranks.values import shown_script
from mltop.probes.collect.shapes import HIDDEN, masked

MAX_TEXT_CHARS = 300
_BREAK = re.compile(r"\s*[\r\n]+\s*(?:NVRM: )?")  # a record of several lines repeats its driver's name
_ODD = re.compile(r"[^\x20-\x7e]")
# What the audit subsystem repeats of command lines, in hex digits or quoted (audit-userspace: auparse/typetab.h).
_AUDITED = re.compile(r"\b(proctitle|cmd|data|a\d+(?:\[\d+\])?)=(?:\"[^\"]*\"|\S+)")
_BOOT = re.compile(r"command line(?: parameters)?[:\s]", re.IGNORECASE)  # the kernel's own: rd.luks.key=…


def shown(text: str, most_chars: int = MAX_TEXT_CHARS) -> str:
    """One line: control characters (also the invisible ones of Unicode) as \\x1b or \\u202e."""
    text = _without_secrets(text[: 8 * most_chars])
    if len(text) <= most_chars and text.isprintable():  # nearly always
        return text.strip()
    text = _BREAK.sub(" ", text[: 4 * most_chars].strip())
    text = _ODD.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text)
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def _without_secrets(text: str) -> str:
    text = masked(text, hashes=False)
    if "audit(" in text:
        text = _AUDITED.sub(rf"\1={HIDDEN}", text)
    boot = _BOOT.search(text)
    return text if boot is None else text[: boot.end()] + shown_script(text[boot.end() :])


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
