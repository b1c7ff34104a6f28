// Forwards Horovod 0.28.1's include of XLA's builder to where TensorFlow 2.20 and later keep it.
#pragma once

#include "xla/hlo/builder/xla_builder.h"

#if HAVE_CUDA
#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Horovod's XLA kernel still spells absl's types with XLA's former names.
namespace xla {
using Status = ::absl::Status;
template <typename T>
using StatusOr = ::absl::StatusOr<T>;
}  // namespace xla
#endif  // HAVE_CUDA
