// The serial CUDA kernels, run on the CPU, against float64: random shapes and options, in place, tails, unaligned tensors.
#include <doctest/doctest.h>

#include <cmath>

#include "../problem.h"
#include "kernels/cuda/recurrence.h"

using namespace sruexport;

namespace {

template <class Problem>
void check(Problem& problem) {
  const std::string text = words(problem.about);
  CAPTURE(text);
  const std::vector<double> exact = expected<double>(problem);
  const std::vector<float> rounded = expected<float>(problem);
  REQUIRE(cuda::run(problem.params(), nullptr) == cudaSuccess);
  const Judgement found = judge(problem, exact, rounded);
  CHECK(found.worst <= found.bound);
}

Case random_case(Random& random, std::int64_t steps, std::int64_t batch, std::int64_t channels) {
  Case about = random.about(steps, batch, channels);
  about.dtype = static_cast<DType>(random.upto(2));  // no float64
  return about;
}

}  // namespace

TEST_CASE_TEMPLATE("a kernel equals the definition in all options and random shapes", Problem, SRUProblem,
                   LinearProblem) {
  Random random;
  for (int i = 0; i < 400; ++i) {
    const Case about = random_case(random, random.upto(40), random.upto(5), random.upto(70));
    Problem problem(about, random.engine);
    check(problem);
  }
}

TEST_CASE_TEMPLATE("so it does for every number of steps about the number that is fetched ahead", Problem, SRUProblem,
                   LinearProblem) {
  Random random;
  for (std::int64_t steps = 0; steps <= 35; ++steps) {
    for (const std::int64_t channels : {4, 6, 7}) {
      Problem problem(random_case(random, steps, 2, channels), random.engine);
      check(problem);
    }
  }
}

TEST_CASE_TEMPLATE("so it does with several blocks, and over long sequences", Problem, SRUProblem, LinearProblem) {
  Random random;
  for (const Sizes sizes : {Sizes{3, 5, 300}, Sizes{5000, 1, 4}, Sizes{1, 1, 1024}, Sizes{17, 64, 16}}) {
    for (int i = 0; i < 4; ++i) {
      Problem problem(random_case(random, sizes.steps, sizes.batch, sizes.channels), random.engine);
      check(problem);
    }
  }
}

TEST_CASE("tensors that do not begin where two numbers of 16 bits may be read at once are read one by one") {
  Random random;
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    Case about{dtype, {9, 2, 8}, Direction::forward, Activation::identity, false, false, false, false};
    LinearProblem problem(about, random.engine);
    // The same inputs, two bytes on.
    std::vector<std::uint16_t> moved(problem.a.size() + 2);
    const bool odd = reinterpret_cast<std::uintptr_t>(moved.data()) % 4 == 0;
    std::uint16_t* a = moved.data() + (odd ? 1 : 0);
    std::memcpy(a, problem.a.data(), problem.a.size() * sizeof(*a));
    const std::vector<double> exact = expected<double>(problem);
    const std::vector<float> rounded = expected<float>(problem);
    LinearParams params = problem.params();
    params.a = a;
    REQUIRE(cuda::run(params, nullptr) == cudaSuccess);
    const Judgement found = judge(problem, exact, rounded);
    CHECK(found.worst <= found.bound);
  }
}

TEST_CASE("float64 is refused") {
  Random random;
  Case about{DType::float64, {2, 1, 3}, Direction::forward, Activation::identity, false, false, false, false};
  SRUProblem sru(about, random.engine);
  LinearProblem linear(about, random.engine);
  CHECK(cuda::run(sru.params(), nullptr) == cudaErrorInvalidValue);
  CHECK(cuda::run(linear.params(), nullptr) == cudaErrorInvalidValue);
}
