"""Operators whose schema does not say what they do: packed sequences."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_xla  # noqa: F401


def packed_results(layer, device, lengths, **options):
    torch.manual_seed(0)
    model = layer(3, 4, batch_first=True, **options).double().to(device)
    x = torch.randn(3, 5, 3, dtype=torch.float64).to(device).requires_grad_()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, state = model(packed)
    padded, found = pad_packed_sequence(out, batch_first=True)
    states = state if isinstance(state, tuple) else (state,)
    loss = padded.sin().sum() + sum(s.square().sum() for s in states)
    grads = torch.autograd.grad(loss, [x, *model.parameters()])
    return packed, [r.detach().cpu() for r in (padded, found, *states, *grads)]


@pytest.mark.parametrize(
    ("layer", "options"), [(nn.LSTM, {}), (nn.GRU, {"bidirectional": True})], ids=["lstm", "gru"]
)
def test_packed_sequences_equal_eager_and_their_lengths_stay_on_the_cpu(layer, options):
    lengths = torch.tensor([2, 5, 3])
    _, expected = packed_results(layer, "cpu", lengths, **options)
    packed, found = packed_results(layer, "xla", lengths, **options)
    assert packed.data.device.type == "xla" and packed.batch_sizes.device.type == "cpu"
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("lengths", [[5, 3, 0], [3, 5, 2], [5, 3]], ids=["zero", "order", "few"])
def test_wrong_lengths_are_refused_in_torchs_words(lengths):
    said = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="length") as failure:
            pack_padded_sequence(torch.zeros(5, 3, 2).to(device), torch.tensor(lengths))
        said.append(str(failure.value))
    assert said[0] == said[1]


def test_running_statistics_that_are_views_are_written_where_they_are() -> None:
    both = torch.zeros(2, 3).to("xla")
    x = torch.arange(12.0).view(4, 3).to("xla")
    for _ in range(2):
        torch.native_batch_norm(x, *_ones(), both[0], both[1], True, 0.5, 1e-5)
    wanted = torch.zeros(2, 3)
    for _ in range(2):
        torch.native_batch_norm(
            x.cpu(), *(t.cpu() for t in _ones()), wanted[0], wanted[1], True, 0.5, 1e-5
        )
    torch.testing.assert_close(both.cpu(), wanted)


def _ones() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3).to("xla"), torch.ones(3).to("xla")


@pytest.mark.parametrize("momentum", [0.25, 1])
def test_running_statistics_that_the_graph_has_just_made_are_written(momentum: float) -> None:
    """They are pending, and the second call is known."""
    kept = []
    for device in ("cpu", "xla"):
        x = torch.arange(12.0).view(4, 3).to(device)
        weight, bias, mean, var = (torch.full((3,), n, device=device) for n in (2.0, 1.0, 0.5, 3.0))
        for _ in range(3):
            out = torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, 1e-5)
        kept.append([t.cpu() for t in (*out, mean, var)])
    for want, have in zip(*kept):
        torch.testing.assert_close(have, want)
