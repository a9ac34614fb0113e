"""One judge of measured devices, which a kind of probe gives its figures and words: a subclass each.

A device that was faster before, or that is slow among its equals, is slow and is accused. What others have measured on
such hardware is mentioned and accuses nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.compare import NO_COMPARISON, PEER_GAP, Comparison, against_past, slower_than_peers
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.probe import DeviceResult, PastResult, ProbeVerdict, Suspect
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import counted, percent_span_words, percent_words, rate_words, span

SENTENCES = 4  # about what is slow: then only how many more there are
LISTED = 3
NEAR_FIGURE = 0.9  # of what others have measured; below it is mentioned, never accused


@dataclass(frozen=True)
class Reason:
    """Why a device is slow. ``kind`` is equal for reasons that may be given for several GPUs at once. ``fault``: one
    whatever others do.
    """

    kind: str
    text: str
    action: str = ""
    fault: bool = False


class Rated(NamedTuple):
    """One rate of a device, beside its own earlier results and its peers."""

    rate: float
    history: Comparison
    peers: Comparison

    @property
    def slow(self) -> bool:
        return self.history.slow is True or self.peers.slow is True

    @property
    def by_history(self) -> bool:
        """Accused because it was faster before."""
        return self.history.slow is True and self.peers.slow is not True

    @property
    def against(self) -> Comparison:
        """What shows that it is slow."""
        return self.history if self.by_history else self.peers


@dataclass
class Device:
    """One device: its rates by way. ``others``: against all of its group, of which some are no peers; ``reason``: why
    it is accused.
    """

    result: Any
    rates: dict[str, Rated] = field(default_factory=dict)
    others: Comparison = NO_COMPARISON
    reason: Reason | None = None

    @property
    def slow(self) -> list[str]:
        """The ways that are."""
        return [way for way, rated in self.rates.items() if rated.slow]

    @property
    def worst(self) -> Rated | None:
        return max((self.rates[way] for way in self.slow), key=lambda rated: rated.against.slower, default=None)

    @property
    def shown_by(self) -> Comparison:
        """What shows how much slower it is."""
        return self.others if self.worst is None else self.worst.against

    @property
    def slower(self) -> float:
        """0.21 for 21 %."""
        return max(0.0, self.shown_by.slower)

    @property
    def by_history(self) -> bool:
        return self.worst is not None and self.worst.by_history


class Figure(NamedTuple):
    """A rate beside the ``good`` one that others have measured. ``certain`` False: theirs may not hold here."""

    label: str
    rate: float
    good: float
    source: str
    certain: bool = True


Members = Sequence[Device]


class DeviceJudge:
    """Judges all results of one kind. ``beside``: a sentence about a Figure; ``causes``: of a difference to it that
    accuses nobody; ``alone``: the ways that the headline names, with their words.
    ``shows_figures``: tables of results compare them with figures of others, too.
    """

    alone: ClassVar[Mapping[str, str]] = {}
    shows_figures: ClassVar[bool] = False
    beside: ClassVar[str] = "{label} {rates}, {share} of {good} ({source})"
    causes: ClassVar[str] = ""

    # What a kind says of itself.

    def rate_words(self, rate: float) -> str:
        return rate_words(rate)

    def complete(self, result: Any) -> Any:
        """The result with what only a judge can say of it."""
        return result

    def ways(self, result: Any) -> Sequence[str]:
        """Which figures of KEPT are judged."""
        return tuple(result.KEPT)

    def group(self, result: Any) -> Hashable:
        """Equal for those that are described together."""
        return result.kind, result.name

    def peer_keys(self, way: str, results: Sequence[Any]) -> Sequence[Hashable]:
        """For each result what is equal for its peers, with which it is compared."""
        raise NotImplementedError

    def damaged(self, results: Sequence[Any]) -> list[tuple[Any, str, str]]:
        """Those whose bits are wrong: what they did, and what to do."""
        raise NotImplementedError

    def accuse(self, members: Members) -> None:
        """Gives a ``reason`` to those of a group that are to be accused."""
        raise NotImplementedError

    def words(self, way: str, _result: Any, whose: str) -> str:
        """What a rate is of."""
        return self.alone[way].format(whose=whose)

    def where(self, _device: Device) -> str:
        """In which ways it is slow, where there are several."""
        return ""

    def state(self, _device: Device) -> tuple[str, str]:
        """In which state a single device was measured, and what shows that it does what it should."""
        return "", ""

    def of_all(self, _members: Members, _rest: Members) -> str:
        """What is to be said of several that are not accused."""
        return ""

    def figures(self, _result: Any) -> Iterable[Figure]:
        """What others have measured beside what this one did."""
        return ()

    def details(self, _members: Members) -> Iterable[str]:
        return ()

    def after(self, _results: Sequence[Any], _verdict: ProbeVerdict) -> Sequence[str]:
        """What follows for all results together: more of the sentence; the rest is added to the verdict."""
        return ()

    # The verdict.

    def judge(self, results: Sequence[Any], past: Sequence[PastResult] = ()) -> ProbeVerdict:
        """One sentence, who is accused and why, and the rest as details. Wrong bits come before slowness."""
        results = list(map(self.complete, results))
        damaged = self.damaged(results)
        parts = [f"{device_name(result)} {reason}" for result, reason, _ in damaged]
        verdict = ProbeVerdict("", [suspect(*each) for each in damaged])
        by_group = grouped(self.rated(results, past), lambda one: self.group(one.result))
        groups = sorted(by_group.values(), key=lambda members: -len(members))
        several = len({members[0].result.name for members in groups}) > 1
        for members in groups:
            self.accuse(members)
            parts += [self._headline(members, several), *self._sentences(members)]
            accused = sorted((one for one in members if one.reason), key=lambda one: -round(one.slower, 2))
            verdict.suspects += map(self._suspect, accused)
            verdict.details += [*self._comparisons(members), *self.details(members), *self._beside(members)]
        parts += self.after(results, verdict)
        verdict.text = "; ".join(filter(None, parts)) or "nothing was measured"
        return verdict

    def rated(self, results: Sequence[Any], past: Sequence[PastResult]) -> list[Device]:
        """Every result with its rates compared."""
        devices = [Device(result) for result in results]
        earlier = grouped(past, lambda one: one.uuid)
        for way, comparisons in self.beside_peers(results).items():
            for device in devices:
                if (peers := comparisons.get(id(device.result))) is not None:
                    history = self.history(way, device.result, earlier.get(device.result.subject, ()))
                    device.rates[way] = Rated(peers.value, history, peers)
        return devices

    def beside_peers(self, results: Sequence[Any]) -> dict[str, dict[int, Comparison]]:
        """By way and ``id`` of the result: its rate beside those of its peers."""
        found: dict[str, dict[int, Comparison]] = {}
        for way in dict.fromkeys(way for result in results for way in self.ways(result)):
            measured = [one for one in results if way in self.ways(one) and one.figure(way) is not None]
            keys = dict(zip(map(id, measured), self.peer_keys(way, measured), strict=True))
            found[way] = {}
            for peers in grouped(measured, lambda one: keys[id(one)]).values():  # noqa: B023 - used at once
                found[way] |= slower_than_peers({id(one): one.figure(way) for one in peers})
        return found

    def history(self, way: str, result: Any, earlier: Sequence[PastResult]) -> Comparison:
        """A rate beside ``earlier`` ones of the same device."""
        return against_past(result.subject, result.key(way), result.figure(way), result.versions, earlier)

    def _headline(self, members: Members, several: bool) -> str:
        """``7 of 8 GPUs alike at 712 TFLOPS bf16 sustained``: those that are not accused."""
        members = [one for one in members if one.rates]
        rest = [one for one in members if one.reason is None] or members
        if not rest:
            return ""
        results, one = [one.result for one in members], len(members) == 1
        first = rest[0].result
        texts: list[str] = []
        for way in self.alone or self.ways(first):
            rates = [one.rates[way].rate for one in rest if way in one.rates]
            if rates:
                figures = span(rates, self.rate_words) if texts or one else self._alike(rates, results)
                texts.append(f"{figures} {self.words(way, first, 'its' if one and first.kind != 'cpu' else 'their')}")
        if not texts:
            return ""
        text = f"{first.name}: " if several and first.name else ""
        text += f"{device_name(first)}: " if one else "" if len(rest) < len(members) or not rest[0].reason else "all "
        text += " and ".join(texts)
        if one:
            return text + ("" if rest[0].reason else self._alone(rest[0]))
        return text if len(rest) == 1 else text + self.of_all(members, rest)

    def _alike(self, rates: Sequence[float], everyone: Sequence[DeviceResult]) -> str:
        """``7 of 8 GPUs alike at 2930 GB/s``: ``rates`` are those of ``everyone`` that are not slow."""
        who = plural(everyone)
        if len(rates) < len(everyone):
            who = f"{len(rates)} of {who}"
        if not are_alike(rates):
            return f"{who} at {span(rates, self.rate_words)}"
        return f"{who}{' alike' if len(rates) > 1 else ''} at {self.rate_words(statistics.median(rates))}"

    def _alone(self, device: Device) -> str:
        """What can be said of a single device."""
        (text, good), history = self.state(device), next(iter(device.rates.values())).history
        if history.slow is False:
            return f"{text}, as in its last {counted(history.count, 'result')}"
        nothing = f"{'no figure' if device.result.kind == 'cpu' else 'nothing'} to compare it with"
        return f"{text}, {f'good: {good}' if good else nothing}"

    def _sentences(self, members: Members) -> list[str]:
        """One for each node and kind of reason: ``GPU 5 on n03 is 21 % slower: held at 1215 MHz by …``."""
        alike = grouped(
            (one for one in members if one.reason),
            lambda one: (one.result.node, one.reason and one.reason.kind, one.by_history, self.where(one)),
        )
        ordered = sorted(alike.values(), key=lambda accused: -max(one.slower for one in accused))
        left = sum(map(len, ordered[SENTENCES:]))
        sentences = [self._sentence(accused, len(members) == 1) for accused in ordered[:SENTENCES]]
        return sentences + ([f"and {left} more are slow"] if left else [])

    def _sentence(self, accused: Members, alone: bool) -> str:
        """``alone``: the headline has named it already."""
        worst = max(accused, key=lambda one: one.slower)
        why = worst.reason.text if worst.reason else ""
        who = "it" if alone else devices_name([one.result for one in accused])
        if worst.slower <= 0:  # nothing to compare with: the fault alone
            return why if alone else f"{who}: {why}"
        much = percent_span_words(one.slower for one in accused)
        than = f" than {self._than(worst, len(accused) > 1)}" if worst.by_history else ""
        verb = "are" if len(accused) > 1 or (worst.result.kind == "cpu" and not alone) else "is"
        also = ""
        if not worst.by_history and next(iter(worst.rates.values())).history.slow is False:
            also = f" (as in {'their' if len(accused) > 1 else 'its'} earlier results)"
        return f"{who} {verb} {much} slower{than}{also}{self.where(worst)}: {why}"

    def _than(self, device: Device, several: bool = False) -> str:
        """``its own last 3 results (712 TFLOPS against 755 TFLOPS)``."""
        if several:
            return "their own last results"
        shown_by = device.shown_by
        who = f"its own last {counted(shown_by.count, 'result')}" if device.by_history else "its peers"
        return f"{who} ({self.rate_words(shown_by.value)} against {self.rate_words(shown_by.usual or 0.0)})"

    def _suspect(self, device: Device) -> Suspect:
        """``21 % slower than its peers (568 TFLOPS against 720 TFLOPS): held at 1215 MHz by …``."""
        reason = device.reason or Reason("", "")
        much = f"{percent_words(device.slower)} slower than {self._than(device)}{self.where(device)}: "
        return suspect(device.result, (much if device.slower > 0 else "") + reason.text, reason.action)

    def _comparisons(self, members: Members) -> Iterator[str]:
        """With how many they were compared."""
        first = [next(iter(one.rates.values())) for one in members if one.rates]
        if len(first) > 1 and all(rated.peers.slow is None for rated in first):
            yield first[0].peers.why
        with_history = [rated for rated in first if rated.history.slow is not None]
        if with_history:
            as_fast = sum(rated.history.slow is False for rated in with_history)
            yield f"{as_fast} of {len(with_history)} as fast as in their earlier results"

    def _beside(self, members: Members) -> Iterator[str]:
        """What others have measured, for information."""
        rest = [one for one in members if one.reason is None] or members
        figures = (figure for one in rest for figure in self.figures(one.result))
        for alike in grouped(figures, lambda figure: figure._replace(rate=0.0)).values():
            first, rates = alike[0], [figure.rate for figure in alike]
            share = percent_span_words(rate / first.good for rate in rates)
            doubt = f"; {self.causes} can make such a difference" if min(rates) < NEAR_FIGURE * first.good else ""
            doubt = doubt if first.certain else "; that figure is not certain"
            words = {"rates": span(rates, self.rate_words), "good": self.rate_words(first.good)}
            yield self.beside.format(label=first.label, **words, share=share, source=first.source) + doubt


def are_alike(rates: Sequence[float]) -> bool:
    return min(rates) >= (1 - PEER_GAP) * statistics.median(rates)


def first_sentences(sentences: Sequence[str], more: str) -> list[str]:
    left = len(sentences) - SENTENCES
    return [*sentences[:SENTENCES], more.format(left)] if left > 0 else list(sentences)


def suspect(result: DeviceResult, reason: str, action: str) -> Suspect:
    return Suspect(result.node, reason, gpu=result.gpu, uuid=result.uuid, action=action)


def device_name(result: DeviceResult) -> str:
    """``GPU 5 on n03``, ``MIG slice 5f3a… of GPU 5 on n03``, ``CPUs of n03``."""
    if result.kind == "cpu":
        return f"CPUs of {result.node}" if result.node else "CPUs"
    on = f" on {result.node}" if result.node else ""
    gpu = f"GPU {result.gpu}" if result.gpu is not None else f"GPU {result.uuid}"
    if result.kind == "mig":
        return f"MIG slice {result.uuid.removeprefix('MIG-')[:8]} of {gpu}{on}"
    return gpu + on


def devices_name(results: Sequence[DeviceResult]) -> str:
    """``GPUs 0-3 on n03``, ``GPUs 1,5 on n03 and GPU 2 on n07``, ``CPUs of h[01-04]``."""
    if len(results) == 1:
        return device_name(results[0])
    if all(result.kind == "cpu" for result in results):
        return f"CPUs of {folded(result.node for result in results)}"
    names: list[str] = []
    alike: dict[str, list[str]] = {}  # of nodes with the same GPUs
    for node, members in grouped(results, lambda result: result.node).items():
        gpus = known(member.gpu for member in members if member.kind == "gpu")
        if len(gpus) == len(members) > 1:
            alike.setdefault(fold(gpus), []).append(node)
        else:
            names += map(device_name, members)
    for numbers, nodes in alike.items():
        on = f" on {'each of ' if len(nodes) > 1 else ''}{folded(nodes)}" if any(nodes) else ""
        names.append(f"GPUs {numbers}{on}")
    return listed(names)


def plural(results: Sequence[DeviceResult]) -> str:
    """``GPUs``, ``MIG slices``, ``nodes``: what so many devices of one kind are counted as."""
    kinds = {result.kind for result in results}
    word = "MIG slice" if kinds == {"mig"} else "CPU node" if kinds == {"cpu"} else "GPU"
    return counted(len(results), word)


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b, c and 5 more``."""
    if len(items) <= 1:
        return "".join(items)
    if len(items) > LISTED + 1:
        return f"{', '.join(items[:LISTED])} and {len(items) - LISTED} more"
    return f"{', '.join(items[:-1])} and {items[-1]}"
