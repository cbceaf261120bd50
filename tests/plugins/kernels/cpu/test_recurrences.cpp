// Both recurrences, on every target, against float64: random shapes and options, with several threads, in place, with
// tails of vectors, chunks of time, infinities and NaN.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "../problem.h"
#include "recurrence.h"
#include "threads.h"

using namespace sruexport;
using namespace sruexport::cpu;

namespace {

template <class Problem>
void check(Problem& problem, const Host& host, const Target& target) {
  const std::string text = words(problem.about) + ", threads " + std::to_string(host.threads) + ", " + name(target);
  CAPTURE(text);
  const std::vector<double> exact = expected<double>(problem);
  const std::vector<float> rounded = expected<float>(problem);
  run(problem.params(), host, target);
  const Judgement found = judge(problem, exact, rounded);
  CHECK(found.worst <= found.bound);
}

template <class Problem>
void check_everywhere(const Case& about, std::mt19937& random, int threads) {
  for (auto target = targets(); *target; ++target) {
    Threads pool(threads);
    Problem problem(about, random);
    check(problem, pool.host(), **target);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a recurrence equals its definition in all options and random shapes", Problem, SRUProblem,
                   LinearProblem) {
  Random random;
  for (int i = 0; i < 400; ++i) {
    const Case about = random.about(random.upto(20), random.upto(5), random.upto(70));
    check_everywhere<Problem>(about, random.engine, 1 + static_cast<int>(random.upto(15)));
  }
}

TEST_CASE_TEMPLATE("so it does over long sequences", Problem, SRUProblem, LinearProblem) {
  Random random;
  for (const std::int64_t steps : {999, 2000, 5000}) {
    check_everywhere<Problem>(random.about(steps, 1 + random.upto(2), 1 + random.upto(40)), random.engine, 3);
  }
}

TEST_CASE_TEMPLATE("so it does with as many lanes as are shared out among threads", Problem, SRUProblem,
                   LinearProblem) {
  Random random;
  for (const int threads : {1, 2, 3, 7, 16}) {
    check_everywhere<Problem>(random.about(300, 3, 331), random.engine, threads);
  }
}

TEST_CASE("a linear recurrence that is cut in time equals its definition") {
  Random random;
  for (const int threads : {2, 3, 8, 16}) {
    for (const std::int64_t channels : {1, 2, 16, 30}) {
      Case about = random.about(2'000'000 / channels + random.upto(9), 1, channels);
      Threads pool(threads);
      LinearProblem problem(about, random.engine);
      check(problem, pool.host(), best_target());
      // 30 channels are two tasks for two or three threads, which is as quick.
      const bool twice = threads > 3 || channels <= 16;
      CHECK(pool.calls() == (twice ? 2 : 1));
    }
  }
}

TEST_CASE("a chunk whose decays multiply beyond all floats does not spoil the states") {
  std::mt19937 random(1);
  Case about{DType::float32, {400'000, 1, 1}, Direction::forward, Activation::identity, false, false, false, false};
  LinearProblem problem(about, random);
  for (std::size_t t = 0; t < problem.a.size(); ++t) {
    problem.a.set(t, t % 400 < 200 ? 2.0 : 0.0);
    problem.b.set(t, t % 400 == 399 ? 1e-30 : 0.0);
  }
  problem.h0.set(0, 0.0);
  Threads pool(8);
  check(problem, pool.host(), best_target());
  CHECK(std::isfinite(problem.h.get(399'999)));
}

TEST_CASE("infinities and NaN go where they go in the definition") {
  std::mt19937 random(2);
  const double odd[] = {INFINITY, -INFINITY, std::nan("")};
  for (auto target = targets(); *target; ++target) {
    for (int i = 0; i < 300; ++i) {
      Random options;
      options.engine.seed(random());
      Case about = options.about(1 + options.upto(9), 1 + options.upto(2), 1 + options.upto(40));
      about.in_place = false;
      SRUProblem sru(about, random);
      LinearProblem linear(about, random);
      for (Array* array : {&sru.u, &sru.x, &sru.v, &sru.c0, &linear.a, &linear.b, &linear.h0}) {
        if (options.coin()) array->set(random() % array->size(), odd[random() % 3]);
      }
      Threads pool(2);
      const auto same = [&](auto& problem) {
        run(problem.params(), pool.host(), **target);
        const std::vector<double> exact = expected<double>(problem);
        for (std::size_t k = 0; k < exact.size(); ++k) {
          const bool output = k < problem.h.size();
          const double found = output ? problem.h.get(k) : problem.last().get(k - problem.h.size());
          const bool alike = std::isnan(exact[k])   ? std::isnan(found)
                             : std::isinf(exact[k]) ? found == exact[k]
                                                    : std::isfinite(found);
          if (!alike) FAIL_CHECK(name(**target) << ": " << found << " for " << exact[k]);
        }
      };
      same(sru);
      same(linear);
    }
  }
}

TEST_CASE("an empty sequence leaves the states as they are, and an empty batch has none") {
  std::mt19937 random(3);
  Threads pool(2);
  for (const Sizes sizes : {Sizes{0, 2, 3}, Sizes{4, 0, 3}, Sizes{4, 2, 0}, Sizes{0, 0, 0}}) {
    Case about{DType::float32, sizes, Direction::forward, Activation::identity, true, false, false, false};
    SRUProblem sru(about, random);
    LinearProblem linear(about, random);
    run(sru.params(), pool.host());
    run(linear.params(), pool.host());
    for (std::size_t i = 0; i < sru.c.size(); ++i) {
      CHECK(sru.c.get(i) == sru.c0.get(i));
      CHECK(linear.h_last.get(i) == linear.h0.get(i));
    }
  }
}

TEST_CASE("numbers of 16 bits are rounded to the nearest, ties to even, subnormal ones too") {
  std::mt19937 random(4);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    Case about{dtype, {1, 1, 4099}, Direction::forward, Activation::identity, false, false, false, false};
    for (auto target = targets(); *target; ++target) {
      LinearProblem problem(about, random);
      const int lowest = dtype == DType::float16 ? -26 : -140, range = dtype == DType::float16 ? 43 : 268;
      Array wanted(dtype, problem.h.size());
      for (std::size_t i = 0; i < problem.h.size(); ++i) {
        problem.a.set(i, 1.0);
        problem.b.set(i, 0.0);
        // Half of them exactly between two neighbours.
        const double fraction = i % 2 ? 1 + static_cast<double>(random() % 4096) / 4096 : 1 + (random() % 1024 + 0.5) / 1024;
        problem.h0.set(i, std::ldexp(i % 3 ? fraction : -fraction, lowest + static_cast<int>(random() % range)));
        wanted.set(i, problem.h0.get(i));
      }
      Threads pool(1);
      run(problem.params(), pool.host(), **target);
      for (std::size_t i = 0; i < problem.h.size(); ++i) {
        if (problem.h.get(i) != wanted.get(i)) FAIL_CHECK(name(**target) << " " << problem.h0.get(i));
      }
    }
  }
}
