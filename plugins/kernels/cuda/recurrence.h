// The recurrences in CUDA, for any host. Tensors are float32, float16 or bfloat16 in device memory, states float32.
#pragma once

#include <cuda_runtime_api.h>

#include "../parameters.h"

namespace sruexport::cuda {

// Puts a call on a stream. It may be the stream of a capture: nothing is allocated and nothing is waited for. h may be x
// (or b), and the last states the initial ones.
//
// Returns what CUDA said; cudaErrorInvalidValue for float64.
cudaError_t run(const SRUParams& params, cudaStream_t stream);
cudaError_t run(const LinearParams& params, cudaStream_t stream);

}  // namespace sruexport::cuda
