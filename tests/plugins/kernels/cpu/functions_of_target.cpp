#include "functions_of_target.h"

#include "functions.h"

namespace {

using namespace sruexport::cpu::SRUEXPORT_TARGET;

template <class Function>
SRUEXPORT_INLINE void each(const float* x, float* y, std::size_t count, const Function& function) {
  each_vector<kLanes>(static_cast<std::int64_t>(count), [&](std::int64_t k, auto extent) SRUEXPORT_ALWAYS_INLINE {
    store(y + k, function(load(x + k, extent)), extent);
  });
}

#define SRUEXPORT_FUNCTION(name)                                         \
  void name##_of(const float* x, float* y, std::size_t count) {          \
    each(x, y, count, [](const Float& value) { return sruexport::cpu::SRUEXPORT_TARGET::name(value); }); \
  }
SRUEXPORT_FUNCTION(exp)
SRUEXPORT_FUNCTION(sigmoid)
SRUEXPORT_FUNCTION(tanh)

}  // namespace

#define SRUEXPORT_JOIN(a, b) a##b
#define SRUEXPORT_TABLE(target) SRUEXPORT_JOIN(functions_, target)
const Functions SRUEXPORT_TABLE(SRUEXPORT_TARGET){SRUEXPORT_TARGET_NAME, exp_of, sigmoid_of, tanh_of};
