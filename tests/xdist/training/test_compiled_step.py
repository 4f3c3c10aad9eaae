"""Compiled functions that several threads call, or that call themselves."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist.training.eager import eager_mode_context, is_eager_mode


def test_a_thread_that_leaves_a_function_later_than_another_made_no_cut():
    entered, left = threading.Event(), threading.Event()

    @torch_xla.compile(full_graph=True)
    def doubled(x, outlasts):
        if outlasts:
            entered.set()
            assert left.wait(60)
        return x * 2

    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(lambda: doubled(torch.ones(2, device="xla"), True).tolist())
        assert entered.wait(60)
        assert doubled(torch.ones(3, device="xla"), False).tolist() == [2, 2, 2]
        left.set()
        assert late.result() == [2, 2]


def test_a_value_that_another_thread_reads_is_no_cut_of_the_function():
    made: list[torch.Tensor] = []
    is_made, is_read = threading.Event(), threading.Event()

    def read():
        is_made.wait(60)
        made.append(made[0].tolist())
        is_read.set()

    reader = threading.Thread(target=read)
    reader.start()

    @torch_xla.compile(full_graph=True)
    def tripled(x):
        made.append(x * 3)
        is_made.set()
        assert is_read.wait(60)
        return made[0] + 1

    assert tripled(torch.ones(2, device="xla")).tolist() == [4, 4]
    reader.join()
    assert made[1] == [3, 3]


def test_eager_mode_stays_on_whatever_order_threads_leave_their_functions_in():
    entered, left = threading.Event(), threading.Event()

    @torch_xla.compile
    def outlasts(x):
        entered.set()
        assert left.wait(60)
        return x + 1

    @torch_xla.compile
    def ends_first(x):
        return x + 2

    with eager_mode_context(True), ThreadPoolExecutor(1) as threads:
        late = threads.submit(lambda: outlasts(torch.ones(1, device="xla")).tolist())
        assert entered.wait(60)
        assert ends_first(torch.ones(1, device="xla")).tolist() == [3]
        left.set()
        assert late.result() == [2]
        assert is_eager_mode()


def test_a_compiled_function_of_a_class_is_a_method():
    class Model:
        factor = 3

        @torch_xla.compile
        def step(self, x):
            """Some factor of x."""
            return x * self.factor

    assert Model().step(torch.ones(1, device="xla")).tolist() == [3]
    assert Model.step.__doc__ == "Some factor of x."


def test_a_function_that_calls_itself_runs():
    @torch_xla.compile
    def countdown(x, turns):
        return countdown(x + 1, turns - 1) if turns else x

    assert countdown(torch.zeros(1, device="xla"), 3).tolist() == [3]


def test_tensors_are_computed_now_and_the_step_goes_on():
    x = torch.ones(3, device="xla")
    y = x * 2
    assert y.value.buffer is None
    xm.unlazy([y, torch.ones(1)])
    assert y.value.buffer is not None and (y + x).tolist() == [3, 3, 3]
