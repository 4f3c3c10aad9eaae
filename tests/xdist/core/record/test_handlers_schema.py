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
