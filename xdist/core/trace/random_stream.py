"""Random numbers: a seed and a counter per device, kept on the host.

Every random row takes the pair as runtime inputs and raises the counter by one, so the same seed
gives the same bits whatever else is in the program, and a state can be read and set at any time
without a cut. Ranks draw the same numbers from one seed, as on any device of torch, so that what is
made on the device after `torch.manual_seed(0)` is the same on all.
"""

_SEED_BITS = 32
_MAX_COUNTER = 2**31 - 1
DEFAULT_SEED = 0


class RandomStream:
    """The stream of one device: `seed` and how many random rows were recorded since.

    `lane` tells streams of one seed apart: a rank that draws its own part of a tensor sets it.
    `settings` counts how often it was set.
    """

    __slots__ = ("counter", "lane", "seed", "settings")

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self.seed = seed
        self.counter = 0
        self.lane = 0
        self.settings = 0

    def next(self) -> tuple[int, int]:
        """The (seed with lane, counter) of one random row."""
        # One statement: threads of one device must not draw the same counter.
        self.counter = counter = self.counter + 1
        return self.seed ^ (self.lane << _SEED_BITS), counter

    def set_seed(self, seed: int) -> None:
        """Start the stream of `seed` anew."""
        self.seed = seed & (2**_SEED_BITS - 1)
        self.counter = 0
        self.settings += 1

    @property
    def state(self) -> int:
        """One int that fits int64; a plain seed below 2**32 is a state too."""
        return self.counter << _SEED_BITS | self.seed

    @state.setter
    def state(self, state: int) -> None:
        self.seed = state & (2**_SEED_BITS - 1)
        self.counter = (state >> _SEED_BITS) & _MAX_COUNTER
        self.settings += 1
