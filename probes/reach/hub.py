"""Keeps one stream per node alive in one thread; others ask it for a view, the history, or send requests."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from mltop.probes.reach import INTERVAL_S
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.link import WATCH_S, Link, LinkContext, Stage
from mltop.probes.reach.pacing import Limits, Pacer
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.records import Records
from mltop.probes.reach.requests import Pending, Requests
from mltop.probes.reach.stream import REAP_POLL_S, Reaper
from mltop.probes.reach.uploads import FileFor, Files, PySpyFor
from mltop.probes.reach.view import FleetView, NodeView

STOPPED_S = 2.0
TICK_S = 0.5  # how often deadlines and ages are looked at when nothing arrives
MANY_NODES = 64
FEW_NODES = 16  # whole samples of all of them cost little
GATHER_S = 0.01  # from many nodes something arrives all the time: it is read in lots, unless an answer is waited for
TOLD_S = 0.05  # listeners hear of changes at most so often
FDS_PER_CHANNEL = 3
FDS_OF_OURS = 128
CLOSE_GRACE_S = 0.8
CLOSE_S = 2.5


class Hub:
    """Streams of all channels. Start it once, close it once; every method may be called from any thread."""

    def __init__(
        self,
        channels: Sequence[Channel],
        interval_s: float = INTERVAL_S,
        limits: Limits | None = None,
        file_for: FileFor | None = None,
        py_spy_for: PySpyFor | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._records = Records((node for channel in channels for node in channel.nodes), interval_s)
        self._poller = Poller()
        self._reaper = Reaper(self._poller, self._limits.end_grace_s)
        self._pacer: Pacer[Link] = Pacer(self._limits)
        files = Files(self._poller.post, file_for, py_spy_for)
        self._link_of: dict[str, Link] = {}
        self._requests = requests = Requests(self._records, files, self._reaper, self._link_of)
        self._context = LinkContext(
            self._limits,
            interval_s,
            self._reaper,
            self._records,
            files,
            requests,
            up=self._pacer.done,
            down=self._down,
            rejoin=self._rejoin,
            is_watched=lambda node: self._watched is None or node in self._watched,
        )
        self._links = [Link(channel, self._context) for channel in channels]
        self._link_of.update((node, link) for link in self._links for node in link.channel.nodes)
        self._watched = None if len(self._records.names) <= FEW_NODES else frozenset[str]()
        self._watch_at = 0.0
        self._retries: list[tuple[float, int, Link]] = []
        self._rejoining: dict[Link, Link] = {}  # link → the one that its nodes go to that were lost last
        self._order = itertools.count()
        self._listeners: list[Callable[[], None]] = []
        self._told_serial, self._told_at = 0, 0.0
        self._closing = threading.Event()
        self._grace_s = CLOSE_GRACE_S
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mltop-hub", daemon=True)

    def start(self) -> None:
        allow_files(FDS_PER_CHANNEL * len(self._links) + FDS_OF_OURS)
        self._thread.start()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """``listener`` runs in the hub's thread after changes, at most 20 times a second; it must be quick."""
        self._listeners.append(listener)

    def view(self) -> FleetView:
        """The newest state of every node."""
        return self._records.view()

    def node(self, name: str) -> NodeView:
        """The newest state of one node."""
        return self._records.node(name)

    def request(
        self,
        op: str,
        args: dict[str, object] | None = None,
        nodes: Iterable[str] = (),
        pending: Pending | None = None,
    ) -> Pending:
        """Ask these nodes (none given: all); answers come through the returned Pending: ``pending``, if given.

        A node that connects is asked when it is there; one that is lost fails at once, with the reason.
        """
        names = tuple(dict.fromkeys(nodes)) or self._records.names
        answers = pending or Pending((), lambda: self._poller.post(lambda: self._requests.cancel(answers)))
        answers.expect(names)
        self._poller.post(lambda: self._ask(answers, names, op, dict(args or {})))
        return answers

    def watch(self, nodes: Iterable[str] | None) -> None:
        """Have these nodes send whole samples all the time, None: all of them, as do few anyway. Of the others these
        come when something has changed, and once a minute.
        """
        are_few = len(self._records.names) <= FEW_NODES
        watched = None if nodes is None or are_few else frozenset(nodes)
        if watched != self._watched:
            self._watched = watched
            self._poller.post(self._watch)

    def retry(self, nodes: Iterable[str] = ()) -> None:
        """Try those of these nodes (none given: of all) that are lost or refused again now."""
        names = tuple(nodes) or self._records.names
        self._poller.post(lambda: self._retry(names))

    def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """End every agent; what has not ended by itself after ``grace_s`` is killed with all that it started. Returns
        soon after that.
        """
        if self._closing.is_set():
            return
        self._grace_s = grace_s
        self._closing.set()
        if self._thread.is_alive():
            self._poller.post(lambda: None)
            self._thread.join(CLOSE_S)

    # Below: the hub's own thread.

    def _run(self) -> None:
        try:
            self._take_turns()
        except Exception as error:
            # A bug: whoever looks must see it, and no agent may stay.
            for node in self._records.names:
                self._records.set_phase(node, "lost", f"mltop's hub failed: {type(error).__name__}: {error}")
            self._tell(math.inf)
            raise
        finally:
            self._end_all()

    def _take_turns(self) -> None:
        for link in self._links:
            self._pacer.wait(link, link.channel.gate)
        tick_at = time.monotonic()
        while not self._closing.is_set():
            now = time.monotonic()
            if now >= tick_at:
                if now < tick_at + STOPPED_S:  # not stopped (ctrl-Z): what came meanwhile is read before it is missed
                    self._tick(now)
                tick_at = now + TICK_S
            self._start_due(now)
            self._reaper.look(now)
            self._tell(now)
            if len(self._links) > MANY_NODES and not self._requests.is_busy and not self._pacer.is_waiting:
                self._closing.wait(GATHER_S)
            self._poller.turn(self._wait_s(now, tick_at))

    def _wait_s(self, now: float, tick_at: float) -> float:
        """Seconds until the next thing that is due."""
        due_s = [tick_at - now]
        if self._reaper:
            due_s.append(REAP_POLL_S)
        if self._retries:
            due_s.append(self._retries[0][0] - now)
        if self._records.serial != self._told_serial:
            due_s.append(self._told_at + TOLD_S - now)
        place_s = self._pacer.next_s(now)
        if place_s is not None:
            due_s.append(place_s)
        return max(0.0, min(due_s))

    def _tick(self, now: float) -> None:
        for link in tuple(self._links):
            link.tick(now)
        self._requests.tick(now)
        self._records.tick(now)
        if now >= self._watch_at:
            self._watch()

    def _watch(self) -> None:
        self._watch_at = time.monotonic() + WATCH_S / 2
        for link in self._links:
            link.watch()

    def _start_due(self, now: float) -> None:
        while self._retries and self._retries[0][0] <= now:
            self._queue(heapq.heappop(self._retries)[2])
        for link in self._pacer.admit(now):
            link.start(now)

    def _queue(self, link: Link) -> None:
        """Has a link wait for a place, once: it may be due twice, by its backoff and by the user."""
        if link.stage is Stage.DOWN:
            link.stage = Stage.WAITING
            self._pacer.wait(link, link.channel.gate)

    def _tell(self, now: float) -> None:
        serial = self._records.serial
        if serial != self._told_serial and now - self._told_at >= TOLD_S:
            self._told_serial, self._told_at = serial, now
            for listener in self._listeners:
                listener()

    def _down(self, link: Link, retry: bool) -> None:
        self._pacer.done(link)
        if retry and not self._closed:
            self._retry_later(link)

    def _retry_later(self, link: Link) -> None:
        heapq.heappush(self._retries, (time.monotonic() + link.backoff.next_s(), next(self._order), link))

    def _rejoin(self, link: Link, node: str, retry: bool) -> None:
        """Gives a node that was lost while its stream goes on another channel: nodes that are lost at about the same
        time share one, unless they would wait for each other.
        """
        rejoin = link.channel.rejoin
        assert rejoin is not None
        link.members.discard(node)
        waiting = self._rejoining.get(link)
        if retry and waiting is not None and waiting.is_new and waiting.stage is Stage.DOWN:
            waiting.channel = rejoin((*waiting.channel.nodes, node))
            waiting.members.add(node)
            self._link_of[node] = waiting
            return
        new_link = self._link_of[node] = Link(rejoin((node,)), self._context)
        new_link.stage = Stage.DOWN
        self._links.append(new_link)
        if retry:
            self._retry_later(new_link)
            if not link.channel.all_or_none:
                self._rejoining[link] = new_link

    def _ask(self, pending: Pending, nodes: Sequence[str], op: str, args: dict[str, object]) -> None:
        if self._closed:
            pending.fail_all("mltop is ending")
        else:
            self._requests.ask(pending, nodes, op, args)

    def _retry(self, nodes: Sequence[str]) -> None:
        if self._closed:
            return
        for link in {self._link_of[node] for node in nodes if node in self._link_of}:
            if link.stage is Stage.DOWN:
                link.backoff.reset()
                for node in link.members:
                    self._records.set_phase(node, "connecting", "waiting for a slot")
                self._queue(link)

    def _end_all(self) -> None:
        """Asks everybody to end first, so that all of them together take no longer than one."""
        self._closed = True
        self._requests.end_all("mltop is ending")
        for link in self._links:
            link.end()
        self._reaper.hurry(time.monotonic(), self._grace_s)
        while self._reaper:
            self._reaper.look(time.monotonic())
            if self._reaper:
                self._poller.turn(REAP_POLL_S)
        self._poller.close()


def allow_files(count: int) -> None:
    """Raises the limit of open files, as far as this user may, when ``count`` are more than it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        with contextlib.suppress(ValueError, OSError):  # starting a channel says what is missing
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
