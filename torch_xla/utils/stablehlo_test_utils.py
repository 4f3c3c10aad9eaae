"""For tests of exported programs."""

from torch_xdist.export.fx_passes import wrap_func_as_nn_module
from torch_xdist.export.saved_models import (
    compare_exported_program_and_saved_model_result,
    has_tf_package,
    load_save_model_and_inference,
)

__all__ = [
    "compare_exported_program_and_saved_model_result",
    "has_tf_package",
    "load_save_model_and_inference",
    "wrap_func_as_nn_module",
]
