"""How terms go together, on which GPU they must hold, and that no text breaks the parser."""

import random

import pytest

from mltop.probes.model import Finding, Gap, GpuSample, NodeState, RankSample, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import FIELDS, Subject, meanwhile, parse


def node(name="n1", state="live", gpus=(), ranks=()):
    return NodeView(NodeState(name, state), Sample(name, 0.0, gpus=list(gpus), ranks=list(ranks)))


IDLE_AND_BUSY = node(gpus=[GpuSample(0, sm_active=0.1, power_w=90.0), GpuSample(1, sm_active=0.9, power_w=650.0)])
SPINNING = node(gpus=[GpuSample(0, sm_active=0.9, power_w=600.0), GpuSample(1, sm_active=0.1, power_w=650.0)])


def test_terms_about_gpus_must_hold_on_the_same_one():
    both = parse("sm<0.2 & power>300")
    assert both.node(SPINNING) and not both.node(IDLE_AND_BUSY)
    assert [both.gpu(SPINNING, gpu) for gpu in SPINNING.sample.gpus] == [False, True]
    assert parse("sm<0.2 | power>300").node(IDLE_AND_BUSY)
    assert parse("sm<0.2 & !(power>300)").node(IDLE_AND_BUSY), "negated terms are about the same GPU, too"


@pytest.mark.parametrize(
    "text",
    [
        *("sm<0.2 & power>300", "!(sm<0.2) sm>=0.2", "sm=?", "rank=1 sm>0.5", "rank=? | sm<0.2", "sm>0.5 !rank=1"),
        *("gpu=0 !user=ada", "gpu=1 | rank=2"),
    ],
)
def test_a_node_is_kept_exactly_when_one_of_its_gpus_is(text):
    views = [
        IDLE_AND_BUSY,
        SPINNING,
        node(gpus=[GpuSample(0)]),
        node(gpus=[GpuSample(0, sm_active=0.9)], ranks=[RankSample(1, rank=1, gpus=[0])]),
        node(gpus=[GpuSample(0, sm_active=0.1), GpuSample(1, sm_active=0.8)], ranks=[RankSample(1, rank=1, gpus=[0])]),
    ]
    for view in views:
        assert parse(text).node(view) == any(parse(text).gpu(view, gpu) for gpu in view.sample.gpus), view


ADA_AND_BOB = node(
    "two",
    gpus=[GpuSample(0, sm_active=0.1, power_w=400.0), GpuSample(1, sm_active=0.9, power_w=90.0)],
    ranks=[RankSample(1, rank=0, user="ada", gpus=[0]), RankSample(2, rank=1, user="bob", gpus=[0])],
)
EVE = node(
    "eve",
    gpus=[GpuSample(0, sm_active=0.9, power_w=90.0), GpuSample(1, sm_active=0.9, power_w=90.0)],
    ranks=[RankSample(3, rank=3, user="eve", gpus=[1])],
)
FREE = node("free", gpus=[GpuSample(0, sm_active=0.0, power_w=90.0)])
BARE = node("bare")
UNREACHED = NodeView(NodeState("gone", "lost", "no route"))
UNREAD = NodeView(
    NodeState("shut", "live"), Sample("shut", 0.0, gpus=[GpuSample(0)], gaps=[Gap("ranks", "1 process: denied", "")])
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("!(rank=3)", "two free bare"),
        ("!rank=3", "two free bare"),
        ("rank!=3", "two free bare"),
        ("!rank!=3", "eve"),
        ("!user=ada", "eve free bare"),
        ("user!=ada & rank!=3", "free bare"),
        ("!(user=ada | rank=3)", "free bare"),
        ("!user=ada | !rank=3", "two eve free bare"),
        ("state=live & !user=ada", "eve free bare"),
        ("node=t* (sm>0.5 | !user=ada)", "two"),
        ("!sm<0.2", "eve"),
        ("!(sm<0.2 & power>300)", "eve free"),
        ("!(sm<0.2 & user=ada)", "eve free bare"),
        ("!(sm<0.2 & !user=ada)", "two eve"),
        ("!(!user=ada & !user=bob)", "two"),
        ("!(state=live & !user=ada)", "two gone"),
        ("sm<0.2 & !power>300", "free"),
        ("sm<0.2 & !user=ada", "free"),
        ("sm<0.2 & !user=eve", "two free"),
        ("sm>0.5 & !user=eve", "two eve"),
        ("user=bob & !user=ada", "two"),
        ("!rank<2", "eve free bare"),
        ("rank_cpu!=0", ""),
        ("!rank_cpu=0", "free bare"),
        ("rank=1-3", "two eve"),
        ("!rank=0-2", "eve free bare"),
    ],
)
def test_what_is_negated_holds_when_no_part_fulfils_it(text, kept):
    views = [ADA_AND_BOB, EVE, FREE, BARE, UNREACHED, UNREAD]
    assert [view.node for view in views if parse(text).node(view)] == kept.split(), parse(text).problem


