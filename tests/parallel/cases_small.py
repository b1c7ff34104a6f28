"""All small cases at 2 workers in one group of processes: starting TensorFlow costs more than most of them."""

from tests.parallel.cases_checkpoint import *  # noqa: F403
from tests.parallel.cases_compression import *  # noqa: F403
from tests.parallel.cases_epochs import *  # noqa: F403
from tests.parallel.cases_equal import *  # noqa: F403
from tests.parallel.cases_errors import *  # noqa: F403
from tests.parallel.cases_faults import *  # noqa: F403
from tests.parallel.cases_normalization import *  # noqa: F403
from tests.parallel.cases_not_equal import *  # noqa: F403
from tests.parallel.cases_reports import *  # noqa: F403
from tests.parallel.cases_resume import *  # noqa: F403
from tests.parallel.cases_weights import *  # noqa: F403
