"""Seeds, states and streams of the device's random numbers."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import world
from torch_xdist.core.devices import rng
from torch_xdist.core.trace.random_stream import RandomStream


def draw(n=4):
    return torch.rand(n, device="xla").tolist()


def test_the_same_seed_gives_the_same_numbers():
    torch.manual_seed(5)
    first = draw(), draw()
    torch.manual_seed(5)
    assert (draw(), draw()) == first
    assert first[0] != first[1]


def test_what_else_is_recorded_does_not_change_the_numbers():
    torch.manual_seed(5)
    alone = draw()
    torch.manual_seed(5)
    torch.ones(3, device="xla").mul_(2)
    assert draw() == alone


def test_a_state_is_an_int_that_can_be_set_again():
    torch.manual_seed(6)
    draw()
    state = rng.get_rng_state()
    assert isinstance(state, int)
    assert 0 <= state < 2**63
    numbers = draw()
    rng.set_rng_state(state)
    assert draw() == numbers


def test_fork_rng_leaves_the_stream_where_it_was():
    torch.manual_seed(7)
    expected = draw()
    torch.manual_seed(7)
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        draw()
    assert draw() == expected


def test_a_generator_of_the_user_has_a_stream_of_its_own():
    def numbers(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.empty(3, device="xla").normal_(generator=generator).tolist()

    assert numbers(3) == numbers(3) != numbers(4)


def test_ranks_draw_the_same_numbers_from_one_seed_and_lanes_others(monkeypatch):
    pairs = []
    for rank in (0, 1):
        monkeypatch.setattr(world, "rank", lambda r=rank: r)
        pairs.append(RandomStream(3).next())
    of_lane = RandomStream(3)
    of_lane.lane = 1
    assert pairs[0] == pairs[1] != of_lane.next()


@pytest.mark.parametrize(
    ("sample", "mean", "variance"),
    [
        (lambda x: x.normal_(2, 3), 2, 9),
        (lambda x: x.uniform_(-1, 3), 1, 16 / 12),
        (lambda x: x.exponential_(2), 0.5, 0.25),
        (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
        (lambda x: x.geometric_(0.5), 2, 2),
        (lambda x: x.log_normal_(0, 0.5), 1.1331, 0.3647),
        (lambda x: x.random_(0, 10), 4.5, 8.25),
        (lambda x: torch.nn.functional.dropout(x.fill_(1), 0.25), 1, 1 / 3),
        (lambda x: torch.randn_like(x), 0, 1),
        (lambda x: torch.randperm(x.numel(), device="xla").float() / x.numel(), 0.5, 1 / 12),
    ],
)
def test_samples_have_the_mean_and_variance_of_their_distribution(sample, mean, variance):
    torch.manual_seed(11)
    n = 40_000
    values = sample(torch.empty(n, device="xla")).cpu().double()
    spread = variance**0.5
    assert abs(values.mean().item() - mean) < 6 * spread / n**0.5 + 1e-3
    assert values.var().item() == pytest.approx(variance, rel=0.08)


def test_multinomial_draws_by_weight():
    torch.manual_seed(12)
    weights = torch.tensor([0.1, 0.2, 0.7]).to("xla")
    counts = torch.bincount(torch.multinomial(weights, 20_000, replacement=True).cpu(), minlength=3)
    torch.testing.assert_close(counts / 20_000, weights.cpu(), atol=0.02, rtol=0)
    assert sorted(torch.multinomial(weights, 3).tolist()) == [0, 1, 2]
