"""Errors of the ground floor, each also a builtin.

SystemFloorError
  ProcessError    OSError      a process that cannot be watched; nothing is known about it
  FrameError      ValueError   a message that cannot be read, or is larger than the reader allows
  SealError       ValueError   bytes that do not carry the seal of this job
  RankError       ValueError   variables that name no possible rank
"""


class SystemFloorError(Exception):
    """The root of the errors of this folder."""


class ProcessError(SystemFloorError, OSError):
    """A process that cannot be watched (no descriptor left): whether it lives is unknown."""


class FrameError(SystemFloorError, ValueError):
    """A message that cannot be read, or is larger than the reader allows."""


class SealError(SystemFloorError, ValueError):
    """Bytes that do not carry the seal of this job."""


class RankError(SystemFloorError, ValueError):
    """Variables that name no possible rank."""
