"""What the commands share: their machines, what is said on stderr meanwhile, and recordings in place of machines."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.agent.protocol import Message
from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.patience import FAILED, REACHED, Arrivals, Patience, waited
from mltop.probes.investigate.session import LiveSession
from mltop.probes.judge.nodes import sentences
from mltop.probes.model import SCHEMA, JobReport, NodeState, Sample
from mltop.probes.model.text import clean
from mltop.probes.model.unread import unread_ranks
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, channels, resolve
from mltop.probes.reach.view import NodeView
from mltop.probes.system.limits import LimitReached
from mltop.tui.app.output import put_json, say, write_over
from mltop.tui.app.selection import first_of

if TYPE_CHECKING:  # what reads recordings, and what judges, is imported when the agents have been started
    from rich.console import Console

    from mltop.probes.investigate.probing.run import ProbeMemory
    from mltop.probes.record import Saved
    from mltop.probes.record.recordings import DecodeLine

LOOK_S = 0.2  # between two looks at all nodes, when nothing changes
SOONEST_S = 0.03  # likewise, when much does
SETTLE_S = 2.0
# Sources, and fields of theirs (none: all), whose first values are waited for: other rates may need many seconds.
SOON = {"gpu": (), "kernel_log": (), "host": ("filesystems", "services")}
FOREVER = float("inf")
# Whoever may still come is waited for; a node that failed gets one more attempt after all others are done.
ALL_NODES = Patience(connecting_s=FOREVER, lost_s=3.0, live_s=FOREVER)
# Failures of so long are said together, each time of twice as long: sixty nodes behind one dead switch are one line,
# and a thousand that fail one after the other are a few.
GATHER_S = 0.4


def put_answer(
    as_json: bool, answer: Mapping[str, object], show: Callable[[Console], None], wide: bool = False
) -> None:
    """A command's answer on stdout: one JSON object, or what ``show`` prints. ``wide``: a file's lines are not wrapped,
    as logs are searched.
    """
    if as_json:
        put_json({"schema": SCHEMA, **answer})
        return
    from rich.console import Console

    from mltop.tui.report.page import WIDEST

    show(Console(width=WIDEST if wide and not sys.stdout.isatty() else None))


class Stderr:
    """What a command says while it works: a line that is written over, on a terminal only, and lines that stay."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._failed: set[str] = set()  # said already, or about to be
        self._unsaid: list[NodeState] = []
        self._unsaid_since = 0.0
        self._gather_s = GATHER_S

    def show(self, text: str) -> None:
        """Show ``text`` in place of what stood there."""
        if self._terminal:
            write_over(text, max(1, columns() - 1))
            self._shown = True

    def note(self, sentence: str) -> None:
        self.clear()
        say(sentence)

    def clear(self) -> None:
        if self._shown:
            write_over("", 0)
            self._shown = False

    def failures(self, views: Iterable[NodeView]) -> None:
        """Say once of every node that it cannot be reached, as soon as that is known, those of one reason together."""
        now = time.monotonic()
        for view in views:
            if view.state.state in FAILED and view.node not in self._failed:
                self._failed.add(view.node)
                self._unsaid_since = self._unsaid_since if self._unsaid else now
                self._unsaid.append(view.state)
        if self._unsaid and now - self._unsaid_since > self._gather_s:
            self._gather_s *= 2
            self._say_failures()

    def last_failures(self, states: Iterable[NodeState]) -> None:
        """Say at the end which of these nodes failed, as far as that was not said yet."""
        unsaid = {state.node for state in self._unsaid}
        self._unsaid = [state for state in states if state.node not in self._failed or state.node in unsaid]
        self._failed.update(state.node for state in self._unsaid)
        self._say_failures()

    def _say_failures(self) -> None:
        for sentence in sentences(self._unsaid):
            self.note(sentence)
        self._unsaid = []


