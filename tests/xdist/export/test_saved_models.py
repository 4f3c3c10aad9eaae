"""SavedModels of TensorFlow are refused, with what there is instead."""

import importlib.util

import pytest
import torch

from torch_xdist.errors import ArgumentError
from torch_xla.utils import stablehlo_test_utils as utils


def test_saved_models_are_refused_with_what_to_use():
    words = r"'saved'\): SavedModels of TensorFlow are not written here; use StableHLOGraphModule.l"
    with pytest.raises(ArgumentError, match=words):
        utils.load_save_model_and_inference("saved", ())
    with pytest.raises(ArgumentError, match=words):
        utils.compare_exported_program_and_saved_model_result(None, "saved", ())
    assert utils.has_tf_package() == (importlib.util.find_spec("tensorflow") is not None)


def test_a_function_becomes_a_module_for_inference():
    module = utils.wrap_func_as_nn_module(torch.sin)
    assert not module.training and torch.equal(module(torch.ones(2)), torch.ones(2).sin())
