"""`run_multiprocess`: on a CPU with several devices, one process with a thread for each."""

from collections.abc import Callable

CPU = {"PJRT_DEVICE": "CPU"}
SCRIPT = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._internal import pjrt

def whole(offset, *, more=0):
    total = xm.all_reduce("sum", torch.full((2,), float(xr.global_ordinal()), device="xla"))
    brought = xm.rendezvous("here", bytes([xr.global_ordinal()]))
    device = str(xm.xla_device())
    return os.getpid(), device, xr.local_ordinal() + offset + more, total.tolist(), brought

def fails(offset):
    if xr.global_ordinal() == 1:
        raise TypeError("of rank 1")
    xm.rendezvous("never")

if __name__ == "__main__":
    {body}
"""


def of_script(body: str) -> str:
    return SCRIPT.replace("{body}", body)


def test_the_devices_of_a_cpu_are_threads_of_one_process(run: Callable) -> None:
    body = "print({r: found for r, found in pjrt.run_multiprocess(whole, 10, more=5).items()})"
    ended = run(of_script(body), env={**CPU, "CPU_NUM_DEVICES": "3"})
    assert ended.code == 0, ended.err
    found = eval(ended.out.splitlines()[-1])
    assert len({process for process, *_ in found.values()}) == 1
    assert {rank: rest for rank, (_, *rest) in found.items()} == {
        rank: [f"xla:{rank}", 15 + rank, [3.0, 3.0], [b"\0", b"\1", b"\2"]] for rank in range(3)
    }


def test_one_device_is_a_process_of_its_own(run: Callable) -> None:
    body = "print([os.getpid(), pjrt.run_multiprocess(whole, 1)])"
    ended = run(of_script(body), env={**CPU, "CPU_NUM_DEVICES": "1"})
    here, found = eval(ended.out.splitlines()[-1])
    assert found[0][0] != here and found == {0: (found[0][0], "xla:0", 1, [0.0, 0.0], [b"\0"])}


def test_the_exception_of_one_thread_comes_out_while_others_wait(run: Callable) -> None:
    body = """
    try:
        pjrt.run_multiprocess(fails, 1)
    except TypeError as error:
        print("caught", error)
"""
    ended = run(of_script(body.strip()), env={**CPU, "CPU_NUM_DEVICES": "3"})
    assert "caught of rank 1" in ended.out, ended.err


def test_a_rank_of_another_launcher_runs_the_call_itself(run: Callable) -> None:
    body = "print(pjrt.run_multiprocess(whole, 1)[0][0] == os.getpid())"
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    ended = run(of_script(body), env={**CPU, **rank, "CPU_NUM_DEVICES": "3"})
    assert ended.out.splitlines()[-1] == "True", ended.err
