"""All training ranks, or those of one node or one class of stacks; and one rank: what it does, and its last stacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.model import JobKey, RankSample, StackDigest
from mltop.probes.model.acts import LogTail
from mltop.probes.model.units import bytes_text, clock_time
from mltop.probes.reach.view import NodeView
from mltop.tui.app.acting import ReadLog
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.filters.fields import gpus_of, held_by
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.empty import empty_text
from mltop.tui.render.fleet.heat import MARK
from mltop.tui.render.guarded import guarded
from mltop.tui.render.ranks import NO_JOB, layout_words
from mltop.tui.render.stacks.verdict import digests_of, stack_lines
from mltop.tui.render.story import Story
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.graphs import job_graph
from mltop.tui.screens.pane import RANK_KEYS, Pane, TextLines
from mltop.tui.screens.problems import Problems
from mltop.tui.screens.tabled import RankTable
from mltop.tui.screens.tables import rank_of, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

ENVIRONMENT = "environment"
LEAST_RANKS = 4  # lines of the table
LOG = "log"
LAST_LINES = 6  # of its log, below its stack
OWN_LOG = Binding("l", "log", "log", tooltip="its log: the last lines that it has written, followed")
SETTINGS = Binding("e", "environment", "environment", tooltip="its environment: what changes how it runs, no secrets")


class RanksScreen(Pane):
    """Ranks, others that hold GPU memory, and Python processes of no job."""

    BINDINGS: ClassVar[list[BindingType]] = [*RANK_KEYS, OWN_LOG, SETTINGS]
    AUTO_FOCUS = "LineTable"

    def __init__(self) -> None:
        super().__init__()
        self._as_tree = False

    def body(self) -> Iterable[Widget]:
        yield Problems(first=False, id="problems", classes="gap-above")
        yield RankTable(classes="gap-above")
        yield TextLines(id="graphs", classes="gap-above")

    def node_at_cursor(self) -> str:
        return (self.query_one(RankTable).cursor_key or "").partition("/")[0]

    def fill(self, picture: Picture) -> None:
        here = self.mltop.trail.here
        nodes = [node for node in picture.view.nodes if here.node in ("", node.node)]
        only = (here.job, set(here.ranks) if here.ranks is not None else None) if here.job is not None else None
        self.put(
            self.query_one(RankTable),
            *rank_rows(nodes, self.context(picture), only, self._mark, others=True, tree=self._as_tree),
        )

        stories = self.stories(picture, [node.node for node in nodes] if here.node else ())
        of_job = [one for one in stories if _is_of(one, here.job)]
        others = [one for one in stories if one not in of_job] if here.job is None else []
        self._share_out([*of_job, *others], picture.view.taken_at, here.job)

    def _share_out(self, stories: Sequence[Story], now: float, job: JobKey | None) -> None:
        """What is wrong above the ranks, below them in the lines that are left how the job was going. What has to give
        way is ranks.
        """
        table, room = self.query_one(RankTable), self.rows
        shown = self.query_one(Problems).fit(stories, now, self.size.width, room, LEAST_RANKS)
        ranks, blocks = 1 + max(1, table.row_count), 1 + bool(stories)
        roomy = shown + ranks + blocks <= room
        self.set_class(roomy, "-roomy")
        if not roomy:
            ranks = max(2, min(ranks, room - shown))
        table.styles.height = ranks
        incident = next((one.incident for one in stories if _is_of(one, job)), None)
        if incident is not None:  # of the job that is stuck, else of that whose ranks are shown, else of all nodes
            job = JobKey(incident.job, incident.uid)
        spare = room - shown - ranks - blocks - 1 if roomy else 0
        graph = partial(job_graph, self.mltop, job, incident, self.size.width, spare)
        empty: list[list[Cell]] = []
        self.set_part("#graphs", guarded("the graphs", graph, empty))

    def nodes_shown(self) -> list[str]:
        """The nodes of the ranks that are shown."""
        return list(dict.fromkeys(key.partition("/")[0] for key in self.query_one(RankTable).keys))

    def ranks_selected(self) -> list[RankProcess]:
        """The shown ones that carry a mark, where there are some, else the one under the cursor."""
        table = self.query_one(RankTable)
        marked = [key for key in table.keys if key.rpartition("/")[0] in self.mltop.selection]
        return self.ranks_of_keys(marked or [table.cursor_key or ""])

    def _mark(self, node: str) -> str:
        return MARK if node in self.mltop.selection else ""

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        self.open_rank(event.key)

    def action_tree(self) -> None:
        """Children below their parents; again: as before."""
        self._as_tree = not self._as_tree
        self.draw()

    def action_environment(self) -> None:
        self._open_part(ENVIRONMENT)

    def action_log(self) -> None:
        self._open_part(LOG)

    def _open_part(self, part: str) -> None:
        node, _, pid = (self.query_one(RankTable).cursor_key or "").rpartition("/")
        if pid.isdecimal():
            rank = rank_of(self.node_view(node), int(pid))
            name = pid if rank is None or rank.rank is None else f"rank {rank.rank}"
            self.mltop.drill(Location("rank", node, pid=int(pid), part=part, label=f"{part} of {name}"))
        else:
            self.mltop.tell(Notice("no process is under the cursor", "warn"))


class RankScreen(Pane):
    """``Location.part`` "environment" or "log": that of the process in place of its stacks."""

    BINDINGS: ClassVar[list[BindingType]] = [*RANK_KEYS, OWN_LOG, SETTINGS]
    AUTO_FOCUS = "#stack"
    focus_follows = False  # its row is only read
    _log_shown: ReadLog | None = None
    DEFAULT_CSS = """
    RankScreen #stack { height: 1fr; }
    RankScreen RankTable { height: 2; }
    """

    def body(self) -> Iterable[Widget]:
        yield RankTable()
        yield TextLines(id="about")
        yield CellLines(id="stack", classes="gap-above", empty_text=empty_text("stack"))

    def node_at_cursor(self) -> str:
        return self.mltop.trail.here.node

    def fill(self, picture: Picture) -> None:
        here, node = self.mltop.trail.here, self.node_view(self.mltop.trail.here.node)
        columns, rows, _ = rank_rows([node] if node is not None else [], self.context(picture))
        this_rank = [row for row in rows if row.key == f"{here.node}/{here.pid}"]
        self.put(self.query_one(RankTable), columns, this_rank, empty_text=f"pid {here.pid} is gone")
        rank = rank_of(node, here.pid)
        width = self.size.width - 1
        log = None  # of the past nobody kept what it has written
        if rank is not None and self.mltop.moment is None:
            log = self.mltop.log_of(RankProcess.of(here.node, rank))
        files = [_head_of(tail) for tail in log.tails if tail.file] if here.part == LOG and log is not None else []
        about = about_lines(rank, self.size.width, held_lines(node, rank)) if rank is not None else []
        self.set_part("#about", [[], *files, []] if files else about)  # its files stay while their lines scroll
        wrote = wrote_lines(node, here.pid, width)
        if here.part == LOG:
            read = log_lines(log, width)[len(files) == 1 :]
            lines = [*wrote, *([[]] if wrote and read else []), *read]
        elif here.part == ENVIRONMENT:
            lines = environment_lines(rank, width)
        else:
            blocks = (self._stack_lines(width), wrote, log_lines(log, width, LAST_LINES))
            lines = [line for block in blocks if block for line in ([], *block)][1:]
        stack = self.query_one("#stack", CellLines)
        follows = here.part == LOG and (log is not self._log_shown or stack.scroll_offset.y >= stack.max_scroll_y)
        self._log_shown = log if here.part == LOG and lines else None
        stack.set_lines(lines)
        if follows:  # unless the user looks at what was before
            stack.call_after_refresh(stack.scroll_end, animate=False)

    def action_log(self) -> None:
        self._show_part(LOG)

    def action_environment(self) -> None:
        self._show_part(ENVIRONMENT)

    def _show_part(self, part: str) -> None:
        here = self.mltop.trail.here
        if here.part != part:
            self.mltop.drill(replace(here, part=part, label=part))

    def ranks_selected(self) -> list[RankProcess]:
        return self.ranks_of_keys([f"{self.mltop.trail.here.node}/{self.mltop.trail.here.pid}"])

    def _native_lines(self, width: int) -> list[list[Cell]]:
        """The newest dump with the frames of C, or that it runs, or why there is none."""
        dump = self.mltop.acting.natives.get((self.mltop.trail.here.node, self.mltop.trail.here.pid))
        if dump is None:
            return []
        if dump.stacks is None:
            return wrap([Cell(f"no C frames: {dump.error}" if dump.error else "dumping the C frames", "warn")], width)
        lines: list[list[Cell]] = [[Cell(f"with C frames, taken {clock_time(dump.stacks.taken_at)}", "bold")]]
        for digest in dump.stacks.digests:
            lines += stack_lines(digest, width)
        return lines

    def _digests(self) -> list[StackDigest]:
        """The stacks of the rank itself and of its children, as the last dump brought them."""
        here, result = self.mltop.trail.here, self.mltop.investigation.result
        digests = digests_of(result.reports) if result is not None else []
        nodes = here.node, ""
        return [one for one in digests if one.node in nodes and here.pid in (one.pid, one.child_of)]

    def _stack_lines(self, width: int) -> list[list[Cell]]:
        lines: list[list[Cell]] = []
        for digest in self._digests():
            lines += [[]] if lines else []
            lines += stack_lines(digest, width)
            if digest.taken_at is not None:
                lines.append([Cell(f"  taken {clock_time(digest.taken_at)}", "dim")])
        native = self._native_lines(width)
        return [*native, *([[]] if native and lines else []), *lines]


def _is_of(story: Story, job: JobKey | None) -> bool:
    """``job``: None: of any."""
    incident = story.incident
    return incident is not None and bool(incident.job) and job in (None, JobKey(incident.job, incident.uid))


def held_lines(node: NodeView | None, rank: RankSample) -> str:
    """ "GPU 0: 67.2G, GPU 1: 1.1G": what it holds, where that is known."""
    held = {gpu.index: held_by(node, gpu, rank) for gpu in gpus_of(node, rank)} if node is not None else {}
    return ", ".join(f"GPU {index}: {bytes_text(size)}" for index, size in held.items() if size is not None)


def wrote_lines(node: NodeView | None, pid: int, width: int) -> list[list[Cell]]:
    """What mattered of the lines that it wrote, while it lived."""
    sample = node.sample if node is not None else None
    own = [line for line in sample.log_lines if line.pid == pid] if sample is not None else []
    lines: list[list[Cell]] = [[Cell("IN ITS LOG", "head")]] if own else []
    for line in own[-LAST_LINES:]:
        cells = [Cell(f"{clock_time(line.at)} ", "dim"), Cell(line.text), Cell(f"  {line.where}", "dim")]
        lines += wrap(cells, width, 4)
    return lines


def log_lines(log: ReadLog | None, width: int, most: int | None = None) -> list[list[Cell]]:
    """The ends of its files, of each the last ``most`` lines; what is not known only where the log alone is shown."""
    if log is None or not log.tails:
        failed = log is not None and (bool(log.error) or not log.waits)
        why = "only of live ranks" if log is None else f"its log cannot be read: {log.error}" if failed else "reading"
        return [[Cell(why, "warn" if failed else "dim")]] if most is None else []
    lines: list[list[Cell]] = []
    for tail in log.tails:
        if not tail.file:
            lines += [[Cell(f"LOG  {tail.why}", "dim")]]
            continue
        shown = tail.lines if most is None else [line for line in tail.lines if line.strip()][-most:]
        if most is None or shown:
            lines += [*([[]] if lines else []), _head_of(tail)]
            lines += [cells for line in shown for cells in wrap([Cell(line)], width, 4)]
    return lines


def _head_of(tail: LogTail) -> list[Cell]:
    written = f"  {bytes_text(tail.size_bytes)}, written {clock_time(tail.written_at)}"
    return [Cell("LOG ", "head"), Cell(tail.file), Cell(written, "dim")]


def environment_lines(rank: RankSample | None, width: int) -> list[list[Cell]]:
    """What of its environment changes how it runs, and the versions of what it has loaded."""
    if rank is None:
        return []
    if not rank.settings and not rank.versions:
        return [[Cell("nothing of its environment is known that changes how a job runs", "dim")]]
    lines: list[list[Cell]] = []
    for title, values in (("ENVIRONMENT", rank.settings), ("VERSIONS", rank.versions)):
        lines += [[]] if lines and values else []
        lines += [[Cell(title, "head")]] if values else []
        for name, value in sorted(values.items()):
            lines += wrap([Cell(f"{name} ", "dim"), Cell(value)], width, 4)
    return [*lines, [], [Cell("only what changes how a training job runs is read, never secrets", "dim")]]


def about_lines(rank: RankSample, width: int, held: str = "") -> list[list[Cell]]:
    """Job, launcher, place in the kernel and command, wrapped. ``held``: GPU memory, by GPU."""
    facts = {
        "job": rank.job or NO_JOB,
        "rank from": rank.identified_by,
        "layout": layout_words(rank.parallel),
        "launcher": rank.launcher,
        "user": rank.user,
        "started": clock_time(rank.started_at),
        "GPU memory": held,
        "kernel function": rank.wchan if rank.wchan not in (None, "", "0") else "",
        "cpus": rank.cpus_allowed,
        "children": str(len(rank.children)) if rank.children else "",
    }
    cells = []
    for label, value in facts.items():
        cells += [Cell(f"{label} ", "dim"), Cell(f"{value}  ")] if value else []
    lines = wrap(cells, width, indent=2) if cells else []
    return [*lines, *wrap([Cell(rank.command, "dim")], width)[:2]] if rank.command else lines
