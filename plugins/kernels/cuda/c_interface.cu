// The CUDA kernels for hosts that are not C++: the structs are those of parameters.h, results those of cudaError_t.
#include "recurrence.h"

#if defined(_WIN32)
#define SRUEXPORT_EXPORT extern "C" __declspec(dllexport)
#else
#define SRUEXPORT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

SRUEXPORT_EXPORT int sruexport_cuda_sru(const sruexport::SRUParams* params, cudaStream_t stream) {
  return sruexport::cuda::run(*params, stream);
}

SRUEXPORT_EXPORT int sruexport_cuda_linear(const sruexport::LinearParams* params, cudaStream_t stream) {
  return sruexport::cuda::run(*params, stream);
}

SRUEXPORT_EXPORT int sruexport_cuda_linear_chunked(const sruexport::LinearParams* params, void* workspace,
                                                   cudaStream_t stream) {
  return sruexport::cuda::run_chunked(*params, workspace, stream);
}

SRUEXPORT_EXPORT std::size_t sruexport_cuda_chunked_workspace(const sruexport::Sizes* sizes) {
  return sruexport::cuda::chunked_workspace(*sizes);
}

SRUEXPORT_EXPORT int sruexport_cuda_prefer_chunked(const sruexport::LinearParams* params, int multiprocessors) {
  return sruexport::cuda::prefer_chunked(*params, multiprocessors);
}
