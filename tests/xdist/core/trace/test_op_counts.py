"""What recorded rows count, and by which names."""

import threading

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist.core.trace.op_counts import counter_of


@pytest.fixture(autouse=True)
def counted_from_zero():
    torch_xla.sync()
    met.clear_all()


def operators():
    return {n: met.counter_value(n) for n in met.counter_names() if n.startswith("xla::")}


@pytest.mark.parametrize(
    ("row", "counter"),
    [
        ("aten.add.Tensor", "xla::add"),
        ("aten.max.dim", "xla::max"),
        ("aten.slice.Tensor", "xla::slice_copy"),
        ("aten.view.default", "xla::view_copy_symint"),
        ("aten.as_strided(2, 3)", "xla::as_strided_copy"),
        ("write.aten.slice.Tensor", "xla::slice_scatter"),
        ("write.aten.as_strided((2,), (1,), 0)", "xla::as_strided_scatter"),
        ("write.aten.unsqueeze.default", "xla::squeeze_copy"),
        ("write.aten.t.default", "xla::t_copy"),
        ("aten.fill.Scalar", "xla::fill_"),
        ("aten.index_put.default", "xla::index_put_"),
        ("aten.bernoulli.Tensor", "xla::bernoulli_"),
        ("aten.bernoulli.p", "xla::bernoulli"),
        ("aten.arange.start_step", "xla::arange_out"),
        ("aten._native_batch_norm_legit_functional.default", "xla::native_batch_norm"),
        ("aten.convolution.default", "xla::convolution_overrideable"),
        ("empty", "xla::empty_symint"),
        ("cast.torch.float32", "xla::_to_copy"),
        ("xla.all_reduce", "xla::AllReduce"),
        ("xla::quantize_tensor", "xla::quantize_tensor"),
        ("roi_align.default", "xla::roi_align"),
    ],
)
def test_a_row_is_counted_by_the_name_of_torch_xlas_function(row, counter):
    assert counter_of(row) == counter


def test_operators_count_when_they_are_called_and_once():
    x = torch.ones(2, device="xla")
    y = (x + 1) * 2 + 3
    assert (operators()["xla::add"], operators()["xla::mul"]) == (2, 1)
    torch_xla.sync()
    assert (operators()["xla::add"], operators()["xla::mul"]) == (2, 1)
    assert y.tolist() == [7, 7]


def test_a_known_program_counts_its_operators_at_every_run():
    x = torch.ones(2, device="xla")
    for _ in range(5):
        x = x.cos() + x.cos()
        torch_xla.sync()
    assert (operators()["xla::add"], operators()["xla::cos"]) == (5, 10)


def test_rows_that_a_reader_counted_are_not_counted_again():
    x = torch.ones(2, device="xla").cos()
    assert operators()["xla::cos"] == 1
    x = x.cos()
    assert operators()["xla::cos"] == 2
    torch_xla.sync()
    assert operators()["xla::cos"] == 2


def test_operators_from_before_a_clearing_do_not_come_back():
    kept = torch.ones(2, device="xla").cos()
    met.clear_counters()
    assert met.counter_names() == []
    other = kept.sin()
    torch_xla.sync()
    assert operators() == {"xla::sin": 1} and other.shape == (2,)


def test_operators_whose_results_nobody_wants_count_too():
    torch.ones(2, device="xla").cos()
    torch_xla.sync()
    assert operators()["xla::cos"] == 1


def test_what_another_thread_records_counts():
    thread = threading.Thread(target=lambda: torch.ones(2, device="xla").cos())
    thread.start()
    thread.join()
    assert operators()["xla::cos"] == 1


def test_a_value_for_another_thread_counts_its_operators_once():
    x = torch.ones(2, device="xla").cos()
    thread = threading.Thread(target=x.cpu)
    thread.start()
    thread.join()
    (x.sin() + 1).cpu()
    assert (operators()["xla::cos"], operators()["xla::sin"]) == (1, 1)


def test_in_place_forms_count_as_their_functions():
    x = torch.zeros(3, device="xla")
    x += 1
    x.uniform_()
    x[1:] = 2
    found = operators()
    assert found["xla::add"] == found["xla::uniform_"] == found["xla::slice_scatter"] == 1


def test_views_count_where_they_are_read():
    view = torch.ones(2, 3, device="xla").t()
    assert "xla::t_copy" not in operators()
    view.cos()
    assert operators()["xla::t_copy"] == 1


def test_copies_to_the_device_and_back_count():
    torch.ones(2).to("xla").cpu()
    found = operators()
    assert found == dict.fromkeys(
        ["xla::_copy_from", "xla::_to_copy", "xla::_to_cpu", "xla::empty_symint"], 1
    )


def test_tensors_count_when_made_and_when_gone():
    x = torch.zeros(50, device="xla")
    x += 1  # the number is a tensor too, as torch has it
    torch_xla.sync()
    assert (met.counter_value("CreateXlaTensor"), met.counter_value("DestroyXlaTensor")) == (4, 3)
    y = torch.zeros(10, device="xla")
    assert met.counter_value("DestroyXlaTensor") == 4
    x.data = y
    assert met.counter_value("DestroyXlaTensor") == 5
    del x, y
    assert met.counter_value("CreateXlaTensor") == met.counter_value("DestroyXlaTensor") == 6


def test_an_upload_is_one_tensor():
    number = torch.tensor(2077, device="xla")
    assert met.counter_value("CreateXlaTensor") == met.counter_value("DeviceDataCacheMiss") == 1
    assert met.counter_value("DestroyXlaTensor") is None and number.item() == 2077


def test_an_operator_of_a_library_counts_by_its_own_name():
    with torch.library._scoped_library("counted", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x + x, "CompositeExplicitAutograd")
        torch.ops.counted.doubled(torch.ones(2, device="xla"))
        assert operators()["xla::doubled"] == 1


def test_a_symbolic_trace_counts_nothing_but_its_row():
    x = torch.tensor([1.0, -2.0], device="xla")
    met.clear_counters()
    torch.special.multigammaln(x.abs() + 5, 2)
    assert "xla::abs" in operators() and all(n < 3 for n in operators().values())


def test_lazy_tracing_has_a_sample_for_each_operator():
    x = torch.ones(2, device="xla")
    met.clear_all()
    for _ in range(10):
        x = x * 3
    total, nanoseconds, kept = met.metric_data("LazyTracing")
    assert total == 10 == len(kept) and nanoseconds > 0
    torch_xla.sync()
    assert met.metric_data("LazyTracing")[0] == 10
