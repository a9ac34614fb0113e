"""A link's own endings in words: nobody said hello, or its second way in failed.

One channel's life: waiting, starting, booting, up, and its end, which decides whether it is tried again.
"""

from __future__ import annotations

import time
from enum import Enum

import msgspec

from mltop.probes.agent.protocol import Boot, Message, Request, encode
from mltop.probes.model.text import make_plain
from mltop.probes.reach.channel import Channel, Ending, last_words
from mltop.probes.reach.ground import Ground
from mltop.probes.reach.pacing import Backoff
from mltop.probes.reach.receiving import UNREADABLE, Envelope, sample_of_frame, too_large, why_unreadable
from mltop.probes.reach.records import Phase
from mltop.probes.reach.stream import Carrier, Misnamed, Stream
from mltop.probes.reach.uploads import TooManyFilesError, Uploads


def no_hello(channel: Channel, hello_s: float, booted: bool, words: str) -> Ending:
    """``booted``: stage 1 of the bootstrap was heard; ``words``: what else was said."""
    said = last_words(words)
    if booted:
        return Ending(f"no hello from its agent within {hello_s:g} s" + (f": {said}" if said else ""))
    reason = f"no answer from its shell within {hello_s:g} s"
    fix = "logged in? a hanging home directory or rc file"
    if channel.fallback is not None:
        fix += f", or {channel.fallback_fix}"
    return Ending(reason + (f", it only said: {said}" if said else ""), fix)


def ended(channel: Channel, stream: Stream, code: int | None, *, heard: bool, fell_back: bool) -> Ending:
    """``heard``: a frame came before."""
    words, running = stream.last_words(), stream.channel
    if heard or running.login_ending is None:
        ending = running.ending(code, words)
    else:
        ending = running.login_ending(code, f"{stream.noise}\n{words}")
    if heard or not fell_back:
        return ending
    # What was avoided may be the only way in, for a login that asks for a second factor: it is tried again.
    fix = f"{channel.fallback_fix}; {ending.fix}".rstrip("; ")
    return Ending(f"without the shared connection: {ending.reason}", fix)


PING = encode(Request("ping"))
QUIET_S = 2.0  # without a frame: time to see whether the process is still there
SILENT_INTERVALS = 4.0  # where agents do not answer pings


class Stage(Enum):
    WAITING = "for a slot"
    STARTING = "no hello yet"
    UP = "at least one node said hello"
    DOWN = "ended"


