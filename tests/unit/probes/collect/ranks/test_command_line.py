"""Secrets never leave the node in a command line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from mltop.probes.collect.ranks.procfs import read_argv
from mltop.probes.collect.redaction.process import MAX_COMMAND_CHARACTERS, shown_command
from mltop.probes.collect.redaction.values import shown_text

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
    assert len(shown) == MAX_COMMAND_CHARACTERS and shown.startswith("python -c a b [31mc 2J xxx")
    assert shown.isprintable()
    assert shown_command([]) == ""


def test_a_secret_is_hidden_before_the_line_is_cut() -> None:
    shown = shown_command(["python", "x" * 170, "--token", TOKEN, "y" * 100])
    assert "***" in shown and TOKEN[:6] not in shown


S = "hunter2"
BLOB = "aGVsbG8gd29ybGQgdGhpcyBpcyBhIHNlY3JldCBrZXk="
KEY = "Zk9pQ2vR7tLmX4wB"


def code(text: str) -> list[str]:
    return ["bash", "-c", text]


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        # By name, in every way to write one.
        (["x", f"--api-key={S}"], S),
        (["x", "--api-key", S], S),
        (["x", f"--x={S}z9", f"--x-api-key:{S}"], f"key:{S}"),
        (["mysql", "-p", S], S),
        (["mysql", f"-p{S}"], S),
        (["openssl", "-passin", f"pass:{S}"], S),
        (["env", f"HF_TOKEN={S}", f"MY_KEY={S}", "python", "t.py"], S),
        (["srun", f"--export=ALL,HF_TOKEN={S}", "python"], S),
        (["mpirun", "-x", f"WANDB_API_KEY={S}", "python"], S),
        (["docker", "run", "-e", f"DB_PASS={S}", "image"], S),
        (["java", f"-Dapi.key={S}"], S),
        (["x", f"--args=--token={S}"], S),
        (["x", "--args", f"--token={S} --lr=3"], S),
        (["python", "t.py", f"+trainer.logger.api_key={S}", f"++a/b.password={S}"], S),
        (["python", "t.py", "--model.auth", S], S),
        (["aws", "configure", "set", "aws_secret_access_key", S], S),
        (["x", "--pin", "1234", "--otp=1234"], "1234"),
        (["x", "--auth-header", S, "--key_b64", S, "--api-key-2", S], S),
        (["x", f"--connection-string=Server=a;Password={S}", "--conn", f"Server=a;Pwd={S};User=b"], S),
        (["x", "--conn", f"DefaultEndpointsProtocol=https;AccountKey={S}==;Suffix=x"], S),
        (["curl", "-u", f"admin:{S}", "-H", f"X-Api-Key:{S}", "-H", f"X-Auth-Token: {S}"], S),
        (["curl", "-u", "admin:1234"], "1234"),
        (["x", "--secret-key", "--", S], S),
        # By shape, under any name and without one.
        (["x", KEY], KEY),
        (["x", f"--{KEY}"], KEY),
        (["x", f"-k{KEY}"], KEY),
        (["x", f"a={KEY}", f"{KEY}=1", "--a", KEY, f"--a={KEY}"], KEY),
        (["x", BLOB, f"--blob={BLOB}"], BLOB[:12]),
        (["x", "--foo", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"], "K7MDENG"),
        (["x", "--foo", "correct horse battery", "--phrase=correct horse"], "horse"),
        (["x", "--foo", "P@ssw0rd!", "P@ssw0rd!"], "ssw0rd"),
        (["x", "550e8400-e29b-41d4-a716-446655440000"], "550e8400"),
        (["x", f"me:{S}@host"], S),
        (["x", "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nABCDEF\n-----END PRIVATE KEY-----"], "MIIEvQ"),
        (["python", f"/data/{KEY}{KEY}/train.py", "/data/hf_abcdefgh12/a.py"], KEY),
        # URLs.
        (["x", f"https://me:{S}@host:8443/a/deep/x?sig=abc&token=def#frag"], S),
        (["x", "https://host:8443/a/deep/x?sig=abc"], "deep"),
        (["x", "https://acc.blob.core.windows.net/c/f?sv=2020&sig=abc%3D"], "abc"),
        (["x", "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXX"], "XXXX"),
        (["x", "https://api.telegram.org/bot12345678:AAabcdefghijklmnopqrstuvwxyz0123456/send"], "AAabc"),
        (["x", "https://x.y/z;jsessionid=abcd"], "abcd"),
        (["x", f"postgres://u:{S}@db:5432/x", f"postgresql+psycopg2://u:{S}@db/x?password={S}"], S),
        (["x", f"redis://:{S}@h:6379/0", f"jdbc:postgresql://h/d?password={S}", f"amqp://u:{S}@h//"], S),
        (["x", f"s3://KEY:{S}/x@bucket/y"], S),
        (["x", f"https://host:443/a?mail=x@y.z&k={S}"], S),
        (["x", f"--mirrors=https://a:{S}@h/x,https://b:{S}@h/y"], S),
        (["curl", "-H", "Authorization:", "Bearer", S], S),
        (["curl", "Bearer", S, "-H", "X-Api-Key:", S], S),
        (["tool", "-c", "correct horse battery"], "horse"),
        (["tool", "--password", "basic", "x"], "basic"),
        # JSON and YAML.
        (["curl", "-d", f'{{"password": "{S}", "user": "bob"}}'], S),
        (["x", f'{{"private_key_id":"{S}","private_key":"-----BEGIN PRIVATE KEY-----\\nMIIE\\n"}}'], S),
        (["x", "--config", f'{{"headers": {{"Authorization": "Basic {S}"}}, "tokens": ["{S}"]}}'], S),
        (["x", "--config", f"token: {S}\nlr: 0.1", f"{{token: {S}, lr: 0.1}}"], S),
        # Shell and Python code.
        (code(f"export WANDB_API_KEY={S}; python train.py --password {S} --x 3"), S),
        (code(f"curl -u me:{S} https://a.b/c/d?x={S} | sh"), S),
        (code(f"mysql -p{S} -u me; sshpass -p '{S}' ssh h; PGPASSWORD={S} psql"), S),
        (code(f"FOO='a b c' SECRET=\"{S} x\" TOKEN=$(echo {S}) KEY=a'{S}' python y"), S),
        (code(f"python -c \"login('zz', token='{S}')\""), S),
        (code(f"git -c http.extraHeader='AUTHORIZATION: basic {S}' clone x"), S),
        (code(f"kubectl create secret generic x --from-literal=password={S}"), S),
        (["python", "-c", f"import os; os.environ[\"HF_TOKEN\"]=\"{S}\"; os.environ['KEY'] += '{S}'"], S),
        (["python", "-c", f"os.putenv('TOKEN', '{S}'); f(a, headers={{'Authorization': 'token {S}'}})"], S),
        (["python", "-c", f"api_key: str = '{S}'; key=b'{S}'; token='%s' % '{S}'; pw = get('{S}')"], S),
        (["python", "-c", f"if password != '{S}' or token=='{S}': f(auth=('u', '{S}'))"], S),
        (["python", "-c", "x('correct horse battery staple')"], "horse"),
        # A title, which programs write over all of their arguments.
        ([f"python t.py --password {S} --x 1"], S),
        ([f"worker: token={S}"], S),
        ([f"curl -H Authorization: Bearer {S} -H Authorization: token {S}"], S),
        ([f"trainer: set password {S}"], S),
        # Several values, an operator of its own, a value glued to an option, or one behind a slash.
        (["x", "--api-keys", "a", "b", S, "--lr", "3"], S),
        (["x", "HF_TOKEN", "=", S], S),
        (["x", "HF_TOKEN=", S], S),
        (["x", "password", S], S),
        (["x", "/password:" + S], S),
        (["x", "-k123456"], "123456"),
        (["x", "-thunter2", "-hphunter2"], S),
        (["zip", "-P", S], S),
        (["smbclient", "-U", f"dom/me%{S}"], S),
        (["curl", "-ume:123456"], "123456"),
        (["mysql", "-p", "123456"], "123456"),
        (["mysql", "-p123456"], "123456"),
        # JSON's numbers and bare words; lists of keys with values; what is given to a call.
        (["x", '{"pin":1234, "lr":0.1}'], "1234"),
        (["x", f'{{"password":{S}}}'], S),
        (["x", f'{{"key":"password","value":"{S}"}}'], S),
        (["python", "-c", f"login('me', '{S}'); x.set_password(user, '{S}')"], S),
    ],
)
def test_what_may_be_a_secret_is_hidden(argv: list[str], hidden: str) -> None:
    shown = shown_command(argv)
    assert hidden not in shown and "***" in shown


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --nproc_per_node 8 --rdzv-endpoint host:29500 --config conf/llama.yaml model.layers=32",
        "/venv/bin/python3.11 -u /home/ada/project/train.py --lr 3e-4 --bf16 --fp16=true --data /data/c4/en --resume",
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node-17.cluster:29500 --max-restarts=0 -m package.run",
        "deepspeed --num_gpus 8 --master_port 29501 finetune.py --deepspeed ds.json --model meta-llama/Llama-3.1-8B",
        "accelerate launch --config_file fsdp.yaml scripts/run_clm.py --dataset_name wikitext --block_size 1024",
        "python -m torch.distributed.run --standalone --nproc_per_node=gpu t.py +experiment=gpt/small ~callbacks.x",
        "python -u train.py --betas 0.9,0.95 --layers [1,2,3] --time 1:30:00 --port 8080 -n 4 -N8 -j16 -O3 -p 8080",
        "python train.py --out s3://bucket/runs/a/b/c --hdfs hdfs://nn:8020/data/x --init tcp://10.0.0.1:29500 env://",
        "srun --export=ALL,NCCL_DEBUG=INFO --gpus-per-node=h100:8 --nodelist=node[01-16] --time=1-00:00:00 bash run.sh",
        "python train.py optimizer.betas=[0.9,0.95] model={layers:2,dim:4} trainer.max_steps=-1 data.path=/a.parquet",
        "python train.py --tokenizer gpt2 --max-tokens 4096 --pad-token-id 50256 --key-frames 3 --use-token true",
        "python train.py --rdzv-conf timeout=900,read_timeout=60 --id run-2024-05-01 --tags a,b --cpu-bind=cores",
        "python train.py --job-id 550e8400-e29b-41d4-a716-446655440000 --lr_scheduler_type cosine_with_restarts",
        "python train.py --layer LlamaDecoderLayer --optimizer AdamW --attn flash_attention_2 --dtype bfloat16 --wandb",
        "python train.py --image nvcr.io/nvidia/pytorch:24.05-py3 --entry pkg.run:f --device cuda:0 --url https://h:1/a",
        "mpirun -np 16 -H node1:8,node2:8 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -bind-to none all_reduce_perf -b 8",
        "ray::RolloutWorker.generate",
    ],
)
def test_what_is_worth_knowing_stays(line: str) -> None:
    shown = shown_command(line.split(" "))
    assert shown == line[:MAX_COMMAND_CHARACTERS]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (code("cd /work && python x.py --lr 3e-4"), "bash -c cd /work && python x.py --lr 3e-4"),
        (
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"],
            "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
        ),
        (["x", "--betas", "(0.9, 0.95)", "--lrs", "1e-4 3e-4"], "x --betas (0.9, 0.95) --lrs 1e-4 3e-4"),
        (["x", "--shards", "shards-{000000..000999}.tar"], "x --shards shards-{000000..000999}.tar"),
        (["x", f"/data/{KEY}{KEY}/train.py"], "x /data/***/train.py"),
        (["x", "--out=runs/550e8400-e29b-41d4-a716-446655440000/last.ckpt"], "x --out=runs/***/last.ckpt"),
        (["x", "https://me:pw@host:8443/a/b?c=d"], "x https://***@host:8443/a/***?***"),
        (["x", "https://host:443/a?mail=x@y.z"], "x https://***"),
        (["curl", "-d", '{"password": "a", "lr": 0.1}'], 'curl -d {"password": ***, "lr": 0.1}'),
    ],
)  # fmt: skip
def test_what_is_left_of_a_line(argv: list[str], shown: str) -> None:
    assert shown_command(argv) == shown


WORD = "zebra"


@pytest.mark.parametrize(
    "argv",
    [
        ["--kubeconfig-data=LS0tzebraCg==", "--pat", WORD, "--access-code", WORD, f"--access-code={WORD}"],
        ["--front-door", WORD, f"--front-door={WORD}", f"-k{WORD}word", "-k", WORD, "--fruit", WORD, "--lr", "3e-4"],
        [f"fruit={WORD}", f"+fruit={WORD}", f"a/b.fruit={WORD}", "--set", f"fruit={WORD}", "-D", f"fruit={WORD}"],
        ["--config", f'{{"fruit": "{WORD}", "lr": 0.1, "in": {{"fruit": "{WORD}"}}}}'],
        code(f"FRUIT={WORD} python x.py --fruit {WORD} --fruit={WORD}"),
        ["-c", f"f(fruit='{WORD}', lr=3); g({{'fruit': '{WORD}'}}); h.fruit = 1"],
        [
            "-H",
            f"X-Fruit: {WORD}",
            f"--header=X-Fruit: {WORD}",
            "--env-name",
            f"FRUIT={WORD}",
            "--args",
            f"--fruit={WORD}",
        ],
    ],
)
def test_values_of_names_that_nobody_knows_are_hidden(argv: list[str]) -> None:
    shown = shown_command(["python", *argv, "--end"])
    assert WORD not in shown and "***" in shown and shown.endswith("--end")
    for text in (f"unrecognized arguments: --pat {WORD} --fruit={WORD}", f"error: access_code={WORD}"):
        assert WORD not in shown_text(text)


@pytest.mark.parametrize(
    "text",
    [
        f"token=b'{S}'",
        f"token=Secret('{S}')",
        f"tokens=['a', '{S}']",
        f"token=$(cat {S})",
        f"password='a\\'{S}'",
        f"Cookie: a=b; c={S}",
        f"OperationalError: me:{S}@db.host",
    ],
)
def test_of_free_text_the_whole_value_of_a_secret_name_is_hidden(text: str) -> None:
    shown = shown_text(text)
    assert S not in shown and "***" in shown


@pytest.mark.parametrize("pin", ["4711", "123456", "31337"])
def test_a_number_may_be_a_code(pin: str) -> None:
    assert pin not in shown_command(["x", "--front-door", pin, f"--front-door={pin}", f"door={pin}"])


def test_an_unknown_switch_hides_no_script_and_no_option() -> None:
    argv = ["python", "--frobnicate", "train.py", "--frobnicate", "--lr", "0.1", "--frobnicate", "0.25", "--on", "true"]
    assert shown_command(argv) == " ".join(argv)


def test_what_was_cut_off_is_no_word(tmp_path: Path) -> None:
    """The head of a token that stands at the end of the first 8 KiB."""
    (tmp_path / "7").mkdir()
    line = b"python\0" + b"x" * (8192 - 7 - 4) + b"\0" + b"hunter2hunter2\0"
    (tmp_path / "7" / "cmdline").write_bytes(line)
    (tmp_path / "7" / "status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n")
    argv = read_argv(str(tmp_path), 7)
    assert argv[-1] == "hun…" and shown_command(argv[:1] + argv[-1:]) == "python ***"
    (tmp_path / "7" / "cmdline").write_bytes(line[: 8192 - 4])
    assert read_argv(str(tmp_path), 7)[-1] == "x" * (8192 - 11)


def test_long_and_strange_lines_do_not_take_long() -> None:
    """Nothing costs the square of what a command line may be."""
    for piece in (
        "-",
        "a",
        "1",
        "eyJ-",
        "a:",
        "a@",
        "://",
        "'",
        '"',
        "(",
        "{'token':",
        "-----BEGIN ",
        "a=",
        "\\",
        "key ",
    ):
        short, long = (
            _seconds([piece * (size // len(piece)), "-c", piece * (size // len(piece))]) for size in (4096, 65536)
        )
        assert long < 400 * max(short, 0.0005), piece


def _seconds(argv: list[str]) -> float:
    began = time.process_time()
    shown_command(argv)
    return time.process_time() - began
