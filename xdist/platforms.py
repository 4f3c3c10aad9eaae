"""The one table of what depends on a platform: cpu, cuda, tpu.

Each choice is made by the platform of the program in question: of the device that it is compiled
for, which `Device.choices` says. That may be another than this process has: `core/devices/aim.py`.
What is chosen inside a program, JAX chooses by the platform that it lowers for, so by the same one:
`lax.platform_dependent` in `ops/grouped.py`, and the primitives registered for a platform in
`ops/tpu_forms.py`, `kernels/quantized_forms.py` and `export/custom_calls.py`.
"""

from typing import NamedTuple


class Choices(NamedTuple):
    """What is done for programs of one platform.

    Attributes:
        name: of the platform, as `jax.export` has it.
        is_host: its memory is the host's: it is read without a copy of parts, masked reads are
            cheaper in torch, and a program larger than the host's memory is refused.
        shares_memory: ranks of one host exchange through it; elsewhere by XLA's own collectives.
        waits_outside: who comes first to a collective of XLA's waits before it: gloo gives up.
        has_pallas: Pallas's kernels for TPUs run, else what computes the same.
        has_tf32: products of float32 may be rounded to TF32, as torch's flags say.
        has_fused_attention: cuDNN's, which XLA calls for halves.
        rounds_products: products of halves are asked for as halves: they are summed in float32 and
            rounded once there too, and XLA's kernels for them are better.
        keeps_halves: what is exact in halves, or rounded once there too, is computed in them: of
            float32 in between XLA would store that.
        has_cudnn: convolutions of planes are cuDNN's, which has channels last: those of 1x1 kernels
            and of halves are asked for as what they are.
        reads_once: batch norm's statistics are taken in one pass over its input, and the gradient
            of a ReLU after it reads that too, not ReLU's result.
        writes_out_taps: arrays that are made for each tap of a kernel or a window would be written
            out, all at once. So convolutions of several groups and sums over windows are XLA's own,
            and the gradient of maxima is one sum for each residue of a place by the strides.
        updates_apart: large parameters are updated by a loop for each: XLA would make one of many.
        hashes_straight: random numbers are hashed without a loop, which JAX has there.
        has_own_options: programs are compiled with the options that `compile_options` has for CPUs.
        tries_triton: XLA times kernels of Triton for each product beside its library's.
        combines: its compiler makes few collectives of many small ones, without a copy.
        counts_narrowly: positions inside a program are of 32 bits where that is enough.
        on_cpu: operators that it has no form of: they run on the CPU, counted by name.
        refused_dtypes: by numpy's names: its compiler may end the process over them.
    """

    name: str
    is_host: bool = False
    shares_memory: bool = False
    waits_outside: bool = False
    has_pallas: bool = False
    has_tf32: bool = False
    has_fused_attention: bool = False
    rounds_products: bool = False
    keeps_halves: bool = False
    has_cudnn: bool = False
    reads_once: bool = False
    writes_out_taps: bool = False
    updates_apart: bool = False
    hashes_straight: bool = False
    has_own_options: bool = False
    tries_triton: bool = False
    combines: bool = False
    counts_narrowly: bool = False
    on_cpu: frozenset[str] = frozenset()
    refused_dtypes: frozenset[str] = frozenset()


# Eigenvalues of what is not symmetric: XLA has none but LAPACK's.
_NOT_SYMMETRIC = frozenset(
    """
    aten.linalg_eig.default aten.linalg_eigvals.default aten._linalg_eigvals.default
    """.split()
)

CHOICES = {
    "cpu": Choices(
        "cpu",
        is_host=True,
        shares_memory=True,
        waits_outside=True,
        hashes_straight=True,
        has_own_options=True,
    ),
    "cuda": Choices(
        "cuda",
        has_tf32=True,
        has_fused_attention=True,
        rounds_products=True,
        keeps_halves=True,
        has_cudnn=True,
        reads_once=True,
        updates_apart=True,
        tries_triton=True,
    ),
    "tpu": Choices(
        "tpu",
        has_pallas=True,
        writes_out_taps=True,
        combines=True,
        counts_narrowly=True,
        on_cpu=_NOT_SYMMETRIC,
        refused_dtypes=frozenset({"complex128"}),
    ),
}
_OTHER_NAMES = {"gpu": "cuda", "rocm": "cuda"}


def of(platform: str) -> Choices:
    """The choices for a platform by any of its names, "GPU" too; a plugin's has none of its own."""
    name = platform.lower()
    name = _OTHER_NAMES.get(name, name)
    return CHOICES.get(name) or Choices(name)
