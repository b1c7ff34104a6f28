"""All-reduce in two levels: fast links inside of a host, and as little as possible between hosts.

Reduce-scatter in the host, the mean of each part between the hosts, all-gather in the host: BlueConnect (Cho et al.
2019). Blink (Wang et al. 2020) and NCCL have the like.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping, Sequence
from typing import Any

import tensorflow as tf

from kerasdist import engine
from kerasdist.algorithms.all_reduce import AllReduce
from kerasdist.averaging import Averager
from kerasdist.buckets import ITEM_BYTES, Bucket
from kerasdist.compression import Compressor, PowerSGD
from kerasdist.compression.base import ring_bytes
from kerasdist.config import positive_integer
from kerasdist.engine import Group, meeting
from kerasdist.engine.subgroup import SubGroup
from kerasdist.errors import RankMismatchError


class Hierarchical(AllReduce):
    """The mean gradient of each step, as all-reduce, with the compressor between hosts only.

    Cost with P workers, L on each of H hosts, and S bytes: between hosts 2 (H-1)/H S/L bytes for each worker (fewer
    with a compressor), inside of the host 2 (L-1)/L S.

    Replicas do not differ, and the optimizer's state neither.

    Args:
        ranks_per_host: Ranks that share a host, or whatever has fast links; consecutive ones. Default None: those that
            the launcher started on one host.
    """

    def __init__(self, ranks_per_host: int | None = None) -> None:
        if ranks_per_host is not None:
            positive_integer("ranks_per_host", ranks_per_host)
        self.name = "hierarchical" if ranks_per_host is None else f"hierarchical ranks_per_host={ranks_per_host}"
        self.ranks_per_host = ranks_per_host

    def check(self, size: int, compressor: Compressor) -> None:
        if self.ranks_per_host is not None and size % self.ranks_per_host:
            raise ValueError(
                f"`ranks_per_host` must divide the number of workers. Expected a divisor of {size}. Received: "
                f"ranks_per_host={self.ranks_per_host}"
            )
        if isinstance(compressor, PowerSGD):
            raise ValueError(
                "algorithm='hierarchical' averages flat parts of buckets between hosts, and PowerSGD would find no "
                "matrix in them. Expected another compressor, or algorithm='all_reduce'. Received: "
                f"compression={compressor.name}"
            )

    def compressor_for(self, compressor: Compressor) -> Compressor:
        return TwoLevels(compressor)

    def start(self, variables: Sequence[Any], averager: Averager) -> None:
        levels = averager.compressor
        assert isinstance(levels, TwoLevels)
        levels.hosts = self._hosts(averager.group)

    def _hosts(self, group: Group) -> list[list[int]]:
        if self.ranks_per_host is not None:
            starts = range(0, group.size, self.ranks_per_host)
            return [list(range(start, start + self.ranks_per_host)) for start in starts]
        running = engine.current()
        return hosts_of(meeting.gather_json([running.host, running.local_size], group, "hosts"))


def hosts_of(places: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ranks of each host.

    Args:
        places: Of each rank, its host and the number of ranks there.

    Raises:
        RankMismatchError: Hosts have different numbers of ranks. All ranks must be given the same places.
    """
    if len({count for _, count in places}) > 1:
        table = "\n".join(f"  rank {rank}: one of {count} on its host" for rank, (_, count) in enumerate(places))
        raise meeting.known_to_all(
            RankMismatchError(
                "algorithm='hierarchical' needs equally many ranks on every host. Received:\n"
                f"{table}\nStart as many on each, or say which share fast links: Hierarchical(ranks_per_host=...)."
            )
        )
    hosts = sorted({host for host, _ in places})
    return [[rank for rank, (there, _) in enumerate(places) if there == host] for host in hosts]


class TwoLevels(Compressor):
    """Exact inside of a host; between hosts another compressor averages each rank's part.

    Args:
        between: Averages between hosts.
    """

    def __init__(self, between: Compressor) -> None:
        self.name = between.name
        self.takes_shares = between.takes_shares
        self.remembers = between.remembers
        self.takes_unscaled = between.takes_unscaled
        self.counters = between.counters
        self.hosts: list[list[int]] = []
        self._between = between

    def initial_state(self, bucket: Bucket) -> dict[str, Any]:
        return self._between.initial_state(self._part(bucket))

    def sent_bytes(self, bucket: Bucket, workers: int) -> float | None:
        between = self._between.sent_bytes(self._part(bucket), len(self.hosts))
        inside = ring_bytes(bucket.size, ITEM_BYTES.get(bucket.dtype, 8), len(self.hosts[0]))
        return None if between is None else inside + between

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        host = next(ranks for ranks in self.hosts if group.rank in ranks)
        inside = SubGroup(group, host)
        part = self._part(bucket)
        padding = part.size * inside.size - bucket.size
        padded = tf.pad(tf.reshape(flat, [-1]), [[0, padding]])
        received = inside.all_to_all(padded, [part.size] * inside.size, f"{name}.host")
        own = functools.reduce(tf.add, tf.split(received, inside.size))
        own = tf.ensure_shape(own if self.takes_shares else own / inside.size, [part.size])
        counterparts = SubGroup(group, [ranks[inside.rank] for ranks in self.hosts])
        mean = self._between.mean(own, part, counterparts, name, state)
        whole = inside.all_gather(mean, f"{name}.hosts")
        return tf.reshape(whole[: bucket.size], flat.shape)

    def _part(self, bucket: Bucket) -> Bucket:
        """What one rank of a host averages of a bucket; parts are of one size."""
        size = -(-bucket.size // len(self.hosts[0]))
        return Bucket(bucket.index, bucket.dtype, (0,), ((size,),))
