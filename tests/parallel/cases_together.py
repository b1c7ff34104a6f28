"""The cases of faults and of weights in one group of workers."""

from tests.parallel.cases_faults import *  # noqa: F403
from tests.parallel.cases_weights import *  # noqa: F403
