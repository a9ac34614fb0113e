"""Ranks that no variable numbers: by the titles that servers' workers have, by their arguments, by their place among
the children of one parent. Pure, as ``roster``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.collect.ranks.identity import Identity, job_of
from mltop.probes.collect.ranks.layout import Title, argument, server_rank, shown_layout, sizes_of, title_of
from mltop.probes.collect.ranks.roles import PYTHON_ROLES
from mltop.probes.collect.ranks.table import Process, Rank, Tree
from mltop.probes.model.receipt import MOST_RANK_NUMBERS

_SERVER_LEVEL = 3  # as identity's: what started a server is no rank beside its workers
_FAMILY_LEVEL = 2
_HERE = ("localhost", "127.", "::1", "[::1]")
_RANK_ARGUMENTS = ("--rank", "--global-rank", "--global_rank")
_SIZE_ARGUMENTS = ("--world-size", "--world_size")
# How scripts call what they hand to jax.distributed.initialize; with one dash or two, of absl or argparse.
_JAX_RANK = (
    *("process_id", "process_index", "proc_id", "process_rank", "host_id", "host_idx", "task_id", "node_rank"),
    *("rank", "global_rank"),
)
_JAX_SIZE = (
    *("num_processes", "process_count", "num_procs", "nprocs", "num_hosts", "host_count", "num_tasks", "nnodes"),
    *("num_nodes", "world_size"),
)
_JAX_COORDINATOR = (
    *("coordinator", "coordinator_address", "coordinator_addr", "coord_addr", "coordinator_bind_address"),
    *("coord_address", "server_addr", "server_address", "master", "master_addr"),
)
_ADDRESS = re.compile(r"(?:[\w.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):\d{1,5}", re.ASCII)
_WHOLE = re.compile(r"\d{1,7}", re.ASCII)
_MOST_WORDS = 256  # of a command line that is looked at


@dataclass
class _Server:
    """The workers of one server. ``process``: that which the user started."""

    process: Process
    workers: list[tuple[Process, Title]] = field(default_factory=list)


def titled_ranks(tree: Tree, excluded: Collection[int]) -> list[Rank]:
    """The workers of vLLM and SGLang."""
    titles: dict[int, Title] = {}
    for process in tree.processes.values():
        title = title_of(process.argv)
        if title is not None and process.role in PYTHON_ROLES and not process.dead and process.pid not in excluded:
            titles[process.pid] = title
    servers: dict[int, _Server] = {}
    workers = (pid for pid, title in titles.items() if title.kind == "worker")
    with_workers = {above.pid for pid in workers for above in tree.ancestors(pid)}
    for pid, title in titles.items():
        if title.kind == "worker" or (title.kind == "engine" and pid not in with_workers):
            server = _server_of(tree, pid, title)
            servers.setdefault(server.pid, _Server(server)).workers.append((tree.processes[pid], title))
    ranks: list[Rank] = []
    taken: set[tuple[int | None, str]] = set()
    for found in sorted(servers.values(), key=lambda found: found.process.start_ticks):
        claim = found.process.uid, _slurm_job(found)
        ranks += _workers(tree, found, shares_its_job=claim in taken)
        taken.add(claim)
    return ranks


def _slurm_job(server: _Server) -> str:
    """ "" for none. A server may be started by something that forgets the variables, which its workers have again."""
    worker, _ = server.workers[0]
    return {**server.process.variables, **worker.variables, **worker.live}.get("SLURM_JOB_ID", "")


def _server_of(tree: Tree, pid: int, title: Title) -> Process:
    """The topmost process that is the server's by its title or command line; else the script that uses the library."""
    above = tree.python_above(pid)
    titles = [title_of(process.argv) for process in above]
    own = [
        process
        for process, other in zip(above, titles)
        if (other is not None and other.framework is title.framework) or _is_server(process.argv, title)
    ]
    return own[-1] if own else above[0] if above else tree.processes[pid]


def _is_server(argv: Sequence[str], title: Title) -> bool:
    """Whether a command line starts the server: ``vllm serve``, ``-m sglang.launch_server``."""
    name = title.framework.name
    words = [word.rpartition("/")[2] for word in argv[:6]]
    return any(word == name or word.startswith(f"{name}.") for word in words)


