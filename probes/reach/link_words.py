"""A link's own endings in words: nobody said hello, or its second way in failed."""

from __future__ import annotations

from mltop.probes.reach.channel import Channel
from mltop.probes.reach.ending import Ending, last_words
from mltop.probes.reach.stream import Stream


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
