"""Whether this process rehearses a job for a topology: `xla-run compile` says so by a variable."""

from torch_xdist import settings


def follow_environment() -> None:
    """Rehearse from the first use of a device on, where the environment asks for it."""
    if not settings.rehearsal():
        return
    # Ordinary processes need none of it.
    from torch_xdist.ahead import rehearsal

    rehearsal.begin()
