"""SavedModels of TensorFlow, which torch_xla writes and this package does not."""

import importlib.util
from typing import Any

from torch_xdist.errors import ArgumentError


def has_tf_package() -> bool:
    """Whether TensorFlow is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def load_save_model_and_inference(path: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """Refused: SavedModels are TensorFlow's."""
    raise ArgumentError(
        f"load_save_model_and_inference({path!r}): SavedModels of TensorFlow are not written here;"
        " use StableHLOGraphModule.load, or torch_xdist.export.plain_jax.load"
    )


def compare_exported_program_and_saved_model_result(
    ep: Any, saved_model_path: str, args: tuple[Any, ...], atol: float = 1e-07
) -> None:
    """Refused: SavedModels are TensorFlow's."""
    load_save_model_and_inference(saved_model_path, args)
