"""The same trainings through the scope, shared out among the workers."""

import kerasdist
from tests.parallel import training

OPTIMIZED_UP_TO = 2


def case_trainings():
    strategy = kerasdist.DataParallelStrategy()
    return training.all_trainings(strategy.size, strategy.scope)
