"""What a health rule is (words, a hold time, a pure function from one moment of a node to hits), and what it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from mltop.probes.judge.health.relations import DRIVER, LINK_ERRORS, SILENT_PEER, SLOW_PEER, SLOWS, STOPS, SYMPTOM
from mltop.probes.model import CounterKind, JobKey, Remedy
from mltop.probes.model.units import counted, percent_words
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Act, Severity

CLEAR_AFTER_HOLDS = 3.0
FAILED = "health.failed"  # the id of what is said when a rule raises an exception
HOLD = "{hold}"  # in a rule's threshold: its hold time …
LIMIT = "{limit}"  # … and its limit
HOLD_KEY = ".hold_s"  # behind a rule's id: its hold time, among thresholds

# Which findings of several nodes say the same: those about one subject; about one kind of thing (key and remedy), of
# which every node has several alike, whichever it is; all of a rule: nothing tells one rank or process from the other.
Alike = Literal["subject", "kind", "rule"]

# Of what a finding tells one side: several of one card (GPU, NIC), one disk or one file server are one line.
Part = Literal["card", "disk", "server", ""]


@dataclass(frozen=True)
class Expectations:
    """What the user expects."""

    expect_gpus: int | None = None
    lemons: Mapping[str, str] = field(default_factory=dict)  # UUID or serial of a GPU known to be bad → why
    vacated: bool = False  # no process of a job may be left on idle GPUs (`mltop check` in prologs and epilogs)
    thresholds: Mapping[str, float] = field(default_factory=dict)  # see Rule.at


NO_EXPECTATIONS = Expectations()


@dataclass(frozen=True)
class Limit:
    """The one number that a rule compares with, and the user may set."""

    value: float
    shown: Callable[[float], str] = "{:g}".format  # in words
    unit: str = ""  # of the number itself
    most: float = float("inf")  # larger ones make no sense

    def __str__(self) -> str:
        return self.shown(self.value)


def share(value: float) -> Limit:
    """A part of something, 0..1."""
    return Limit(value, percent_words, "0..1", 1.0)


def critical_if(grave: object) -> Severity:
    return "critical" if grave else "warning"


@dataclass(frozen=True)
class Hit:
    """The rule holds for ``subject`` (``GPU 3``, ``NVML``, ``mlx5_4``, ``host``, ``/ckpt``) at one moment.

    ``severity``, ``action`` with ``act``, ``remedy`` and ``hold_s`` replace the rule's; the rest is as of a Finding.
    """

    subject: str
    message: str
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    action: str = ""
    since: float | None = None  # unix s: it is known to hold since then
    key: str = ""  # tells several hits on one subject apart (two different Xids)
    remedy: Remedy | None = None
    hold_s: float | None = None
    about: tuple[str, ...] = ()  # other names of its subject, which other rules may use (PCI addresses)
    node: str = ""  # of a rule about a job: that of the rank it is about, or the job's first
    server: str = ""
    job: JobKey | None = None
    ranks: tuple[int, ...] = ()
    pid: int | None = None
    act: Act = ""


@dataclass(frozen=True)
class Rule:
    """What may be wrong, when, and what to do. Relations name ids, or the beginnings of ids ("gpu.")."""

    id: str
    severity: Severity
    hold_s: float  # it fires after holding for so long
    action: str  # what to do, in a few words
    check: Callable[..., Iterable[Hit]]  # takes a Moment, or of a rule about a whole job a JobMoment; and the limit
    # What it says besides of the node beside others: takes a FleetMoment, and never runs on the node.
    compare: Callable[..., Iterable[Hit]] | None = None
    meaning: str = ""
    threshold: str = ""  # in words: HOLD and LIMIT in it are these
    source: str = ""
    limit: Limit | None = None
    others: str = ""  # where a limit or hold was set: those of the rule itself, in words
    # What of a sample it is made of, as gaps name it with ``*`` for indexes: where one of these is unknown, so is the
    # rule's answer (unknowns.py); where a decisive one is, even if the hardware has no such thing.
    needs: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    grows: tuple[CounterKind, ...] = ()  # kinds of counters that it has to see twice
    remedy: Remedy = "none"  # what the action comes to
    # Whether it fires at once where nothing tells how long it has been holding (the first sample of a live view).
    eager: bool = True
    # It clears after being false for so long; None: three times the hold. A value may flicker around a threshold.
    clear_s: float | None = None
    every_s: float = 0.0  # a rule about jobs is judged so often, and when ranks come or go
    precedence: int = SYMPTOM
    explains: tuple[str, ...] = ()  # findings on the same subject that it is the cause of
    explains_node: tuple[str, ...] = ()  # on the whole node
    # Findings about ranks and jobs, and of OF_RANKS: of the ranks on its GPU, or that it names, else all of its node.
    explains_ranks: tuple[str, ...] = ()
    explains_peers: tuple[str, ...] = ()  # on other nodes, of ports of the same name; not about a port: of any
    follows_ranks: tuple[str, ...] = ()  # what of OF_RANKS it comes of itself
    # What it tells one side of: where several do and none explains the others, the gravest is told, and of equals the
    # one with the lowest precedence.
    part_of: Part = ""
    as_grave: bool = False  # it explains graver findings, too, and is then as grave as these
    orders: bool = False  # what explains it advises what this one does
    adds: bool = False  # its message follows the message of what explains it
    # One message for several {subjects} of a node that have it at one time; of ports one incident for several nodes.
    together: str = ""
    at_once: bool = False  # what it says was over as soon as it happened
    alike: Alike = "subject"
    tells_nvml: tuple[str, ...] = ()  # codes of the gap of all of NVML that its critical findings are made of
    # (message, action) where every GPU of the node has it ({count} in the message, {example}: what is said of one), and
    # where their remedy is another one than the rule's.
    whole_node: tuple[str, str] | None = None
    whole_node_by: Mapping[Remedy, tuple[str, str]] = field(default_factory=dict, hash=False)
    act: Act = ""  # what mltop itself does for the action

    @property
    def fires_when(self) -> str:
        return self.threshold.replace(HOLD, f"{self.hold_s:g} s").replace(LIMIT, str(self.limit))

    def hits(self, moment: Any) -> Iterable[Hit]:
        """What it says of a moment."""
        return self.check(moment) if self.limit is None else self.check(moment, self.limit.value)

    def at(self, thresholds: Mapping[str, float]) -> Rule:
        """This rule with the user's limit (by its id) and hold time (by its id and HOLD_KEY), as far as it has them."""
        limit, hold_s = thresholds.get(self.id), thresholds.get(self.id + HOLD_KEY)
        new_limit = self.limit and replace(self.limit, value=self.limit.value if limit is None else limit)
        new_hold_s = self.hold_s if hold_s is None or not self.hold_s else hold_s
        if (new_limit, new_hold_s) == (self.limit, self.hold_s):
            return self
        return replace(self, limit=new_limit, hold_s=new_hold_s, others=self.usual)

    @property
    def usual(self) -> str:
        """Limit and hold time in words."""
        held = f"for {self.hold_s:g} s" if self.hold_s else ""
        return ", ".join(filter(None, (str(self.limit) if self.limit else "", held)))

    def words_of_all(self, remedy: Remedy) -> tuple[str, str] | None:
        """(message, action) where every GPU of the node has it with this remedy; None: each is told."""
        return self.whole_node if remedy == self.remedy else self.whole_node_by.get(remedy)

    @property
    def patience_s(self) -> float:
        """For so long it may be false before it has ended."""
        return CLEAR_AFTER_HOLDS * self.hold_s if self.clear_s is None else self.clear_s


