"""Why a channel ended, in words, and whether trying again can help."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SAID = 300  # characters of one line


@dataclass(frozen=True)
class Ending:
    """``retry`` False: the node is *refused* and left alone (authentication, host key) until the user acts."""

    reason: str
    fix: str = ""
    retry: bool = True

    def __str__(self) -> str:
        return self.reason + (f" ({self.fix})" if self.fix else "")


def agent_ended(code: int | None, words: str) -> Ending:
    """The end of a local agent: "the agent ended (exit code 1): the last line it said"."""
    last = words.strip().rpartition("\n")[2].strip()
    return Ending(f"the agent ended ({exit_words(code)})" + (f": {last[:MOST_SAID]}" if last else ""))


def exit_words(code: int | None) -> str:
    """A process's end in words: "exit code 1", "killed by signal 9"."""
    if code is None:
        return "closed its output"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
