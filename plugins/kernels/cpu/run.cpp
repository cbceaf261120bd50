// How a call is cut into tasks. Lanes of B * C are independent, so that they are shared out first; a linear recurrence of
// too few lanes for the threads is cut in time as well.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "targets.h"

namespace sruexport::cpu {
namespace {

// Fewer lanes than these in a task take as long: SRU's step is a chain of operations that others have to hide.
constexpr std::int64_t kSRULanes = 32;
constexpr std::int64_t kLinearLanes = 16;
// Lanes times steps that are worth waking a thread for: about 10 us in either recurrence.
constexpr std::int64_t kSRUWork = 16 * 1024;
constexpr std::int64_t kLinearWork = 96 * 1024;
// States of chunks lie on the stack: so many at most. Each chunk's begin on lines of the cache that no other chunk's
// thread writes to at every step.
constexpr std::int64_t kChunkStates = 4096;
constexpr std::int64_t kApart = 32;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t lanes_of(const Sizes& sizes) { return sizes.batch * sizes.channels; }

std::size_t state_bytes(DType dtype) { return dtype == DType::float64 ? sizeof(double) : sizeof(float); }

void begin_with(const void* initial, void* states, std::int64_t lanes, DType dtype) {
  if (initial != states) std::memcpy(states, initial, static_cast<std::size_t>(lanes) * state_bytes(dtype));
}

// Calls body(index) for 0 .. count - 1 on the host's threads.
template <class Body>
void parallel(const Host& host, std::int64_t count, const Body& body) {
  if (count == 1) return body(0);
  const Task task = [](void* data, std::size_t index) {
    (*static_cast<const Body*>(data))(static_cast<std::int64_t>(index));
  };
  if (count > 1) host.parallel_for(host.context, task, static_cast<std::size_t>(count), const_cast<Body*>(&body));
}

// Calls body(block) for blocks of lanes over all steps: as many as there are threads, or fewer where there is little
// to do. They begin at multiples of `unit`.
template <class Body>
void share_lanes(const Host& host, const Sizes& sizes, std::int64_t unit, std::int64_t work, const Body& body) {
  const std::int64_t lanes = lanes_of(sizes);
  const std::int64_t tasks = std::clamp<std::int64_t>(lanes * sizes.steps / work, 1, host.threads);
  const std::int64_t width = ceil_div(ceil_div(lanes, tasks), unit) * unit;
  parallel(host, ceil_div(lanes, width), [&](std::int64_t index) {
    const std::int64_t begin = index * width;
    body(Block{{begin, std::min(begin + width, lanes)}, {0, sizes.steps}});
  });
}

// In how many chunks of time a linear recurrence is cut; 1: in none. Every step of a chunk but the first is done twice,
// so that with n threads it takes 2 / (n + 1) of the time on one; and sharing out lanes, 1 / tasks.
std::int64_t chunks_of(const LinearParams& params, const Host& host) {
  const std::int64_t lanes = lanes_of(params.sizes);
  const std::int64_t tasks = ceil_div(lanes, kLinearLanes);
  std::int64_t threads = std::min<std::int64_t>(host.threads, lanes * params.sizes.steps / kLinearWork);
  threads = std::min(threads, kChunkStates / (ceil_div(lanes, kApart) * kApart) - 1);
  const bool faster = 4 * (threads + 1) > 10 * tasks;  // by a quarter at least
  return faster && threads > 1 ? threads + 1 : 1;
}

// Three phases: the first chunk whole, and of those between it and the last what they do to any state; the states that
// each begins with; all but the first.
template <class State>
void run_chunks(const LinearParams& params, const Host& host, const Target& target, std::int64_t chunks) {
  const std::int64_t lanes = lanes_of(params.sizes), steps = params.sizes.steps;
  const std::int64_t stride = ceil_div(lanes, kApart) * kApart;
  alignas(kApart * sizeof(State)) State starts[kChunkStates], products[kChunkStates];
  auto* last = static_cast<State*>(params.h_last);
  const auto block = [&](std::int64_t chunk) {
    return Block{{0, lanes}, {steps * chunk / chunks, steps * (chunk + 1) / chunks}};
  };
  // The sum of a chunk is where the next one's start will be.
  std::copy(last, last + lanes, starts + stride);
  std::fill(starts + 2 * stride, starts + chunks * stride, State{0});
  std::fill(products + stride, products + (chunks - 1) * stride, State{1});
  parallel(host, chunks - 1, [&](std::int64_t chunk) {
    State* next = starts + (chunk + 1) * stride;
    if (chunk == 0) return target.linear(params, block(0), next);
    target.linear_effect(params, block(chunk), products + chunk * stride, next);
  });
  bool finite = true;
  for (std::int64_t chunk = 1; chunk < chunks - 1; ++chunk) {
    for (std::int64_t i = chunk * stride; i < chunk * stride + lanes; ++i) {
      starts[i + stride] += products[i] * starts[i];
      finite = finite && std::isfinite(products[i]) && std::isfinite(starts[i + stride]);
    }
  }
  if (!finite) {
    // A product beyond all floats says nothing about the states, which may be finite, or infinite from some step on.
    std::copy(starts + stride, starts + stride + lanes, last);
    return target.linear(params, Block{{0, lanes}, {block(1).steps.begin, steps}}, last);
  }
  parallel(host, chunks - 1, [&](std::int64_t index) {
    target.linear(params, block(index + 1), starts + (index + 1) * stride);
  });
  const State* end = starts + (chunks - 1) * stride;
  std::copy(end, end + lanes, last);
}

}  // namespace

void run(const SRUParams& params, const Host& host, const Target& target) {
  const std::int64_t lanes = lanes_of(params.sizes);
  if (lanes == 0) return;
  begin_with(params.c0, params.c, lanes, params.dtype);
  share_lanes(host, params.sizes, kSRULanes, kSRUWork, [&](const Block& block) { target.sru(params, block); });
}

void run(const LinearParams& params, const Host& host, const Target& target) {
  const std::int64_t lanes = lanes_of(params.sizes);
  if (lanes == 0) return;
  begin_with(params.h0, params.h_last, lanes, params.dtype);
  const std::int64_t chunks = chunks_of(params, host);
  if (chunks > 1) {
    return params.dtype == DType::float64 ? run_chunks<double>(params, host, target, chunks)
                                          : run_chunks<float>(params, host, target, chunks);
  }
  share_lanes(host, params.sizes, kLinearLanes, kLinearWork,
              [&](const Block& block) { target.linear(params, block, params.h_last); });
}

}  // namespace sruexport::cpu
