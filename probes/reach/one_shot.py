"""A channel that carries the answers to one request and then ends."""

from __future__ import annotations

import time

import msgspec

from mltop.probes.agent.protocol import Message
from mltop.probes.reach.carrier import Carrier, Misnamed, Reaper
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.ending import Ending
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.receiving import UNREADABLE
from mltop.probes.reach.switchboard import Ask, Switchboard

SILENCE_S = 60.0  # without any frame; whoever asked has usually cancelled long before
_DECODER = msgspec.json.Decoder(Message)


class OneShot:
    """``asks`` by node; those without an answer when the process ends get the reason why it did."""

    def __init__(
        self, channel: Channel, asks: dict[str, Ask], switchboard: Switchboard, poller: Poller, reaper: Reaper
    ) -> None:
        self._channel, self._asks, self._switchboard = channel, asks, switchboard
        self._heard_at = time.monotonic()
        self.ended = False
        self._carrier: Carrier | None = None
        try:
            self._carrier = Carrier(
                channel, poller, reaper, on_frame=self._take, on_end=self._on_end, on_node_end=self._on_node_end
            )
        except OSError as error:
            self.ended = True
            self._fail(f"cannot start {channel.argv[0]}: {error.strerror or error}")

    def end(self) -> None:
        if self._carrier is not None:
            self._carrier.end()

    def tick(self, now: float) -> None:
        if now - self._heard_at > SILENCE_S:
            self._fail(f"no answer within {SILENCE_S:g} s")
            self.end()

    def _take(self, payload: bytes, label: str) -> None:
        try:
            message = _DECODER.decode(payload)
            node = self._node_of(label, message.node)
        except UNREADABLE:
            return
        except Misnamed as forged:
            self._on_node_end(forged.node, Ending(f"{forged}: refused"))
            return
        self._heard_at = time.monotonic()
        ask = self._asks.get(node)
        if ask is None or message.kind not in ("part", "done", "error") or not self._switchboard.is_open(ask):
            return
        self._switchboard.deliver(ask, message, len(payload))
        if not any(self._switchboard.is_open(ask) for ask in self._asks.values()):
            self.end()

    def _node_of(self, label: str, named: str) -> str:
        if self._channel.speakers is not None and self._carrier is not None:
            return self._carrier.speaker(label, named) or ""
        return named if named in self._asks or len(self._asks) != 1 else next(iter(self._asks))

    def _on_end(self, code: int | None, words: str) -> None:
        self.ended = True
        self._fail(str(self._channel.ending(code, words)))

    def _on_node_end(self, node: str, ending: Ending) -> None:
        ask = self._asks.get(node)
        if ask is not None and self._switchboard.is_open(ask):
            self._switchboard.deliver(ask, Message("error", error=str(ending)))

    def _fail(self, reason: str) -> None:
        for ask in self._asks.values():
            if self._switchboard.is_open(ask):
                self._switchboard.deliver(ask, Message("error", error=reason))
