"""What kind of process this is to the launcher: an ordinary one, or a rank, and of what."""

_task_kind = ""


def enter(kind: str) -> None:
    """This process becomes a rank that runs a "function", a "script" or a "module"."""
    global _task_kind
    _task_kind = kind


def in_spawned_rank() -> bool:
    """Whether this is a rank that runs a function given to `spawn`."""
    return _task_kind == "function"
