"""Whose code a frame is: told by the whole path and by the package that py-spy found it in."""

import pytest

from mltop.probes.collect.stacks.frames import is_users, normalise, short_file

SITE = "/opt/v/lib/python3.11/site-packages/"


def frame(path, in_package=None, function="f"):
    short = {} if in_package is None else {"short_filename": in_package}
    return {"name": function, "filename": path, "line": 7, "module": None, **short}


@pytest.mark.parametrize(
    ("path", "in_package", "short"),
    [
        (SITE + "torch/nn/modules/linear.py", None, "torch/nn/modules/linear.py"),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", None, "yaml/nodes.py"),
        ("/usr/lib/python3.11/multiprocessing/queues.py", None, "multiprocessing/queues.py"),
        ("/usr/local/lib64/python3.14t/queue.py", None, "queue.py"),
        ("/opt/conda/envs/train/lib/python3.10/threading.py", None, "threading.py"),
        ("/home/me/.pyenv/versions/3.12.4/lib/python3.12/queue.py", None, "queue.py"),
        ("/usr/lib/python311.zip/queue.py", None, "queue.py"),
        ("/usr/lib/pypy3.9/queue.py", None, "queue.py"),
        (SITE + "apex-0.1-py3.11-linux-x86_64.egg/apex/optimizers/adam.py", None, "apex/optimizers/adam.py"),
        ("/opt/eggs/tools-1.0-py3.11.egg/tools/run.py", None, "tools/run.py"),
        ("/root/.pex/installed_wheels/ab12/requests-2.31-py3-none-any.whl/requests/api.py", None, "requests/api.py"),
        # generated
        ("<string>", None, "<string>"),
        ("<frozen importlib._bootstrap>", None, "<frozen importlib._bootstrap>"),
        ("<eval_with_key>.12", None, "<eval_with_key>.12"),
        ("<attrs generated init x.Y>", None, "<attrs generated init x.Y>"),
        ("/tmp/torchinductor_ada/4x/whatever.py", None, "4x/whatever.py"),
        ("/scratch/cache/k7/ck7" + "a2" * 25 + ".py", None, "k7/ck7" + "a2" * 25 + ".py"),
        ("/home/me/.triton/cache/ABC/kernel.py", None, "ABC/kernel.py"),
        ("/tmp/tmpx1/_remote_module_non_scriptable.py", None, "tmpx1/_remote_module_non_scriptable.py"),
        (
            "/home/me/.cache/huggingface/modules/transformers_modules/org/model/modeling.py",
            None,
            "model/modeling.py",
        ),
        # checkouts of frameworks
        ("/home/me/src/pytorch/torch/distributed/distributed_c10d.py", None, "torch/distributed/distributed_c10d.py"),
        ("/w/Megatron-LM/megatron/core/pipeline_parallel/schedules.py", "core/pipeline_parallel/schedules.py",
         "megatron/core/pipeline_parallel/schedules.py"),
        ("/w/DeepSpeed/deepspeed/comm/comm.py", "deepspeed/comm/comm.py", "deepspeed/comm/comm.py"),
        ("/w/transformers/src/transformers/trainer.py", "transformers/trainer.py", "transformers/trainer.py"),
        ("/w/datasets/src/datasets/builder.py", "datasets/builder.py", "datasets/builder.py"),
        ("/opt/NeMo/nemo/core/classes/common.py", "nemo/core/classes/common.py", "nemo/core/classes/common.py"),
        ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", "sglang/srt/managers/scheduler.py",
         "sglang/srt/managers/scheduler.py"),
    ],
)  # fmt: skip
def test_what_is_not_the_users(path, in_package, short):
    assert short_file(frame(path, in_package)) == short
    assert not is_users(frame(path, in_package))


@pytest.mark.parametrize(
    ("path", "in_package", "short"),
    [
        ("/home/me/project/training/train.py", "train.py", "training/train.py"),
        ("/home/me/project/training/train.py", None, "training/train.py"),
        ("train.py", "train.py", "train.py"),
        ("/train.py", "train.py", "train.py"),
        # a package of theirs, run from its checkout with -m
        ("/home/me/src/llmlab/llmlab/data/shards.py", "llmlab/data/shards.py", "data/shards.py"),
        # folders that are named like a framework, and are none
        ("/home/ray/train.py", "train.py", "ray/train.py"),
        ("/home/ray/lab/train.py", "lab/train.py", "lab/train.py"),
        ("/data/jax/runs/train.py", "train.py", "runs/train.py"),
        ("/w/Megatron-LM/pretrain_gpt.py", "pretrain_gpt.py", "Megatron-LM/pretrain_gpt.py"),
        ("/w/megatron/pretrain_gpt.py", "pretrain_gpt.py", "megatron/pretrain_gpt.py"),
        ("/w/DeepSpeed/examples/train.py", "train.py", "examples/train.py"),
        # typed
        ("<stdin>", None, "<stdin>"),
        ("<ipython-input-3-0a1b2c>", None, "<ipython-input-3-0a1b2c>"),
        ("/tmp/ipykernel_4711/1234.py", "1234.py", "ipykernel_4711/1234.py"),
        # packages of theirs with a name that others have, too
        ("/home/me/lab/datasets/shards.py", "datasets/shards.py", "datasets/shards.py"),
        # what Ray sends to its workers
        ("/tmp/ray/session_1/working_dir_files/_ray_pkg_a1/train.py", "train.py", "_ray_pkg_a1/train.py"),
    ],
)  # fmt: skip
def test_what_is_the_users(path, in_package, short):
    assert short_file(frame(path, in_package)) == short
    assert is_users(frame(path, in_package))


def test_every_frame_is_marked():
    frames = normalise([frame(SITE + "shards/reader.py"), frame("/home/me/p/data.py")], ints=True)
    assert [(frame.file, frame.user) for frame in frames] == [("shards/reader.py", False), ("p/data.py", True)]
