// The recurrences in CUDA, for any host. Tensors are float32, float16 or bfloat16 in device memory, states float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "../parameters.h"

namespace sruexport::cuda {

// Puts a call on a stream. It may be the stream of a capture: nothing is allocated and nothing is waited for. h may be x
// (or b), and the last states the initial ones.
//
// Returns what CUDA said; cudaErrorInvalidValue for float64.
cudaError_t run(const SRUParams& params, cudaStream_t stream);
cudaError_t run(const LinearParams& params, cudaStream_t stream);

// The same in parallel over T; `workspace` is device memory of so many bytes, which nothing else uses meanwhile.
std::size_t chunked_workspace(const Sizes& sizes);
cudaError_t run_chunked(const LinearParams& params, void* workspace, cudaStream_t stream);

// Whether that should be the faster one, on a GPU of so many multiprocessors: where there are too few lanes B * C for the
// serial kernel to keep memory busy. Not measured yet.
bool prefer_chunked(const LinearParams& params, int multiprocessors);

}  // namespace sruexport::cuda