def test_a_gpu_without_ranks_is_known_to_have_none():
    assert [parse("!(rank=3)").gpu(EVE, gpu) for gpu in EVE.sample.gpus] == [True, False]
    assert [parse("!user=ada").gpu(ADA_AND_BOB, gpu) for gpu in ADA_AND_BOB.sample.gpus] == [False, True]
    assert not parse("!rank=3").gpu(UNREAD, UNREAD.sample.gpus[0]), "a process that could not be read may be rank 3"
    unheld = NodeView(UNREAD.state, Sample("shut", 0.0, gpus=[GpuSample(0, processes=[])], gaps=UNREAD.sample.gaps))
    assert parse("!rank=3").gpu(unheld, unheld.sample.gpus[0])
    assert parse("rank=3").nowhere_known([Subject(FREE)]) == ()
    assert parse("rank=3").nowhere_known([Subject(UNREAD), Subject(UNREACHED)]) == ("rank",)


def test_a_rank_has_the_fields_of_its_gpus_and_a_gpu_those_of_its_ranks():
    ranks = [RankSample(10, rank=0, gpus=[0]), RankSample(11, rank=1, gpus=[1]), RankSample(12, rank=2)]
    view = node(gpus=IDLE_AND_BUSY.sample.gpus, ranks=ranks)
    assert [parse("sm<0.2").keeps(Subject(view, rank=rank)) for rank in ranks] == [True, False, False]
    assert [parse("sm=?").keeps(Subject(view, rank=rank)) for rank in ranks] == [False, False, True]
    assert [parse("rank=1").gpu(view, gpu) for gpu in view.sample.gpus] == [False, True]
    assert parse("rank=0 sm<0.2").node(view) and not parse("rank=1 sm<0.2").node(view)
    assert parse("rank=2").node(view), "a rank without a GPU counts"
    assert [parse("!(rank=3)").keeps(Subject(view, rank=rank)) for rank in ranks] == [True, True, True]
    assert [parse("!(rank=1)").keeps(Subject(view, rank=rank)) for rank in ranks] == [True, False, True]


def test_gpus_that_are_not_numbered_in_order():
    view = node(gpus=[GpuSample(5, sm_active=0.1), GpuSample(2, sm_active=0.9)], ranks=[RankSample(1, gpus=[5])])
    assert parse("sm<0.2").keeps(Subject(view, rank=view.sample.ranks[0]))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("sm<0.2 power>300", "sm<0.2 & power>300"),
        ("sm<0.2 and power>300", "sm<0.2 && power>300"),
        ("sm<0.2 or power>300 sm>2%", "sm<0.2 | (power>300 & sm>2%)"),
        ("not (sm<0.2 or power>300)", "!sm<0.2 & !power>300"),
        ("!(sm<0.2 & power>300)", "sm>=0.2 || power<=300"),
        ("!!sm<0.2", "sm==0.1"),
        ("NOT sm<0.2", "sm>=.2"),
    ],
)
def test_two_ways_to_write_one_thing(text, same):
    gpus = [GpuSample(0, sm_active=sm, power_w=w) for sm in (0.01, 0.1, 0.5) for w in (100.0, 400.0)]
    if "==" in same:
        gpus = [GpuSample(0, sm_active=sm) for sm in (0.1, 0.5)]
    one, other = parse(text), parse(same)
    assert one.problem == other.problem == ""
    kept = [one.gpu(SPINNING, gpu) for gpu in gpus]
    assert kept == [other.gpu(SPINNING, gpu) for gpu in gpus]
    assert True in kept and False in kept


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        *(("", True), ("   ", True), ("train", True), ("TRAIN n1", True), ("train n2", False), ("!n2", True)),
        *(("train !n1", False), ("n2 | train", True), ('"n1 python"', True), ("[0-9]", False), ("train.py", True)),
        *(("not n2 and n1", True), ("wow! n1", False), ("android", False)),
    ],
)
def test_words_look_for_text(query, expected):
    assert parse(query).problem == ""
    assert parse(query).row("3 n1 python Train.py") is expected