def rule(rule_id: str, severity: Severity, hold_s: float = 0.0, **header: Any) -> Callable[..., Callable[..., Rule]]:
    """``@rule("gpu.lost", "critical")(meaning=…, …)``; with ``compares_nodes`` the check below is its ``compare``."""

    def make(action: str, compares_nodes: bool = False, **words: Any) -> Callable[..., Rule]:
        def made(check: Callable[..., Iterable[Hit]]) -> Rule:
            checks = (lambda *_: (), check) if compares_nodes else (check, words.pop("compare", None))
            return Rule(rule_id, severity, hold_s, action, *checks, **{"needs": getattr(check, "needs", ()), **words})

        return made

    return partial(make, **header)


class OfGpus:
    """The check of a rule about single values of each GPU, and which values it needs. It reports the first of ``cases``
    (field, text) whose value equals ``equals``; without that, whose value reaches the rule's limit; and where the rule
    has none, any value but 0 and False. An unknown value is not reported here.

    Texts and ``action`` have the places {gpu}, {index} and {value}, a count of ``noun``.
    """

    def __init__(self, *cases: tuple[str, str], action: str = "", noun: str = "", equals: object = None) -> None:
        self.action, self._noun, self._equals = action, noun, equals
        self._cases = [(attrgetter(field), text) for field, text in cases]
        self.needs = tuple(f"gpu.*.{field}" for field, _ in cases)

    def __call__(self, moment: Any, limit: float = 0.0) -> Iterator[Hit]:
        for gpu in moment.now.gpus:
            for value_of, text in self._cases:
                value = value_of(gpu)
                if value == self._equals if self._equals is not None else value and value >= limit:
                    shown = counted(value, self._noun) if self._noun else value
                    words = {"gpu": gpu_name(gpu.index), "index": gpu.index, "value": shown}
                    yield Hit(words["gpu"], text.format(**words), action=self.action.format(**words))
                    break


device_rule = partial(rule, alike="kind")  # about GPUs, ports, and what belongs to them
# Of a GPU that the driver has trouble with: ranks on other nodes, too, wait for those that use it.
gpu_fault = partial(device_rule, precedence=DRIVER, explains_ranks=STOPS, explains_peers=SILENT_PEER)
port_rule = partial(device_rule, part_of="card")
port_fault = partial(  # of a port that carries no traffic, or damages it
    port_rule, explains_ranks=(*STOPS, *SLOWS), explains_peers=SLOW_PEER, precedence=LINK_ERRORS
)
rank_rule = partial(rule, alike="rule")  # about ranks and processes
