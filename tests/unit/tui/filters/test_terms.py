"""What single terms of a filter mean: units, globs, unknown values, and what is said of a term that is none."""

import math

import pytest

from mltop.probes.model import Ecc, Finding, Gap, GpuProcess, GpuSample, HostSample, NodeState, RankSample, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import ALIASES, FIELDS, Subject, parse

GIB = 2**30

GPU = GpuSample(
    3,
    name="NVIDIA H100 80GB HBM3",
    busy=0.97,
    sm_active=0.124,
    tensor_active=0.05,
    dram_active=0.3,
    memory_used_bytes=40 * GIB,
    memory_total_bytes=80 * GIB,
    temperature_c=85.2,
    power_w=310.4,
    sm_clock_mhz=1755,
    sm_clock_max_mhz=1980,
    throttle_reasons=["hw_thermal", "hw_slowdown"],
    ecc=Ecc(uncorrected_volatile=2),
    processes=[GpuProcess(8123, memory_bytes=39 * GIB)],
)
RANK = RankSample(
    8123,
    rank=3,
    job="llama-7b",
    user="ada",
    command="python -u train.py --lr=0.1",
    state="S",
    gpus=[3],
    cpu_fraction=1.5,
    rss_bytes=12 * GIB,
)
HOST = HostSample(cpu_fraction=0.31, load_1m=64.2, memory_total_bytes=100, memory_available_bytes=60)
VIEW = NodeView(
    NodeState("gpu017", "live", "", 0.4), Sample("gpu017", 0.0, gpus=[GPU, GpuSample(4)], ranks=[RANK], host=HOST)
)
HOT = Finding("gpu.throttle.hw_thermal", "critical", "gpu017", "GPU 3", "GPU 3: 91 C, clock at 345 MHz")
BARE = NodeView(NodeState("gpu018", "lost", "ssh: connection reset by peer"))


def gpu(text):
    filtered = parse(text)
    assert filtered.problem == "", text
    return filtered.keeps(Subject(VIEW, GPU, findings=[HOT]))


TRUE = [
    *("sm<0.2", "sm < 20%", "sm<=12.4%", "busy>=97%", "tensor=5%", "dram>.1", "activity<0.2", "memory=0.5"),
    *("mem_used>=40G", "mem_used=40GiB", "mem_used<41000M", "mem_used>1e9"),
    *("temp>85", "temp>85C", "temp=85", "temp=85°C", "power>300", "power>300W", "power>0.3kW", "power=310W"),
    *("mhz=1755MHz", "mhz>1.7GHz", "clock<90%", "clock=89%", "ecc>0", "ecc=2"),
    *("throttle=hw_thermal", 'throttle="too hot"', "throttle=hw*", "throttle~therm", "throttle!=sw_power_cap"),
    *("throttle!=none", "lost=no", "gpu=3", "gpu!=4", "gpu<=3", "model~h100", "model=*H100*"),
    *("node=gpu017", "node=GPU0*", "node=gpu[010-020]", "node=gpu[1-3,017]", "node=gpu01?", "node~17", "node!=gpu018"),
    *("state=live", "state!=stale", "state=l*", "age<1", "age<500ms", "age<1m", "gpus=2", "ranks>=1"),
    *("cpu>30%", "load>60", "host_mem=40%", "rank=3", "job=llama*", "user=ada", "pid=8123", "command~--lr=0.1"),
    *(
        "power>300 W",
        "sm < 20 %",
        "(sm<20 %)",
        "temp > 80 C&sm<1",
        "mem_used >= 40 G",
        "mhz=1755 MHz",
        "age<1 m | sm>1",
    ),
    *("rank=0-3", "rank=0,3", "rank=[1-3,7]", "rank!=0-2", "rank!=4,5", "gpu=2-4", "pid=8000-9000,1", "gpus=1-2"),
    *("rank_state=s", "rank_cpu>1", "rank_cpu=150%", "rss=12G", "rank_gpumem=39G", "rank_gpumem<40G"),
    *("severity=critical", "severity>=warning", "severity=crit", "severity!=none", "finding=gpu.throttle.*"),
    *("finding~345", "SM<0.2", "temperature>80", "util>.9", '"--lr=0.1" node~gpu'),
]


