import pytest

from mltop.probes.collect.stacks.waiting import transfer, waiting_in
from mltop.probes.model import Frame

C10D = "torch/distributed/distributed_c10d.py"
USER = ("train", "proj/train.py")


def wait(*places, line=None, uses_gpu=False):
    frames = [Frame(function, file, 1) for function, file in places]
    return waiting_in(frames, lambda: line, uses_gpu)


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("all_reduce", [("all_reduce", C10D)]),
        # the leaf was renamed between releases, the outermost function was not
        ("all_gather_into_tensor", [("all_gather_single", C10D), ("all_gather_into_tensor", C10D)]),
        ("new_group", [("_new_process_group_helper", C10D)]),
        (
            "new_group",
            [("_new_process_group_helper", C10D), ("_new_group_with_tag", C10D), ("new_group", C10D)],
        ),
        (
            "init_process_group",
            [("_create_c10d_store", "torch/distributed/rendezvous.py"), ("init_process_group", C10D)],
        ),
        ("rendezvous", [("_create_c10d_store", "torch/distributed/rendezvous.py")]),
        (
            "gather_object",
            [
                ("gather_object", C10D),
                ("_DistWrapper.gather_object", "torch/distributed/checkpoint/utils.py"),
            ],
        ),
        ("wait_tensor", [("wait_tensor", "torch/distributed/_functional_collectives.py")]),
        (
            "fsdp.unshard",
            [("foreach_all_gather", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py")],
        ),
        ("cuda.synchronize", [("synchronize", "torch/cuda/__init__.py")]),
        (
            "allreduce",
            [("synchronize", "horovod/torch/mpi_ops.py"), ("allreduce", "horovod/torch/mpi_ops.py")],
        ),
        ("all_gather", [("all_gather", "deepspeed/comm/ccl.py")]),
        ("all_reduce", [("Net.receive", "proj/net.py"), ("Net.all_reduce", "proj/net.py")]),
        ("recv_forward", [("recv_forward", "torch/distributed/pipelining/stage.py")]),
        ("work.wait", [("c10d::ProcessGroupGloo::RecvWork::wait", "lib/libtorch_cpu.so")]),
        ("cuda.synchronize", [("cudaStreamSynchronize", "lib/libcudart.so.12")]),
        # one wait may be seen in any of its parts: the outermost names it
        (
            "work.wait",
            [("cuEventSynchronize", "lib/libcuda.so.1"), ("c10d::ProcessGroupNCCL::WorkNCCL::wait", "lib/libtorch.so")],
        ),
    ],
)
def test_waits_that_frames_show(name, stack):
    assert wait(*stack, USER) == name


@pytest.mark.parametrize(
    "stack",
    [
        [("slow_validation", "proj/train.py")],
        # the user's forward runs above FSDP's and above the pipeline schedule's
        [
            ("Net.forward", "proj/net.py"),
            ("FullyShardedDataParallel.forward", "torch/distributed/fsdp/fsdp.py"),
        ],
        [("_write_item", "torch/distributed/checkpoint/filesystem.py")],
        # the launcher waits for its ranks
        [
            ("SimpleElasticAgent._invoke_run", "torch/distributed/elastic/agent/server/api.py"),
            ("run", "torch/distributed/run.py"),
        ],
        [("barrier", "torch/distributed/elastic/utils/store.py")],
        [("_MultiProcessingDataLoaderIter._get_data", "torch/utils/data/dataloader.py")],
        [("broadcast", "numpy/lib/stride_tricks.py")],
    ],
)
def test_what_is_no_wait_for_other_ranks(stack):
    assert wait(*stack, USER) is None


@pytest.mark.parametrize(
    ("line", "uses_gpu", "name"),
    [
        ("    work.wait()", False, "work.wait"),
        ("for r in dist.batch_isend_irecv(ops): r.wait()", False, "work.wait"),
        ("store.wait(['ready'])", False, "store.wait"),
        ("self._tcp_store.get('ready')", False, "store.wait"),
        ("value = PrefixStore.get(key)", False, "store.wait"),
        ("value = restore.get(key)", False, None),
        ("reqs[i].wait()", False, "work.wait"),
        ("self.pending_handles.pop().wait()", False, "work.wait"),
        ("dist.isend(tensor(1), dst=(rank + 1) % 2).wait()", False, "work.wait"),
        ("dist.all_reduce(grad, async_op=True).wait()", False, "work.wait"),
        ("self.gradWork.wait(timeout)", False, "work.wait"),
        ("barrier.wait()", False, "work.wait"),
        ("    ).wait()", False, "work.wait"),
        ("os.wait()", False, None),
        ("done_event.wait()", False, None),
        ("self.cond.wait(1)", False, None),
        ("proc.wait()", False, None),
        ("self.process.wait()", False, None),
        ("p.wait()", False, None),
        ("server.wait()", False, None),
        ("time.sleep(9)  # instead of work.wait()", False, None),
        ("push('call work.wait() # now')", False, None),
        ("push('#'); work.wait()", False, "work.wait"),
        ("total = comm.Allreduce(x, y)", False, "allreduce"),
        ("loss = loss.item()", True, "cuda.synchronize"),
        ("loss = loss.item()", False, None),
        ("x = waiting(3)", True, None),
        (None, True, None),
    ],
)
def test_waits_that_only_the_source_line_shows(line, uses_gpu, name):
    assert wait(USER, line=line, uses_gpu=uses_gpu) == name


