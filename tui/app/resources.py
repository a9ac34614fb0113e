"""What may be typed after ":": panes, nodes, GPUs, ranks and jobs by name, and all that keys do. Pure functions.

What may be typed is a list of offers; a typed line means the offer of that text, or the only one that begins so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from mltop.probes.model import JobKey, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.app.keys import PANES
from mltop.tui.app.navigation import Location, gpu_location
from mltop.tui.config.catalog import TABLES, column_keys, column_named
from mltop.tui.config.settings import Wrong
from mltop.tui.render.cells import Column

MOST_OFFERED = 200  # of one kind: the list shows a few
MOST_NAMED = 4  # in a sentence
DEFAULT = "default"


@dataclass(frozen=True)
class Scene:
    """What there is to be named. ``columns``: of the table that the user is in, whose name is ``kind``; ``actions``: by
    their names, (what a key does, in words).
    """

    nodes: Sequence[NodeView] = ()
    looked_node: str = ""
    kind: str = ""
    columns: Sequence[Column] = ()
    themes: Sequence[str] = ()
    actions: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """What is to be done: go to ``place``; else ``action``, a key's; else what ``verb`` means with ``words``."""

    place: Location | None = None
    action: str = ""
    verb: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """A line of the list: what is completed (``text``), what it means, and what it does where no grammar says that."""

    text: str
    meaning: str = ""
    order: Order | None = None


Words = Sequence[str]


@dataclass(frozen=True)
class Resource:
    """``alone``: what the name means without words. ``offers``: what may stand behind it. ``grammar``: makes an order
    of words that no list can hold; raises Wrong.
    """

    names: tuple[str, ...]
    meaning: str
    alone: Callable[[Scene], Order] | None = None
    offers: Callable[[Scene], Iterable[Offer]] = lambda _: ()
    grammar: Callable[[Words, Scene], Order] | None = None


def _to(pane: str) -> Callable[[Scene], Order]:
    return lambda _: Order(Location(pane))


def _at(pane: str, node: str) -> Order:
    return Order(Location(pane, node))


def _of_nodes(command: str, meaning: str, order: Callable[[str], Order]) -> Resource:
    """Of the node that is looked at, where none is named."""

    def offers(scene: Scene) -> Iterator[Offer]:
        return (Offer(f"{command} {node.node}", node.state.state, order(node.node)) for node in scene.nodes)

    return Resource((command,), meaning, lambda scene: order(scene.looked_node), offers)


def _gpus(scene: Scene) -> Iterator[Offer]:
    """ "gpu 5" of the node that is looked at, "gpu sim030 5" of any."""
    for node in sorted(scene.nodes, key=lambda node: node.node != scene.looked_node):
        for gpu in node.sample.gpus if node.sample is not None else ():
            order = Order(gpu_location(node.node, gpu.index))
            if node.node == scene.looked_node:
                yield Offer(f"gpu {gpu.index}", gpu.name or "", order)
            if len(scene.nodes) > 1:
                yield Offer(f"gpu {node.node} {gpu.index}", gpu.name or "", order)


def _seen(scene: Scene) -> Iterator[tuple[NodeView, RankSample]]:
    return ((node, rank) for node in scene.nodes if node.sample is not None for rank in node.sample.ranks)


def _ranks(scene: Scene) -> Iterator[Offer]:
    """ "rank 229", of several jobs with the name of one behind it."""
    ranks = [(rank.rank, node.node, rank) for node, rank in _seen(scene) if rank.rank is not None]
    several = len({rank.job_key for _, _, rank in ranks}) > 1
    for number, node, rank in sorted(ranks, key=lambda each: each[0]):
        place = Location("rank", node, pid=rank.pid, label=f"rank {number}")
        yield Offer(f"rank {number}{f' {rank.job}' * several}", f"{node} {rank.job}", Order(place))


def _jobs(scene: Scene) -> Iterator[Offer]:
    counts: dict[str, tuple[JobKey, int]] = {}
    for _, rank in _seen(scene):
        key, count = counts.get(rank.job, (rank.job_key, 0))
        counts[rank.job] = key, count + 1
    for name, (key, count) in counts.items():
        if name:
            yield Offer(f"job {name}", f"{count} ranks", Order(Location("ranks", job=key, label=f"job {name}")))


def _sort(words: Words, scene: Scene) -> Order:
    if not scene.columns:
        raise Wrong("no table here can be sorted")
    if len(words) != 1:
        raise Wrong(":sort needs one column: :sort temp, :sort -temp, :sort default")
    if words[0] != DEFAULT and column_named(scene.columns, words[0].removeprefix("-")) is None:
        raise Wrong(f"no column {words[0]!r} here ({', '.join(column_keys(scene.columns))})")
    return Order(verb="sort", words=tuple(words))


def _columns(words: Words, _: Scene) -> Order:
    """ ":columns gpus gpu sm temp", ":columns gpus default"."""
    if not words or words[0] not in TABLES:
        raise Wrong(f":columns needs a table ({', '.join(TABLES)}) and its columns, or {DEFAULT}")
    columns = TABLES[words[0]]
    if wrong := [word for word in words[1:] if word != DEFAULT and column_named(columns, word) is None]:
        raise Wrong(f"{words[0]} has no column {wrong[0]!r} ({', '.join(column_keys(columns))})")
    if len(words) < 2:
        raise Wrong(f":columns {words[0]} needs columns ({', '.join(column_keys(columns))}), or {DEFAULT}")
    return Order(verb="columns", words=tuple(words))


