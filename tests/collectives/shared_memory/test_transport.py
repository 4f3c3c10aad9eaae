"""The host transport when ranks die, come late, or are not there."""

import os
import time
import uuid

import pytest
from rank_pool import RankPool

from torch_xdist.collectives import wait_report
from torch_xdist.collectives.errors import CollectiveError, JoinError, RankLostError
from torch_xdist.collectives.shared_memory import transport as shared_memory


def reduce_ones(size):
    import jax
    import numpy as np

    from torch_xdist.collectives import inside

    def step(x):
        with inside.program("host", size) as traced:
            return inside.all_reduce([x], "sum")[0], traced.token

    program = jax.jit(step)
    return lambda: float(jax.block_until_ready(program(np.ones(2, np.float32))[0])[0])


def dying(rank, size, when):
    reduce = reduce_ones(size)
    reduce()
    if rank == 1:
        os.kill(os.getpid(), 9)
    start_s = time.monotonic()
    try:
        reduce()
    except (RuntimeError, ValueError) as error:
        return str(error), time.monotonic() - start_s
    return None


def test_a_killed_rank_is_named_within_seconds(pool):
    first, second, third = pool.outcomes(3, dying, 0)
    assert second == (False, "died with exit code -9")
    for good, (message, waited_s) in (first, third):
        assert good
        assert "RankLostError: rank 1 (pid" in message
        assert "has ended after all_reduce(sum) of float32[2] #1" in message
        assert waited_s < 5.0


def leaving(rank, size):
    from torch_xdist.collectives.messages import communicator

    if rank == 1:
        os._exit(0)
    try:
        communicator.exchange("checkpoint")
    except RankLostError as error:
        return str(error)
    return None


def test_a_rank_that_left_is_named_in_a_rendezvous(pool):
    outcomes = pool.outcomes(3, leaving)
    for rank in (0, 2):
        assert f"rank 1 has ended, while rank {rank} waited" in outcomes[rank][1]
        assert "in rendezvous 'checkpoint'" in outcomes[rank][1]


def late(rank, size, seconds):
    wait_report.REPORT_EVERY_S = 0.3
    reduce = reduce_ones(size)
    before_s = time.process_time()
    if rank == 1:
        time.sleep(seconds)
    result = reduce()
    return result, time.process_time() - before_s


def test_a_late_rank_is_waited_for_without_burning_a_core(pool):
    (first, busy_s), (second, _) = pool.run(2, late, 3.0)
    assert first == second == 2.0
    assert busy_s < 2.0


@pytest.mark.long
def test_a_rank_forty_seconds_late_is_waited_for(pool):
    assert [result for result, _ in pool.run(2, late, 40.0, timeout_s=90)] == [2.0, 2.0]


def narrated(rank, size):
    import contextlib
    import io

    from torch_xdist.collectives import wait_report

    wait_report.REPORT_EVERY_S = 0.3
    reduce = reduce_ones(size)
    reduce()
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        if rank == 1:
            time.sleep(2.0)
        reduce()
    return told.getvalue()


def test_a_long_wait_is_told_with_the_absent_rank(pool):
    told, _ = pool.run(2, narrated)
    assert "torch-xdist: rank 0 has waited" in told
    assert "in all_reduce(sum) of float32[2] #2 for rank 1 (after all_reduce(sum)" in told


def without_rank_0(rank, size, job):
    if rank == 0:
        return None
    try:
        shared_memory.join(rank, size, job, timeout_s=0.5)
    except JoinError as error:
        return str(error)
    return None


def test_a_missing_rank_0_is_named_when_joining(pool):
    job = uuid.uuid4().hex
    _, message = pool.run(2, without_rank_0, job, join=False)
    assert f"start of job '{job}': rank 0 did not come within" in message


def twice(rank, size, job):
    shared_memory.join(0, 1, job)
    try:
        shared_memory.join(0, 1, job)
    except CollectiveError as error:
        return str(error)
    return None


def test_a_rank_can_be_taken_once(pool):
    job = uuid.uuid4().hex
    assert f"start of job '{job}': rank 0 is taken" in pool.run(1, twice, job, join=False)[0]


def test_a_collective_before_joining_says_so(monkeypatch):
    monkeypatch.setattr(shared_memory, "_endpoints", {})
    with pytest.raises(CollectiveError, match="has not joined a world"):
        shared_memory.endpoint()


def devices(rank, size):
    import threading

    import jax
    import numpy as np

    from torch_xdist.collectives import inside
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    shared_memory.threads(size)

    def step(x):
        with inside.program("host", size) as traced:
            return inside.all_reduce([x], "sum")[0], traced.token

    program = jax.jit(step)
    found = {}

    def work(index):
        shared_memory.set_rank_of_thread(index)
        x = jax.device_put(np.full(3, index + 1.0), jax.devices()[index])
        found[index] = float(program(x)[0][0]), communicator.all_gather("hello", index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def on_four_devices(rank, size):
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    return devices(0, 4)


def test_threads_with_a_device_each_are_ranks_too():
    from rank_pool import RankPool

    with RankPool(1) as fresh:
        assert fresh.run(1, on_four_devices, join=False) == [
            {index: (10.0, [0, 1, 2, 3]) for index in range(4)}
        ]


def goes_on_while_it_waits(rank, size, job, folder):
    """Rank 1 starts each of its programs when rank 0 has computed what follows the collective."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from torch_xdist.collectives import ffi, inside
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    shared_memory.join(rank, size, job)
    marks = iter(range(100))

    def mark(inputs, outputs, spec, device):
        (folder / f"{rank} {next(marks)}").touch()

    ffi.register("mark", mark)

    def step(x):
        with inside.program("host", size) as traced:
            total = inside.all_reduce([x + 1], "sum")
            for _ in range(8):
                x = jnp.tanh(x @ x)
            done = jax.ffi.ffi_call("mark", jax.ShapeDtypeStruct((), x.dtype))(x, spec="")
            return total, done, traced.token

    program, x = jax.jit(step), np.eye(300, dtype=np.float32)
    for turn in range(4):
        deadline = time.monotonic() + 100
        while rank and not (folder / f"0 {turn}").exists():
            assert time.monotonic() < deadline, f"round {turn}: rank 0 does not go on"
            time.sleep(0.01)
        total = np.asarray(program(x)[0][0])
    return total[0, :2].tolist()


def test_a_program_on_one_core_goes_on_while_its_collective_waits(tmp_path):
    with RankPool(2) as fresh:
        job = uuid.uuid4().hex
        assert fresh.run(2, goes_on_while_it_waits, job, tmp_path, join=False) == [[4.0, 2.0]] * 2
