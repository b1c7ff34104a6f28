"""One process of plain Keras: what the workers are compared with."""

from tests.parallel import data_kinds, training

DISTRIBUTED = False
OPTIMIZED_UP_TO = 1


def case_trainings():
    return training.all_trainings(workers=1)


def case_structures():
    return data_kinds.structures(workers=1)


def case_evaluate_and_predict():
    return data_kinds.evaluations(workers=1)
