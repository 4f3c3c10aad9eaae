"""Every error of the device, each also a builtin, so that old `except` clauses still catch it.

XdistError
  UnsupportedDtypeError   TypeError            a dtype JAX does not have
  ReleaseError            ImportError          a release of torch or jax that does not fit
  DeviceError             RuntimeError         unknown platform, mixed devices
    DeviceIndexError      IndexError           a device index out of range
  NoLoweringError         NotImplementedError  an operator that cannot run, not even on the CPU
  FallbackError           RuntimeError         XDIST_FALLBACK=error met an operator without a row
  ArgumentError           ValueError           arguments that cannot work
  NotHereError            ImportError          a module of torch_xla that is left out
  ImpureError             AssertionError       a function wrote to what it must not
  ShardingError           ValueError, ...      a mesh or a sharding that cannot be
  CutError                RuntimeError         a value was asked for where none can be had
  ValueLostError          RuntimeError         a program failed after it had taken its operands
  OutOfMemoryError        RuntimeError, ...    a program that no memory of the host could hold
  WorldError              RuntimeError         ranks disagree, or the world cannot be joined
  LoaderError             RuntimeError         a batch that cannot be moved, uneven ranks
  CheckpointError         RuntimeError         a file that is corrupt or cannot be written
"""


class XdistError(Exception):
    """The root of every error raised by the device."""


class UnsupportedDtypeError(XdistError, TypeError):
    """A dtype that JAX does not have."""


class ReleaseError(XdistError, ImportError):
    """A release of torch or jax that lacks what the device needs of it."""


class DeviceError(XdistError, RuntimeError):
    """A device that is not there, or tensors of several devices in one operator."""


class DeviceIndexError(DeviceError, IndexError):
    """A device index that is out of range."""


def in_forked_child() -> DeviceError:
    """The error of a process that was forked from one that had used a device."""
    return DeviceError(
        "xla: this process was forked from one that had used an xla device, whose threads are not"
        " here; use the device in the parent alone, or start processes with xmp.spawn or"
        " multiprocessing.get_context('spawn')"
    )


class NoLoweringError(XdistError, NotImplementedError):
    """An operator that cannot run on the device, not even through the CPU."""


class FallbackError(XdistError, RuntimeError):
    """XDIST_FALLBACK=error, and an operator would have run on the CPU."""


class ArgumentError(XdistError, ValueError):
    """Arguments that cannot work."""


class NotHereError(XdistError, ImportError):
    """A module of torch_xla that this package does not have."""


class ImpureError(XdistError, AssertionError):
    """A function wrote to its arguments, or to tensors from outside, which it must not."""


class ShardingError(XdistError, ValueError, AssertionError, RuntimeError):
    """A mesh or a sharding that cannot be; torch_xla raises one of the three."""


class CutError(XdistError, RuntimeError):
    """The value of a tensor was asked for where a trace cannot be cut."""


class ValueLostError(XdistError, RuntimeError):
    """The values of tensors are gone: a program failed after XLA had taken over their memory."""


class OutOfMemoryError(XdistError, RuntimeError, MemoryError):
    """A program that needs more memory than there is."""


class WorldError(XdistError, RuntimeError):
    """Ranks that disagree, or a world that cannot be joined."""


class LoaderError(XdistError, RuntimeError):
    """A batch that cannot be moved, or ranks with different numbers of batches."""


class CheckpointError(XdistError, RuntimeError):
    """A checkpoint that is corrupt, incomplete or cannot be written."""
