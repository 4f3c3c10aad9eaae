"""Seeds and states of the devices' random streams; see `trace/random_stream.py`."""

from torch_xdist.core.devices import device


def set_rng_state(state: int, device_: object = None) -> None:
    """Set the stream of one device from an int of `get_rng_state`, or from a seed."""
    device.device_at(device.index_of(device_)).random.state = int(state)


def get_rng_state(device_: object = None) -> int:
    """The stream's state as a plain int below 2**63."""
    return device.device_at(device.index_of(device_)).random.state


def seed_all(seed: int) -> None:
    """What `torch.manual_seed` does to the xla devices."""
    device.set_default_seed(seed)
