"""`x[mask] = values`: as many values as the mask selects, or torch's error."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.run import cuts


def written(device, index, values):
    x = torch.zeros(2, 4, 3, device=device)
    mask = torch.tensor([True, False, True, False], device=device)
    x[(*index, mask)] = values.to(device)
    return x.cpu()


@pytest.mark.parametrize(
    "values",
    [torch.tensor(2.0), torch.ones(3), torch.rand(1, 3), torch.rand(2, 3), torch.rand(2, 2, 3)],
    ids=lambda v: str(list(v.shape)),
)
def test_values_that_fit_the_mask_are_written(values):
    index = (slice(None),)
    torch.testing.assert_close(written("xla", index, values), written("cpu", index, values))


@pytest.mark.parametrize("shape", [(3, 3), (0, 3), (2, 4, 3)])
def test_another_number_of_values_raises_torchs_error(shape):
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape") as expected:
        written("cpu", (slice(None),), torch.ones(shape))
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape") as got:
        written("xla", (slice(None),), torch.ones(shape))
    assert str(got.value) == str(expected.value)


def test_values_that_fit_any_mask_are_written_without_a_read():
    before = cuts.REASONS.copy()
    x = torch.zeros(4, device="xla")
    x[x > 1] = torch.ones(1, device="xla")
    assert before == cuts.REASONS
    assert x.tolist() == [0] * 4
