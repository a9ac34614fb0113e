"""Secrets never leave the node in a command line."""

from __future__ import annotations

import pytest

from mltop.probes.collect.ranks.redact import MAX_CHARACTERS, shown_command

TOKEN = "Xy7-" + "q" * 20
ODD = "a;b,c)d&e f"


@pytest.mark.parametrize(
    "argv",
    [
        ["--api-key", TOKEN],
        ["--api_key=" + TOKEN],
        ["--wandb.apiKey", TOKEN],
        ["--hf-token", TOKEN, "--steps", "5"],
        ["wandb.token=" + TOKEN],
        ["+secrets.password=" + TOKEN],
        ["--db-password", TOKEN],
        ["-c", f"import os; os.environ['HF_TOKEN'] = '{TOKEN}'; train()"],
        ["-c", f"login(token='{TOKEN}')"],
        ["sh", "-c", f"WANDB_API_KEY={TOKEN} python train.py"],
        ["--header", f"Authorization: Bearer {TOKEN}"],
        ["--store", f"s3://user:{TOKEN}@bucket/path"],
        ["--url", f"https://host/path?a=1&token={TOKEN}&b=2"],
    ],
)
def test_values_of_secret_arguments_are_hidden(argv: list[str]) -> None:
    shown = shown_command(["python", *argv, "--end"])
    assert TOKEN not in shown and "***" in shown
    assert shown.startswith("python ") and shown.endswith(" --end")


@pytest.mark.parametrize(
    "value",
    [
        "hf_" + "a1" * 10,
        "sk-" + "b2" * 10,
        "ghp_" + "c3" * 10,
        "AKIA" + "D4" * 8,
        "eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "0123456789abcdef" * 2 + "01234567",
    ],
)
def test_well_known_token_shapes_are_hidden_anywhere(value: str) -> None:
    assert value not in shown_command(["python", "train.py", value, f"--x={value}", f"f({value})"])


def test_a_quoted_secret_is_hidden_to_its_closing_quote() -> None:
    shown = shown_command(["python", "-c", f"connect(password='{ODD}', host='h'); x = {{\"token\": \"{ODD}\"}}"])
    assert shown == "python -c connect(password=***, host='h'); x = {\"token\": ***}"


def test_ordinary_arguments_stay() -> None:
    argv = [
        "python",
        "train.py",
        "--max-tokens",
        "4096",
        "--tokenizer",
        "gpt2",
        "lr=3e-4",
        "--data",
        "s3://bucket/a",
        "--host",
        "a:80",
    ]
    assert shown_command(argv) == " ".join(argv)


def test_the_result_is_one_short_line_without_terminal_escapes() -> None:
    shown = shown_command(["python", "-c", "a\n\tb\x1b[31mc\x9b2J", "x" * 500])
    assert len(shown) == MAX_CHARACTERS and shown.startswith("python -c a b [31mc 2J xxx")
    assert shown.isprintable()
    assert shown_command([]) == ""


def test_a_secret_is_hidden_before_the_line_is_cut() -> None:
    shown = shown_command(["python", "x" * 170, "--token", TOKEN, "y" * 100])
    assert "***" in shown and TOKEN[:6] not in shown
