"""Secrets never leave the node in a command line."""

from __future__ import annotations

import re

import pytest

from mltop.probes.collect.ranks.command_line import MAX_CHARACTERS, shown_command

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
        ["-p", TOKEN],
        ["-p" + TOKEN],
        ["-p=" + TOKEN],
        ["--repository", f"https://{TOKEN}@github.com/x"],
        ["--repository", f"https://{TOKEN}@github.com:443/x"],
        ["--proxy", f"https://user:p/{TOKEN}@h/"],
        ["--proxy", f"https://user:p@{TOKEN}@h/"],
        ["--tokens", TOKEN],
        ["--secrets=" + TOKEN],
        ["--password-value", TOKEN],
        ["--azure-account-key-value", TOKEN],
        ["--secretAccessKeyId", TOKEN],
        ["--HFToken", TOKEN],
        ["--hftoken", TOKEN],
        ["--password2", TOKEN],
        ["--credentials", TOKEN],
        ["--api-key", "--" + TOKEN],
        ["--token", "--", TOKEN],
        ["--api-key", "--password", TOKEN],
        ["--use-auth-token", "--password", TOKEN],
        ["sh", "-c", f"python train.py --token {TOKEN} --steps 5"],
        ["sh", "-c", f"mysql -u me -p{TOKEN} db"],
        ["sh", "-c", f"python train.py --password '{TOKEN} two words'"],
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


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokenizer", "gpt2", "--tokenizer-path=/models/gpt2"],
        ["--num-tokens", "5", "--max-tokens", "4096", "--max-tokens=4096", "--tokens-per-batch", "4k"],
        ["-c", "generate(max_tokens=4096)"],
        ["--pad-token-id", "50256", "--use-auth-token", "--steps", "5", "--use-auth-token", "true"],
        ["--monkey", "x", "--key-frames", "3", "--pass-through", "yes"],
        ["-p", "8080", "-p8080", "-p", "8080:80", "-p", "--profile"],
        ["lr=3e-4", "--data", "s3://bucket/a", "--host", "a:80", "--package", "git+https://host/x/y@main"],
        ["sh", "-c", "python train.py --max-tokens 4096  && echo 'done'"],
    ],
)
def test_ordinary_arguments_stay(argv: list[str]) -> None:
    assert shown_command(["python", *argv]) == re.sub(" +", " ", " ".join(["python", *argv]))


def test_the_result_is_one_short_line_without_terminal_escapes() -> None:
    shown = shown_command(["python", "-c", "a\n\tb\x1b[31mc\x9b2J", "x" * 500])
    assert len(shown) == MAX_CHARACTERS and shown.startswith("python -c a b [31mc 2J xxx")
    assert shown.isprintable()
    assert shown_command([]) == ""


def test_a_secret_is_hidden_before_the_line_is_cut() -> None:
    shown = shown_command(["python", "x" * 170, "--token", TOKEN, "y" * 100])
    assert "***" in shown and TOKEN[:6] not in shown
