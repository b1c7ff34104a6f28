"""The ranks' states to rank 0, and back. What all hold alike, to the bit, is kept once; the rest for each rank."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kerasdist.checkpoint.files import digest
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json
from kerasdist.transport import broadcast_bytes, gather_bytes, scatter_bytes

State = dict[str, np.ndarray]


def to_root(state: State, group: Group) -> tuple[State, list[str]]:
    """On rank 0, what goes into a file, and the names of what differs between ranks. Collective.

    Other ranks get their part of the former, which nobody needs.
    """
    digests = gather_json({name: digest(value) for name, value in state.items()}, group, "checkpoint")
    names = list(dict.fromkeys(name for one in digests for name in one))
    own = [name for name in names if any(one.get(name) != digests[0].get(name) for one in digests)]
    states = gather_bytes(_packed({name: state[name] for name in own if name in state}), group, "checkpoint.own")
    whole = {name: value for name, value in state.items() if name not in set(own)}
    for rank, content in enumerate(states if own else ()):
        whole |= {f"rank{rank}/{name}": value for name, value in _unpacked(content).items()}
    return whole, own


def from_root(whole: State | None, group: Group) -> State:
    """This rank's state, from what rank 0 read. Collective."""
    if whole is None:
        common, states = b"", [b""] * group.size
    else:
        common = _packed({name: value for name, value in whole.items() if not name.startswith("rank")})
        parts: list[State] = [{} for _ in range(group.size)]
        for name, value in whole.items():
            head, _, rest = name.partition("/")
            if name.startswith("rank") and int(head[4:]) < group.size:
                parts[int(head[4:])][rest] = value
        states = [_packed(part) for part in parts]
    size = gather_json(len(common), group, "checkpoint.size")[0]
    state = _unpacked(broadcast_bytes(common, size, group, "checkpoint.common"))
    return state | _unpacked(scatter_bytes(states, group, "checkpoint.own"))


def _packed(state: State) -> bytes:
    facts = [[name, str(value.dtype), list(value.shape)] for name, value in state.items()]
    head = json.dumps(facts).encode()
    values = (np.ascontiguousarray(value).tobytes() for value in state.values())
    return b"".join([len(head).to_bytes(8, "little"), head, *values])


def _unpacked(content: bytes) -> State:
    start = 8 + int.from_bytes(content[:8], "little")
    facts: list[Any] = json.loads(content[8:start])
    state = {}
    for name, dtype, shape in facts:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        state[name] = np.frombuffer(content[start : start + size], dtype).reshape(shape)
        start += size
    return state
