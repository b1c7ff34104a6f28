"""Do all ranks train the same model in the same way? Asked before the first step of every ``fit``."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import Any

import keras
import tensorflow as tf

import kerasdist
from kerasdist import keras_hooks
from kerasdist.config import Settings
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json
from kerasdist.errors import RankMismatchError


def signature(model: Any, settings: Settings | None) -> dict[str, Any]:
    """What must be equal on all ranks, as a flat dict of JSON values.

    Names that the user gave are kept; names that Keras made up (``dense_3``) are replaced by the class, so that a
    layer made on one rank alone changes nothing.
    """
    facts: dict[str, Any] = {
        "kerasdist": kerasdist.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "floatx": keras.config.floatx(),
        "dtype policy": str(getattr(model.dtype_policy, "name", model.dtype_policy)),
        **(settings.facts() if settings is not None else {}),
    }
    auto_names = keras_hooks.auto_named(model)
    for position, variable in enumerate(model.variables):
        if "seed_generator" in variable.path:
            continue
        parts = [auto_names.get(part, part) for part in variable.path.split("/")]
        shape = "x".join(map(str, variable.shape))
        facts[f"variable {position}"] = f"{'/'.join(parts)} {shape} {variable.dtype} trainable={variable.trainable}"
    losses = keras_hooks.loss_facts(model)
    facts["losses"] = json.dumps(losses, sort_keys=True, default=lambda value: type(value).__name__)
    facts["metrics"] = json.dumps(keras_hooks.metric_facts(model), sort_keys=True)
    facts["run_eagerly"] = bool(model.run_eagerly)
    facts["steps_per_execution"] = int(getattr(model, "steps_per_execution", None) or 1)
    facts |= keras_hooks.layer_facts(model)
    facts["synchronized normalizations"] = len(keras_hooks.synchronized_normalizations(model))
    for number, optimizer in enumerate(keras_hooks.own_optimizers(model)):
        config = json.loads(json.dumps(optimizer.get_config(), default=lambda value: type(value).__name__))
        facts[f"optimizer {number}"] = type(optimizer).__name__
        for config_part in (config, (config.get("inner_optimizer") or {}).get("config") or {}):
            # A number is state of rank 0, broadcast with it; and a name is Keras' numbering.
            rate = config_part.pop("learning_rate", None)
            if isinstance(rate, dict):
                facts[f"optimizer {number} schedule"] = json.dumps(rate, sort_keys=True)
            config_part.pop("name", None)
        facts[f"optimizer {number} options"] = json.dumps(config, sort_keys=True)
    return facts


def agree(facts: dict[str, Any], group: Group) -> None:
    """Raises on every rank, with a table of the first differences, unless all ranks bring equal facts.

    Raises:
        RankMismatchError: On all ranks.
    """
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    if len(set(gather_json(digest, group, "handshake"))) == 1:
        return
    every = gather_json(facts, group, "handshake.facts")
    keys = list(dict.fromkeys(key for one in every for key in one))
    different = [key for key in keys if len({json.dumps(one.get(key)) for one in every}) > 1]
    lines = []
    for key in different[:3]:
        lines.append(f"  {key}:")
        lines += [f"    rank {rank}: {one.get(key, 'none')}" for rank, one in enumerate(every)]
    more = f"\n  and {len(different) - 3} more differences" if len(different) > 3 else ""
    raise RankMismatchError(
        f"rank {group.rank}: the ranks do not train the same model. First differences:\n"
        + "\n".join(lines)
        + more
        + "\nBuild model and optimizer by the same code on every rank."
    )


def warn_of_rates(model: Any, group: Group) -> None:
    """On rank 0, before its learning rates are taken by all: which rank brings another. Collective."""
    rates = [keras_hooks.rate_variable(optimizer) for optimizer in keras_hooks.own_optimizers(model)]
    own = [float(value) for value in keras_hooks.numpy_values([rate for rate in rates if rate is not None])]
    every = gather_json(own, group, "learning_rates")
    if group.rank == 0 and any(one != own for one in every):
        said = ", ".join(
            f"rank {rank}: {' and '.join(f'{value:g}' for value in one)}" for rank, one in enumerate(every)
        )
        warnings.warn(
            f"The ranks bring different learning rates ({said}). Those of rank 0 are taken. (Does a rate depend on "
            "the rank, or was it set or loaded on one rank only?)",
            stacklevel=3,
        )
