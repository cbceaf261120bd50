// The recurrences on the CPU, for any host. Nothing here allocates memory or throws.
#pragma once

#include <cstddef>

#include "../parameters.h"

namespace sruexport::cpu {

using Task = void (*)(void* data, std::size_t index);

// Where a call gets its threads from.
struct Host {
  int threads;  // about how many there are: work is cut for so many
  void (*parallel_for)(void* context, Task task, std::size_t count, void* data);
  void* context;
};

struct Target;  // an instruction set that the kernels are compiled for

// The best that this machine has.
const Target& best_target();
// All that this machine has, best first, ended by null.
const Target* const* targets();
// "AVX-512", "AVX2", or "portable".
const char* name(const Target& target);

void run(const SRUParams& params, const Host& host, const Target& target = best_target());
void run(const LinearParams& params, const Host& host, const Target& target = best_target());

}  // namespace sruexport::cpu
