"""What a launcher makes: one process whose stdout carries frames of one node or of many; and how it may end.

A launcher is one file in ``launchers/`` with ``launch(nodes, options) -> list[Channel]``. It starts nothing: the hub
starts, watches, restarts and ends the processes, and paces how many connect at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
    """Why a node or a channel is gone. ``retry`` False: the node is *refused* and left alone (authentication, host key)
    until the user acts.

    The words go to a terminal, and some of them come from a node: they are made plain and bounded here.
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
    """What it means when ``pattern`` is found in a program's last output.

    In ``reason`` and ``fix`` (str.format) {line} stands for the line, {1} for the first group, and other names for what
    the launcher knows.
    """

    pattern: str
    reason: str
    fix: str = ""
    retry: bool = True


def ending_by(meanings: Iterable[Meaning], output: str, **values: str) -> Ending | None:
    """The ending by the first meaning whose pattern is in ``output``; None when there is none."""
    for meaning in meanings:
        match = re.search(meaning.pattern, output)
        if match is not None:
            line = output[output.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
            groups = (match[0], *match.groups(""))
            reason, fix = (text.format(*groups, line=line, **values) for text in (meaning.reason, meaning.fix))
            return Ending(reason, fix, meaning.retry)
    return None


def agent_ended(code: int | None, output: str) -> Ending:
    """The end of a local agent: "the agent ended (exit code 1): the last line of its output"."""
    last = output.strip().rpartition("\n")[2].strip()
    return Ending(f"the agent ended ({exit_words(code)})" + (f": {last[:MOST_SAID]}" if last else ""))


def exit_words(code: int | None) -> str:
    """The end of a process in words: "exit code 1", "killed by signal 9"."""
    if code is None:
        return "closed its output"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


@dataclass(frozen=True)
class LaunchOptions:
    """What every launcher is told.

    ``python``: interpreter on the nodes, "" for the first suitable one; ``user``: login name, "" for the default;
    ``accept_new``: take host keys never seen before; ``job``: the Slurm job to run inside of (srun); ``read_only``:
    agents write no file; ``thresholds``: the user's, of health rules.
    """

    interval_s: float = INTERVAL_S
    python: str = ""
    user: str = ""
    accept_new: bool = False
    job: str = ""
    read_only: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @property
    def agent_args(self) -> list[str]:
        """What agents of all launchers get."""
        thresholds = ["--thresholds", json.dumps(dict(self.thresholds))] if self.thresholds else []
        return ["--interval", f"{self.interval_s:g}", *["--read-only"] * self.read_only, *thresholds]


class Speakers(Protocol):
    """Which node a line comes from, by what its carrier writes before it. One per start of a channel."""

    def node_of(self, label: str) -> str | None:
        """The node of a label; None while nothing is known of it."""

    def claim(self, label: str, named: str) -> str | None:
        """The node that such a label belongs to from now on, when its frame names the node ``named``; None for none."""

    def hear(self, line: str) -> None:
        """Takes in a line of the carrier's own stderr."""


NodeEnding = Callable[[str], "tuple[str, Ending] | None"]


@dataclass(frozen=True)
class Channel:
    """One process to start, and how to talk through it.

    ``argv``: the command; ``nodes``: whose frames it carries (``Message.node`` tells them apart when several);
    ``speakers()``: of a carrier that labels each line, who speaks: its label counts, whatever a frame says of itself;
    ``opening()``: bytes for its stdin once stage 0 of the bootstrap waits for them on all of its nodes (stage 1);
    ``takes_requests``: its stdin reaches the agents. Where it does not (pdsh), ``one_shot(nodes, request)`` makes the
    channel that carries one request's answer and then ends;
    ``rejoin(nodes)``: the channel for some of its nodes, with which those that were lost while the others go on are
    reached again; None: they come back with the next start of the whole channel;
    ``all_or_none``: one node that does not answer keeps all of them from starting (srun); after such a start each node
    is tried for itself, by ``rejoin``;
    ``gate``: channels of one gate (a jump host) connect at most 8 at a time;
    ``fallback``: the channel to try next after one that nothing at all was heard of; ``fallback_fix``: what the user
    can do about what it avoids;
    ``login_ending(code, output, of_eof)``: as ``ending``, for an end before any frame came, ``of_eof``: after its stdin
    was closed because nothing had come for too long; None: it is the same;
    ``ending(exit code or None, output)``: why it ended, in words; ``output``: the last lines of stderr, or of what was
    no frame on stdout;
    ``node_endings()``: of one start, a function of a line of stderr: which one of its nodes that says is gone, and why,
    while the others go on; None for every other line. It gets all lines in order;
    ``dies_with_us``: the kernel kills it when we die. The end of its stdin would not do: a login that hangs does not
    read it, and ssh waits for that.
    """

    argv: tuple[str, ...]
    nodes: tuple[str, ...]
    via: Via = "local"
    opening: Callable[[], bytes] = bytes
    speakers: Callable[[], Speakers] | None = None
    takes_requests: bool = True
    one_shot: Callable[[tuple[str, ...], Request], Channel] | None = None
    rejoin: Callable[[tuple[str, ...]], Channel] | None = None
    all_or_none: bool = False
    gate: str = ""
    fallback: Channel | None = None
    fallback_fix: str = ""
    login_ending: Callable[[int | None, str, bool], Ending] | None = None
    ending: Callable[[int | None, str], Ending] = agent_ended
    node_endings: Callable[[], NodeEnding] | None = None
    dies_with_us: bool = True