@pytest.mark.parametrize("text", TRUE)
def test_terms_that_hold(text):
    if text.startswith('"'):
        assert parse(text).keeps(Subject(VIEW, rank=RANK))
        return
    assert gpu(text), text
    assert not gpu(f"!({text})"), "and not their opposite"


@pytest.mark.parametrize(
    "text",
    [
        *("sm>0.2", "sm=13.9%", "temp=86", "temp!=85", "power=300W", "mem_used<40G", "throttle=none", "throttle=sw_*"),
        *("node=gpu01", "node=gpu[018-020]", "node=17", "state=stale", "rank=33", "user=bob", "severity<critical"),
        *("severity=warning", "finding=gpu", "lost=yes", "gpu=4", "model=h100", "pid=1"),
    ],
)
def test_terms_that_do_not(text):
    assert not gpu(text), text
    assert gpu(f"not {text}")


@pytest.mark.parametrize("field", [name for name, field in FIELDS.items() if field.of in ("gpu", "rank")])
def test_unknown_fulfils_only_the_question_for_it(field):
    empty = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, gpus=[], ranks=[]))
    value = {"lost": "no", "throttle": "none"}.get(field, "x" if FIELDS[field].unit.is_text else "0")
    unread = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, gaps=[Gap("ranks", "2 processes: denied", "")]))
    for term in (f"{field}={value}", f"{field}!={value}", f"!{field}={value}", f"!({field}!={value})", f"{field}!=?"):
        assert parse(term).problem == ""
        assert not parse(term).node(unread), f"{term}: nobody knows"
        assert not parse(term).node(BARE), f"{term}: nobody knows"
    for term in (f"{field}=?", f"{field}=unknown", f"!{field}!=?", f"!({field}!=unknown)"):
        assert parse(term).node(empty), term
    assert parse(f"{field}!=?").gpu(VIEW, GPU), "and known where it is"
    assert not parse(f"{field}=?").gpu(VIEW, GPU)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_unknown(value):
    odd = GpuSample(0, busy=value)
    for term in ("busy<1", "busy>0", "busy!=0", "!busy>0"):
        assert not parse(term).gpu(VIEW, odd)
    assert parse("busy=?").gpu(VIEW, odd)


def test_a_share_of_nothing_is_unknown():
    assert parse("memory=?").gpu(VIEW, GpuSample(0, memory_used_bytes=0, memory_total_bytes=0))


def test_no_reason_is_known_and_idle_is_none():
    for reasons in ([], ["gpu_idle"]):
        assert parse("throttle=none").gpu(VIEW, GpuSample(0, throttle_reasons=reasons))
    assert parse("throttle=gpu_idle").gpu(VIEW, GpuSample(0, throttle_reasons=["gpu_idle"]))
    assert not parse("throttle=none").gpu(VIEW, GpuSample(0, throttle_reasons=None))


def test_a_gpu_without_ranks_has_the_pids_of_its_processes():
    held = GpuSample(0, processes=[GpuProcess(41), GpuProcess(42)])
    view = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, gpus=[held]))
    assert parse("pid=42").gpu(view, held) and parse("pid=42").node(view)
    assert parse("pid!=43").gpu(view, held) and not parse("pid!=42").gpu(view, held)
    assert not parse("pid=?").gpu(view, held), "no process at all would be known, too"


