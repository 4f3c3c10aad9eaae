"""What ranks tell each other about their data: the exchange of `uneven=`, and the warning that
several ranks read the same data.

The warning never waits for another rank: it is read off the loader alone, so that a rank that makes
a loader of its own (evaluation on rank 0, say) cannot hang the others.
"""

import itertools
import warnings
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from torch_xdist import world
from torch_xdist.collectives.messages import communicator
from torch_xdist.core.devices import device
from torch_xdist.loaders.uneven import Exchange

_tags = itertools.count()


class SameDataWarning(UserWarning):
    """Every rank reads the whole dataset."""


def exchange() -> Exchange:
    """Gives an integer to every rank and returns theirs; for one pass of one loader.

    The ranks are matched by the order in which they make loaders with `uneven=`.
    """
    device.start()
    # Held here: a rank that is a thread has a channel of its own, which the reading thread has not.
    here = communicator.current()
    tag, ranks = f"loader-{next(_tags)}", tuple(range(here.world_size))

    def gather(number: int) -> list[int]:
        return [int(text) for text in here.exchange(tag, str(number).encode(), ranks)]

    return gather


def warn_if_shared(loader: Any, ranks: int) -> None:
    """Warn where each of several ranks will read all of the dataset.

    That is a DataLoader over indexed samples with torch's own sampler for one process. Ranks that
    were given different datasets (a Subset each, files of their own) read it wrongly and may ignore
    it: `warnings.simplefilter("ignore", SameDataWarning)`.
    """
    if ranks == 1 or type(loader) is not DataLoader:
        return
    if type(loader.sampler) not in (RandomSampler, SequentialSampler) or loader.batch_size is None:
        return
    if type(loader.sampler) is SequentialSampler:
        # Without a shuffle it is mostly an evaluation, which may run in full on every rank.
        return
    warnings.warn(
        f"MpDeviceLoader: rank {world.rank()} of {ranks} reads all {len(loader.dataset)} samples"  # type: ignore[arg-type]
        " of its dataset, and so will every other rank; give the DataLoader"
        f" sampler=DistributedSampler(dataset, num_replicas={ranks}, rank={world.rank()}), unless"
        " each rank has a dataset of its own",
        SameDataWarning,
        stacklevel=4,
    )
