"""`spawn` from a notebook cell, in a real kernel, twice."""

from pathlib import Path

import pytest

_CELLS = (
    "from torch_xdist.launcher.ways_in.spawn import spawn\nscale = 10",
    "class Row:\n    def __init__(self, value):\n        self.value = value\n"
    "def work(rank):\n    print('in rank', rank)\n    return Row(rank * scale)",
    "print([row.value for row in spawn(work, nprocs=2)])",
    "scale = 100\nprint([row.value for row in spawn(work, nprocs=2)])",
    "def bad(rank):\n    raise ValueError('no data')\n"
    "try:\n    spawn(bad, nprocs=2)\nexcept ValueError as error:\n    print(error.__cause__)",
)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_cells_spawn_functions_and_classes_of_the_notebook_twice(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the notebook extra is not installed")
    nbformat = pytest.importorskip("nbformat", reason="the notebook extra is not installed")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in _CELLS])
    nbclient.NotebookClient(
        notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    texts = [
        "".join(out["text"] for out in cell.outputs if out["output_type"] == "stream")
        for cell in notebook.cells
    ]
    assert "[0, 10]" in texts[2] and "[0] in rank 0" in texts[2]
    assert "[0, 100]" in texts[3]
    assert "raised ValueError: no data (the same on ranks 0, 1)" in texts[4]
    assert "raise ValueError('no data')" in texts[4]
