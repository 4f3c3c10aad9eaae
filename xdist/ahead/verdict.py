"""What a compiler made of a program: whether it compiled, and what it needs. No torch, no JAX."""

import builtins
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch_xdist.ahead import exchanges

OK, REFUSED, ABORTED, LATE = "ok", "refused", "aborted", "late"
# Between slices, over the data centre's network: sent by the host of each device.
_ACROSS = re.compile(r" send\(.*_xla_megascale_transfer_type=\"([A-Z_]+)\"")
_ALIASES = re.compile(r"input_output_alias=\{(.*?)\}, entry")
# A result of this type that is no scalar, and not empty.
_WIDE = re.compile(r"= \(?(s64|f64)\[(?=[1-9])(?![\d,]*\b0\b)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one program.

    Attributes:
        kind: "ok"; "refused", by the compiler's words; "aborted", the compiler's process ended; or
            "late", it took longer than it was given.
        words: why it is not "ok".
        seconds: of the compilation.
        bytes: on each device, of "arguments", "results", "aliased" ones and "temporaries".
        flops, accessed_bytes: of one run, where XLA says it; of HBM.
        wide: instructions with an array of "s64" or "f64" for a result, as it was compiled: what
            comes in and goes out, since XLA makes two arrays of each inside.
        wide_inside: operations on arrays of 64-bit integers inside, see `wide.inside`.
        collectives: how many of each kind inside a slice, by XLA's names.
        exchanges: what each kind of them moves, see `exchanges.of_hlo`.
        across_slices: how many of each kind between slices, by Megascale's names.
        aliases: how many results are written where an argument was.
        donated: how many arguments were given away.
        result_shardings: how results lie, OpShardings in hexadecimal digits, where XLA says it.
        hlo: the compiled program.
        executable: the same in XLA's bytes, where it was asked for.
    """

    kind: str
    words: str = ""
    seconds: float = 0.0
    bytes: dict[str, int] = field(default_factory=dict)
    flops: float = 0.0
    accessed_bytes: float = 0.0
    wide: dict[str, int] = field(default_factory=dict)
    wide_inside: dict[str, int] = field(default_factory=dict)
    collectives: dict[str, int] = field(default_factory=dict)
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    across_slices: dict[str, int] = field(default_factory=dict)
    aliases: int = 0
    donated: int = 0
    result_shardings: list[str] = field(default_factory=list)
    hlo: str = ""
    executable: builtins.bytes = field(default=b"", repr=False)

    @property
    def is_ok(self) -> bool:
        """Whether it compiled."""
        return self.kind == OK

    @property
    def donated_share(self) -> float:
        """How many of the arguments that were given away hold a result afterwards, 0 to 1."""
        return self.aliases / self.donated if self.donated else 0.0


def facts_of(executable: Any) -> dict[str, Any]:
    """The facts of XLA's executable, as a Verdict has them."""
    memory = executable.get_compiled_memory_stats()
    text = "\n".join(module.to_string() for module in executable.hlo_modules())
    costs = _costs(executable)
    return {
        "bytes": {
            "arguments": memory.argument_size_in_bytes,
            "results": memory.output_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
        },
        # Below zero is what XLA does not know.
        "flops": max(costs.get("flops", 0.0), 0.0),
        "accessed_bytes": max(costs.get("bytes accessed", 0.0), 0.0),
        "wide": wide_of(text),
        "collectives": collectives_of(text),
        "exchanges": exchanges.of_hlo(text),
        "across_slices": across_slices(text),
        "aliases": aliases_of(text),
        "result_shardings": _result_shardings(executable),
        "hlo": text,
    }


def _result_shardings(executable: Any) -> list[str]:
    found = executable.get_output_shardings() or []
    return [sharding.SerializeToString().hex() for sharding in found]


def _costs(executable: Any) -> dict[str, float]:
    found: Any = executable.cost_analysis()
    found = found[0] if isinstance(found, list) else found
    return {name: float(value) for name, value in (found or {}).items()}


def wide_of(hlo: str) -> dict[str, int]:
    """How many instructions of a program give arrays of 64 bits, by type; scalars are free."""
    return dict(Counter(_WIDE.findall(hlo)))


def collectives_of(hlo: str) -> dict[str, int]:
    """How many collectives a program has, by kind; an asynchronous pair or chain is one."""
    found: Counter[str] = Counter()
    for one in exchanges.of_hlo(hlo):
        found[one["kind"]] += one["count"]
    return dict(found)


def across_slices(hlo: str) -> dict[str, int]:
    """How many collectives of a program leave the slice, by kind."""
    return dict(Counter(_ACROSS.findall(hlo)))


def aliases_of(hlo: str) -> int:
    """How many results of a program are written where an argument was."""
    found = _ALIASES.search(hlo)
    return found.group(1).count("-alias") if found else 0
