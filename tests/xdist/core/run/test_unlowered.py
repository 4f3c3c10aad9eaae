"""Where operators ran on the CPU, and the summaries made of it."""

import torch

import torch_xla.debug.frame_parser_util as frames
from torch_xdist.core.run import unlowered

RULE = "=" * 80


def test_a_file_is_told_each_operator_on_the_cpu(ask, tmp_path):
    file = tmp_path / "tracked"
    ask(XLA_FNTRACKER_FILE=file)
    for _ in range(2):
        torch.ones(2, device="xla").sum().item()
    unlowered.note_unlowered("nonzero")
    text = file.read_text()
    assert text.startswith("[TAG _local_scalar_dense From Thread ")
    assert "]\nPython Frames:\n  test_a_file_is_told_each_operator_on_the_cpu (" in text
    assert text.endswith("\nC++ Frames:\n*** End stack trace ***\n\n")
    found = frames.parse_frames(text.splitlines(keepends=True))
    assert sorted(found.values()) == [1, 2]
    assert any(block.startswith('Unlowered Op: "nonzero"\nPython Frames:\n  ') for block in found)


def test_the_file_is_told_what_the_list_and_the_level_ask_for(ask, tmp_path):
    file = tmp_path / "tracked"
    ask(XLA_FNTRACKER_FILE=file, XLA_FNTRACKER_LIST="unique:nonzero")
    unlowered.note_unlowered("sort")
    unlowered.note_unlowered("unique")
    ask(XLA_FNTRACKER_LEVEL=2)
    unlowered.note_unlowered("nonzero")
    assert file.read_text().startswith("[TAG unique From")
    assert file.read_text().count("[TAG") == 1


def test_a_file_becomes_a_summary(ask, tmp_path, capsys):
    block = "[TAG nonzero From Thread 12]\nPython Frames:\n  f (train.py:3)\n\n"
    native = "C++ Frames:\n  main (main.cpp:1)\n*** End stack trace ***\n\n"
    file = tmp_path / "tracked"
    file.write_text((block + native) * 2 + block.replace("nonzero", "unique") + native)
    frames.process_frames(str(file))
    assert capsys.readouterr().err.replace("pt-xla-profiler: ", "") == (
        f"{RULE}\nUnlowered Op usage summary (more of these ops, lower performance)\n"
        f"Note: _local_scalar_dense typically indicates CPU context access\n{'-' * 80}\n"
        'FRAME (count=2):\nUnlowered Op: "nonzero"\nPython Frames:\n  f (train.py:3)\n\n'
        f'FRAME (count=1):\nUnlowered Op: "unique"\nPython Frames:\n  f (train.py:3)\n\n{RULE}\n'
    )
    ask(PT_XLA_DEBUG_FILE=tmp_path / "debug")
    frames.create_report({'Unlowered Op: "a"\n': 1})
    assert (tmp_path / "debug").read_text().startswith(f"{RULE}\nUnlowered Op usage")
    assert frames.parse_frame_content("nothing\n") is None
