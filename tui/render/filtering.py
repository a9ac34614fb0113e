"""The plain filter behind "/": words that a row must contain."""

from __future__ import annotations


def matches(row_text: str, query: str) -> bool:
    """Every word of ``query`` occurs in ``row_text`` (case ignored), no ``!word`` does; no words: everything.

    A lone ``!`` is a word that is still being typed and excludes nothing.
    """
    text = row_text.casefold()
    for word in query.casefold().split():
        if word.startswith("!"):
            if len(word) > 1 and word[1:] in text:
                return False
        elif word not in text:
            return False
    return True