def _filter(words: Words, _: Scene) -> Order:
    if not words:
        raise Wrong(":filter needs a word behind it")
    return Order(verb="filter", words=tuple(words))


def _sorts(scene: Scene) -> Iterator[Offer]:
    for key in column_keys(scene.columns):
        yield from (Offer(f"sort {key}"), Offer(f"sort -{key}", "the largest first"))


def _themes(scene: Scene) -> Iterator[Offer]:
    return (Offer(f"theme {name}", order=Order(verb="theme", words=(name,))) for name in scene.themes)


def _resources() -> Iterator[Resource]:
    for pane in PANES:
        if pane.name in ("node", "links"):
            yield _of_nodes(pane.name, pane.what, partial(_at, pane.name))
        elif pane.key:
            names = ("main", "gpus", "nodes", "overview") if pane.name == "overview" else (pane.name,)
            yield Resource(names, pane.what, _to(pane.name))
    yield Resource(("gpu",), "one GPU: :gpu 5, :gpu sim030 5", offers=_gpus)
    yield Resource(("rank",), "one rank: :rank 229", offers=_ranks)
    yield Resource(("job",), "the ranks of one job: :job 4711", offers=_jobs)
    yield Resource(("sort",), "sort this table: :sort temp, -: the largest first", None, _sorts, _sort)
    wholes = [Offer(f"columns {kind} {' '.join(column_keys(columns))}") for kind, columns in TABLES.items()]
    yield Resource(("columns",), "which columns a table has", None, lambda _: wholes, _columns)
    yield Resource(("filter",), "as /: :filter sm<20%", grammar=_filter)
    yield Resource(("theme",), "the colours", offers=_themes)
    yield _of_nodes("shell", "a shell on a node; asks", lambda node: Order(verb="shell", words=(node,)))
    yield Resource(("q", "quit"), "leave", lambda _: Order(verb="quit"))


RESOURCES = tuple(_resources())
BY_NAME = {name: resource for resource in RESOURCES for name in resource.names}


def order_of(text: str, scene: Scene) -> Order:
    """What a typed line means. Raises Wrong."""
    words = text.strip().removeprefix(":").split()
    if not words:
        raise Wrong("nothing was typed")
    name, rest = words[0], words[1:]
    resource = BY_NAME.get(name)
    if resource is None and name not in scene.actions:
        from difflib import get_close_matches

        close = get_close_matches(name, [*BY_NAME, *scene.actions], 1)
        raise Wrong(f"there is no :{name}" + (f", did you mean :{close[0]}" if close else ""))
    if resource is None:
        return _meant(" ".join(words), [Offer(name, order=Order(action=scene.actions[name][0]))])
    if resource.alone is not None and not rest:
        return resource.alone(scene)
    if resource.grammar is not None:
        return resource.grammar(rest, scene)
    if name == "gpu":  # "sim030/5"
        rest = " ".join(rest).replace("/", " ").split()
    return _meant(" ".join([name, *rest]), list(resource.offers(scene)))


def _meant(typed: str, listed: Sequence[Offer]) -> Order:
    """What the offer of this text does, else the only one that begins with these words, or letters. Raises Wrong."""
    by_text = {one.text: one for one in listed}
    exact = [by_text[typed]] if typed in by_text else []
    by_words = [one for each, one in by_text.items() if each.startswith(f"{typed} ")]
    found = exact or by_words or [one for each, one in by_text.items() if each.startswith(typed)]
    if len(found) == 1 and found[0].order is not None:
        return found[0].order
    if not listed:
        raise Wrong(f"nothing goes behind :{typed.partition(' ')[0]}")
    known = ", ".join(f":{one.text}" for one in (found or listed)[:MOST_NAMED])
    raise Wrong(f"{len(found)} begin with :{typed} ({known})" if found else f"there is no :{typed} ({known})")


def offers(text: str, scene: Scene, most: int) -> list[Offer]:
    """What fits to what is typed, the best first: by their beginning, then by letters in this order anywhere."""
    typed = " ".join(text.removeprefix(":").split()).casefold() + " " * text.endswith(" ")
    scored = [
        (score, at, offer) for at, offer in enumerate(_all(typed, scene)) if (score := _fit(typed, offer)) < _NONE
    ]
    return [offer for _, _, offer in sorted(scored, key=lambda entry: entry[:2])[:most]]


def _all(typed: str, scene: Scene) -> Iterable[Offer]:
    name, space, _ = typed.partition(" ")
    if space and name in BY_NAME:
        yield from islice(BY_NAME[name].offers(scene), MOST_OFFERED)
        return
    for resource in RESOURCES:
        yield from (Offer(each, resource.meaning) for each in resource.names)
    yield from (Offer(action, what) for action, (_, what) in scene.actions.items() if action not in BY_NAME)


_NONE = 3


def _fit(typed: str, offer: Offer) -> int:
    text = offer.text.casefold()
    if text.startswith(typed.rstrip()):
        return 0
    if typed.strip() in text:
        return 1
    rest = iter(text)
    return 2 if all(char in rest for char in typed if char != " ") else _NONE
