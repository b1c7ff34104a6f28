"""What runs at 3 workers beside the core cases."""

from tests.parallel.cases_data import *  # noqa: F403
from tests.parallel.cases_normalization import case_by_hand, case_trainings  # noqa: F401

del case_structures  # noqa: F821  (many trainings, that are run at 2 workers)