def test_a_node_that_was_never_reached():
    assert parse("state=lost reason~reset").node(BARE)
    for term in ("gpus=?", "cpu=?", "age=?", "sm=?", "rank=?", "severity=none"):
        assert parse(term).node(BARE), term
    for term in ("gpus=0", "cpu<1", "age>0", "sm<1", "lost=no", "gpus!=8"):
        assert not parse(term).node(BARE), term


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tmp>80", "no field 'tmp': temp?"),
        ("Serverity=crit", "no field 'Serverity': severity?"),
        ("zzz=1", "no field 'zzz': ? lists them"),
        ("--lr=0.1", "no field '--lr': "),
        ("sm<20", "sm: 20 is more than everything: it is a share, write 20% or 0.2"),
        ("memory>40G", "memory: 'G' is no unit of it (in % or 0..1)"),
        ("power>300C", "power: 'C' is no unit of it (in W)"),
        ("temp>hot", "temp: 'hot' is no number (in C)"),
        ("rank=3-1", "rank: 3-1 ends before it begins"),
        ("rank=0-", "rank: '0-' is no number: 3, or after = and != also 0-3,7"),
        ("rank>0-3", "rank: '0-3' is no number: 3, or after = and != also 0-3,7"),
        ("rank=a-b", "rank: 'a-b' is no number: 3, or after = and != also 0-3,7"),
        ("power~300", "power: it is a number: = != < <= > >="),
        ("node<3", "node: it is text: = != ~"),
        ("sm<?", "sm: only = and != can ask for what is unknown"),
        ("state=liv", "state: 'liv' is none of live, connecting, stale, lost, refused: live?"),
        ("severity=red", "severity: 'red' is none of none, info, "),
        ("lost=3", "lost: '3' is none of yes, no"),
        ("node=gpu[3-1]", "node: [3-1] is no list of at most 16,384 numbers"),
        ("node=gpu[0-99999]", "node: [0-99999] is no list of at most 16,384 numbers"),
        ("sm<", "sm < what?"),
        ("sm<0.2 &", "a term is missing at the end"),
        ("| sm<0.2", "a term is missing before |"),
        ("(sm<0.2", "( is not closed yet"),
        ("sm<0.2)", ") without a ("),
        ("()", "a term is missing before )"),
        ("<0.2", "< needs a field before it"),
        ('"a b', 'the " is not closed yet'),
        ("train !", "! excludes the term that follows: none does yet"),
        ("(" * 40 + "a" + ")" * 40, "too many brackets"),
        ("a" * 501, "longer than 500 characters"),
    ],
)
def test_what_is_no_filter_says_why_in_one_line_and_keeps_everything(text, problem):
    filtered = parse(text)
    assert filtered.problem.startswith(problem)
    assert "\n" not in filtered.problem
    assert filtered.empty and filtered.text == text
    assert filtered.node(BARE) and filtered.gpu(VIEW, GPU) and filtered.row("anything")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("power>300 W", ()),
        ("power>300W W", ("W",)),
        ("power>300 Wx", ("Wx",)),
        ("power>300 C", ("C",)),
        ("rank=3 m", ("m",)),
        ("power>300 w=1", ()),
        ("age>5 m m", ("m",)),
        ("node=n1 s", ("s",)),
    ],
)
def test_a_unit_after_a_blank_belongs_to_its_number(text, words):
    assert parse(text).words == words


def test_every_field_explains_itself():
    for name, field in FIELDS.items():
        assert field.name == name and field.meaning and len(field.meaning) < 60
        assert parse(f"{name}=?").fields == (field,)
    assert set(ALIASES.values()) <= set(FIELDS) and not set(ALIASES) & set(FIELDS)


@pytest.mark.parametrize("field", ["job", "user", "command", "rank_state"])
def test_a_blank_of_a_rank_is_unknown_and_fulfils_nothing(field):
    blank = RankSample(7, rank=3)
    view = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, ranks=[blank]))
    assert not parse(f"{field}!=x").keeps(Subject(view, rank=blank)) and not parse(f"{field}=*").keeps(
        Subject(view, rank=blank)
    )
    assert parse(f"{field}=?").keeps(Subject(view, rank=blank))


def test_rank_zero_is_known():
    first = RankSample(7, rank=0)
    view = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, ranks=[first]))
    assert parse("rank=0").keeps(Subject(view, rank=first)) and not parse("rank=?").keeps(Subject(view, rank=first))