def test_the_source_is_not_read_when_frames_tell():
    def read():
        raise AssertionError("read")

    assert waiting_in([Frame("all_reduce", C10D, 1)], read, False) == "all_reduce"


def users(*places):
    return [Frame(function, file, 1, user=file.startswith("proj/")) for function, file in places]


DCP = "torch/distributed/checkpoint/"
DIST_WRAPPER = [("_DistWrapper.all_reduce", DCP + "utils.py"), ("save", DCP + "state_dict_saver.py"), USER]


@pytest.mark.parametrize(
    "stack",
    [
        # a checkpoint's own all_reduce calls the storage back: the user's, torch's, a library's
        [("Writer.write_data", "proj/storage.py"), ("write_data", DCP + "state_dict_saver.py"), *DIST_WRAPPER],
        [("open", "pathlib.py"), ("Writer.write_data", "proj/storage.py"), *DIST_WRAPPER],
        [("FileSystemWriter.write_data", DCP + "filesystem.py"), *DIST_WRAPPER],
        [("save", "torch/serialization.py"), ("_write_item", DCP + "filesystem.py"), *DIST_WRAPPER],
        [("AbstractFileSystem.open", "fsspec/spec.py"), *DIST_WRAPPER],
        [("DefaultSavePlanner.create_local_plan", DCP + "default_planner.py"), *DIST_WRAPPER],
        # an object that is sent is the user's, and reads when it is unpacked
        [("Shard.__setstate__", "proj/data.py"), ("broadcast_object_list", C10D), USER],
        # and so is a callback of any library's collective
        [("on_step", "proj/log.py"), ("all_reduce", "somelib/comm.py"), USER],
        [("read_shard", "proj/net.py"), ("all_reduce", "proj/net.py"), USER],
        [("upload", "proj/s3.py"), ("barrier", "proj/net.py"), USER],
    ],
)
def test_what_a_collective_has_called_back_is_no_wait(stack):
    assert waiting_in(users(*stack), lambda: None, False) is None


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("gather_object", [("gather_object", C10D), ("_DistWrapper.gather_object", DCP + "utils.py"), *DIST_WRAPPER]),
        # FSDP's hooks run above the user's forward; a hook of the user's below the collective that it calls
        ("all_gather", [("all_gather", C10D), ("unshard", "torch/distributed/fsdp/_fsdp_param.py"), USER]),
        ("all_reduce", [("all_reduce", C10D), ("comm_hook", "proj/hooks.py")]),
        # the user's own
        ("all_reduce", [("Net.receive", "proj/net.py"), ("Net.all_reduce", "proj/net.py"), USER]),
        ("barrier", [("send", "redis/client.py"), ("barrier", "proj/net.py"), USER]),
        ("all_reduce", [("all_reduce", C10D), ("all_reduce", "proj/net.py"), USER]),
    ],
)
def test_waits_above_the_users_code(name, stack):
    assert waiting_in(users(*stack), lambda: None, False) == name


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def swap(x):\n    work = dist.irecv(x, src=1)\n    work.wait()", "irecv"),
        ("def swap(x):\n    dist.isend(x, dst=1).wait()", "isend"),
        ("def swap(x):\n    reqs = [dist.irecv(x, 1)]\n    for r in reqs:\n        r.wait()", "irecv"),
        ("def swap(x):\n    got = dist.irecv(x, 1)\n    out = dist.isend(x, 1)\n    got.wait()", "batch_isend_irecv"),
        (
            "def swap(x):\n    ops = [P2POp(dist.isend, x, 1),\n      P2POp(dist.irecv, x, 1)]\n    r.wait()",
            "batch_isend_irecv",
        ),
        ("def other(x):\n    dist.irecv(x, 1)\ndef swap(x):\n    work.wait()", None),
        ("def swap(x):\n    dist.irecv(x, 1)\n    h = dist.all_reduce(x, async_op=True)\n    h.wait()", None),
        ("def swap(x):\n    h = dist.all_reduce(x, async_op=True)\n    r = dist.irecv(x, 1)\n    h.wait()", None),
        ("def swap(x):\n    # dist.irecv(x, 1)\n    work.wait()", None),
    ],
)
def test_which_transfer_a_handle_was_made_by(source: str, kind: str | None) -> None:
    lines = source.split("\n")
    assert transfer(lambda above: lines[-1 - above] if above < len(lines) else None) == kind
