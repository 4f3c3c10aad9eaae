"""Rows of jagged nested tensors are padded, and taken out again, as on the CPU, on the device."""

import pytest
import torch
from devices_agree import served_by_cpu

OFFSETS = torch.tensor([0, 2, 6, 6, 9])
pad = torch.ops.aten._jagged_to_padded_dense_forward
unpad = torch.ops.aten._padded_dense_to_jagged_forward


def rows(*shape: int) -> torch.Tensor:
    size = torch.Size(shape).numel()
    return torch.arange(1.0, size + 1, dtype=torch.double).view(shape)


@pytest.mark.parametrize("longest", [3, 4, 6])
@pytest.mark.parametrize("size", [(8,), (2, 3)])
def test_sequences_are_padded_or_cut_to_one_length(longest: int, size: tuple[int, ...]) -> None:
    def run(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return pad(x.detach(), [offsets], [longest], -1.5)

    assert served_by_cpu(run, rows(9, *size), OFFSETS) == []


@pytest.mark.parametrize("longest", [4, 6])
def test_rows_are_taken_out_of_the_padding(longest: int) -> None:
    def run(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return unpad(x.detach(), [offsets], 9)

    assert served_by_cpu(run, rows(4, longest, 8), OFFSETS) == []


def test_no_rows_at_all_are_all_padding() -> None:
    def run(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return pad(x.detach(), [offsets], [2], 3.0)

    assert served_by_cpu(run, rows(0, 8), OFFSETS * 0) == []


def test_how_many_rows_there_are_is_counted_on_the_cpu() -> None:
    def run(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return unpad(x.detach(), [offsets])

    assert served_by_cpu(run, rows(4, 4, 8), OFFSETS) == ["aten::_padded_dense_to_jagged_forward"]
