"""One channel's life: waiting, starting, booting, up, and its end, which decides whether it is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from mltop.probes.agent.protocol import Boot, Message, Request, encode
from mltop.probes.model.text import MOST_SAID, make_plain
from mltop.probes.model.units import duration_words, size_words
from mltop.probes.reach.channel import Channel, Ending
from mltop.probes.reach.launchers.remote_command import EOF_EXIT
from mltop.probes.reach.pacing import Backoff, Limits
from mltop.probes.reach.receiving import UNREADABLE, Envelope, sample_of_frame, too_large, why_unreadable
from mltop.probes.reach.records import NEWS, Records
from mltop.probes.reach.requests import Requests
from mltop.probes.reach.stream import Misnamed, Reaper, Stream
from mltop.probes.reach.uploads import Files, Uploads
from mltop.probes.system.limits import limit_words

PING = encode(Request("ping"))
WATCH_S = 10.0  # what is asked once in half of that
QUIET_S = 2.0  # without a frame: time to see whether the process is still there
SILENT_INTERVALS = 4.0  # where agents do not answer pings
FIRST_WAY_S = 15.0
BLANK_LINES = b"\n\n\n"  # for `read` in start-up files


class Stage(Enum):
    WAITING = "for a slot"
    STARTING = "no hello yet"
    UP = "at least one node said hello"
    DOWN = "ended"


@dataclass(frozen=True)
class LinkContext:
    """What all links of a hub have in common.

    ``up(link)``: it gives back its place; ``down(link, retry)``: it ended; ``rejoin(link, node, retry)``: this one of
    its nodes is lost while others are fine, and goes to a channel of its own. ``is_watched(node)``: whole samples of
    it are wanted all the time.
    """

    limits: Limits
    interval_s: float
    reaper: Reaper
    records: Records
    files: Files
    requests: Requests
    up: Callable[[Link], None]
    down: Callable[[Link, bool], None]
    rejoin: Callable[[Link, str, bool], None]
    is_watched: Callable[[str], bool]


@dataclass
class _Run:
    """What is known of one start of the channel. Times are monotonic s.

    ``heard_at``: node → time of its newest frame; ``endings``: nodes that are gone, and why; ``opened``: stage 1 was
    sent; ``is_late``: its stdin was closed because nothing came; ``ponged``: agents answer pings.
    """

    started_at: float
    progress_at: float
    frame_at: float
    pinged_at: float
    stream: Stream | None = None
    uploads: Uploads | None = None
    ready: set[str] = field(default_factory=set)
    sampled: set[str] = field(default_factory=set)
    heard_at: dict[str, float] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    unsent_bytes: int = 0
    opened: bool = False
    is_late: bool = False
    ponged: bool = False

    @property
    def uploading_until(self) -> float:
        return 0.0 if self.uploads is None else self.uploads.until


class Link:
    """The life of a channel, which is started again and again. Everything happens in the hub's thread."""

    def __init__(self, channel: Channel, context: LinkContext) -> None:
        self.channel = channel
        self.members = set(channel.nodes)  # without those that went to a channel of their own
        self.backoff = Backoff(context.limits.retry_first_s, context.limits.retry_most_s)
        self.stage = Stage.WAITING
        self._context = context
        self._records = context.records
        self._run = _Run(0.0, 0.0, 0.0, 0.0)
        self._envelopes = msgspec.json.Decoder(Envelope)
        self._messages = msgspec.json.Decoder(Message)
        self._starts = 0
        self._falls_back = False  # at the next start
        self._input_is_read = False  # by a start-up file, before stage 0 runs

    # What the hub and its requests ask for.

    def start(self, now: float) -> None:
        self.stage = Stage.STARTING
        self._run = run = _Run(now, now, now, now)
        self._starts += 1
        self._say(f"starting {self.channel.via}")
        for node in self.members:
            self._records.set_connection(node, trying=self.channel.via, tried_at=time.time())
        channel = self.channel
        if self.members != set(channel.nodes) and channel.rejoin is not None:
            channel = channel.rejoin(tuple(node for node in channel.nodes if node in self.members))
        if self._falls_back and channel.fallback is not None:
            channel = channel.fallback
        try:
            stream = Stream(
                channel,
                self._context.reaper,
                on_frame=self._take,
                on_end=lambda code: self._ended(stream, code),
                on_node_end=self._member_ended,
            )
        except OSError as error:
            self._down(Ending(f"cannot start {channel.argv[0]}: {limit_words(error) or error.strerror or error}"))
            return
        run.stream = stream
        run.uploads = Uploads(self._context.files, stream, self._file_goes_out)
        if self._input_is_read:
            stream.send(BLANK_LINES)

    @property
    def is_new(self) -> bool:
        """Whether it was never started."""
        return not self._starts

    def is_ready(self, node: str) -> bool:
        return self.stage is Stage.UP and node in self._run.ready

    def send(self, data: bytes) -> None:
        if self._run.stream is not None:
            self._run.stream.send(data)

    def end(self) -> None:
        """Ends it for good: what is known of its nodes stays as it is."""
        stream, self._run.stream = self._run.stream, None
        if stream is not None:
            stream.end()

    def tick(self, now: float) -> None:
        """Looks at deadlines and sends pings; called a few times a second."""
        run, limits = self._run, self._context.limits
        if run.stream is not None and now - run.frame_at > QUIET_S:
            run.stream.watch()
        if self.stage is Stage.STARTING or self.stage is Stage.UP:
            self._watch_hellos(now)
        if self.stage is not Stage.UP:
            return
        if now - run.started_at > limits.settled_s:
            self.backoff.reset()
        silence_s = limits.silence_s
        if not run.ponged:
            silence_s = max(silence_s, SILENT_INTERVALS * self._context.interval_s)
        if now - max(run.frame_at, run.uploading_until) > silence_s:
            words = duration_words(silence_s)
            self._give_up(Ending(f"nothing arrived for {words}: the link or the node is dead"))
            return
        if len(self.members) > 1:
            for node in run.ready - set(run.endings):
                if now - run.heard_at[node] > silence_s:
                    self._member_lost(node, Ending(f"nothing from this node for {duration_words(silence_s)}"))
        if self.channel.takes_requests and now - run.pinged_at >= limits.ping_s:
            run.pinged_at = now
            self.send(PING)

    def watch(self) -> None:
        """Asks its nodes for whole samples, for a while."""
        ready = self.members & self._run.ready if self.stage is Stage.UP and self.channel.takes_requests else set()
        watched = {node for node in ready if self._context.is_watched(node)}
        for node in ("",) if watched == self.members else watched:
            self.send(encode(Request("watch", node=node, args={"seconds": WATCH_S})))

    # Frames.

    def _take(self, payload: bytes, label: str) -> None:
        try:
            self._take_frame(payload, label)
        except Misnamed as forged:
            self._member_refused(forged.node, Ending(f"{forged}: refused", "look at that node", retry=False))
        except Exception as error:  # noqa: BLE001 - a bug: whoever looks sees it, and it costs this link only
            if self.stage is not Stage.DOWN:
                self._give_up(Ending(f"mltop failed on its frame: {type(error).__name__}: {error}"))

    def _take_frame(self, payload: bytes, label: str) -> None:
        try:
            message = self._envelopes.decode(payload)
        except UNREADABLE as error:
            self._say(f"its frames are {why_unreadable(error)}")
            return
        run = self._run
        assert run.stream is not None
        node = run.stream.node_of(label, message.node, self.members)
        if node is None:
            return
        run.frame_at = run.heard_at[node] = now = time.monotonic()
        if message.row is not None:
            if node in run.sampled:
                self._records.take(node, message.row, now)
        elif message.kind in NEWS:
            self._take_news(node, message.kind, payload)
        elif message.kind == "pong":
            run.ponged = True
        elif message.kind == "stage0":
            run.progress_at = now
            if len(self.members) == 1:
                run.stream.forget_output()
            self._open()
        elif message.kind == "progress":  # stage 1 tells how much of the bundle it has
            self._arrived(now)
        else:
            self._take_rest(node, payload)

    def _open(self) -> None:
        """Sends stage 1 when stage 0 waits for it on every node that is not lost: they share one stdin."""
        run = self._run
        if run.stream is not None and not run.opened and self.members <= {*run.heard_at, *run.endings}:
            run.opened = True
            run.stream.send(run.stream.channel.opening())

    def _take_news(self, node: str, kind: str, payload: bytes) -> None:
        """What the next rows are about. A node that is not live yet says why what is too large is left out."""
        if why := too_large(payload):
            self._records.refuse(node, why)
            if node not in self._run.sampled:
                self._records.note(node, f"refused: {why}")
        elif kind != "sample" or node in self._run.sampled or self._first_sample(node, payload):
            self._records.take_news(node, kind, payload)

    def _take_rest(self, node: str, payload: bytes) -> None:
        try:
            message = self._messages.decode(payload)
        except UNREADABLE as error:
            self._records.note(node, f"its frames are {why_unreadable(error)}")
            return
        if message.hello is not None:
            self._records.set_connection(node, hello=make_plain(message.hello))
            self._hello(node)
        elif message.boot is not None:
            self._boot(node, make_plain(message.boot))
        elif message.kind == "need":
            boot = self._records.connection(node).boot
            self._needs(node, str(message.data.get("file", "")), boot, again=True)
        elif message.kind == "error" and message.id == 0:
            self._node_failed(node, Ending(message.error, message.fix))
        elif message.kind in ("part", "done", "error"):
            self._context.requests.answer(node, message, len(payload))

    def _first_sample(self, node: str, payload: bytes) -> bool:
        """Whether the node's first sample can be read whole: one of another version is not taken for a live node."""
        try:
            sample_of_frame(payload)
        except UNREADABLE as error:
            self._records.note(node, f"its samples are {why_unreadable(error)}")
            return False
        self._run.sampled.add(node)
        self._run.endings.pop(node, None)
        if node not in self._run.ready:
            self._hello(node)
        return True

    def _hello(self, node: str) -> None:
        run, now = self._run, time.monotonic()
        self._arrived(now)
        if node not in run.ready:
            self._records.connected(node, self.channel.via, now - run.started_at, self._starts - 1)
            self._records.set_phase(node, "connecting", "waiting for its first sample")
            run.ready.add(node)
        if self.stage is Stage.STARTING:
            self.stage = Stage.UP
            self._context.up(self)
        self._context.requests.node_ready(node)
        self.watch()

    def _boot(self, node: str, boot: Boot) -> None:
        self._run.progress_at = time.monotonic()
        self._records.set_connection(node, boot=boot)
        if boot.cached:
            self._say("starting the agent", node)
            return
        self._say("installing the agent", node)
        self._needs(node, "bundle", boot, again=False)

    def _needs(self, node: str, name: str, boot: Boot | None, again: bool) -> None:
        why_not = self._run.uploads.needs(node, name, boot, again) if self._run.uploads is not None else ""
        if why_not and len(self.members) == 1:
            self._give_up(Ending(why_not))
        elif why_not:
            self._node_failed(node, Ending(why_not))

    def _file_goes_out(self, size_bytes: int) -> None:
        self._run.progress_at = time.monotonic()
        if self.stage is Stage.STARTING:
            self._say(f"installing the agent ({size_words(size_bytes)})")

    def _arrived(self, now: float) -> None:
        """Notes progress: a node says how far it is, so what was sent before has arrived."""
        self._run.progress_at = now
        if self._run.uploads is not None:
            self._run.uploads.arrived(now)

    # Deadlines.

    def _watch_hellos(self, now: float) -> None:
        run = self._run
        if len(run.ready) == len(self.members):
            return
        if run.stream is not None and run.stream.unsent_bytes != run.unsent_bytes:
            run.unsent_bytes, run.progress_at = run.stream.unsent_bytes, now
        is_late = now - max(run.progress_at, run.uploading_until) > self._hello_s
        missing = self.members - run.ready - set(run.endings)
        if not missing or not is_late or run.stream is None:
            if not run.ready and run.endings and is_late:
                self._give_up(next(iter(run.endings.values())))
            return
        if not run.ready:
            if run.heard_at or self.channel.login_ending is None:
                self._nobody_came(self._no_hello(run.stream), missing)
            else:  # how it takes the end of its input shows what is there
                run.is_late = True
                run.stream.end()
            return
        within = duration_words(self._hello_s)
        for node in missing:
            self._member_lost(node, Ending(f"no hello from this node within {within}"))

    @property
    def _hello_s(self) -> float:
        """How long it may say nothing. Where there is a second way in, the first one must leave time for it."""
        hello_s = self._context.limits.hello_s
        falls_back = self.channel.fallback is not None and not self._falls_back and not self._run.heard_at
        parts = self.channel.all_or_none and len(self.members) > 1
        return min(hello_s, FIRST_WAY_S) if falls_back or parts else hello_s

    def _no_hello(self, stream: Stream) -> Ending:
        """Why nobody said hello; decides whether the next start is the channel's second way in."""
        within = duration_words(self._hello_s)
        if self._run.heard_at:
            self._falls_back = False
            output = stream.last_output().replace("\n", " ")[-MOST_SAID:] if len(self.members) == 1 else ""
            return Ending(f"no hello from its agent within {within}" + (f": {output}" if output else ""))
        self._falls_back = self.channel.fallback is not None and not self._falls_back
        fix = "look at its home directory and start-up files, or give it more time: --timeout 60"
        if self.channel.fallback is not None:
            fix += f"; {self.channel.fallback_fix}"
        prompt = f", it waits at: {stream.prompt}" if stream.prompt else ""
        return Ending(f"no answer from its shell within {within}{prompt}", fix)

    def _nobody_came(self, ending: Ending, missing: set[str]) -> None:
        if self.channel.all_or_none and len(missing) > 1:
            for node in missing:
                self._member_lost(node, ending)
        if self.stage is not Stage.DOWN:
            self._give_up(ending)

    # Ends of nodes.

    def _member_ended(self, node: str, ending: Ending) -> None:
        """Takes in that a node is gone, as its channel says; that of the only node is followed by the stream's end."""
        if self._run.stream is not None and node in self.members:
            if len(self.members) > 1:
                self._member_lost(node, ending)
            else:
                self._run.endings[node] = ending

    def _member_refused(self, node: str, ending: Ending) -> None:
        """Takes nothing of a node any more until the user asks for it again."""
        if node in self.members and len(self.members) == 1:
            self._give_up(ending)
        elif node in self.members:
            self._member_lost(node, ending)

    def _member_lost(self, node: str, ending: Ending) -> None:
        self._run.ready.discard(node)
        self._run.sampled.discard(node)
        self._node_failed(node, ending)
        if self.channel.rejoin is None:
            return
        self._context.rejoin(self, node, ending.retry)
        if not self.members:
            self._give_up(ending)

    def _node_failed(self, node: str, ending: Ending) -> None:
        """Notes the end of one node of the stream; the others go on."""
        self._run.endings[node] = ending
        self._open()
        self._records.set_phase(node, "lost" if ending.retry else "refused", ending.reason, ending.fix)
        self._context.requests.node_lost(node, str(ending))

    # Its own end.

    def _give_up(self, ending: Ending) -> None:
        stream = self._run.stream
        self._down(ending)
        if stream is not None:
            stream.end()

    def _ended(self, stream: Stream, code: int | None) -> None:
        """Takes in that the process is gone."""
        if self._run.stream is not stream:
            return
        run, fell_back, output = self._run, self._falls_back, stream.last_output()
        heard = bool(run.heard_at)
        if run.is_late and code is None:
            self._down(self._no_hello(stream))
            return
        if heard or stream.channel.login_ending is None:
            ending = stream.channel.ending(code, output)
        else:
            ending = stream.channel.login_ending(code, f"{stream.noise}\n{output}", run.is_late)
        if run.is_late and code == EOF_EXIT and not self._input_is_read:
            # Stage 0 came when its input was gone: what reads it is no shell, and may want lines only.
            self._input_is_read = True
            self.start(time.monotonic())
            self._say(ending.reason)
            return
        self._falls_back = fell_back and heard
        if fell_back and not heard:
            # What was avoided may be the only way in, for a login that asks for a second factor: it is tried again.
            fix = f"{self.channel.fallback_fix}; {ending.fix}".rstrip("; ")
            ending = Ending(f"without the shared connection: {ending.reason}", fix)
        self._down(ending)

    def _down(self, ending: Ending) -> None:
        self._run.stream = None
        self.stage = Stage.DOWN
        for node in tuple(self.members):
            self._node_failed(node, self._run.endings.get(node, ending))
        self._context.down(self, any(self._run.endings[node].retry for node in self.members))

    def _say(self, reason: str, node: str = "") -> None:
        """Sets the reason of the nodes that connect; a lost one keeps its own until it is back."""
        for name in (node,) if node else self.members:
            if self._records.phase(name) == "connecting":
                self._records.note(name, reason)
