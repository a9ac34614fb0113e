"""Keys in sentences are those that do what the sentence says."""

from __future__ import annotations

from mltop.tui.app.keys import PANES, _everywhere, key_names
from mltop.tui.render.advice import DEFAULTS, Keycaps


def test_every_key_that_a_sentence_names_is_one_of_its_action() -> None:
    own = [binding for entry in PANES for binding in entry.load(several=True).pane_bindings()]  # type: ignore[attr-defined]
    keys: dict[str, set[str]] = {}
    for binding in (*_everywhere(), *own):
        keys.setdefault(binding.id or "", set()).update(key_names(binding).split())
    assert {action: key for action, key in DEFAULTS.items() if key not in keys.get(action, ())} == {}


def test_the_users_key_stands_in_its_place() -> None:
    caps = Keycaps()
    assert (caps["dump"], caps["help"]) == ("t", "?")
    caps.use({"dump": "^T"})
    assert (caps["dump"], caps["help"]) == ("^T", "?")
