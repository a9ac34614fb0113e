"""What a launcher makes: one process whose stdout carries frames of one node or of many; and how it may end.

A launcher is one file in ``launchers/`` with ``launch(nodes, options) -> list[Channel]``. It starts nothing: the hub
starts, watches, restarts and ends the processes, and paces how many connect at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mltop.probes.agent.protocol import Request
from mltop.probes.model import Via
from mltop.probes.model.text import MOST_SAID, plain_text
from mltop.probes.reach import INTERVAL_S

CONNECT_S = 8  # for a connection
# An agent that hears nothing for so long has lost its caller and ends; a hub that does counts the link as dead.
SILENCE_S = 20
MOST_REASON = MOST_SAID + 100  # with our own words around what was said


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


class Meaning(NamedTuple):
    """What a program's last words mean. ``pattern`` is searched for in them; in ``reason`` and ``fix`` {line} stands
    for the line, {1} for the first group, and other names for what the launcher knows.
    """

    pattern: str
    reason: str
    fix: str = ""
    retry: bool = True


def meant(meanings: Iterable[Meaning], words: str, **known: str) -> Ending | None:
    """By the first one whose pattern is in ``words``; None when none is."""
    for meaning in meanings:
        match = re.search(meaning.pattern, words)
        if match is None:
            continue
        values = {**known, "line": _line_of(words, match.start()), "1": match.group(1) if match.re.groups else ""}
        reason, fix = (_filled(text, values) for text in (meaning.reason, meaning.fix))
        return Ending(reason, fix, meaning.retry)
    return None


def _filled(text: str, values: dict[str, str]) -> str:
    """In one go: what stands for one name may look like another."""
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], text)


def _line_of(words: str, at: int) -> str:
    return words[words.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()


def agent_ended(code: int | None, words: str) -> Ending:
    """The end of a local agent: "the agent ended (exit code 1): the last line it said"."""
    last = words.strip().rpartition("\n")[2].strip()
    return Ending(f"the agent ended ({exit_words(code)})" + (f": {last[:MOST_SAID]}" if last else ""))


def last_words(text: str) -> str:
    """What a program said, on one line; of much, the end: what it waits for stands there."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SAID else "…" + line[-MOST_SAID:]


def exit_words(code: int | None) -> str:
    """A process's end in words: "exit code 1", "killed by signal 9"."""
    if code is None:
        return "closed its output"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


@dataclass(frozen=True)
class LaunchOptions:
    """What every launcher is told.

    ``python``: interpreter on the nodes, "" for the first suitable one; ``user``: login name, "" for the default;
    ``accept_new``: take host keys never seen before; ``job``: the Slurm job to run inside of (srun).
    """

    interval_s: float = INTERVAL_S
    python: str = ""
    user: str = ""
    accept_new: bool = False
    job: str = ""


class Speakers(Protocol):
    """Which node a line comes from, by what its carrier writes before it. One per start of a channel."""

    def node_of(self, label: str) -> str | None:
        """None of a label that nothing is known of."""

    def claim(self, label: str, named: str) -> str | None:
        """Of such a label, whose frame names the node ``named``: whose it is to be from now on, None for nobody's."""

    def hear(self, line: str) -> None:
        """A line of the carrier's own stderr."""


@dataclass(frozen=True)
class Channel:
    """One process to start, and how to talk through it.

    ``argv``: the command; ``nodes``: whose frames it carries (``Message.node`` tells them apart when several);
    ``speakers()``: of a carrier that labels each line, who speaks: its label counts, whatever a frame says of itself;
    ``opening``: bytes for its stdin as soon as it runs (stage 1 of the bootstrap);
    ``takes_requests``: its stdin reaches the agents. Where it does not (pdsh), ``one_shot(nodes, request)`` makes the
    channel that carries one request's answer and then ends;
    ``rejoin(nodes)``: the channel for some of its nodes, with which those that were lost while the others go on are
    reached again; None: they come back with the next start of the whole channel;
    ``all_or_none``: one node that does not answer keeps all of them from starting (srun); after such a start each node
    is tried for itself, by ``rejoin``;
    ``gate``: channels of one gate (a jump host) connect at most 8 at a time;
    ``fallback``: the channel to try next after one that nothing at all was heard of; ``fallback_fix``: what the user
    can do about what it avoids;
    ``login_ending``: as ``ending``, for an end before any frame came; None: it is the same;
    ``ending(exit code or None, last words)``: why it ended, in words; the last words are the last lines of stderr, or
    of what was no frame on stdout;
    ``node_ending(line)``: which one of its nodes a line of stderr says is gone, and why, while the others go on; None
    for every other line. It gets all lines in order;
    ``dies_with_us``: the kernel kills it when we die. The end of its stdin would not do: a login that hangs does not
    read it, and ssh waits for that.
    """

    argv: tuple[str, ...]
    nodes: tuple[str, ...]
    via: Via = "local"
    opening: bytes = b""
    speakers: Callable[[], Speakers] | None = None
    takes_requests: bool = True
    one_shot: Callable[[tuple[str, ...], Request], Channel] | None = None
    rejoin: Callable[[tuple[str, ...]], Channel] | None = None
    all_or_none: bool = False
    gate: str = ""
    fallback: Channel | None = None
    fallback_fix: str = ""
    login_ending: Callable[[int | None, str], Ending] | None = None
    ending: Callable[[int | None, str], Ending] = agent_ended
    node_ending: Callable[[str], tuple[str, Ending] | None] | None = None
    dies_with_us: bool = True
