"""TPU facts that other launchers ask for before anything runs."""

import glob

from torch_xdist import settings

_ACCELERATOR_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def num_available_chips() -> int:
    """How many TPU chips this host has, counted by their device files; starts nothing."""
    return max(len(glob.glob(pattern)) for pattern in _ACCELERATOR_FILES)


def num_available_devices() -> int:
    """How many xla devices a job on this host may use; starts nothing.

    Without a TPU the answer is CPU_NUM_DEVICES or 1, so that launchers which ask "is there a TPU"
    here find the device that is there.
    """
    return num_available_chips() or settings.cpu_num_devices() or 1


def version() -> int:
    """The TPU's generation from TPU_ACCELERATOR_TYPE ("v4-8" -> 4); 0 where there is none."""
    name = settings.getenv_as("TPU_ACCELERATOR_TYPE", str, "")
    digits = name.removeprefix("v")[:1]
    return int(digits) if digits.isdecimal() else 0
