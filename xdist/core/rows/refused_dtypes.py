"""Programs with dtypes that the compiler of their platform may end the process over."""

from torch_xdist.core.trace.trace import Entry, rows_of, types_of
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import UnsupportedDtypeError
from torch_xdist.platforms import Choices


def check(entries: tuple[Entry, ...], choices: Choices) -> None:
    """Raise UnsupportedDtypeError where a value of the program has a dtype that is refused."""
    if not choices.refused_dtypes:
        return
    names = {slot: row[0].name for slot, row in rows_of(entries)}
    for slot, type_ in types_of(entries).items():
        if str(to_jax(type_.dtype)) in choices.refused_dtypes:
            raise UnsupportedDtypeError(
                f"{names.get(slot, 'a tensor from before the step')}: {type_} on"
                f" {choices.name.upper()}, whose compiler would abort this process over"
                f" {type_.dtype}; use a narrower dtype there, or compute it on the CPU (.cpu())"
            )
