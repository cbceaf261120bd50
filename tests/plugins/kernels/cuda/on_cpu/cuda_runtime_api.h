// Stands in for the CUDA runtime, so that a C++ compiler takes the kernels' own sources and they run on a CPU: in the
// tests, with its sanitizers. It comes first on the include path there.
//
// A launch runs every thread of every block, one after another, on the calling thread. That is all that the serial kernels
// need; threads that wait for each other (barriers, shuffles) would have to be added here.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = struct CUstream_st*;

inline thread_local dim3 blockIdx, threadIdx;

// As cuda_runtime.h has it for typed kernels.
template <class Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 grid, dim3 block, void** arguments, std::size_t, cudaStream_t) {
  for (unsigned b = 0; b < grid.x; ++b) {
    for (unsigned t = 0; t < block.x; ++t) {
      blockIdx = dim3(b);
      threadIdx = dim3(t);
      kernel(*static_cast<const Params*>(arguments[0]));
    }
  }
  return cudaSuccess;
}

// Numbers of 16 bits, by the processor's own _Float16, and rounded to the nearest, ties to even.

struct __half {
  std::uint16_t bits;
};
struct __nv_bfloat16 {
  std::uint16_t bits;
};

template <class To, class From>
To on_cpu_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
inline std::uint16_t __half_as_ushort(__half half) { return half.bits; }
inline float __half2float(__half half) { return static_cast<float>(on_cpu_bits<_Float16>(half.bits)); }
inline __half __float2half_rn(float value) { return {on_cpu_bits<std::uint16_t>(static_cast<_Float16>(value))}; }
inline std::uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = on_cpu_bits<std::uint32_t>(value);
  if (std::isnan(value)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline float __uint_as_float(unsigned bits) { return on_cpu_bits<float>(bits); }

inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
