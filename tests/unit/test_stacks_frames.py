import pytest

from mltop.probes.collect.stacks.frames import cut_at_child_root, is_user_code, normalise, shorten


def raw(function, file, line=1, locals_=(), module=None):
    return {"name": function, "filename": file, "line": line, "locals": list(locals_), "module": module}


@pytest.mark.parametrize(
    ("path", "short", "users"),
    [
        (
            "/opt/v/lib/python3.11/site-packages/torch/nn/modules/linear.py",
            "torch/nn/modules/linear.py",
            False,
        ),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", "yaml/nodes.py", False),
        ("/usr/lib/python3.11/multiprocessing/queues.py", "multiprocessing/queues.py", False),
        ("/usr/local/lib64/python3.14t/queue.py", "queue.py", False),
        (
            "/home/me/src/pytorch/torch/distributed/distributed_c10d.py",
            "torch/distributed/distributed_c10d.py",
            False,
        ),
        ("/home/me/project/training/train.py", "training/train.py", True),
        ("train.py", "train.py", True),
        ("/train.py", "train.py", True),
        ("<string>", "<string>", False),
    ],
)
def test_files_are_short_and_known_as_whose(path, short, users):
    assert shorten(path) == short
    assert is_user_code(path) is users


def test_wrappers_and_interpreter_frames_are_dropped_but_called_native_frames_stay():
    lib = "/v/lib/python3.11/site-packages/torch/"
    frames = normalise(
        [
            raw("futex_wait", "/lib/libc.so.6", 0, module="/lib/libc.so.6"),
            raw("all_reduce", lib + "distributed/distributed_c10d.py", 3252),
            raw("_PyEval_Vector", "/lib/libpython3.11.so", 0, module="/lib/libpython3.11.so"),
            raw("_exception_logger.<locals>.wrapper", lib + "distributed/c10d_logger.py", 83),
            raw("decorate_context", lib + "utils/_contextlib.py", 120),
            raw("train", "/home/me/p/train.py", 7),
        ],
        ints=True,
    )
    assert [frame.function for frame in frames] == ["futex_wait", "all_reduce", "train"]


def test_a_thread_of_wrappers_alone_keeps_them():
    only = [raw("wrapper", "/v/lib/python3.9/site-packages/torch/distributed/c10d_logger.py")]
    assert [frame.function for frame in normalise(only, ints=True)] == ["wrapper"]


def test_integers_are_left_out_on_request():
    frame = raw("train", "/p/train.py", locals_=[{"name": "step", "repr": "5"}])
    assert normalise([frame], ints=True)[0].ints == {"step": 5}
    assert normalise([frame], ints=False)[0].ints == {}


def test_a_forked_worker_loses_its_parents_frames():
    worker = "/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
    stack = [
        raw("DS.__getitem__", "/p/data.py"),
        raw("_worker_loop", worker),
        raw("BaseProcess.run", "/usr/lib/python3.11/multiprocessing/process.py"),
        raw("train", "/p/train.py"),
    ]
    assert [frame["name"] for frame in cut_at_child_root(stack)] == ["DS.__getitem__", "_worker_loop"]
    assert cut_at_child_root(stack[3:]) == stack[3:]
