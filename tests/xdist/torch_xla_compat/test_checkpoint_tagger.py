"""Names of checkpoint files."""

import pytest

from torch_xdist.torch_xla_compat.checkpoint_tagger import CheckpointTagger


def test_a_path_without_a_name_is_removed():
    removed = []
    tagger = CheckpointTagger(removed.append)
    tagger.tag("last", "a")
    tagger.tag("best", "a")
    tagger.tag("last", "b")
    assert removed == []
    tagger.tag("best", "b")
    assert removed == ["a"]
    assert tagger.tags == {"last": "b", "best": "b"}


def test_a_name_given_again_to_its_path_removes_nothing():
    removed = []
    tagger = CheckpointTagger(removed.append)
    tagger.tag("last", "a")
    tagger.tag("last", "a")
    assert removed == []


def test_names_are_written_and_read():
    tagger = CheckpointTagger()
    tagger.tag("last", "a")
    tagger.tag("last", "b")
    removed = []
    read = CheckpointTagger.load_from_json(tagger.save_to_json(), removed.append)
    assert read.tags == {"last": "b"}
    read.tag("last", "c")
    assert removed == ["b"]


def test_a_remover_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="remover is 3; give a function of a path"):
        CheckpointTagger(3)
