// LinearRecurrence, one thread for each row and channel (or two channels of 16 bits), over all of T.
#include "device.h"
#include "recurrence.h"

namespace sruexport::cuda {
namespace {

// Steps that are on their way from memory while one is computed.
constexpr int kAhead = 16;
// Blocks that an SM is to hold, which leaves a thread 128 registers. With 512 threads an SM has more on its way than any
// of today's memories takes to be busy.
constexpr int kBlocks = 4;

template <class Tensor, int width>
struct Step {
  Channels<Tensor, width> decay, input;
  bool padding;
};

template <class Tensor, int width>
__global__ void __launch_bounds__(kThreads, kBlocks) linear_serial(const LinearParams p) {
  const std::int64_t lane = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * width;
  const std::int64_t channels = p.sizes.channels, batch = p.sizes.batch, steps = p.sizes.steps;
  if (lane >= batch * channels) return;
  if (steps == 0) return keep<width>(p.h0, p.h_last, lane);
  const Place place = place_of(p.sizes, p.direction, lane);
  const std::int64_t row = place.first * batch + place.row, row_step = place.onward * batch;
  const std::int64_t first = row * channels + place.channel, onward = row_step * channels;
  // Of the next step to be fetched, and of the next one to be computed.
  const auto* a = static_cast<const Tensor*>(p.a) + first;
  const auto* b = static_cast<const Tensor*>(p.b) + first;
  const std::int32_t* mask = p.mask ? p.mask + row : nullptr;
  auto* h = static_cast<Tensor*>(p.h) + first;

  float state[width];
#pragma unroll
  for (int i = 0; i < width; ++i) state[i] = static_cast<const float*>(p.h0)[lane + i];

  const auto fetch = [&] {
    const Step<Tensor, width> found{load<Tensor, width>(a), load<Tensor, width>(b), mask && *mask};
    a += onward;
    b += onward;
    if (mask) mask += row_step;
    return found;
  };

  Step<Tensor, width> coming[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < steps) coming[i] = fetch();
  }
  for (std::int64_t base = 0; base < steps; base += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t step = base + i;
      if (step < steps) {
        const Step<Tensor, width> now = coming[i];
        if (step + kAhead < steps) coming[i] = fetch();
        Channels<Tensor, width> out;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          if (!now.padding) state[k] = now.decay.get(k) * state[k] + now.input.get(k);
          out.set(k, state[k]);
        }
        store(h, out);
        h += onward;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < width; ++i) static_cast<float*>(p.h_last)[lane + i] = state[i];
}

struct Serial {
  template <class Tensor, int width>
  static constexpr auto kernel() {
    return linear_serial<Tensor, width>;
  }
};

}  // namespace

cudaError_t run(const LinearParams& params, cudaStream_t stream) {
  return run_serial<Serial>(params, {params.a, params.b, params.h}, stream);
}

}  // namespace sruexport::cuda
