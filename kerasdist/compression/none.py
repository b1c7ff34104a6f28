"""No compression: the bucket travels in its own dtype and is summed in it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from kerasdist.buckets import ITEM_BYTES, Bucket
from kerasdist.compression.base import Compressor, ring_bytes
from kerasdist.engine import Group


class NoCompression(Compressor):
    """Sums shares in the tensor's own dtype; exact but for rounding."""

    name = "none"
    takes_shares = True

    def sent_bytes(self, bucket: Bucket, workers: int) -> float:
        return ring_bytes(bucket.size, ITEM_BYTES[bucket.dtype], workers)

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        return group.all_reduce(flat, "sum", name)
