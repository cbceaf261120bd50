#include "functions_of_target.h"

#include "functions.h"

namespace {

using namespace sruexport::cpu::SRUEXPORT_TARGET;

#define SRUEXPORT_FUNCTION(name)                                                              \
  void name##_of(const float* x, float* y, std::size_t count) {                               \
    const auto each = [&](std::int64_t k, auto extent) SRUEXPORT_ALWAYS_INLINE {              \
      store(y + k, sruexport::cpu::SRUEXPORT_TARGET::name(load(x + k, extent)), extent);      \
    };                                                                                        \
    each_vector<float, 2>(static_cast<std::int64_t>(count), each);                            \
  }
SRUEXPORT_FUNCTION(exp)
SRUEXPORT_FUNCTION(sigmoid)
SRUEXPORT_FUNCTION(tanh)

}  // namespace

#define SRUEXPORT_JOIN(a, b) a##b
#define SRUEXPORT_TABLE(target) SRUEXPORT_JOIN(functions_, target)
const Functions SRUEXPORT_TABLE(SRUEXPORT_TARGET){SRUEXPORT_TARGET_NAME, exp_of, sigmoid_of, tanh_of};
