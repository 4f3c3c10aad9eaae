"""What the sweep expects to fail, and why. An entry that starts to pass has to go."""

import torch

_SPARSE = "of the sparse layouts the device has COO alone, and these take CSR"
# Names of operators, why they fail, and in which dtypes (None: in all).
EXPECTED: dict[str, tuple[str, tuple[torch.dtype, ...] | None]] = {
    "sparse.sampled_addmm": (_SPARSE, None),
    "sparse.mm.reduce": (_SPARSE, None),
    "chalf": ("JAX has no complex32", None),
    "complex": ("JAX has no complex32", (torch.float16,)),
    "view_as_complex": ("JAX has no complex32", (torch.float16,)),
    # Elsewhere ours, which round once, are nearer to the exact gradient.
    "special.i0e": ("CPU torch computes one bfloat16 in bfloat16, by luck well", (torch.bfloat16,)),
}


def reason(name: str, dtype: torch.dtype) -> str | None:
    """Why an operator fails in a dtype; None where it must pass."""
    words, dtypes = EXPECTED.get(name, (None, ()))
    return words if dtypes is None or dtype in dtypes else None
