"""A filter: an expression made once, asked for every row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mltop.probes.model import Finding, GpuSample, NodeState, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters.fields import ALIASES, FIELDS, Field, has_no_rank, value_of
from mltop.tui.filters.grammar import Parser
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.subject import Subject, gpu_of, of_gpu, parts_of, with_gpus, with_ranks
from mltop.tui.filters.terms import Test
from mltop.tui.filters.tree import Tree, test_of_gpu, test_of_node, test_of_rank

MOST_TEXT = 500
_SIGNS = tuple("=!<>~")
_LAST_WORD = re.compile(r"[\s&|!(]*[^\s&|()]*\s*$")  # with what joins it to the words before
_OPEN_WORD = re.compile(r"(?:^|[\s&|!])(\w+)(\s*)$")
_NOBODY = NodeView(NodeState("", ""))  # of a line of text


@dataclass(frozen=True)
class Filter:
    """Keeps what fulfils its expression; everything when it is ``empty`` or has a ``problem`` (one sentence).

    A node fulfils an expression when one of its GPUs with its ranks does, and what is only negated when none of them
    fulfils that: see `tree`. A GPU is asked together with its ranks, a rank together with its GPUs.
    """

    text: str = ""
    problem: str = ""
    fields: tuple[Field, ...] = ()
    words: tuple[str, ...] = ()
    _tree: Tree | None = field(default=None, repr=False, compare=False)

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

    @cached_property
    def _tests(self) -> tuple[Test, Test, Test]:
        """Of a node, of a GPU, of a rank."""
        assert self._tree is not None
        return test_of_node(self._tree), test_of_gpu(self._tree), test_of_rank(self._tree)

    @property
    def empty(self) -> bool:
        return self._tree is None

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
        return self._tree is None or bool(self.fields) or self._tests[0](Subject(_NOBODY, text=text))

    def keeps(self, subject: Subject) -> bool:
        """Whether the subject fulfils the expression, by itself or by its parts."""
        if self._tree is None:
            return True
        subject = self._with_own_findings(subject)
        node, gpu, rank = self._tests
        test = gpu if subject.gpu is not None else rank if subject.rank is not None else node
        return test(subject)

    def nowhere_known(self, subjects: Iterable[Subject]) -> tuple[str, ...]:
        """The names of fields whose value is unknown of every subject: why nothing is shown."""
        missing = {one.name: one for one in self.fields}
        for subject in subjects:
            for part in self._parts(self._with_own_findings(subject)):
                missing = {name: one for name, one in missing.items() if _is_unknown(one, part)}
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


def _is_unknown(one: Field, part: Subject) -> bool:
    return value_of(one, part) is None and not has_no_rank(one, part)


def parse(text: str) -> Filter:
    """A filter, or one with the ``problem`` of a text that is none (yet); never raises."""
    if not text.strip():
        return Filter(text)
    if len(text) > MOST_TEXT:
        return Filter(text, f"longer than {MOST_TEXT} characters")
    parser = Parser(text)
    try:
        tree = parser.parse()
    except FilterProblem as problem:
        return Filter(text, str(problem))
    return Filter(text, "", tuple(dict.fromkeys(parser.fields)), tuple(parser.words), tree)


def meanwhile(last: Filter, draft: Filter, fields: bool = False) -> Filter:
    """What holds while ``draft`` is typed: itself, or the ``last`` filter that made sense.

    Of ``last``, a word that turns out to be the name of a field (``sm`` of ``sm<``) is left out. ``fields``: rows
    have fields, so that a last word that may become the name of one (``s``, ``sm``) waits for what follows.
    """
    if draft.text == last.text:
        return last
    if not draft.problem:
        return _without_half_field(draft) if fields else draft
    text, rest = last.text, draft.text[len(last.text) :]
    negates = rest[:1] == "!" and text[-1:].isspace()
    if not draft.text.startswith(text) or not text.strip() or rest[:1] not in _SIGNS or negates:
        return last
    while text:
        text = _LAST_WORD.sub("", text)
        shorter = parse(text)
        if not shorter.problem:
            return shorter
    return Filter()


def _without_half_field(draft: Filter) -> Filter:
    """Without its last word, when that begins the name of a field, or is one and a sign may follow."""
    found = _OPEN_WORD.search(draft.text)
    if found is None or draft.words[-1:] != (found.group(1),):
        return draft
    word, names = found.group(1).casefold(), (*FIELDS, *ALIASES)
    if word in names or (not found.group(2) and any(name.startswith(word) for name in names)):
        shorter = parse(_LAST_WORD.sub("", draft.text))
        return draft if shorter.problem else shorter
    return draft
