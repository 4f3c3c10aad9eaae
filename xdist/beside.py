"""Is another torch_xla installed beside ours? Two of them cannot share one import name."""

import importlib.metadata
from pathlib import Path


def refuse_other_torch_xla(own_file: str) -> None:
    """Raise ImportError where the distribution torch_xla is installed beside this one.

    Args:
        own_file: the file of the torch_xla package that is being imported.
    """
    try:
        other = importlib.metadata.distribution("torch_xla")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"torch_xla: PyTorch/XLA {other.version} is installed beside torch-xdist, and both are"
        f" imported as torch_xla (found {Path(own_file).parent}); remove one of them: pip uninstall"
        " torch_xla"
    )
