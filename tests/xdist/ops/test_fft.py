"""Fourier transforms with every normalization, over several dims, forward and back."""

import pytest
import torch
from devices_agree import both

X = torch.linspace(-1, 2, 60, dtype=torch.float64).sin().reshape(3, 4, 5)


@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
def test_transforms_and_their_inverses(norm: str) -> None:
    both(lambda x: torch.fft.rfftn(x, norm=norm), X)
    both(lambda x: torch.fft.irfft(torch.fft.fft(x, norm=norm), 7, dim=1, norm=norm), X)
    both(lambda x: torch.fft.ifft2(torch.complex(x, x), norm=norm), X)


def test_hermitian_spectra_equal_eager() -> None:
    both(lambda x: (torch.fft.hfft(x, 6), torch.fft.ihfft(x)), X)


def test_more_dims_than_xla_transforms_at_once() -> None:
    both(lambda x: torch.fft.fftn(x.reshape(3, 2, 2, 5)), X)


def test_frames_of_a_signal_and_back() -> None:
    window = torch.hann_window(8, dtype=torch.float64)

    def round_trip(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 8, 4, window=window.to(x.device), return_complex=True)
        return torch.istft(spectrum, 8, 4, window=window.to(x.device))

    both(round_trip, X.reshape(-1)[:56])