def columns() -> int:
    """The width of the terminal that stderr is, in cells."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def say_gap(where: str, why: str, fix: str) -> None:
    """Say on stderr what is not known, and what would help."""
    say(f"{where}: {why}" + (f" ({advised(fix)})" if fix else ""))


def live_targets(options: TargetOptions, why: str, fix: str = "") -> Targets:
    """The targets of a command that looks at machines only; ``why`` it does not look at a recording."""
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem("--recording", why, fix)
    return targets


def refuse_read_only(options: TargetOptions, command: str) -> None:
    """Raises UsageProblem for a command that touches a process, puts load on a machine or writes a file."""
    if options.read_only:
        raise UsageProblem(command, "off: --read-only", "without it and without MLTOP_READ_ONLY")


def refuse_name(path: str) -> None:
    """Raises UsageProblem for what is no name of a new file or folder: a command would find out after its work."""
    if clean(path) != path:
        raise UsageProblem(f"-o {path}", "has characters that cannot be printed", "another name")
    if not path or path == "-":
        raise UsageProblem(
            f"-o '{path}'", "is not the name of a file", "is a variable empty?" if not path else "-o ./-"
        )
    if os.path.lexists(path):
        raise UsageProblem(f"-o {path}", "exists already", "a new name")
    if not os.path.isdir(Path(path).parent):  # noqa: PTH112 - False also for a name that is too long
        raise UsageProblem(
            f"-o {path}", "cannot write there: there is no such folder", "another name, or make it first"
        )


def interrupt_on_signals() -> None:
    """SIGTERM and SIGHUP end what runs as Ctrl-C does: what is known by then is written. ``exits.interrupted_by``."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup: it goes on
            signal.signal(number, interrupt)


def live_session(targets: Targets, options: TargetOptions, memory: ProbeMemory | None = None) -> LiveSession:
    """The nodes' agents start now. ``memory``: of probe results."""
    nodes, job = channels(targets, options), targets.job or None
    return LiveSession(
        targets.title, nodes, options.interval_s, verdict_text, job, memory=memory, timeout_s=options.timeout_s
    )


class Machines:
    """Live machines for one command, which is ``what`` on the progress line. Its agents are ended on the way out.

    ``memory``: of probe results; ``most_interval_s``: no longer than this between two samples. The agents start at
    once, so that what judges and prints can be imported meanwhile.
    """

    def __init__(
        self,
        targets: Targets,
        options: TargetOptions,
        what: str,
        *,
        memory: ProbeMemory | None = None,
        most_interval_s: float = FOREVER,
    ) -> None:
        self.stderr = Stderr()
        self.began = time.monotonic()
        self.deadline = self.began + options.timeout_s
        self._what = what
        interval_s = min(options.interval_s, most_interval_s)
        self.session = live_session(targets, replace(options, interval_s=interval_s), memory)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.stderr.clear()
        self.session.close()

    def await_nodes(self, missing: Callable[[NodeView], str]) -> tuple[NodeView, ...]:
        """Wait until nothing is ``missing`` of any node that is worth waiting for, at most until the deadline.

        ``missing`` says in words what of a node, "" for nothing. Returns all nodes as they are then.
        """
        changed = threading.Event()
        self.session.subscribe(changed.set)
        arrivals = Arrivals(time.monotonic())
        done: set[str] = set()
        while True:
            now = time.monotonic()
            views = self.session.view().nodes
            arrivals.look(views, now)
            self.stderr.failures(views)
            reasons = {view.node: missing(view) for view in views}
            done_before, done = len(done), {node for node, reason in reasons.items() if not reason}
            arrivals.news_at = now if len(done) != done_before else arrivals.news_at
            waiting = arrivals.awaited(views, done, now, ALL_NODES)
            if not waiting or now >= self.deadline:
                self.stderr.clear()
                refuse_limits(views)
                return self._in_time(views)
            self.stderr.show(f"{self._what}: {len(done)} of {len(views)} nodes, {waiting_text(waiting, reasons)}")
            changed.wait(min(LOOK_S, self.deadline - now))
            time.sleep(SOONEST_S)
            changed.clear()

    def ask(self, op: str, nodes: Sequence[str], answer_s: float) -> dict[str, Message | None]:
        """What each of these nodes' agents answers; None where that takes longer than ``answer_s``."""
        answers: dict[str, Message | None] = dict.fromkeys(nodes)
        waiting, until = set(nodes), time.monotonic() + answer_s
        pending = self.session.hub.request(op, nodes=nodes) if nodes else None
        while pending is not None and waiting and time.monotonic() < until:
            self.stderr.show(f"{self._what}: {len(nodes) - len(waiting)} of {len(nodes)} nodes have answered")
            for answer in pending.answers(min(LOOK_S, max(0.0, until - time.monotonic()))):
                if answer.message.kind in ("done", "error"):
                    waiting.discard(answer.node)
                    answers[answer.node] = answer.message
        return answers

    def views(self) -> tuple[NodeView, ...]:
        """All nodes as they are at the end of the command."""
        return self._in_time(self.session.view().nodes)

    def _in_time(self, views: Iterable[NodeView]) -> tuple[NodeView, ...]:
        return tuple(in_time(view, time.monotonic() - self.began) for view in views)


