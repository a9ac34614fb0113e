"""Why a text is no filter, in one sentence."""

from __future__ import annotations


class FilterProblem(ValueError):
    """``str()`` is the sentence."""
