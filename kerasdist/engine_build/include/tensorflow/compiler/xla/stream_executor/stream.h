// Gives Horovod 0.28.1 the CUDA stream of a TensorFlow stream, which TensorFlow no longer exports a symbol for.
#pragma once

#include "xla/stream_executor/stream.h"

#if HAVE_CUDA
#include <cuda_runtime.h>

namespace stream_executor::gpu {
inline cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace stream_executor::gpu
#endif  // HAVE_CUDA
