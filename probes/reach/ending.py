"""Why a channel ended, in words, and whether trying again can help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mltop.probes.model.text import MOST_SAID, plain_text

MOST_REASON = MOST_SAID + 100  # with our own words around what was said
AGENT_ENDED = "the agent ended"
_REMARK = re.compile(r"exit code \d+|killed by signal \d+|closed its output|timed out|too many at once\?")


@dataclass(frozen=True)
class Ending:
    """``retry`` False: the node is *refused* and left alone (authentication, host key) until the user acts.

    What it says goes to a terminal, and some of it comes from a node: it is made plain and bounded here.
    """

    reason: str
    fix: str = ""
    retry: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain_text(self.reason, MOST_REASON))
        object.__setattr__(self, "fix", plain_text(self.fix))

    def __str__(self) -> str:
        return self.reason + (f" ({self.fix})" if self.fix else "")


def reason_and_fix(text: str) -> tuple[str, str]:
    """The two parts of what ``str`` made of an ``Ending``: the last thing in parentheses, unless it is an exit code
    or a reason's own remark.
    """
    if not text.endswith(")") or text.startswith(AGENT_ENDED):
        return text, ""
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth == 0:
            fix = text[at + 1 : -1]
            if text[at - 1] != " " or at < 2 or _REMARK.fullmatch(fix):
                return text, ""
            return text[: at - 1], fix
    return text, ""


def agent_ended(code: int | None, words: str) -> Ending:
    """The end of a local agent: "the agent ended (exit code 1): the last line it said"."""
    last = words.strip().rpartition("\n")[2].strip()
    return Ending(f"{AGENT_ENDED} ({exit_words(code)})" + (f": {last[:MOST_SAID]}" if last else ""))


def last_words(text: str) -> str:
    """What a program said, on one line; of much, the end: what it waits for stands there."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SAID else "…" + line[-MOST_SAID:]


def exit_words(code: int | None) -> str:
    """A process's end in words: "exit code 1", "killed by signal 9"."""
    if code is None:
        return "closed its output"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
