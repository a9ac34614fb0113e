from mltop.probes.collect.stacks.digest import Origin, digest_threads, is_idle_worker
from mltop.probes.collect.stacks.dump import waits_for_child
from mltop.probes.collect.stacks.process import TaskFacts
from mltop.probes.model import StackDigest

LIB = "/v/lib/python3.11/"
TORCH = LIB + "site-packages/torch/"


def frame(function, file, line=1, **ints):
    shown = [{"name": name, "repr": str(value)} for name, value in ints.items()]
    return {"name": function, "filename": file, "line": line, "locals": shown, "module": None}


def thread(tid, *frames, name=None):
    return {"thread_name": name, "os_thread_id": tid, "frames": list(frames)}


TRAIN = frame("train", "/p/train.py", 60, step=5)
REDUCE = frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 3252)
WORKER_QUEUE = [
    frame("wait", LIB + "multiprocessing/connection.py"),
    frame("Queue.get", LIB + "multiprocessing/queues.py"),
    frame("_worker_loop", TORCH + "utils/data/_utils/worker.py"),
]


def digests(
    *threads, read_line=lambda file, line: None, ints=True, pid=42, inner_pid=42, tasks=None, uses_gpu=False, **common
):
    origin = Origin(StackDigest(pid=pid, **{"rank": 2, "state": "S", **common}), inner_pid, uses_gpu, tasks or {})
    return digest_threads(list(threads), origin, ints, read_line)


def test_main_thread_is_found_by_id_and_comes_first():
    helper = thread(50, frame("push", "/p/metrics.py"), name="metrics")
    tasks = {50: TaskFacts("python", "R", "do_poll")}
    main, other = digests(helper, thread(42, REDUCE, TRAIN), wchan="futex_do_wait", tasks=tasks)
    assert (main.thread, main.state, main.wchan, main.waiting_in) == (
        "MainThread",
        "S",
        "futex_do_wait",
        "all_reduce",
    )
    assert (other.thread, other.state, other.wchan) == ("metrics", "R", "do_poll")
    assert main.frames[1].ints == {"step": 5}


def test_in_a_container_the_main_thread_has_the_inner_pid():
    (digest,) = digests(thread(7, TRAIN), pid=4242, inner_pid=7)
    assert (digest.thread, digest.pid) == ("MainThread", 4242)


