"""Forms are those of the platform that a program is made for."""

from torch_xdist import platforms
from torch_xdist.core.trace import global_state
from torch_xdist.ops import forms


def test_a_programs_key_says_for_which_platform_its_forms_are() -> None:
    keys = {name: global_state.of_program(x) for name, x in platforms.CHOICES.items()}
    assert len({*keys.values()}) == len(keys)
    assert global_state.of_program(platforms.CHOICES["cpu"]) == keys["cpu"]
    assert forms.chosen() is platforms.CHOICES["cpu"]