def refuse_limits(views: Iterable[NodeView]) -> None:
    """Raises LimitReached where a limit of the system hides the ranks of all nodes that answer."""
    unread = [(view.node, unread_ranks(view.sample)) for view in views if view.sample is not None]
    limits = [f"{node}: {gap.why}" if gap is not None and gap.code == "limit" else "" for node, gap in unread]
    if limits and all(limits):
        raise LimitReached(limits[0])


def in_time(view: NodeView, waited_s: float) -> NodeView:
    """A node at the end of the command: one that still connects was not reached, for what it waits for."""
    state = view.state
    if state.state != "connecting":
        return view
    step = f" ({state.reason})" if state.reason else ""
    late = NodeState.because(state.node, state.state, f"not reached within {waited(waited_s)}{step}", age_s=state.age_s)
    return replace(view, state=late)


def waiting_text(views: Sequence[NodeView], reasons: Mapping[str, str]) -> str:
    """ "waiting for h03 (rates need two samples: 0.5 s) and 2 more"."""
    why = {view.node: reasons[view.node] if view.state.state == "live" else view.state.state for view in views}
    return f"waiting for {first_of([f'{node} ({reason})' for node, reason in why.items()], 1)}"


class Reached:
    """What a node still has to say before it can be asked: a first sample, with NVML's first answer."""

    def __init__(self, nvml_deadline: float = 0.0) -> None:
        self._nvml_deadline = nvml_deadline  # monotonic s: from then on NVML counts as never starting

    def __call__(self, view: NodeView) -> str:
        if view.sample is None or view.state.state not in REACHED:
            return "no sample yet"
        waits = (gap.why for gap in view.sample.gaps if gap.source == "nvml" and gap.kind == "starting")
        return next(waits, "") if time.monotonic() <= self._nvml_deadline else ""


class Complete(Reached):
    """What a node still has to say before all that a single look needs is there: also a second sample, for rates.

    What else comes with a later sample (activity, a long kernel log) is waited for two seconds.
    """

    def __init__(self, nvml_deadline: float) -> None:
        super().__init__(nvml_deadline)
        self._first_at: dict[str, float] = {}
        self._settled_by: dict[str, float] = {}

    def __call__(self, view: NodeView) -> str:
        missing, sample = super().__call__(view), view.sample
        if sample is None:
            return missing
        first_at = self._first_at.setdefault(view.node, sample.sampled_at)
        if missing:
            return missing
        if sample.sampled_at <= first_at:
            return f"rates need two samples: {sample.interval_s:g} s"
        now = time.monotonic()
        soon = [gap for gap in sample.gaps if gap.kind == "starting" and gap.source in SOON]
        starting = (gap.why for gap in soon if not SOON[gap.source] or {*SOON[gap.source]} & {*gap.fields})
        settled_by = self._settled_by.setdefault(view.node, now + SETTLE_S)
        return next(starting, "") if now <= settled_by else ""


def unreached(views: tuple[NodeView, ...]) -> list[NodeState]:
    """The states of the nodes that have not said anything yet."""
    return [view.state for view in views if view.sample is None]


@contextmanager
def recording_problems() -> Iterator[None]:
    """Raises UsageProblem for what is no recording."""
    from mltop.probes.record import BadRecording

    try:
        yield
    except BadRecording as error:
        raise UsageProblem("--recording", str(error)) from None


def saved(path: Path, decode_line: DecodeLine | None = None) -> Saved:
    """What a capture or a recording holds; what it lacks is said. ``decode_line`` as of ``read_recording``."""
    from mltop.probes.investigate.capture import load
    from mltop.probes.record.decoding import decode_sample

    with recording_problems():
        content = load(path, decode_line or decode_sample)
    for gap in content.gaps:
        say(f"{gap.what}: {gap.why}")
    return content


def verdict_text(reports: Sequence[JobReport], samples: Sequence[Sample]) -> str:
    """The reports as plain text, as `mltop stacks` prints them; ``samples`` say whether the ranks are known."""
    from io import StringIO

    from rich.console import Console

    from mltop.tui.report import print_reports

    text = StringIO()
    console = Console(file=text, width=110, color_system=None, force_terminal=False)
    print_reports(reports, [], console, samples=samples)
    return text.getvalue()