def test_background_threads_are_dropped_and_autograd_hooks_kept():
    idle_pool = [frame("_worker", LIB + "concurrent/futures/thread.py")]
    busy_pool = [frame("upload", "/p/s3.py"), *idle_pool]
    hook = frame("post_backward", TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py")
    found = digests(
        thread(42, TRAIN),
        thread(51, frame("wait", LIB + "threading.py"), name="QueueFeederThread"),
        thread(52, *idle_pool, name="ThreadPoolExecutor-0_0"),
        thread(53, *busy_pool, name="ThreadPoolExecutor-0_1"),
        thread(54, frame("_pin_memory_loop", TORCH + "utils/data/_utils/pin_memory.py"), name="Thread-1"),
        thread(55, frame("TMonitor.run", LIB + "site-packages/tqdm/_monitor.py"), name="Thread-2"),
        thread(56, hook),
        thread(57),
        tasks={56: TaskFacts("pt_autograd_0"), 57: TaskFacts("pt_nccl_watchdg")},
    )
    assert [digest.thread for digest in found] == ["MainThread", "ThreadPoolExecutor-0_1", "pt_autograd_0"]
    assert found[2].waiting_in == "fsdp.reduce_grads"


def test_key_depends_on_frames_lines_and_kind_but_not_on_integers():
    key = digests(thread(42, REDUCE, TRAIN))[0].key
    later = frame("train", "/p/train.py", 60, step=6)
    other_line = frame("train", "/p/train.py", 61)
    assert len(key) == 12
    assert digests(thread(42, REDUCE, later), pid=42, rank=5)[0].key == key
    assert digests(thread(42, REDUCE, TRAIN), ints=False)[0].key == key
    assert digests(thread(42, REDUCE, other_line))[0].key != key
    assert digests(thread(50, REDUCE, TRAIN))[0].key != key
    assert digests(thread(42, REDUCE, TRAIN), child_of=41)[0].key != key


def test_source_line_is_asked_for_user_code_only():
    asked = []

    def read_line(file, line):
        asked.append((file, line))
        return "work.wait()"

    (digest,) = digests(thread(42, TRAIN), read_line=read_line)
    assert (digest.waiting_in, {file for file, _ in asked}) == ("work.wait", {"/p/train.py"})
    asked.clear()
    (digest,) = digests(thread(42, frame("Popen.wait", LIB + "subprocess.py"), TRAIN), read_line=read_line)
    assert digest.waiting_in is None
    assert asked == []


def test_a_child_is_cut_at_its_entry():
    worker = frame("_worker_loop", TORCH + "utils/data/_utils/worker.py")
    (digest,) = digests(thread(42, frame("DS.__getitem__", "/p/data.py"), worker, TRAIN), child_of=41)
    assert [found.function for found in digest.frames] == ["DS.__getitem__", "_worker_loop"]
    assert digest.child_of == 41


def test_parent_waits_for_child_only_above_the_users_line():
    poll = frame("poll", LIB + "multiprocessing/connection.py")
    loader = frame("_MultiProcessingDataLoaderIter._try_get_data", TORCH + "utils/data/dataloader.py")
    spawned = frame("BaseProcess.run", LIB + "multiprocessing/process.py")
    assert waits_for_child(thread(42, poll, loader, TRAIN))
    assert waits_for_child(thread(42, frame("wait", LIB + "threading.py"), loader, TRAIN))
    assert waits_for_child(thread(42, frame("Popen.communicate", LIB + "subprocess.py"), TRAIN))
    assert not waits_for_child(thread(42, REDUCE, TRAIN, spawned))
    assert not waits_for_child(thread(42, TRAIN, spawned))


def test_idle_worker_is_one_that_waits_for_its_next_index():
    assert is_idle_worker(thread(42, *WORKER_QUEUE))
    assert not is_idle_worker(thread(42, frame("Queue.get", "/p/own_queue.py"), WORKER_QUEUE[-1]))


LIBTORCH = "/v/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"


def native(function, file=LIBTORCH, line=0):
    return {"name": function, "filename": file, "line": line, "locals": None, "module": file}


def test_key_and_wait_do_not_depend_on_native_frames():
    """One wait of two processes: loaded elsewhere, looked at a moment later, or not to be stopped at all."""
    plain = digests(thread(42, REDUCE, TRAIN))[0]
    for above in (
        [native("0x7f5310ca3f16", "/lib/x86_64-linux-gnu/libc.so.6"), native("c10d::Foo<bar>::wait")],
        [native("0x7fb9c22a3f16", "/lib/x86_64-linux-gnu/libc.so.6"), native("c10d::Foo<baz, 3>::wait")],
        [{**native("0x7fb9c22a3f16", "?"), "module": None}],
        [native("select_poll_poll", "Modules/clinic/selectmodule.c.h", 223), native("_ZN4c10d4Work4waitEv")],
    ):
        shown = digests(thread(42, *above, REDUCE, TRAIN))[0]
        assert (shown.key, shown.waiting_in) == (plain.key, "all_reduce")
        assert [frame.native for frame in shown.frames] == [True] * len(above) + [False] * 2


def test_a_wait_that_only_native_frames_show_does_not_change_the_key():
    blocked = frame("Handle.drain", "/p/handles.py", 7)
    plain = digests(thread(42, blocked, TRAIN))[0]
    spinning = [native(f"0x7fa2b2cc{at:04x}", f"/lib/libcuda{at}.so") for at in range(30)]
    shown = digests(thread(42, *spinning, native("c10d::Work::wait"), blocked, TRAIN))[0]
    assert (plain.waiting_in, shown.waiting_in) == (None, "work.wait")
    assert shown.key == plain.key


def test_what_a_thread_does_is_told_by_its_python_frames():
    """--native puts frames on top of every stack."""
    futex = native("0x7f5310ca3f16", "/lib/x86_64-linux-gnu/libc.so.6")
    pool = [futex, frame("_worker", LIB + "concurrent/futures/thread.py")]
    found = digests(
        thread(42, futex, TRAIN),
        thread(52, *pool, name="ThreadPoolExecutor-0_0"),
        thread(57, futex, name="pt_autograd_0"),
    )
    assert [digest.thread for digest in found] == ["MainThread"]
    assert is_idle_worker(thread(42, futex, *WORKER_QUEUE))
    loader = frame("_MultiProcessingDataLoaderIter._try_get_data", TORCH + "utils/data/dataloader.py")
    built_with_symbols = native("select_poll_poll_impl", "/tmp/build/Modules/selectmodule.c", 655)
    assert waits_for_child(thread(42, futex, built_with_symbols, loader, TRAIN))


def test_source_line_is_the_innermost_python_frames():
    jitted = {**native("0x7fb9c22a3f16", "?"), "module": None}
    (digest,) = digests(thread(42, jitted, native("poll"), TRAIN), read_line=lambda file, line: f"work.wait() # {file}")
    assert digest.waiting_in == "work.wait"
