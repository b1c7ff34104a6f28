"""One process of a group: runs one case after another, as the parent asks, until the parent is gone.

The parent writes ``NUMBER.json``; each rank answers with ``NUMBER.RANK.pkl``. Files appear by a rename, so whole.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.parallel.launch import Failure, leave_input_untuned
from tests.parallel.property.cases import Case


def main(folder: str, parent: int, kind: str) -> None:
    """Answers for as long as the folder is there."""
    threading.Thread(target=_leave_with_parent, args=(Path(folder), parent), daemon=True).start()
    importlib.import_module("tests.lean")
    run, rank = (one_process, 0) if kind == "reference" else _workers()
    number = 0
    leave_input_untuned()
    gc.freeze()
    gc.disable()  # tracing graphs makes many objects, and each collection looks through all of them
    while True:
        question = Path(folder) / f"{number}.json"
        if not question.exists():
            time.sleep(0.01)
            continue
        try:
            answer = run(Case.from_json(question.read_text()))
        except Exception as error:
            answer = Failure(type(error).__name__, str(error), traceback.format_exc())
        target = Path(folder) / f"{number}.{rank}.pkl"
        target.with_suffix(".part").write_bytes(pickle.dumps(answer))
        os.replace(target.with_suffix(".part"), target)
        gc.collect()
        number += 1


def one_process(case: Case) -> dict[str, Any]:
    """Plain Keras with the global batch."""
    from tests.parallel.property import data, training

    training.reset()
    model = training.compiled_model(case)
    return training.train(case, model, *data.arguments_of_one_process(case), callbacks=list)


def _workers() -> Any:
    import kerasdist
    from tests.parallel.property import data, training

    rank = kerasdist.init().rank

    def in_scope(case: Case) -> dict[str, Any]:
        strategy = kerasdist.DataParallelStrategy()
        with strategy.scope():
            model = training.compiled_model(case)
        return training.train(case, model, *data.arguments_of_a_worker(case, kerasdist.shard), callbacks=list)

    def with_callback(case: Case) -> dict[str, Any]:
        model = training.compiled_model(case)
        arguments = data.arguments_of_a_worker(case, kerasdist.shard)
        return training.train(case, model, *arguments, callbacks=lambda: [kerasdist.DistributedOptimizer()])

    def run(case: Case) -> dict[str, Any]:
        training.reset()
        return in_scope(case) if case.door == "scope" else with_callback(case)

    return run, rank


def _leave_with_parent(folder: Path, parent: int) -> None:
    """Ends this process, also from within a collective, when the parent has gone or has removed the folder."""
    while folder.exists() and Path(f"/proc/{parent}").exists():
        time.sleep(0.3)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
