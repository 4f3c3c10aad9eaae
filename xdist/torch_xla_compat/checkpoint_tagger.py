"""Names for checkpoint files, and the removal of those that no name means any more."""

import json
from collections import Counter
from collections.abc import Callable


class CheckpointTagger:
    """Names like "best" and "last" for paths; a path that loses its last name is removed.

    Args:
        remover: called with such a path. Default: nothing is removed.
    """

    def __init__(self, remover: Callable[[str], object] | None = None) -> None:
        if remover is not None and not callable(remover):
            raise TypeError(
                f"CheckpointTagger: remover is {remover!r}; give a function of a path, or None"
            )
        self._remover = remover
        self._paths: dict[str, str] = {}
        self._names_of: Counter[str] = Counter()

    @property
    def tags(self) -> dict[str, str]:
        """The path of each name."""
        return self._paths

    def tag(self, name: str, path: str) -> None:
        """Let `name` mean `path` from now on."""
        self._names_of[path] += 1
        old = self._paths.get(name)
        self._paths[name] = path
        if old is None:
            return
        self._names_of[old] -= 1
        if not self._names_of[old]:
            del self._names_of[old]
            if self._remover is not None:
                self._remover(old)

    def save_to_json(self) -> str:
        """The names and their paths."""
        return json.dumps(self._paths)

    @classmethod
    def load_from_json(
        cls, str_json: str, remover: Callable[[str], object] | None = None
    ) -> "CheckpointTagger":
        """A tagger with the names that `save_to_json` wrote."""
        tagger = cls(remover)
        for name, path in json.loads(str_json).items():
            tagger.tag(name, path)
        return tagger
