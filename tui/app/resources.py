"""What may be typed after ":": panes, nodes, GPUs, ranks and jobs by name, and all that keys do. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes.model import JobKey, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.app.navigation import Location, gpu_location
from mltop.tui.config.catalog import TABLES, column_keys, column_named
from mltop.tui.config.settings import Wrong
from mltop.tui.render.cells import Column

MOST_OFFERED = 200  # of one kind: the list shows a few
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
    """A line of the list: what is completed (``text``), and what it means."""

    text: str
    meaning: str = ""


Words = Sequence[str]


@dataclass(frozen=True)
class Resource:
    """``order`` makes it of the words behind the name, and raises Wrong; ``offers`` lists what may stand there."""

    names: tuple[str, ...]
    meaning: str
    order: Callable[[Words, Scene], Order]
    offers: Callable[[Scene], Iterable[Offer]] = lambda _: ()


def _pane(name: str) -> Callable[[Words, Scene], Order]:
    def order(words: Words, _: Scene) -> Order:
        _no_more(words)
        return Order(Location(name))

    return order


def _of_node(name: str) -> Callable[[Words, Scene], Order]:
    def order(words: Words, scene: Scene) -> Order:
        node = _node(words[0], scene).node if words else scene.looked_node
        _no_more(words[1:])
        return Order(Location(name, node))

    return order


def _verb(name: str, least: int = 0) -> Callable[[Words, Scene], Order]:
    def order(words: Words, _: Scene) -> Order:
        if len(words) < least:
            raise Wrong(f":{name} needs a word behind it")
        return Order(verb=name, words=tuple(words))

    return order


def _no_more(words: Words) -> None:
    if words:
        raise Wrong(f"nothing goes behind it: {' '.join(words)!r}")


def _node(word: str, scene: Scene) -> NodeView:
    """By its name, or by the beginning of one name only."""
    exact = [node for node in scene.nodes if node.node == word]
    begins = [node for node in scene.nodes if node.node.startswith(word)]
    found = exact or begins
    if len(found) == 1:
        return found[0]
    if not found:
        raise Wrong(f"no node {word!r} is watched")
    raise Wrong(f"{len(found)} nodes begin with {word!r}")


def _gpu(words: Words, scene: Scene) -> Order:
    """ ":gpu 5", ":gpu sim030 5", ":gpu sim030/5"."""
    parts = [part for word in words for part in word.split("/") if part]
    if not parts or not parts[-1].isdecimal() or len(parts) > 2:
        raise Wrong(":gpu needs a GPU's number, on several nodes behind the node: :gpu sim030 5")
    node = _node(parts[0] if len(parts) == 2 else scene.looked_node, scene)
    index = int(parts[-1])
    if node.sample is None or all(gpu.index != index for gpu in node.sample.gpus):
        raise Wrong(f"no GPU {index} is seen on {node.node}")
    return Order(gpu_location(node.node, index))


def _ranks(scene: Scene) -> Iterable[tuple[NodeView, RankSample]]:
    return ((node, rank) for node in scene.nodes if node.sample is not None for rank in node.sample.ranks)


def _rank(words: Words, scene: Scene) -> Order:
    """ ":rank 229", of several jobs with the name of one behind it."""
    if not words or not words[0].isdecimal():
        raise Wrong(":rank needs a number")
    number, job = int(words[0]), " ".join(words[1:])
    found = [(node, rank) for node, rank in _ranks(scene) if rank.rank == number and job in ("", rank.job)]
    if not found:
        raise Wrong(f"no rank {number}{f' of {job}' if job else ''} is seen")
    jobs = dict.fromkeys(rank.job or "no name" for _, rank in found)
    if len(jobs) > 1:
        raise Wrong(f"{len(jobs)} jobs have a rank {number}: :rank {number} {next(iter(jobs))}")
    node, rank = found[0]
    return Order(Location("rank", node.node, pid=rank.pid, label=f"rank {number}"))


def _job(words: Words, scene: Scene) -> Order:
    name = " ".join(words)
    keys = dict.fromkeys(rank.job_key for _, rank in _ranks(scene))
    exact = [key for key in keys if key.name == name]
    found = exact or [key for key in keys if name and key.name.startswith(name)]
    if not name or len({key.name for key in found}) != 1:
        known = ", ".join(sorted({key.name for key in keys if key.name})[:8])
        raise Wrong(f":job needs one of: {known}" if known else "no job with a name is seen")
    return Order(Location("ranks", job=found[0], label=f"job {found[0].name}"))


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


def _theme(words: Words, scene: Scene) -> Order:
    if len(words) != 1 or words[0] not in scene.themes:
        raise Wrong(f":theme needs one of: {', '.join(scene.themes)}")
    return Order(verb="theme", words=tuple(words))


def _offer_nodes(command: str) -> Callable[[Scene], Iterable[Offer]]:
    return lambda scene: [Offer(f"{command} {node.node}", node.state.state) for node in scene.nodes[:MOST_OFFERED]]


def _offer_ranks(scene: Scene) -> Iterable[Offer]:
    ranks = sorted(
        ((rank.rank, node.node, rank.job) for node, rank in _ranks(scene) if rank.rank is not None), key=lambda r: r[0]
    )
    for number, node, job in ranks[:MOST_OFFERED]:
        yield Offer(f"rank {number}", f"{node} {job}")


def _offer_jobs(scene: Scene) -> Iterable[Offer]:
    counts: dict[JobKey, int] = {}
    for _, rank in _ranks(scene):
        counts[rank.job_key] = counts.get(rank.job_key, 0) + 1
    return [Offer(f"job {key.name}", f"{count} ranks") for key, count in counts.items() if key.name]


def _offer_gpus(scene: Scene) -> Iterable[Offer]:
    several = len(scene.nodes) > 1
    for node in scene.nodes[:MOST_OFFERED]:
        if node.sample is not None and (not several or node.node == scene.looked_node):
            for gpu in node.sample.gpus:
                yield Offer(f"gpu {f'{node.node} ' * several}{gpu.index}", gpu.name or "")


def _offer_sorts(scene: Scene) -> Iterable[Offer]:
    for key in column_keys(scene.columns):
        yield Offer(f"sort {key}")
        yield Offer(f"sort -{key}", "the largest first")


def _offer_columns(_: Scene) -> Iterable[Offer]:
    return [Offer(f"columns {kind} {' '.join(column_keys(columns))}") for kind, columns in TABLES.items()]


RESOURCES = (
    Resource(("main", "gpus", "nodes", "overview"), "GPUs and ranks, or all nodes", _pane("overview")),
    Resource(("node",), "one node: :node sim030", _of_node("node"), _offer_nodes("node")),
    Resource(("gpu",), "one GPU: :gpu 5, :gpu sim030 5", _gpu, _offer_gpus),
    Resource(("ranks",), "all training ranks", _pane("ranks")),
    Resource(("rank",), "one rank: :rank 229", _rank, _offer_ranks),
    Resource(("job",), "the ranks of one job: :job 4711", _job, _offer_jobs),
    Resource(("stacks",), "stacks of all ranks and the verdict", _pane("stacks")),
    Resource(("links",), "ports and PCI links of a node", _of_node("links"), _offer_nodes("links")),
    Resource(("events",), "what happened", _pane("events")),
    Resource(("probes",), "active probes", _pane("probes")),
    Resource(("incidents",), "incidents, one line per cause", _pane("incidents")),
    Resource(("sort",), "sort this table: :sort temp, -: the largest first", _sort, _offer_sorts),
    Resource(("columns",), "which columns a table has", _columns, _offer_columns),
    Resource(("filter",), "as /: :filter sm<20%", _verb("filter", 1)),
    Resource(("theme",), "the colours", _theme, lambda scene: [Offer(f"theme {name}") for name in scene.themes]),
    Resource(("shell",), "a shell on a node; asks", _verb("shell"), _offer_nodes("shell")),
    Resource(("q", "quit"), "leave", _verb("quit")),
)
BY_NAME = {name: resource for resource in RESOURCES for name in resource.names}


def order_of(text: str, scene: Scene) -> Order:
    """What a typed line means. Raises Wrong."""
    words = text.strip().removeprefix(":").split()
    if not words:
        raise Wrong("nothing was typed")
    name, rest = words[0], words[1:]
    resource = BY_NAME.get(name)
    if resource is not None:
        return resource.order(rest, scene)
    if name in scene.actions:
        _no_more(rest)
        return Order(action=scene.actions[name][0])
    from difflib import get_close_matches

    close = get_close_matches(name, [*BY_NAME, *scene.actions], 1)
    raise Wrong(f"there is no :{name}" + (f", did you mean :{close[0]}" if close else ""))


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
        yield from BY_NAME[name].offers(scene)
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
