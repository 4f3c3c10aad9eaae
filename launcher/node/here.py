"""The way to this very machine: the agent of a node is its child, with pipes as over ssh."""

from collections.abc import Mapping, Sequence

from torch_xdist.launcher.facts.host_list import Host


class Here:
    """A `Way` that goes nowhere."""

    advice = "see whether this interpreter can be started"
    kills_all = True
    tries_s: Sequence[float] = ()
    engine = ""

    def prepare(self, hosts: Sequence[Host]) -> None:
        pass

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return [*words]

    def environ(self) -> Mapping[str, str] | None:
        return None

    def is_own(self, line: str) -> bool:
        return False

    def is_news(self, line: str) -> bool:
        return False

    def why_no_python(self, code: int | None, said: Sequence[str]) -> str:
        return ""

    def why_unreached(self, host: Host, code: int | None, said: Sequence[str]) -> str:
        return ""

    def why_lost(self, code: int | None, said: Sequence[str]) -> str:
        return ""
