"""What a value looks like: tokens are hidden anywhere, and of values of unknown meaning only plain ones are shown."""

from __future__ import annotations

import random
import string

import pytest

from mltop.probes.collect.redaction.shapes import HIDDEN, is_plain, masked
from mltop.probes.collect.redaction.values import without_tokens


def words(text: str) -> list[str]:
    return text.split()


PLAIN = words("""
8 -1 3e-4 1e-08 0.95 1_000 4096 10GB 4k 50% 0-7 0,1,2,3 1:30:00 1-12:00:00 2024-05-01T12:00:00 20240501_123456 True
bf16 fp8 e4m3 tf32 gpt2 7b 8x22B h100x8 x86_64 p4d.24xlarge mlx5_0 mlx5_0:1 ^lo,docker0 eth0 enp12s0f1np1 bond0 3f2a9c1
host:29500 node-17.cluster.local:29500 10.0.0.1:29500 [::1]:29500 fe80::1 user@host host:/path 0c:42:a1:b2:c3:d4
train.py ./run.sh ../x ~/x conf/llama.yaml /data/c4/en/ data/*.parquet /a/b:/c/d:ro %A_%a.out checkpoint-1000
/scratch/实验/train.py /workspace/outputs/run-bs512-lr3e4-seed42 shards-{000000..000999}.tar
node[01-16,20] /data/\ufffd.py
meta-llama/Llama-3.1-70B-Instruct Qwen2.5-VL-72B-Instruct-AWQ-4bit mistralai/Mixtral-8x7B-v0.1 google/gemma-2-27b-it
nvcr.io/nvidia/pytorch:24.05-py3 cuda:0 cpu:gloo,cuda:nccl gpu:h100:8 package.module mypkg.train:main
torch.distributed.run
AdamW adamw_torch_fused LoRA GPTNeoX FSDP LlamaDecoderLayer FullyShardedDataParallel
GPT2LMHeadModel cosine_with_restarts
hf_transfer sk-learn bfloat16 q_proj ray::RolloutWorker.generate flash_attention_2 deepspeed_zero3_offload.json xformers
""")
NOT_PLAIN = words("""
wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY S3cr3t! P@ssw0rd! Tr0ub4dor&3 correct;horse a=b "quoted" admin:hunter2
admin:1234@host 550e8400-e29b-41d4-a716-446655440000 A1B2-C3D4-E5F6-G7H8 a8f3k2m9x1q7 Xk9pQ2vR7tLm qzkvtwplxmrbdfgh
0123456789abcdef0123456789abcdef aGVsbG8gd29ybGQgdGhpcyBpcyBhIHNlY3JldA== 12345678901234567890 /data/Xk9pQ2vR7tLm/a
hf_aaaaaaaaaaaaaaaaaaa ghp_c3c3c3c3c3 sk-abcdefgh1 AKIADDDDDDDDDDDDDDDD eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0
""")


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values(value: str) -> None:
    assert is_plain(value)
    assert masked(value) == value


@pytest.mark.parametrize("value", NOT_PLAIN)
def test_values_that_are_not(value: str) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize(
    ("alphabet", "length", "most"),
    [
        (string.ascii_letters + string.digits, 16, 0.04),
        (string.ascii_letters + string.digits, 24, 0.005),
        (string.ascii_letters + string.digits + "+/", 40, 0.005),
        (string.ascii_letters + string.digits + "-_", 32, 0.015),
        (string.ascii_letters, 20, 0.01),
        (string.ascii_lowercase + string.digits, 20, 0.005),
        (string.ascii_lowercase, 24, 0.01),
        ("0123456789abcdef", 16, 0.005),
        (string.ascii_uppercase + "234567", 16, 0.05),
    ],
)
def test_random_keys_are_not_plain(alphabet: str, length: int, most: float) -> None:
    """A key of 24 letters and digits that is taken for words is one in a thousand."""
    draw = random.Random(length)
    shown = sum(is_plain("".join(draw.choices(alphabet, k=length))) for _ in range(2000))
    assert shown <= most * 2000


TOKENS = [
    "sk-" + "b2" * 10,
    "sk-ant-api03-aB3_dE5",
    "sk_live_abcdef12",
    "hf_" + "abcdefghijklmnopqr",
    "hf_aB3dE5fG7",
    "ghp_" + "c3" * 10,
    "github_pat_11ABCDEFG_x",
    "glpat-abcdefgh12",
    "xoxb-1234-abcdefgh",
    "AKIA" + "D4" * 8,
    "ASIAIOSFODNN7EXAMPLE",
    "AIza" + "Sy" * 17,
    "nvapi-abcdefgh12",
    "npm_" + "a1" * 18,
    "pypi-AgEIcHlwaS5vcmcCJ",
    "dckr_pat_abcdefgh",
    "dapi" + "0123456789abcdef" * 2,
    "dapi0123456789abcdef0123456789abcdef-2",
    "dapi0123456789abcdef01",
    "123456789:AA" + "x1" * 16,
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "0123456789abcdef" * 2 + "01234567",
    "wandb_v1_aB3dE5fG7hI9",
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "at {}, twice", "key_{}", "/data/{}/x.py", "<{}>", "x={};", "https://h/{}"])
def test_tokens_of_known_shapes_are_hidden_in_any_text(token: str, around: str) -> None:
    shown = masked(around.format(token))
    assert token not in shown and HIDDEN in shown
    assert token not in without_tokens(around.format(token))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:pa/ss@host/x?sig=abc&b=1 now", "at https://***@host/x?*** now"),
        ("https://token@host/x#frag", "https://***@host/x?***"),
        ("git+https://host/x/y@main", "git+https://host/x/y@main"),
        ("Authorization: Bearer abcdefgh.ijk==", "Authorization: Bearer ***"),
        ("Basic dXNlcjpwYXNz", "Basic ***"),
        ("a basic operation, bearer of news", "a basic operation, bearer of news"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "***"),
        ("key aGVsbG8gd29ybGQgdGhpcyBpcyBhIHNlY3JldA== end", "key *** end"),
        ("oom_memcg=/docker/" + "0123456789abcdef" * 4, "oom_memcg=/docker/" + "0123456789abcdef" * 4),
        ("GPU-550e8400-e29b-41d4-a716-446655440000", "GPU-550e8400-e29b-41d4-a716-446655440000"),
        ("task-dist/disk-controller/risk-assessment", "task-dist/disk-controller/risk-assessment"),
        ("pip install hf_transfer; npm_config_cache", "pip install hf_transfer; npm_config_cache"),
        (
            "hf_transformers_weights_loader secret_sharing_protocol_of",
            "hf_transformers_weights_loader secret_sharing_protocol_of",
        ),
        ("figd_a1Bc2dE3fG4hI5jK6lM7", "figd_***"),
        ("loading DeepseekV3ForCausalLM, NumelIn=1050673152", "loading DeepseekV3ForCausalLM, NumelIn=1050673152"),
        ("me:pa@ss@host, git@host:a/b, cuda:0@n1", "me:***@host, git@host:a/b, cuda:0@n1"),
        ("MultiProcessingDataLoaderIterWorkerThread-1", "MultiProcessingDataLoaderIterWorkerThread-1"),
    ],
)
def test_free_text(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_sum_is_shown_where_keys_do_not_stand() -> None:
    line = "Loaded X.509 cert 'autogenerated kernel key: 5d3c" + "a1" * 18 + "'"
    assert masked(line, hashes=False) == line and masked(line) != line
