// How the tiles of a scan learn from those before them, while those are still at work.
#pragma once

#include "device.h"

namespace sruexport::cuda {

// What steps do to any state: h -> product * h + sum.
struct Effect {
  float product, sum;
};

__device__ inline bool finite(float value) { return fabsf(value) <= 3.402823466e38f; }
__device__ inline bool finite(const Effect& effect) { return finite(effect.product) && finite(effect.sum); }

// `first`, and then `second`.
__device__ inline Effect after(const Effect& first, const Effect& second) {
  return {first.product * second.product, second.product * first.sum + second.sum};
}

// What a tile has told of a lane: nothing yet, its effect, or the state that it ends with.
enum Told : unsigned { kNothing = 0, kEffect = 1, kEnd = 2 };

// Where tiles tell it; each [tile in time, lane]. What `told` announces was written before.
struct Board {
  unsigned* told;
  Effect* effects;
  float* ends;
};

// The state that a lane of a tile begins with; `initial`, for the first tile. A tile that has told nothing is waited for.
__device__ inline float look_back(const Board& board, std::int64_t tile, std::int64_t lane, std::int64_t lanes,
                                  float initial) {
  if (tile == 0) return initial;
  Effect between{1.0f, 0.0f};
  bool nearest = false;  // whether the state has to be what the tile before this one ends with
  for (std::int64_t before = tile - 1; before >= 0;) {
    const std::int64_t at = before * lanes + lane;
    const unsigned told = load_acquire(board.told + at);
    if (told == kEnd) {
      const float end = load_relaxed(board.ends + at);
      if (before == tile - 1) return end;
      if (finite(end)) return between.product * end + between.sum;
      nearest = true;
    } else if (told == kEffect && !nearest) {
      const Effect further{load_relaxed(&board.effects[at].product), load_relaxed(&board.effects[at].sum)};
      between = after(further, between);
      nearest = !finite(between);
      --before;
    }
    // A product of decays says nothing about a state that is infinite, nor one beyond all floats about any.
    if (nearest || (before < 0 && !finite(initial))) {
      nearest = true;
      before = tile - 1;
    }
  }
  return between.product * initial + between.sum;
}

}  // namespace sruexport::cuda
