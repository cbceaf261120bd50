// The functions' error over all floats, against libm in double. By default every float whose exponent is from -30 to 7,
// beyond which they are constant or the identity, and of the others one in 997; with SRUEXPORT_EVERY=n one in n of all.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "functions_of_target.h"
#include "recurrence.h"

namespace {

std::vector<const Functions*> available() {
  std::vector<const Functions*> found;
  for (auto target = sruexport::cpu::targets(); *target; ++target) {
    for (const Functions* functions : {
#if defined(SRUEXPORT_X86)
             &functions_avx512, &functions_avx2,
#endif
             &functions_portable}) {
      if (std::string(functions->target) == sruexport::cpu::name(**target)) found.push_back(functions);
    }
  }
  return found;
}

// In units in the last place of the float nearest to `exact`; infinity counts as 2^128.
double ulps(float found, double exact) {
  if (std::isnan(exact)) return std::isnan(found) ? 0 : std::numeric_limits<double>::infinity();
  if (std::isnan(found)) return std::numeric_limits<double>::infinity();
  const double value = std::isinf(found) ? std::copysign(0x1p128, found) : found;
  const double limited = std::fabs(exact) > 0x1p128 ? std::copysign(0x1p128, exact) : exact;
  const int exponent = limited == 0 ? -126 : std::max(std::ilogb(limited), -126);
  return std::fabs(value - limited) / std::ldexp(1.0, exponent - 23);
}

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

struct Worst {
  double error = 0;
  float at = 0;
};

constexpr std::size_t kBlock = 4096;
struct Batch {
  float x[kBlock];
  double exact[3][kBlock];
  std::size_t count = 0;

  void judge(const std::vector<const Functions*>& targets, std::vector<Worst>& worst) {
    for (std::size_t i = 0; i < count; ++i) {
      exact[0][i] = std::exp(static_cast<double>(x[i]));
      exact[1][i] = sigmoid(x[i]);
      exact[2][i] = std::tanh(static_cast<double>(x[i]));
    }
    float y[kBlock];
    for (std::size_t t = 0; t < targets.size(); ++t) {
      for (int f = 0; f < 3; ++f) {
        (f == 0 ? targets[t]->exp : f == 1 ? targets[t]->sigmoid : targets[t]->tanh)(x, y, count);
        for (std::size_t i = 0; i < count; ++i) {
          const double error = ulps(y[i], exact[f][i]);
          Worst& own = worst[3 * t + f];
          if (error > own.error) own = {error, x[i]};
        }
      }
    }
    count = 0;
  }
};

// Every float whose bits are `first`, `first` + `stride`, ...
void sweep(std::uint64_t first, std::uint64_t stride, const std::vector<const Functions*>& targets,
           std::vector<Worst>& worst) {
  const char* every = std::getenv("SRUEXPORT_EVERY");
  const std::uint64_t thinned = every && *every ? std::strtoull(every, nullptr, 10) : 0;
  auto batch = std::make_unique<Batch>();
  std::uint64_t index = 0;
  for (std::uint64_t bits = first; bits < (1ull << 32); bits += stride, ++index) {
    const int exponent = static_cast<int>((bits >> 23) & 0xff) - 127;
    const bool varies = exponent >= -30 && exponent <= 7;
    if (thinned ? index % thinned != 0 : !varies && index % 997 != 0) continue;
    const auto low = static_cast<std::uint32_t>(bits);
    std::memcpy(&batch->x[batch->count++], &low, sizeof low);
    if (batch->count == kBlock) batch->judge(targets, worst);
  }
  batch->judge(targets, worst);
}

}  // namespace

TEST_CASE("exp, sigmoid and tanh are within 2 ulp of the truth over all floats, in every target") {
  const auto targets = available();
  REQUIRE_FALSE(targets.empty());
  constexpr std::size_t threads = 2;
  std::vector<std::vector<Worst>> worst(threads, std::vector<Worst>(3 * targets.size()));
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { sweep(i, threads, targets, worst[i]); });
  }
  for (auto& thread : running) thread.join();
  const char* names[] = {"exp", "sigmoid", "tanh"};
  for (std::size_t i = 0; i < 3 * targets.size(); ++i) {
    Worst most = worst[0][i];
    for (const auto& own : worst) most = own[i].error > most.error ? own[i] : most;
    const std::string which = std::string(targets[i / 3]->target) + " " + names[i % 3];
    MESSAGE(which << ": " << most.error << " ulp, at " << most.at);
    CHECK(most.error <= 2.0);
  }
}

TEST_CASE("infinities give the limits, and NaN stays NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float x[] = {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f};
  for (const Functions* functions : available()) {
    const std::string target = functions->target;
    CAPTURE(target);
    float y[5];
    functions->exp(x, y, 5);
    CHECK(y[0] == infinity);
    CHECK(y[1] == 0.0f);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 1.0f);
    functions->sigmoid(x, y, 5);
    CHECK(y[0] == 1.0f);
    CHECK(y[1] < 1e-44f);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 0.5f);
    functions->tanh(x, y, 5);
    CHECK(y[0] == 1.0f);
    CHECK(y[1] == -1.0f);
    CHECK(std::isnan(y[2]));
    CHECK((y[3] == 0.0f && !std::signbit(y[3])));
    CHECK((y[4] == 0.0f && std::signbit(y[4])));
  }
}
