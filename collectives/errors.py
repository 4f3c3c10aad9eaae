"""Every error of the collectives, each also a builtin.

CollectiveError     RuntimeError    the root
  ArgumentError     ValueError      groups, sizes or roots that cannot work
  DtypeError        TypeError       a reduction the dtype does not have
  MismatchError                     ranks called different collectives, or different shapes
  RankLostError     ConnectionError a rank ended while others wait for it
  JoinError         TimeoutError    a rank never came to the start
  NoAnswerError     TimeoutError    a rank lives, and does not answer
  StrangerError     PermissionError a process that does not belong to this job
"""


class CollectiveError(RuntimeError):
    """The root of every error raised by a collective."""


class ArgumentError(CollectiveError, ValueError):
    """Groups, sizes, roots or pairs that cannot work."""


class DtypeError(CollectiveError, TypeError):
    """A reduction that the dtype does not have."""


class MismatchError(CollectiveError):
    """Ranks that called different collectives, or the same one with different shapes."""


class RankLostError(CollectiveError, ConnectionError):
    """A rank that ended while others wait for it."""


class JoinError(CollectiveError, TimeoutError):
    """A rank that never came to the start."""


class NoAnswerError(CollectiveError, TimeoutError):
    """A rank that lives, and does not answer."""


class StrangerError(CollectiveError, PermissionError):
    """A process, or a message, that does not belong to this job."""
