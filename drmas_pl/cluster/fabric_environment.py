"""How Lightning Fabric finds the other ranks of a group whose processes Ray has started."""

from __future__ import annotations

from lightning.fabric.plugins.environments import ClusterEnvironment


class RankEnvironment(ClusterEnvironment):
    """One process per rank, started by somebody else; every rank counts as a node with one device.

    Args:
        rank: Rank of this process.
        ranks: Number of ranks.
        address: Host and port at which the first rank listens.
    """

    def __init__(self, rank: int, ranks: int, address: tuple[str, int]) -> None:
        super().__init__()
        self._rank = rank
        self._ranks = ranks
        self._host, self._port = address

    @property
    def creates_processes_externally(self) -> bool:
        """Fabric starts no processes of its own."""
        return True

    @property
    def main_address(self) -> str:
        """Host of the first rank."""
        return self._host

    @property
    def main_port(self) -> int:
        """Port of the first rank."""
        return self._port

    @staticmethod
    def detect() -> bool:
        """Never chosen by itself."""
        return False

    def world_size(self) -> int:
        """Number of ranks."""
        return self._ranks

    def set_world_size(self, size: int) -> None:
        """Do nothing; the number is known."""

    def global_rank(self) -> int:
        """Rank of this process."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing; the rank is known."""

    def local_rank(self) -> int:
        """Place among the ranks of this node, of which there is one."""
        return 0

    def node_rank(self) -> int:
        """Rank of this process, each being a node of its own."""
        return self._rank
