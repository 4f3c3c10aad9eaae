"""What the sweep expects to fail, and why. An entry that starts to pass has to go."""

import torch

# Names of operators, why they fail, and in which dtypes (None: in all).
EXPECTED: dict[str, tuple[str, tuple[torch.dtype, ...] | None]] = {
    "view_as_complex": ("a view of the device as complex32, which XLA lacks", (torch.float16,)),
    # Elsewhere ours, which round once, are nearer to the exact gradient.
    "special.i0e": ("CPU torch computes one bfloat16 in bfloat16, by luck well", (torch.bfloat16,)),
}


def reason(name: str, dtype: torch.dtype) -> str | None:
    """Why an operator fails in a dtype; None where it must pass."""
    words, dtypes = EXPECTED.get(name, (None, ()))
    return words if dtypes is None or dtype in dtypes else None
