"""torch.Generator("xla"), and the generators torch makes beside it."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401


def draw(generator):
    return torch.rand(3, device="xla", generator=generator).tolist()


def test_a_generator_of_the_device_has_a_stream_of_its_own():
    g = torch.Generator("xla")
    assert (g.device.type, g.device.index) == ("xla", 0)
    g.manual_seed(4)
    first, second = draw(g), draw(g)
    assert first != second
    torch.manual_seed(1)
    torch.rand(2, device="xla")
    assert draw(g.manual_seed(4)) == first
    assert torch.randn(3, device="xla").normal_(generator=g.manual_seed(4)).shape == (3,)


def test_its_state_can_be_set_again():
    g = torch.Generator(device="xla:0").manual_seed(9)
    draw(g)
    state = g.get_state()
    numbers = draw(g)
    assert draw(g) != numbers
    g.set_state(state)
    assert draw(g) == numbers
    assert g.initial_seed() == 9


def test_other_devices_get_generators_of_torch():
    g = torch.Generator()
    assert type(g) is torch._C.Generator and g.device.type == "cpu"
    assert isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    assert isinstance(torch.Generator("xla"), torch.Generator)
    assert not isinstance(3, torch.Generator)
    with pytest.raises(RuntimeError, match="META"):
        torch.Generator("meta")


def test_a_generator_of_the_cpu_serves_the_device_too():
    g = torch.Generator().manual_seed(2)
    numbers = draw(g)
    assert draw(g) != numbers
    assert draw(torch.Generator().manual_seed(2)) == numbers
    assert torch.rand(2, generator=g).shape == (2,)


def test_loaders_and_splits_accept_what_they_did():
    parts = torch.utils.data.random_split(range(6), [2, 4], torch.Generator().manual_seed(0))
    assert [len(p) for p in parts] == [2, 4]
