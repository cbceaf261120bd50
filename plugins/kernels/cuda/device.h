// What the kernels share: numbers of 16 bits, several channels in one load, gates, and a launch.
//
// A kernel takes one struct by value and is launched through cudaLaunchKernel: without the <<< >>> of nvcc's own language
// any C++ compiler takes these sources, too (tests/plugins/kernels/cuda/cuda_on_cpu.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "../parameters.h"

namespace sruexport::cuda {

constexpr int kThreads = 128;  // of a block

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

__device__ inline float widened(float value) { return value; }
__device__ inline float widened(Half value) { return __half2float(__ushort_as_half(value.bits)); }
__device__ inline float widened(BFloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }

__device__ inline void narrow(float value, float& to) { to = value; }
__device__ inline void narrow(float value, Half& to) { to.bits = __half_as_ushort(__float2half_rn(value)); }
__device__ inline void narrow(float value, BFloat16& to) { to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

// Neighbouring channels that a thread loads and stores at once. Two of 16 bits stay in one register until they are used.
template <class Tensor, int width>
struct Channels;

template <class Tensor>
struct Channels<Tensor, 1> {
  Tensor value;
  __device__ float get(int) const { return widened(value); }
  __device__ void set(int, float to) { narrow(to, value); }
};

template <class Tensor>
struct alignas(4) Channels<Tensor, 2> {
  std::uint32_t both;
  __device__ float get(int i) const { return widened(Tensor{static_cast<std::uint16_t>(both >> (16 * i))}); }
  __device__ void set(int i, float to) {
    Tensor value;
    narrow(to, value);
    both = i == 0 ? value.bits : (both & 0xffffu) | (static_cast<std::uint32_t>(value.bits) << 16);
  }
};

template <class Tensor, int width>
__device__ inline Channels<Tensor, width> load(const Tensor* from) {
  return *reinterpret_cast<const Channels<Tensor, width>*>(from);
}

template <class Tensor, int width>
__device__ inline void store(Tensor* to, const Channels<Tensor, width>& value) {
  *reinterpret_cast<Channels<Tensor, width>*>(to) = value;
}

// What blocks tell each other: what was written before a release is seen by who acquires it.
#if defined(__CUDACC__)
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(unsigned* to, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline float load_relaxed(const float* from) { return __ldcg(from); }
#else
inline unsigned load_acquire(const unsigned* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
inline void store_release(unsigned* to, unsigned value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
inline float load_relaxed(const float* from) { return *from; }
#endif

// 1 / (1 + exp(-x)) by the hardware's own exp2 and reciprocal, each within 2 ulp: memory is what a kernel waits for, as
// long as a gate is so short.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Which lanes of B * C a thread has, `width` neighbouring channels of one row and direction; and the steps in its order.
struct Place {
  std::int64_t row;      // b
  std::int64_t channel;  // the first
  std::int64_t first;    // t of the first step
  std::int64_t onward;   // 1, or -1 where time runs backward
};

__device__ inline Place place_of(const Sizes& sizes, Direction direction, std::int64_t lane) {
  Place place;
  place.row = lane / sizes.channels;
  place.channel = lane - place.row * sizes.channels;
  const bool backward = direction == Direction::reverse ||
                        (direction == Direction::bidirectional && place.channel >= sizes.channels / 2);
  place.first = backward ? sizes.steps - 1 : 0;
  place.onward = backward ? -1 : 1;
  return place;
}

// What a sequence without steps does to states: there is nothing else that a thread may point to.
template <int width>
__device__ inline void keep(const void* initial, void* last, std::int64_t lane) {
#pragma unroll
  for (int i = 0; i < width; ++i) static_cast<float*>(last)[lane + i] = static_cast<const float*>(initial)[lane + i];
}

// Whether a tensor may be read `width` channels at a time: rows and both halves of them begin at multiples of it.
template <class Tensor>
bool aligned(const void* tensor, std::int64_t channels, int width) {
  return channels % (2 * width) == 0 && reinterpret_cast<std::uintptr_t>(tensor) % (sizeof(Tensor) * width) == 0;
}

template <class Params>
cudaError_t launch(void (*kernel)(Params), const Params& params, std::int64_t threads, cudaStream_t stream) {
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  Params copy = params;
  void* arguments[] = {&copy};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0, stream);
}

// Launches Serial::kernel<Tensor, width>() for the dtype: two channels of 16 bits to a thread, where all `tensors` can be
// read so.
template <class Serial, class Params>
cudaError_t run_serial(const Params& p, std::initializer_list<const void*> tensors, cudaStream_t stream) {
  const std::int64_t channels = p.sizes.channels, lanes = p.sizes.batch * channels;
  if (lanes == 0) return cudaSuccess;
  const auto run_as = [&](auto tensor) {
    using Tensor = decltype(tensor);
    for (const void* each : tensors) {
      if (!aligned<Tensor>(each, channels, 2)) return launch(Serial::template kernel<Tensor, 1>(), p, lanes, stream);
    }
    return launch(Serial::template kernel<Tensor, 2>(), p, lanes / 2, stream);
  };
  switch (p.dtype) {
    case DType::float32: return launch(Serial::template kernel<float, 1>(), p, lanes, stream);
    case DType::float16: return run_as(Half{});
    case DType::bfloat16: return run_as(BFloat16{});
    case DType::float64: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sruexport::cuda
