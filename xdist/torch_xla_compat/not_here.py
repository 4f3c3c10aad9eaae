"""Modules of torch_xla that are not here, and what to use instead: the whole list.

`python -m torch_xdist.surface` shows it. Importing one of them raises `NotHereError`.
"""

from typing import NoReturn

from torch_xdist.errors import NotHereError

_PLUGINS = (
    "; run on PJRT_DEVICE=CPU, CUDA or TPU, or give the maker's JAX plugin to"
    " torch_xla.experimental.plugins.register_plugin"
)
_NEURON = "JAX has no backend for AWS Neuron" + _PLUGINS

# module: why it is not here; what to use instead
NOT_HERE = {
    "torch_xla._internal.neuron": _NEURON,
    "torch_xla._internal.neuron_utils": _NEURON,
    "torch_xla._internal.xpu": "Intel's GPUs come with a plugin of Intel's own" + _PLUGINS,
    "torch_xla.tf_saved_model_integration": (
        "TensorFlow's SavedModel needs TensorFlow; save StableHLO with"
        " torch_xla.stablehlo.save_torch_model_as_stablehlo, which jax.export and XLA's compilers"
        " read"
    ),
}


def refuse(module: str) -> NoReturn:
    """Raise NotHereError for a module of the list; the module calls it."""
    raise NotHereError(f"{module} is not here: {NOT_HERE[module]}")
