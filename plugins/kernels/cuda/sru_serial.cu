// SRURecurrence, one thread for each row and channel (or two channels of 16 bits), over all of T. With a trained v it has
// no parallel form in T.
#include "device.h"
#include "recurrence.h"

namespace sruexport::cuda {
namespace {

// Steps that are on their way from memory while one is computed. The tensors of a step are far from those of the next, so
// that nothing else hides the way.
constexpr int kAhead = 8;
// Blocks that an SM is to hold, which leaves a thread 128 registers. With 512 threads an SM has more on its way than any
// of today's memories takes to be busy.
constexpr int kBlocks = 4;

template <class Tensor, int width>
struct Step {
  Channels<Tensor, width> candidate, forget, reset, highway;
  bool padding;
};

template <class Tensor, int width>
__global__ void __launch_bounds__(kThreads, kBlocks) sru_serial(const SRUParams p) {
  const std::int64_t lane = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * width;
  const std::int64_t channels = p.sizes.channels, batch = p.sizes.batch, steps = p.sizes.steps;
  if (lane >= batch * channels) return;
  if (steps == 0) return keep<width>(p.c0, p.c, lane);
  const Place place = place_of(p.sizes, p.direction, lane);
  const std::int64_t row = place.first * batch + place.row, row_step = place.onward * batch;
  // Of the next step to be fetched, and of the next one to be computed.
  const auto* u = static_cast<const Tensor*>(p.u) + row * 3 * channels + place.channel;
  const auto* x = static_cast<const Tensor*>(p.x) + (p.x_broadcast ? 0 : row * channels) + place.channel;
  const std::int32_t* mask = p.mask ? p.mask + row : nullptr;
  const auto* v = static_cast<const Tensor*>(p.v) + (p.v_per_step ? row * 2 * channels : 0) + place.channel;
  auto* h = static_cast<Tensor*>(p.h) + row * channels + place.channel;
  const auto* bias = static_cast<const Tensor*>(p.bias) + place.channel;
  const std::int64_t u_step = row_step * 3 * channels, h_step = row_step * channels;
  const std::int64_t x_step = p.x_broadcast ? 0 : h_step, v_step = p.v_per_step ? row_step * 2 * channels : 0;

  float c[width], b_forget[width], b_reset[width], v_forget[width], v_reset[width];
#pragma unroll
  for (int i = 0; i < width; ++i) {
    c[i] = static_cast<const float*>(p.c0)[lane + i];
    b_forget[i] = widened(bias[i]);
    b_reset[i] = widened(bias[channels + i]);
    v_forget[i] = p.v_per_step ? 0.0f : widened(v[i]);
    v_reset[i] = p.v_per_step ? 0.0f : widened(v[channels + i]);
  }

  const auto fetch = [&] {
    Step<Tensor, width> found;
    found.candidate = load<Tensor, width>(u);
    found.forget = load<Tensor, width>(u + channels);
    found.reset = load<Tensor, width>(u + 2 * channels);
    found.highway = load<Tensor, width>(x);
    found.padding = mask && *mask;
    u += u_step;
    x += x_step;
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
        if (p.v_per_step) {
          const auto forget = load<Tensor, width>(v), reset = load<Tensor, width>(v + channels);
#pragma unroll
          for (int k = 0; k < width; ++k) {
            v_forget[k] = forget.get(k);
            v_reset[k] = reset.get(k);
          }
          v += v_step;
        }
        Channels<Tensor, width> out;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          float hidden = 0.0f;
          if (!now.padding) {
            const float candidate = now.candidate.get(k), highway = now.highway.get(k);
            const float forget = sigmoid(now.forget.get(k) + b_forget[k] + v_forget[k] * c[k]);
            const float reset = sigmoid(now.reset.get(k) + b_reset[k] + v_reset[k] * c[k]);
            c[k] = (c[k] - candidate) * forget + candidate;
            const float g = p.activation == Activation::tanh ? tanhf(c[k]) : c[k];
            hidden = (g - highway) * reset + highway;
          }
          out.set(k, hidden);
        }
        store(h, out);
        h += h_step;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < width; ++i) static_cast<float*>(p.c)[lane + i] = c[i];
}

struct Serial {
  template <class Tensor, int width>
  static constexpr auto kernel() {
    return sru_serial<Tensor, width>;
  }
};

}  // namespace

cudaError_t run(const SRUParams& params, cudaStream_t stream) {
  return run_serial<Serial>(params, {params.u, params.x, params.v, params.h}, stream);
}

}  // namespace sruexport::cuda
