// Which instruction sets this machine has.
#include "targets.h"

namespace sruexport::cpu {
namespace {

struct Available {
  const Target* list[4] = {};  // the last one stays null
  Available() {
    int count = 0;
#if defined(SRUEXPORT_X86)
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // and F16C, which came before AVX2
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (has_avx512) list[count++] = &avx512::target;
    if (has_avx2) list[count++] = &avx2::target;
#endif
    list[count] = &portable::target;
  }
};

}  // namespace

const Target* const* targets() {
  static const Available available;
  return available.list;
}

const Target& best_target() { return *targets()[0]; }

const char* name(const Target& target) { return target.name; }

}  // namespace sruexport::cpu
