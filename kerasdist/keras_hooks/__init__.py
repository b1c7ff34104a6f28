"""The only package that leans on the internals of Keras and TensorFlow; ``versions.TESTED`` says of which.

What it does to foreign objects: it sets methods on single instances (``patch``), surrounds ``fit`` where there are
several workers, and, on ranks other than 0, mutes the callbacks of Keras that write files and the saving of models that
trained on all ranks. Everything else reads.
"""

from kerasdist.keras_hooks.data import DataAdapter as DataAdapter
from kerasdist.keras_hooks.data import TrainingData as TrainingData
from kerasdist.keras_hooks.data import can_convert_arrays as can_convert_arrays
from kerasdist.keras_hooks.data import get_data_adapter as get_data_adapter
from kerasdist.keras_hooks.data import noted_training_data as noted_training_data
from kerasdist.keras_hooks.data import train_validation_split as train_validation_split
from kerasdist.keras_hooks.data import unpack_data as unpack_data
from kerasdist.keras_hooks.facts import auto_named as auto_named
from kerasdist.keras_hooks.facts import layer_facts as layer_facts
from kerasdist.keras_hooks.facts import loss_facts as loss_facts
from kerasdist.keras_hooks.facts import metric_facts as metric_facts
from kerasdist.keras_hooks.fit import call_arguments as call_arguments
from kerasdist.keras_hooks.fit import initial_epoch as initial_epoch
from kerasdist.keras_hooks.fit import logs_without_steps as logs_without_steps
from kerasdist.keras_hooks.fit import make_callback_list as make_callback_list
from kerasdist.keras_hooks.fit import set_initial_epoch as set_initial_epoch
from kerasdist.keras_hooks.fit import surround_fit as surround_fit
from kerasdist.keras_hooks.losses import corrected_losses as corrected_losses
from kerasdist.keras_hooks.losses import loss_reductions as loss_reductions
from kerasdist.keras_hooks.losses import metrics_of_ones_own as metrics_of_ones_own
from kerasdist.keras_hooks.losses import samples_seen as samples_seen
from kerasdist.keras_hooks.losses import weighted_losses as weighted_losses
from kerasdist.keras_hooks.models import build as build
from kerasdist.keras_hooks.models import build_metrics as build_metrics
from kerasdist.keras_hooks.models import is_built as is_built
from kerasdist.keras_hooks.models import layer_state as layer_state
from kerasdist.keras_hooks.models import moments_from as moments_from
from kerasdist.keras_hooks.models import numpy_values as numpy_values
from kerasdist.keras_hooks.models import replicated_variables as replicated_variables
from kerasdist.keras_hooks.models import synchronized_normalizations as synchronized_normalizations
from kerasdist.keras_hooks.models import turn_off_xla as turn_off_xla
from kerasdist.keras_hooks.optimizers import accumulated_gradients as accumulated_gradients
from kerasdist.keras_hooks.optimizers import build_optimizer as build_optimizer
from kerasdist.keras_hooks.optimizers import clip_gradients as clip_gradients
from kerasdist.keras_hooks.optimizers import floating_state as floating_state
from kerasdist.keras_hooks.optimizers import is_inside_a_loss_scale as is_inside_a_loss_scale
from kerasdist.keras_hooks.optimizers import optimized_variables as optimized_variables
from kerasdist.keras_hooks.optimizers import own_optimizers as own_optimizers
from kerasdist.keras_hooks.optimizers import rate_variable as rate_variable
from kerasdist.keras_hooks.optimizers import scale_gradient as scale_gradient
from kerasdist.keras_hooks.optimizers import state_of_all_ranks as state_of_all_ranks
from kerasdist.keras_hooks.patching import CLIP as CLIP
from kerasdist.keras_hooks.patching import METRICS as METRICS
from kerasdist.keras_hooks.patching import observe_models as observe_models
from kerasdist.keras_hooks.patching import patch as patch
from kerasdist.keras_hooks.patching import patched_by as patched_by
from kerasdist.keras_hooks.patching import plain as plain
from kerasdist.keras_hooks.patching import unpatch as unpatch
from kerasdist.keras_hooks.seeds import folded_seed as folded_seed
from kerasdist.keras_hooks.seeds import seed_states as seed_states
from kerasdist.keras_hooks.seeds import user_seed as user_seed
from kerasdist.keras_hooks.silencing import silence_this_rank as silence_this_rank
from kerasdist.keras_hooks.silencing import trains_on_all_ranks as trains_on_all_ranks
from kerasdist.keras_hooks.versions import TESTED as TESTED
from kerasdist.keras_hooks.versions import check_backend as check_backend
from kerasdist.keras_hooks.versions import check_versions as check_versions
