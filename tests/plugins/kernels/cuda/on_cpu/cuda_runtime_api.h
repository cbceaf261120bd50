// Stands in for the CUDA runtime, so that a C++ compiler takes the kernels' own sources and they run on a CPU: in the
// tests, with its sanitizers. It comes first on the include path there.
//
// A launch runs block after block on the calling thread. The threads of a block take turns: each runs to its next barrier,
// or to its end, and then the next one does. Shared memory is static, and holds what the last block left there. Blocks that
// wait for later ones would wait for ever; warps (shuffles, votes) are not there.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = struct CUstream_st*;

inline dim3 blockIdx, threadIdx;

namespace on_cpu {

// The threads of a block, each on a stack of its own.
class Block {
 public:
  template <class Body>
  static void run(unsigned threads, const Body& body) {
    static Block block;
    block.body_ = [](const void* own) { (*static_cast<const Body*>(own))(); };
    block.own_ = &body;
    block.run(threads);
  }

  // A thread at a barrier.
  static void wait() { running_->leave(false); }

 private:
  static constexpr std::size_t kStack = 256 * 1024;
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    bool done = false;
  };

  void run(unsigned count) {
    while (threads_.size() < count) threads_.emplace_back();
    running_ = this;
    for (unsigned i = 0; i < count; ++i) {
      Thread& thread = threads_[i];
      thread.done = false;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, [] { running_->enter(); }, 0);
    }
    for (unsigned ended = 0; ended < count;) {
      for (current_ = 0; current_ < count; ++current_) {
        threadIdx = dim3(current_);
        resume();
        ended += threads_[current_].done;
      }
      if (ended != 0 && ended != count) {
        std::fputs("some threads of a block ended where others wait at a barrier\n", stderr);
        std::abort();
      }
    }
  }

  void enter() {
    entered(nullptr, &outside_, &outside_size_);
    body_(own_);
    leave(true);
  }

  // AddressSanitizer has to know which stack is in use.
  void resume() {
    [[maybe_unused]] void* fake = nullptr;
    leaving(&fake, threads_[current_].stack.get(), kStack);
    swapcontext(&main_, &threads_[current_].context);
    entered(fake, nullptr, nullptr);
  }

  void leave(bool done) {
    Thread& thread = threads_[current_];
    thread.done = done;
    [[maybe_unused]] void* fake = nullptr;
    leaving(done ? nullptr : &fake, outside_, outside_size_);
    swapcontext(&thread.context, &main_);
    entered(fake, nullptr, nullptr);
  }

  static void leaving([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack, [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, stack, size);
#endif
  }
  static void entered([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack,
                      [[maybe_unused]] std::size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, stack, size);
#endif
  }

  static inline Block* running_ = nullptr;
  std::vector<Thread> threads_;
  ucontext_t main_;
  const void* outside_ = nullptr;
  std::size_t outside_size_ = 0;
  unsigned current_ = 0;
  void (*body_)(const void*) = nullptr;
  const void* own_ = nullptr;
};

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::Block::wait(); }

inline unsigned atomicAdd(unsigned* to, unsigned value) {
  const unsigned before = *to;
  *to += value;
  return before;
}

inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

// As cuda_runtime.h has it for typed kernels.
template <class Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 grid, dim3 block, void** arguments, std::size_t, cudaStream_t) {
  const auto& params = *static_cast<const Params*>(arguments[0]);
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    on_cpu::Block::run(block.x, [&] { kernel(params); });
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
