"""For which platform programs are made from now on, where an operator's form depends on it.

Set by `core/trace/global_state.py` before a program is made, which has it in its key. A choice that
is made here is in the program's equations, by which `core/programs/compile_options.py` finds the
options of programs for CPUs; `lax.platform_dependent` would have the equations of every form.
"""

from torch_xdist import platforms

_chosen = [platforms.CHOICES["cpu"]]


def chosen() -> platforms.Choices:
    """What is chosen for the platform in question."""
    return _chosen[0]


def choose(choices: platforms.Choices) -> None:
    """Make programs for that platform from now on."""
    _chosen[0] = choices
