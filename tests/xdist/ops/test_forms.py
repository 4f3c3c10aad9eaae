"""Forms are those of the platform that a program is made for."""

from torch_xdist import platforms
from torch_xdist.core.trace import global_state
from torch_xdist.ops import forms


def test_a_programs_key_says_for_which_platform_its_forms_are() -> None:
    # That of GPUs sets JAX's precision for the process as well.
    for name in ("tpu", "cpu"):
        assert platforms.CHOICES[name] in global_state.of_program(platforms.CHOICES[name])
        assert forms.chosen() is platforms.CHOICES[name]
