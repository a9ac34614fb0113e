import pytest

from mltop.probes.collect.stacks.frames import (
    cut_at_child_root,
    normalise,
    symbol,
    without_depth,
)


def raw(function, file, line=1, locals_=(), module=None):
    return {"name": function, "filename": file, "line": line, "locals": list(locals_), "module": module}


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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pthread_cond_wait", "pthread_cond_wait"),
        ("0x7f5310ca3f16", "??"),
        ("std::future<bool>::get", "std::future::get"),
        ("c10d::Foo<bar<baz>>::wait", "c10d::Foo::wait"),
        (
            "pybind11::cpp_function::initialize<X, Y>::{lambda(Z)#2}",
            "pybind11::cpp_function::initialize::{lambda(Z)#2}",
        ),
        ("(anonymous namespace)::run<float>", "(anonymous namespace)::run"),
        ("std::function<void ()>::operator()", "std::function::operator()"),
        ("operator<< <char>", "operator<<"),
        ("Foo<int>::operator<=><long>", "Foo::operator<=>"),
        ("Handle<T>::operator->", "Handle::operator->"),
        ("<alloc::vec::Vec<T> as core::Drop>::drop::h0123456789abcdef", "drop"),
        ("poll.part.0", "poll"),
        ("sem_wait.constprop.0.isra.3", "sem_wait"),
        ("wait [clone .cold]", "wait"),
        ("_ZN4c10d4Work4waitEv", "_ZN4c10d4Work4waitEv"),
        ("a<b", "a"),  # py-spy cuts nothing, but a name may hold anything
        ("<<<<", "??"),
        ("x" * 5000, "x" * 120),
    ],
)
def test_a_native_functions_name_is_that_of_every_instance(name, told):
    assert symbol(name) == told


def test_native_frames_that_look_alike_stand_once_and_frames_without_a_file_are_none_of_pythons():
    """Code that was compiled on the fly belongs to no file: py-spy gives it neither a file nor a module."""
    libcuda = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.129.03"
    stack = [
        raw("0x7f5310ca3f16", "?", 0),
        *[raw(f"0x7fa2b2cc{at:04x}", libcuda, 0, module=libcuda) for at in range(20)],
        raw("cuStreamSynchronize", libcuda, 0, module=libcuda),
        *[raw(f"0x7fa2b2dd{at:04x}", "/lib/libtorch.so", 0, module="/lib/libtorch.so") for at in range(2)],
        raw("Samples.decode", "/home/me/p/fast.py", 9, module="/home/me/p/fast.so"),  # Cython's
        raw("train", "/home/me/p/train.py", 7),
        raw("0x7f5310ca3f17", "?", 0),
        raw("main", "/home/me/p/train.py", 9),
    ]
    frames = normalise(stack, ints=True)
    assert [(frame.function, frame.file) for frame in frames] == [
        ("??", "?"),
        ("cuStreamSynchronize", "x86_64-linux-gnu/libcuda.so.535.129.03"),
        ("??", "lib/libtorch.so"),
        ("Samples.decode", "[p/fast.py]"),
        ("train", "p/train.py"),
        ("main", "p/train.py"),
    ]
    assert [frame.native for frame in frames] == [True] * 4 + [False] * 2
    assert len({(frame.function, frame.file) for frame in frames}) == len(frames)


def test_of_a_deep_native_stack_the_innermost_frames_are_shown():
    deep = [raw(f"f{at}", "/lib/libx.so", 0, module="/lib/libx.so") for at in range(50)]
    frames = without_depth(normalise([*deep, raw("train", "/p/train.py", 7)], ints=True))
    assert [frame.function for frame in frames] == [*[f"f{at}" for at in range(12)], "train"]
    assert without_depth([]) == []
