"""One worker of a test group: runs every case of a module and writes each result to a file of its own.

A case whose name begins with ``case_fails`` must raise on every rank. Any other that raises ends the group at once:
the ranks would not be in step any more. On more workers than a module's ``OPTIMIZED_UP_TO``, 0 where it has none,
graphs run as they are traced.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import sys
import traceback
from pathlib import Path

from tests.parallel.launch import Failure, leave_graphs_as_traced, leave_input_untuned


def main(module_name: str, folder: str) -> None:
    """Runs the cases in the order of the file."""
    from tests.lean import keras

    module = importlib.import_module(module_name if "." in module_name else f"tests.parallel.{module_name}")
    import kerasdist

    # Tracing graphs makes many objects, and each collection looks through all of them: a tenth of the time.
    gc.freeze()
    gc.disable()
    leave_input_untuned()
    rank, size = (kerasdist.init().rank, kerasdist.size()) if getattr(module, "DISTRIBUTED", True) else (0, 1)
    if size > getattr(module, "OPTIMIZED_UP_TO", 0):
        leave_graphs_as_traced()
    cases = [(name, case) for name, case in vars(module).items() if name.startswith("case_")]
    for number, (name, case) in enumerate(cases):
        if number % 10 == 9:
            gc.collect()
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")  # else the first one made stays
        keras.utils.set_random_seed(7)
        try:
            result = case()
        except Exception as error:
            result = Failure(type(error).__name__, str(error), traceback.format_exc())
            print(f"rank {rank}: {name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
        target = Path(folder) / f"{name}.{rank}.pkl"
        target.with_suffix(".part").write_bytes(pickle.dumps(result))
        os.replace(target.with_suffix(".part"), target)
        if isinstance(result, Failure) != name.startswith("case_fails"):
            os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