class Link:
    """A channel, started again and again. Everything happens in the hub's thread. Times are monotonic seconds."""

    def __init__(self, channel: Channel, ground: Ground) -> None:
        self.channel = channel
        self.members = set(channel.nodes)  # without those that went to a channel of their own
        self.backoff = Backoff(ground.limits.retry_first_s, ground.limits.retry_most_s)
        self.stage = Stage.WAITING
        self._ground = ground
        self._carrier: Carrier | None = None
        self._uploads: Uploads | None = None
        self._envelopes = msgspec.json.Decoder(Envelope)
        self._messages = msgspec.json.Decoder(Message)
        self._started_at = self._progress_at = self._frame_at = self._pinged_at = 0.0
        self._unsent_bytes = 0
        self._starts = 0
        self._falls_back = False  # at the next start

    # What the hub and the switchboard ask for.

    def start(self, now: float) -> None:
        self.stage = Stage.STARTING
        self._started_at = self._progress_at = self._frame_at = self._pinged_at = now
        self._ready: set[str] = set()
        self._heard: dict[str, float] = {}
        self._sampled: set[str] = set()
        self._said: dict[str, Ending] = {}
        self._booted: set[str] = set()
        self._ponged = self._noise_only = False
        self._starts += 1
        self._say(f"starting {self.channel.via}")
        channel = self.channel
        if self.members != set(channel.nodes) and channel.rejoin is not None:
            channel = channel.rejoin(tuple(node for node in channel.nodes if node in self.members))
        if self._falls_back and channel.fallback is not None:
            channel = channel.fallback
        try:
            carrier = Carrier(
                channel,
                self._ground.poller,
                self._ground.reaper,
                on_frame=self._take,
                on_end=lambda code, _: self._ended(carrier, code),
                on_node_end=self._member_ended,
            )
        except OSError as error:
            self._down(Ending(f"cannot start {channel.argv[0]}: {error.strerror or error}"))
            return
        self._carrier = carrier
        self._uploads = Uploads(self._ground.files, carrier, self._file_goes_out)

    @property
    def is_new(self) -> bool:
        """Whether it was never started."""
        return not self._starts

    def is_ready(self, node: str) -> bool:
        return self.stage is Stage.UP and node in self._ready

    def send(self, data: bytes) -> None:
        if self._carrier is not None:
            self._carrier.send(data)

    def end(self) -> None:
        """For good: what is known of its nodes stays as it is."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.end()

    def tick(self, now: float) -> None:
        """A few times a second: deadlines and pings."""
        if self._carrier is not None and now - self._frame_at > QUIET_S:
            self._carrier.watch()
        if self.stage is Stage.STARTING or self.stage is Stage.UP:
            self._watch_hellos(now)
        if self.stage is not Stage.UP:
            return
        limits = self._ground.limits
        if now - self._started_at > limits.settled_s:
            self.backoff.reset()
        silence_s = self._silence_s()
        if now - max(self._frame_at, self._uploading_until()) > silence_s:
            self._give_up(Ending(f"nothing arrived for {silence_s:.0f} s: the link or the node is dead"))
            return
        if len(self.members) > 1:
            self._watch_members(now, silence_s)
        if self.channel.takes_requests and now - self._pinged_at >= limits.ping_s:
            self._pinged_at = now
            self.send(PING)

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
        node = self._node_of(label, message.node)
        if node is None:
            return
        self._frame_at = self._heard[node] = now = time.monotonic()
        if message.kind in ("slow", "sample") and too_large(payload):
            self._refuse_sample(node, payload)
        elif message.kind == "slow":
            self._ground.records.take_slow(node, payload)
        elif message.sample is not None:
            if node not in self._sampled and not self._first_sample(node, payload):
                return
            self._ground.records.take(node, payload, message.sample.sampled_at, now)
        elif message.kind == "pong":
            self._ponged = True
        elif message.kind == "progress":  # stage 1 tells how much of the bundle it has
            self._progress_at = now
            self._arrived(now)
        else:
            self._take_rest(node, payload)

    def _refuse_sample(self, node: str, payload: bytes) -> None:
        """Of a node that is not live yet, too, it is said why not."""
        self._ground.records.refuse(node, too_large(payload))
        if node not in self._sampled:
            self._ground.records.note(node, f"refused: {too_large(payload)}")

    def _take_rest(self, node: str, payload: bytes) -> None:
        try:
            message = self._messages.decode(payload)
        except UNREADABLE as error:
            self._ground.records.note(node, f"its frames are {why_unreadable(error)}")
            return
        if message.hello is not None:
            self._ground.records.set_connection(node, hello=make_plain(message.hello))
            self._hello(node)
        elif message.boot is not None:
            self._boot(node, make_plain(message.boot))
        elif message.kind == "need":
            boot = self._ground.records.connection(node).boot
            self._needs(node, str(message.data.get("file", "")), boot, again=True)
        elif message.kind == "error" and message.id == 0:
            self._node_failed(node, Ending(message.error, message.fix))
        elif message.kind in ("part", "done", "error"):
            self._ground.switchboard.answer(node, message, len(payload))

    def _node_of(self, label: str, named: str) -> str | None:
        """Where one stream carries several nodes, its labels or else the frame must say whose it is."""
        if self.channel.speakers is not None:
            assert self._carrier is not None
            speaker = self._carrier.speaker(label, named)
            return speaker if speaker in self.members else None
        if named in self.members:
            return named
        return next(iter(self.members)) if len(self.members) == 1 else None

    def _first_sample(self, node: str, payload: bytes) -> bool:
        """Decoded whole, so that one of another version is not taken for a live node."""
        try:
            sample_of_frame(payload)
        except UNREADABLE as error:
            self._ground.records.note(node, f"its samples are {why_unreadable(error)}")
            return False
        self._sampled.add(node)
        self._said.pop(node, None)
        if node not in self._ready:
            self._hello(node)
        return True

    def _hello(self, node: str) -> None:
        now = self._progress_at = time.monotonic()
        records = self._ground.records
        self._arrived(now)
        if node not in self._ready:
            records.connected(node, self.channel.via, now - self._started_at, self._starts - 1)
            records.set_phase(node, Phase.CONNECTING, "waiting for its first sample")
            self._ready.add(node)
        if self.stage is Stage.STARTING:
            self.stage = Stage.UP
            self._ground.up(self)
        self._ground.switchboard.node_ready(node)

    def _boot(self, node: str, boot: Boot) -> None:
        self._progress_at = time.monotonic()
        self._booted.add(node)
        records = self._ground.records
        records.set_connection(node, boot=boot)
        if boot.cached:
            self._say("starting the agent", node)
            return
        self._say("installing the agent", node)
        self._needs(node, "bundle", boot, again=False)

    def _needs(self, node: str, name: str, boot: Boot | None, again: bool) -> None:
        if self._uploads is None:
            return
        try:
            self._uploads.needs(node, name, boot, again)
        except TooManyFilesError as error:
            if len(self.members) == 1:
                self._give_up(Ending(str(error)))
            else:
                self._node_failed(node, Ending(str(error)))

    def _file_goes_out(self, size_bytes: int) -> None:
        self._progress_at = time.monotonic()
        if self.stage is Stage.STARTING:
            self._say(f"installing the agent ({size_bytes / 1000:.0f} KB)")

    # Deadlines.

    def _uploading_until(self) -> float:
        return 0.0 if self._uploads is None else self._uploads.until

    def _arrived(self, now: float) -> None:
        if self._uploads is not None:
            self._uploads.arrived(now)

    def _silence_s(self) -> float:
        limit_s = self._ground.limits.silence_s
        return limit_s if self._ponged else max(limit_s, SILENT_INTERVALS * self._ground.interval_s)

    def _watch_hellos(self, now: float) -> None:
        if len(self._ready) == len(self.members):
            return
        carrier = self._carrier
        if carrier is not None and carrier.unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._progress_at = carrier.unsent_bytes, now
        progress_at = max(self._progress_at, self._uploading_until())
        missing = self.members - self._ready - set(self._said)
        hello_s = self._ground.limits.hello_s
        if not missing or now - progress_at <= hello_s or carrier is None:
            if not self._ready and self._said and now - progress_at > hello_s:
                self._give_up(next(iter(self._said.values())))
            return
        if not self._ready:
            ending = no_hello(self.channel, hello_s, bool(self._booted), carrier.stream.last_words())
            self._falls_back = self.channel.fallback is not None and not self._booted and not self._falls_back
            self._nobody_came(ending, missing)
            return
        for node in missing:
            self._member_lost(node, Ending(f"no hello from this node within {hello_s:g} s"))

    def _nobody_came(self, ending: Ending, missing: set[str]) -> None:
        if self.channel.all_or_none and len(missing) > 1:
            for node in missing:
                self._member_lost(node, ending)
        if self.stage is not Stage.DOWN:
            self._give_up(ending)

    def _watch_members(self, now: float, silence_s: float) -> None:
        for node in self._ready - set(self._said):
            if now - self._heard[node] > silence_s:
                self._member_lost(node, Ending(f"nothing from this node for {silence_s:.0f} s"))

    def _member_ended(self, node: str, ending: Ending) -> None:
        """Its carrier says that this one is gone; of a node that is the only one, the end of the stream follows."""
        if self._carrier is not None and node in self.members:
            if len(self.members) > 1:
                self._member_lost(node, ending)
            else:
                self._said[node] = ending

    def _member_refused(self, node: str, ending: Ending) -> None:
        """Nothing of it is taken until the user asks for it again."""
        if node in self.members and len(self.members) == 1:
            self._give_up(ending)
        elif node in self.members:
            self._member_lost(node, ending)

    def _member_lost(self, node: str, ending: Ending) -> None:
        self._ready.discard(node)
        self._sampled.discard(node)
        self._node_failed(node, ending)
        if self.channel.rejoin is None:
            return
        self._ground.rejoin(self, node, ending.retry)
        if not self.members:
            self._give_up(ending)

    # Ends.

    def _node_failed(self, node: str, ending: Ending) -> None:
        """One node of the stream; the others go on."""
        self._said[node] = ending
        self._ground.records.set_phase(node, Phase.LOST if ending.retry else Phase.REFUSED, str(ending))
        self._ground.switchboard.node_lost(node, str(ending))

    def _give_up(self, ending: Ending) -> None:
        carrier = self._carrier
        self._down(ending)
        if carrier is not None:
            carrier.end()

    def _ended(self, carrier: Carrier, code: int | None) -> None:
        if self._carrier is not carrier:
            return
        heard, fell_back = bool(self._heard), self._falls_back
        self._falls_back = fell_back and heard
        self._down(ended(self.channel, carrier.stream, code, heard=heard, fell_back=fell_back))

    def _down(self, ending: Ending) -> None:
        self._carrier = None
        self.stage = Stage.DOWN
        for node in tuple(self.members):
            self._node_failed(node, self._said.get(node, ending))
        self._ground.down(self, any(self._said[node].retry for node in self.members))

    def _say(self, reason: str, node: str = "") -> None:
        """Of the nodes that connect; a lost one keeps its reason until it is back."""
        records = self._ground.records
        for name in (node,) if node else self.members:
            if records.phase(name) is Phase.CONNECTING:
                records.note(name, reason)
