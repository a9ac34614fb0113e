"""A filter: an expression made once, asked for every row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mltop.probes.model import Finding, GpuSample, NodeState, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters.fields import Field, value_of
from mltop.tui.filters.grammar import Parser
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.subject import Subject, gpu_of, of_gpu, parts_of, with_gpus, with_ranks
from mltop.tui.filters.terms import Test

MOST_TEXT = 500
_SIGNS = tuple("=!<>~")
_LAST_WORD = re.compile(r"[\s&|!(]*[^\s&|()]*\s*$")  # with what joins it to the words before
_NOBODY = NodeView(NodeState("", ""))  # of a line of text


@dataclass(frozen=True)
class Filter:
    """Keeps what fulfils its expression; everything when it is ``empty`` or has a ``problem`` (one sentence).

    A node fulfils an expression when one of its GPUs and its ranks does: terms about GPUs must hold on the same GPU.
    A GPU is asked together with its ranks, a rank together with its GPUs.
    """

    text: str = ""
    problem: str = ""
    fields: tuple[Field, ...] = ()
    words: tuple[str, ...] = ()
    _test: Test | None = field(default=None, repr=False, compare=False)

    # Asked thousands of times a frame: what the fields need is found out once.

    @cached_property
    def _gpus(self) -> bool:
        return any(one.needs_gpus for one in self.fields)

    @cached_property
    def _ranks(self) -> bool:
        return any(one.needs_ranks for one in self.fields)

    @cached_property
    def _findings(self) -> bool:
        return bool(self.words) or any(one.of == "finding" for one in self.fields)

    @property
    def empty(self) -> bool:
        return self._test is None

    def node(self, view: NodeView, findings: Sequence[Finding] = (), text: str | None = None) -> bool:
        """``findings`` of other nodes are ignored; ``text`` is what words look for in place of the node's own."""
        return self.keeps(Subject(view, findings=findings, text=text))

    def gpu(self, view: NodeView, gpu: GpuSample, findings: Sequence[Finding] = (), text: str | None = None) -> bool:
        """``findings`` about something else are ignored."""
        return self.keeps(Subject(view, gpu, findings=findings, text=text))

    def rank(self, view: NodeView, rank: RankSample, text: str | None = None) -> bool:
        return self.keeps(Subject(view, rank=rank, text=text))

    def finding(self, view: NodeView, finding: Finding, text: str | None = None) -> bool:
        """A finding with the node and, when it is about one, the GPU that it is about."""
        return self.keeps(Subject(view, gpu_of(finding, view), findings=(finding,), text=text))

    def row(self, text: str) -> bool:
        """A line of text without fields: the words only, and everything when the expression has fields."""
        return self._test is None or bool(self.fields) or self._test(Subject(_NOBODY, text=text))

    def keeps(self, subject: Subject) -> bool:
        """Whether the subject, or one of its parts, fulfils the expression."""
        if self._test is None:
            return True
        subject = self._with_own_findings(subject)
        if not self.fields:
            return self._test(subject)
        return any(map(self._test, self._parts(subject)))

    def nowhere_known(self, subjects: Iterable[Subject]) -> tuple[str, ...]:
        """The names of fields whose value is unknown of every subject: why nothing is shown."""
        missing = {one.name: one for one in self.fields}
        for subject in subjects:
            for part in self._parts(self._with_own_findings(subject)):
                missing = {name: one for name, one in missing.items() if value_of(one, part) is None}
                if not missing:
                    return ()
        return tuple(missing)

    def _with_own_findings(self, subject: Subject) -> Subject:
        if not subject.findings or not self._findings:
            return subject
        node = subject.view.node
        own: Sequence[Finding] = [finding for finding in subject.findings if finding.node == node]
        if subject.gpu is not None:
            own = of_gpu(subject.gpu, own)
        return subject._replace(findings=own)

    def _parts(self, subject: Subject) -> Iterable[Subject]:
        gpus, ranks = self._gpus, self._ranks
        if subject.gpu is not None:
            return with_ranks(subject) if ranks else (subject,)
        if subject.rank is not None:
            return with_gpus(subject) if gpus else (subject,)
        return parts_of(subject, gpus, ranks) if gpus or ranks else (subject,)


def parse(text: str) -> Filter:
    """A filter, or one with the ``problem`` of a text that is none (yet); never raises."""
    if not text.strip():
        return Filter(text)
    if len(text) > MOST_TEXT:
        return Filter(text, f"longer than {MOST_TEXT} characters")
    parser = Parser(text)
    try:
        test = parser.parse()
    except FilterProblem as problem:
        return Filter(text, str(problem))
    return Filter(text, "", tuple(dict.fromkeys(parser.fields)), tuple(parser.words), test)


def meanwhile(last: Filter, draft: Filter) -> Filter:
    """What holds while ``draft`` is typed: itself, or the ``last`` filter that made sense.

    Of ``last``, a word that turns out to be the name of a field (``sm`` of ``sm<``) is left out.
    """
    if not draft.problem:
        return draft
    text, rest = last.text, draft.text[len(last.text) :]
    if not draft.text.startswith(text) or not text.strip() or rest[:1] not in _SIGNS:
        return last
    while text:
        text = _LAST_WORD.sub("", text)
        shorter = parse(text)
        if not shorter.problem:
            return shorter
    return Filter()
