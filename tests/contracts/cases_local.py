"""The contract on the engine of one process."""

import kerasdist

kerasdist.init("local")
OPTIMIZED_UP_TO = 1

from tests.contracts.cases_algorithms import *  # noqa: E402, F403
from tests.contracts.cases_compressors import *  # noqa: E402, F403
from tests.contracts.cases_engines import *  # noqa: E402, F403