def _workers(tree: Tree, server: _Server, shares_its_job: bool) -> Iterator[Rank]:
    """``shares_its_job``: with an earlier server of its user's on this node, whose workers have the same numbers. A
    name once given stays.
    """
    first = server.workers[0][1]
    slurm_job, own = _slurm_job(server), f"{first.framework.name}:{server.process.pid}"
    job = f"{slurm_job}/{own}" if slurm_job and shares_its_job else slurm_job or own
    given = [process.job for process, _ in server.workers if process.job in (slurm_job, f"{slurm_job}/{own}")]
    job = given[0] if slurm_job and given else job
    sizes, attention_dp = _sizes(tree, server, first)
    world = 1
    for axis in first.framework.order:
        world *= 1 if axis == "dp" and attention_dp else sizes.get(axis, 1)
    is_known = all(axis in sizes for axis in first.framework.order)
    for process, title in server.workers:
        number = server_rank(title, sizes, attention_dp)
        identity = Identity(
            title.framework.name,
            number if number is None or number <= MOST_RANK_NUMBERS else None,
            _SERVER_LEVEL,
            world if is_known and world <= MOST_RANK_NUMBERS else None,
            job=job,
            source="title",
        )
        yield Rank(process, process, identity, "", parallel=shown_layout(title.place, sizes))


def _sizes(tree: Tree, server: _Server, title: Title) -> tuple[dict[str, int], bool]:
    """By the server's arguments; where these do not tell, or cannot be, by its workers when they fill a grid."""
    worker = server.workers[0][0]
    for process in tree.python_above(worker.pid):
        if _is_server(process.argv, title):
            sizes = sizes_of(process.argv, title.framework)
            taken = [other.place for _, other in server.workers]
            if sizes is not None and all(place.get(axis, 0) < size for place in taken for axis, size in sizes.items()):
                return sizes, "--enable-dp-attention" in process.argv
    places = [tuple(other.place.get(axis, 0) for axis in title.framework.order) for _, other in server.workers]
    most = [max(numbers) + 1 for numbers in zip(*places)]
    count = 1
    for size in most:
        count *= size
    is_grid = len(set(places)) == count == len(places)
    return (dict(zip(title.framework.order, most)) if is_grid else {}), False


def ranks_by_order(tree: Tree, excluded: Collection[int], gpu_pids: Collection[int]) -> Iterator[Rank]:
    """Members of a process group that one parent, which is in none, has started, as mp.spawn does: the parent's first
    child is its first rank, which is a guess. Their environment says nothing else.
    """
    families: dict[int, list[Process]] = {}
    for process in tree.processes.values():
        is_member = process.in_group and process.role in PYTHON_ROLES and process.pid not in excluded
        if is_member and (process.identity is None or process.has_inherited(tree.processes.get(process.ppid))):
            families.setdefault(process.ppid, []).append(process)
    for pid, members in families.items():
        parent = tree.processes.get(pid)
        if parent is None or parent.role not in PYTHON_ROLES or parent.in_group or pid in gpu_pids or pid in excluded:
            continue
        _number(parent, members)
        yield from [_by_order(process, parent) for process in members if not process.dead]


def _number(parent: Process, members: list[Process]) -> None:
    """Their order, anew as long as all are there: after the first has ended those that are left keep theirs."""
    members.sort(key=lambda process: (process.start_ticks, process.pid))
    ordered = [process for process in members if process.order is not None]
    if len(ordered) >= parent.family:
        for index, process in enumerate(members):
            process.order = index
        parent.family = len(members)
    for process in members:
        if process.order is None:
            process.order = parent.family
            parent.family += 1


def _by_order(process: Process, parent: Process) -> Rank:
    count, order = parent.family, process.order or 0
    outer = parent.identity
    address = process.live.get("MASTER_ADDR", "")
    rank: int | None = order
    world: int | None = count
    if outer is not None and (outer.world_size or 1) > 1:
        rank = None if outer.rank is None else outer.rank * count + order
        world = (outer.world_size or 1) * count
        if world > MOST_RANK_NUMBERS or (rank or 0) >= world:
            rank = world = None
    elif outer is None and address and not address.startswith(_HERE):
        rank = world = None  # it may be over several nodes, and which of them this is nobody says
    identity = Identity(
        "multiprocessing",
        rank,
        _FAMILY_LEVEL,
        world,
        local_rank=order,
        local_world_size=count,
        job=job_of(process.live),
        master_address=address[:256] or None,
        source="parent and order",
    )
    return Rank(process, process, identity, "")


