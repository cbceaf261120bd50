// What is compiled once per instruction set, and what chooses among them.
#pragma once

#include "recurrence.h"

namespace sruexport::cpu {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// Lanes of B * C, and steps counted in the order that a direction takes them.
struct Block {
  Range lanes;
  Range steps;
};

struct Target {
  const char* name;
  // The states that a block begins with are in params.c, where it leaves those that it ends with; those of `linear` in
  // `states`, an array of B * C as h_last is.
  void (*sru)(const SRUParams& params, const Block& block);
  void (*linear)(const LinearParams& params, const Block& block, void* states);
  // h -> product * h + sum is what a block does to states; arrays as `states`, which begin as 1 and 0.
  void (*linear_effect)(const LinearParams& params, const Block& block, void* product, void* sum);
};

namespace portable {
extern const Target target;
}
namespace avx2 {
extern const Target target;
}
namespace avx512 {
extern const Target target;
}

}  // namespace sruexport::cpu