def test_lines_of_text_have_no_fields():
    assert parse("sm<0.2 nowhere").row("3 n1 python"), "not asked: the pane says so"
    assert parse("sm<0.2 nowhere").fields == (FIELDS["sm"],)


def test_words_look_at_the_row_or_at_what_stands_for_it():
    finding = Finding("gpu.ecc", "warning", "n1", "GPU 1", "GPU 1 corrects errors")
    assert parse("n1 sm<0.2").node(SPINNING)
    assert parse("corrects").node(SPINNING, [finding]) and not parse("corrects").node(SPINNING)
    assert not parse("corrects").node(SPINNING, [Finding("x", "warning", "n2", "GPU 1", "corrects")])
    assert parse("98% sm<0.2").keeps(Subject(SPINNING, text="n1 live 98%"))
    assert not parse("97% sm<0.2").keeps(Subject(SPINNING, text="n1 live 98%"))


def test_findings_belong_to_their_node_and_gpu():
    gpu_one = Finding("gpu.ecc", "warning", "n1", "GPU 1", "errors")
    every = Finding("gpu.brake", "critical", "n1", "all 2 GPUs", "brake")
    host = Finding("host.nvml", "critical", "n1", "NVML", "hangs")
    critical, ecc = parse("severity=critical"), parse("finding=gpu.ecc")
    gpus = SPINNING.sample.gpus
    assert critical.node(SPINNING, [gpu_one, host]) and not critical.node(SPINNING, [gpu_one])
    assert [ecc.keeps(Subject(SPINNING, gpu, findings=[gpu_one, host])) for gpu in gpus] == [False, True]
    assert [critical.keeps(Subject(SPINNING, gpu, findings=[every])) for gpu in gpus] == [True, True]
    assert [critical.keeps(Subject(SPINNING, gpu, findings=[host])) for gpu in gpus] == [False, False]
    assert parse("sm<0.2").keeps(Subject(SPINNING, gpus[1], findings=[gpu_one]))
    assert not parse("sm>0.2").keeps(Subject(SPINNING, gpus[1], findings=[gpu_one])), "it is about GPU 1"
    assert parse("sm>0.2").keeps(Subject(SPINNING, findings=[host])), "about the node: any GPU"
    assert parse("severity=none").node(SPINNING)


def test_why_nothing_is_left():
    bare = node(gpus=[GpuSample(0, sm_active=0.5)])
    subjects = [Subject(bare, gpu) for gpu in bare.sample.gpus]
    assert parse("temp>85 & sm<1").nowhere_known(subjects) == ("temp",)
    assert parse("sm>0.9").nowhere_known(subjects) == ()
    assert parse("word").nowhere_known(subjects) == ()


PIECES = [
    *("(", ")", "!", "&", "|", "&&", "=", "==", "!=", "<", "<=", ">", ">=", "~", '"', "'", " ", "  ", "\t", "\n"),
    *("and", "or", "not", "?", "*", "[", "]", "[1-3]", "[3-1]", "[0-", "-", ",", "%", "0.2", "1e309", "300W", "nan"),
    *("-1", "inf", "unknown", "–", "\x00", "\x1b[2J", "日本", "ß", "İ", "\\", "(?P<g>", "{", "**", "*a*a*a", "wow!"),
    *FIELDS,
]