def ranks_by_arguments(tree: Tree, taken: Collection[int]) -> Iterator[Rank]:
    """Members of a process group whose own command line has a rank and a world size."""
    for process in tree.processes.values():
        if not process.in_group or process.dead or process.identity is not None or process.pid in taken:
            continue
        rank, world = argument(process.argv, _RANK_ARGUMENTS), argument(process.argv, _SIZE_ARGUMENTS)
        if process.role in PYTHON_ROLES and rank is not None and world is not None and rank < world:
            address = process.live.get("MASTER_ADDR", "")[:256] or None
            job = job_of(process.live)
            identity = Identity("env", rank, _FAMILY_LEVEL, world, job=job, master_address=address, source="arguments")
            yield Rank(process, process, identity, "")


def ranks_of_jax(tree: Tree, taken: Collection[int]) -> Iterator[Rank]:
    """Processes with JAX loaded whose own options tell where their coordinator is, and who of how many they are. Bare
    words tell nobody which is which: such a process belongs to no job.
    """
    for process in tree.processes.values():
        is_jax = "jax" in process.uses and process.role in PYTHON_ROLES and process.identity is None
        if not is_jax or process.dead or process.pid in taken:
            continue
        words = list(process.argv[1:_MOST_WORDS])
        addresses = [value for name in _JAX_COORDINATOR for value in _values(words, name) if _ADDRESS.fullmatch(value)]
        rank, world = _whole(words, _JAX_RANK), _whole(words, _JAX_SIZE)
        if addresses and rank is not None and world is not None and rank < world <= MOST_RANK_NUMBERS:
            job = addresses[0][:256]
            address = job.rpartition(":")[0].strip("[]")
            identity = Identity("jax", rank, _FAMILY_LEVEL, world, job=job, master_address=address, source="arguments")
            yield Rank(process, process, identity, "")


def _values(words: Sequence[str], option: str) -> Iterable[str]:
    """That this option is given."""
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if word.startswith("-") and name.lstrip("-").replace("-", "_") == option:
            yield value if separator else words[index + 1] if index + 1 < len(words) else ""


def _whole(words: Sequence[str], options: Sequence[str]) -> int | None:
    values = [value for option in options for value in _values(words, option)]
    return int(values[0]) if values and _WHOLE.fullmatch(values[0]) else None


class NodeRanks:
    """Lightning numbers the ranks of a node: how many a node has follows from those that are here."""

    def __init__(self, tree: Tree, ranks: Iterable[Rank]) -> None:
        self._counts: dict[tuple[str, int | None], int] = {}
        for rank in ranks:
            if rank.identity.launcher == "lightning":
                key = (rank.identity.job, rank.process.uid)
                parent = tree.processes.get(rank.process.ppid)
                count = max(
                    self._counts.get(key, 0), (rank.identity.local_rank or 0) + 1, parent.family if parent else 0
                )
                self._counts[key] = count
        for rank in ranks:
            parent = tree.processes.get(rank.process.ppid)
            if rank.identity.launcher == "lightning" and rank.identity.local_rank and parent is not None:
                parent.family = self._counts[rank.identity.job, rank.process.uid]

    def complete(self, rank: Rank) -> None:
        identity = rank.identity
        if identity.launcher != "lightning" or identity.local_rank is None or identity.node_rank is None:
            return
        count, world = self._counts[identity.job, rank.process.uid], identity.world_size
        if world is not None and world % count:  # some of them are not there yet
            return
        number = identity.node_rank * count + identity.local_rank
        is_possible = number < (world or MOST_RANK_NUMBERS)
        rank.identity = replace(identity, local_world_size=count, rank=number if is_possible else None)


def first_of_lightning(tree: Tree, ranks: Sequence[Rank]) -> list[Rank]:
    """Lightning's local rank 0 is the process that the user started, which sets its variables only in itself: where
    these cannot be read, it is the parent of the others.
    """
    found: dict[int, Rank] = {}
    known = {rank.process.pid for rank in ranks}
    for rank in ranks:
        parent = tree.processes.get(rank.process.ppid)
        if rank.identity.launcher != "lightning" or not rank.identity.local_rank or parent is None:
            continue
        same = parent.role in PYTHON_ROLES and parent.identity is None and parent.uid == rank.process.uid
        if same and not parent.dead and parent.pid not in known:
            number = 0 if rank.identity.node_rank == 0 else None
            identity = replace(rank.identity, local_rank=0, rank=number, source="parent and order")
            found.setdefault(parent.pid, Rank(parent, parent, identity, ""))
    return list(found.values())
