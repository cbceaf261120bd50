// The loops of the recurrences, for one target. A range of lanes is scanned over all of T: lane l of L = B * C is
// channel l % C of row l / C. Within a step the lanes go by in the order of memory, so that tensors stream and the
// vectors of one step, which do not wait for each other, hide each other's latency.
#pragma once

#include "functions.h"
#include "targets.h"

namespace sruexport::cpu::SRUEXPORT_TARGET {

// Calls row(t, b, first channel, count) for the pieces of a range, a row of one direction at most in each, with steps
// `begin` to `end` of its own direction.
template <class Row>
SRUEXPORT_INLINE void each_row(const Sizes& sizes, Direction direction, const Block& block, const Row& row) {
  const std::int64_t channels = sizes.channels;
  const std::int64_t forward = direction == Direction::forward   ? channels
                               : direction == Direction::reverse ? 0
                                                                 : channels / 2;
  const std::int64_t first_batch = block.lanes.begin / channels;
  for (std::int64_t step = block.steps.begin; step < block.steps.end; ++step) {
    std::int64_t b = first_batch;
    std::int64_t k = block.lanes.begin - b * channels;
    for (std::int64_t left = block.lanes.end - block.lanes.begin; left > 0;) {
      const bool ahead = k < forward;
      std::int64_t count = (ahead ? forward : channels) - k;
      if (count > left) count = left;
      row(ahead ? step : sizes.steps - 1 - step, b, k, count);
      left -= count;
      k += count;
      if (k == channels) {
        k = 0;
        ++b;
      }
    }
  }
}

// How many steps ahead tensors are fetched: the hardware does not foresee rows that are so far apart. 2 to 16 are alike,
// and without it a whole model took 1% to 5% longer.
constexpr std::int64_t kAhead = 4;

template <class Tensor, class Extent>
SRUEXPORT_INLINE void prefetch(const Tensor* from, Extent) {
  constexpr int line = 64 / sizeof(Tensor), elements = Extent::vectors * Wide<Tensor>::lanes;
#pragma GCC unroll 16
  for (int i = 0; i < elements; i += line) __builtin_prefetch(from + i);
}

// Vectors side by side: of 1, 2 and 4 the fastest. SRU's two gates double them.
constexpr int kSRUGroup = 2;
constexpr int kLinearGroup = 1;

// p.c holds the states that the block begins with, and then those that it ends with.
template <class Tensor, bool tanh_of_c, bool masked>
void sru(const SRUParams& p, const Block& block) {
  using State = typename Wide<Tensor>::State;
  const auto* u = static_cast<const Tensor*>(p.u);
  const auto* x = static_cast<const Tensor*>(p.x);
  const auto* v = static_cast<const Tensor*>(p.v);
  const auto* bias = static_cast<const Tensor*>(p.bias);
  auto* h = static_cast<Tensor*>(p.h);
  auto* c = static_cast<State*>(p.c);
  const std::int64_t channels = p.sizes.channels;
  const std::int64_t ahead = p.sizes.batch * channels * kAhead;
  each_row(p.sizes, p.direction, block, [&](std::int64_t t, std::int64_t b, std::int64_t first, std::int64_t count) {
    const std::int64_t row = t * p.sizes.batch + b;
    Tensor* h_row = h + row * channels + first;
    if constexpr (masked) {
      if (p.mask[row]) {
        std::memset(static_cast<void*>(h_row), 0, count * sizeof(Tensor));
        return;
      }
    }
    const Tensor* u0 = u + row * 3 * channels + first;
    const Tensor* u1 = u0 + channels;
    const Tensor* u2 = u1 + channels;
    const Tensor* x_row = x + (p.x_broadcast ? 0 : row * channels) + first;
    const Tensor* v_forget = v + (p.v_per_step ? row * 2 * channels : 0) + first;
    const Tensor* v_reset = v_forget + channels;
    const Tensor* b_forget = bias + first;
    const Tensor* b_reset = b_forget + channels;
    State* state = c + b * channels + first;
    each_vector<Tensor, kSRUGroup>(count, [=](std::int64_t k, auto extent) SRUEXPORT_ALWAYS_INLINE {
      prefetch(u0 + k + 3 * ahead, extent);
      prefetch(u1 + k + 3 * ahead, extent);
      prefetch(u2 + k + 3 * ahead, extent);
      prefetch(x_row + k + ahead, extent);
      const auto before = load(state + k, extent);
      const auto candidate = load(u0 + k, extent);
      const auto gates = sigmoid(
          join(load(u1 + k, extent) + load(b_forget + k, extent) + load(v_forget + k, extent) * before,
               load(u2 + k, extent) + load(b_reset + k, extent) + load(v_reset + k, extent) * before));
      const auto forget = half_of<0>(gates), reset = half_of<1>(gates);
      const auto after = (before - candidate) * forget + candidate;
      const auto highway = load(x_row + k, extent);
      store(state + k, after, extent);
      if constexpr (tanh_of_c) {
        store(h_row + k, (tanh(after) - highway) * reset + highway, extent);
      } else {
        store(h_row + k, (after - highway) * reset + highway, extent);
      }
    });
  });
}

// `last` holds the states that the block begins with, and then those that it ends with.
template <class Tensor, bool masked>
void linear(const LinearParams& p, const Block& block, typename Wide<Tensor>::State* last) {
  const auto* a = static_cast<const Tensor*>(p.a);
  const auto* b_in = static_cast<const Tensor*>(p.b);
  auto* h = static_cast<Tensor*>(p.h);
  const std::int64_t channels = p.sizes.channels;
  const std::int64_t ahead = p.sizes.batch * channels * kAhead;
  each_row(p.sizes, p.direction, block, [&](std::int64_t t, std::int64_t b, std::int64_t first, std::int64_t count) {
    const std::int64_t row = t * p.sizes.batch + b;
    const Tensor* a_row = a + row * channels + first;
    const Tensor* b_row = b_in + row * channels + first;
    Tensor* h_row = h + row * channels + first;
    auto* state = last + b * channels + first;
    const bool padding = masked && p.mask[row];
    each_vector<Tensor, kLinearGroup>(count, [=](std::int64_t k, auto extent) SRUEXPORT_ALWAYS_INLINE {
      prefetch(a_row + k + ahead, extent);
      prefetch(b_row + k + ahead, extent);
      auto now = load(state + k, extent);
      if (!padding) now = load(a_row + k, extent) * now + load(b_row + k, extent);
      store(state + k, now, extent);
      store(h_row + k, now, extent);
    });
  });
}

// What a block does to any states that it begins with: h -> product * h + sum. `product` begins as 1, `sum` as 0.
template <class Tensor, bool masked>
void linear_effect(const LinearParams& p, const Block& block, typename Wide<Tensor>::State* product,
                   typename Wide<Tensor>::State* sum) {
  const auto* a = static_cast<const Tensor*>(p.a);
  const auto* b_in = static_cast<const Tensor*>(p.b);
  const std::int64_t channels = p.sizes.channels;
  each_row(p.sizes, p.direction, block, [&](std::int64_t t, std::int64_t b, std::int64_t first, std::int64_t count) {
    const std::int64_t row = t * p.sizes.batch + b;
    if (masked && p.mask[row]) return;
    const Tensor* a_row = a + row * channels + first;
    const Tensor* b_row = b_in + row * channels + first;
    auto* product_row = product + b * channels + first;
    auto* sum_row = sum + b * channels + first;
    each_vector<Tensor, kLinearGroup>(count, [=](std::int64_t k, auto extent) SRUEXPORT_ALWAYS_INLINE {
      const auto decay = load(a_row + k, extent);
      store(product_row + k, decay * load(product_row + k, extent), extent);
      store(sum_row + k, decay * load(sum_row + k, extent) + load(b_row + k, extent), extent);
    });
  });
}

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