def test_no_text_breaks_the_parser_or_the_filter():
    dice = random.Random(11)
    view = node(gpus=[GpuSample(0, sm_active=0.1), GpuSample(1)], ranks=[RankSample(1, rank=0, gpus=[0])])
    finding = Finding("gpu.ecc", "odd", "n1", "GPU 0", "x")
    good = 0
    for _ in range(6000):
        text = "".join(dice.choices(PIECES, k=dice.randint(1, 14)))
        filtered = parse(text)
        assert isinstance(filtered.problem, str) and filtered.text == text
        good += not filtered.problem
        for answer in (
            filtered.node(view, [finding]),
            filtered.gpu(view, view.sample.gpus[1]),
            filtered.keeps(Subject(view, rank=view.sample.ranks[0])),
            filtered.row(text),
        ):
            assert answer is True or answer is False
    assert good > 300, "some of them are filters"


def test_random_characters():
    dice = random.Random(12)
    for _ in range(3000):
        text = "".join(chr(dice.choice((dice.randrange(32, 127), dice.randrange(0x2FFF)))) for _ in range(20))
        parse(text).node(SPINNING)


@pytest.mark.parametrize(
    ("last", "draft", "holds"),
    [
        ("sm", "sm<", ""),
        ("temp>85 & zm", "temp>85 & zm<", "temp>85"),
        ("temp>85", "temp>85 & sm<", "temp>85"),
        ("temp>85", "temp>85 (sm<", "temp>85"),
        ("temp>85", "temp>85&(", "temp>85"),
        ("temp>8", "temp>8x", "temp>8"),
        ("temp>85 busy<5%", "tem>85 busy<5%", "temp>85 busy<5%"),
        ("", "<", ""),
        ("loss", "loss train", "loss train"),
        ("loss", "", ""),
    ],
)
def test_while_typing_the_last_filter_that_made_sense_holds(last, draft, holds):
    assert meanwhile(parse(last), parse(draft)).text == holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("sm<0", ["", "", "", "sm<0"]),
        ("temp >", [""] * 6),
        ("sm<1 & po", ["", "", "", *["sm<1"] * 6]),
        ("x !us", ["x"] * 5),
        ("node1", ["", "", "", "", "node1"]),
        ("nx", ["", "nx"]),
        ("n x", ["", "n ", "n x"]),
        ("age>5 m", ["", "", "", "", "age>5", "age>5 ", "age>5 m"]),
        ('"s"', ["", "", '"s"']),
        ("user=s", ["", "", "", "", "", "user=s"]),
    ],
)
def test_a_word_that_may_become_a_field_waits(text, holds):
    last, held = parse(""), []
    for end in range(1, len(text) + 1):
        last = meanwhile(last, parse(text[:end]), fields=True)
        held.append(last.text)
    assert [text.rstrip() for text in held] == [text.rstrip() for text in holds]


def test_a_kept_word_stays_when_its_line_is_opened_again():
    lost = parse("lost")
    assert meanwhile(lost, parse("lost"), fields=True) is lost
    assert meanwhile(parse(""), parse("lost")).text == "lost", "where nothing has fields, words do not wait"


def test_meanwhile_always_has_an_answer():
    dice = random.Random(13)
    for _ in range(2000):
        text = "".join(dice.choices(PIECES, k=dice.randint(1, 8)))
        last = parse("")
        for end in range(len(text) + 1):
            last = meanwhile(last, parse(text[:end]), fields=bool(end % 2))
            assert not last.problem


def test_long_texts_are_answered_at_once():
    longest = parse("x " * 250)
    assert longest.problem == "" and not longest.row("y")
    stars = parse("command=" + "*a" * 200 + "*b")
    assert stars.problem == ""
    assert not stars.keeps(Subject(SPINNING, rank=RankSample(1, command="a" * 20_000)))
