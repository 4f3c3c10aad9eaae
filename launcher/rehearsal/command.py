"""`xla-run compile`, as it is typed."""

import json
import sys
from collections.abc import Sequence

import click

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.rehearsal import script, table, topologies
from torch_xdist.launcher.rehearsal.chips import CHIPS


@click.command("compile", context_settings={"allow_interspersed_args": False})
@click.option(
    "--topology", required=True, help="a slice such as v5e-256, or several: v5e-64,v5p-16,v6e-32"
)
@click.option("--slices", type=click.IntRange(1), default=1, help="how many of it [1]")
@click.option("--steps", type=click.IntRange(1), default=3, help="of the script to compile [3]")
@click.option("--save", metavar="FOLDER", default="", help="keep the programs, for these TPUs")
@click.option("--json", "as_json", is_flag=True, help="everything that was found, as one object")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND")
def compile_(
    words: Sequence[str], topology: str, slices: int, steps: int, save: str, as_json: bool
) -> None:
    """Would a job fit on these TPUs, and what would bound it? No TPU is needed.

    \b
    xla-run compile --topology v5e-256 -- python train.py
    xla-run compile --topology v5e-64,v5p-16,v6e-32 --json -- python train.py

    The script runs its first steps here, as rank 0 of the topology. Each program is compiled by the
    TPU compiler (pip install 'torch-xdist[tpu]'), and none is run: values read are zeros.

    Exit codes: 0 it fits, 1 it does not, or a program is refused; 2 the options cannot be right; 71
    the script ran no program; else the script's own, where it failed.
    """
    if not words:
        raise UsageError("xla-run compile: no command; write it after --: python train.py")
    results, failed = [], 0
    for where in topologies.read(topology, slices):
        told, code = script.run(words, where, steps, keeps_stdout=as_json, save=save)
        if code:
            click.echo(f"xla-run compile: the script ended with exit code {code}", err=True)
        if told["ended"]:
            click.echo(f"xla-run compile: the script was ended: {told['ended']}", err=True)
        if save:
            click.echo(_kept(told["kept"], where.title, save), err=True)
        results.append(table.Result(where, told))
        failed = failed or code
    click.echo(json.dumps(_object(results)) if as_json else table.text(results))
    sys.exit(failed or int(not all(result.is_fine for result in results)))


def _kept(count: int, title: str, save: str) -> str:
    return (
        f"xla-run compile: {count} programs for {title} are kept in {save}, for the libtpu and jax"
        f" that are installed here; copy it to each host and set XLA_PERSISTENT_CACHE_PATH={save}"
    )


def _object(results: Sequence[table.Result]) -> list[dict[str, object]]:
    return [
        {
            **result.told,
            "topology": result.slice.title,
            "described": result.slice.described,
            "ranks": result.slice.world_size,
            "chip": CHIPS[result.slice.kind]._asdict(),
            "job": {**result.job._asdict(), "bound": result.job.bound._asdict()},
            "remedies": [one._asdict() for one in result.remedies],
        }
        for result in results
    ]
