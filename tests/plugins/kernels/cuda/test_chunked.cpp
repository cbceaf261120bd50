// The CUDA kernel that is parallel in T, run on the CPU, against float64: any number of steps and lanes, and products of
// decays that leave the floats.
#include <doctest/doctest.h>

#include <cmath>
#include <chrono>
#include <thread>

#include "../problem.h"
#include "kernels/cuda/look_back.h"
#include "kernels/cuda/recurrence.h"

using namespace sruexport;

namespace {

void check(LinearProblem& problem) {
  const std::string text = words(problem.about);
  CAPTURE(text);
  const std::vector<double> exact = expected<double>(problem);
  const std::vector<float> rounded = expected<float>(problem);
  // As it comes from an allocator: with anything in it.
  std::vector<unsigned char> workspace(cuda::chunked_workspace(problem.about.sizes), 0xff);
  REQUIRE(cuda::run_chunked(problem.params(), workspace.data(), nullptr) == cudaSuccess);
  const Judgement found = judge(problem, exact, rounded);
  CHECK(found.worst <= found.bound);
}

Case random_case(Random& random, std::int64_t steps, std::int64_t batch, std::int64_t channels) {
  Case about = random.about(steps, batch, channels);
  about.dtype = static_cast<DType>(random.upto(2));  // no float64
  return about;
}

}  // namespace

TEST_CASE("it equals the definition in all options and random shapes") {
  Random random;
  for (int i = 0; i < 200; ++i) {
    LinearProblem problem(random_case(random, random.upto(700), random.upto(3), random.upto(40)), random.engine);
    check(problem);
  }
}

TEST_CASE("so it does for every number of lanes about the widths of a tile, and of steps about their lengths") {
  Random random;
  for (const std::int64_t lanes : {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64}) {
    std::int64_t width = 1;
    while (width < lanes && width < 32) width *= 2;
    for (const std::int64_t tiles : {1, 2, 3}) {
      for (const std::int64_t more : {-1, 0, 1}) {
        const std::int64_t steps = tiles * (4096 / width) + more;
        if (steps * lanes > 20'000) continue;
        LinearProblem problem(random_case(random, steps, 1, lanes), random.engine);
        check(problem);
      }
    }
  }
}

TEST_CASE("so it does over many tiles") {
  Random random;
  for (const Sizes sizes : {Sizes{100'000, 1, 1}, Sizes{20'000, 1, 6}, Sizes{5000, 1, 40}}) {
    LinearProblem problem(random_case(random, sizes.steps, sizes.batch, sizes.channels), random.engine);
    check(problem);
  }
}

TEST_CASE("products of decays beyond all floats do not spoil states that are not") {
  std::mt19937 random(1);
  for (const std::int64_t channels : {1, 3, 32}) {
    Case about{DType::float32, {9000, 1, channels}, Direction::forward, Activation::identity, false, false, false, false};
    LinearProblem problem(about, random);
    for (std::int64_t t = 0; t < 9000; ++t) {
      for (std::int64_t k = 0; k < channels; ++k) {
        problem.a.set(static_cast<std::size_t>(t * channels + k), t % 3000 < 1500 ? 2.0 : 0.0);
        problem.b.set(static_cast<std::size_t>(t * channels + k), t % 3000 == 2999 ? 1e-30 * (t > 3000 ? 0 : 1) : 0.0);
      }
    }
    for (std::size_t k = 0; k < problem.h0.size(); ++k) problem.h0.set(k, 0.0);
    for (std::int64_t t = 3000; t < 4500; ++t) {
      for (std::int64_t k = 0; k < channels; ++k) problem.a.set(static_cast<std::size_t>(t * channels + k), 1.0);
    }
    check(problem);
    for (std::size_t i = 0; i < problem.h.size(); ++i) REQUIRE(std::isfinite(problem.h.get(i)));
  }
}

TEST_CASE("infinities and NaN go where they go in the definition") {
  Random random;
  const double odd[] = {INFINITY, -INFINITY, std::nan("")};
  for (int i = 0; i < 60; ++i) {
    Case about = random_case(random, 1 + random.upto(600), 1, 1 + random.upto(40));
    about.in_place = false;
    LinearProblem problem(about, random.engine);
    for (Array* array : {&problem.a, &problem.b, &problem.h0}) {
      if (random.coin()) array->set(random.engine() % array->size(), odd[random.engine() % 3]);
    }
    const std::vector<double> exact = expected<double>(problem);
    std::vector<unsigned char> workspace(cuda::chunked_workspace(about.sizes), 0xff);
    REQUIRE(cuda::run_chunked(problem.params(), workspace.data(), nullptr) == cudaSuccess);
    for (std::size_t k = 0; k < exact.size(); ++k) {
      const bool output = k < problem.h.size();
      const double found = output ? problem.h.get(k) : problem.h_last.get(k - problem.h.size());
      const bool alike = std::isnan(exact[k])   ? std::isnan(found)
                         : std::isinf(exact[k]) ? found == exact[k]
                                                : std::isfinite(found);
      if (!alike) FAIL_CHECK(words(about) << ": " << found << " for " << exact[k]);
    }
  }
}

TEST_CASE("float64 is refused") {
  Random random;
  Case about{DType::float64, {2, 1, 3}, Direction::forward, Activation::identity, false, false, false, false};
  LinearProblem problem(about, random.engine);
  CHECK(cuda::run_chunked(problem.params(), nullptr, nullptr) == cudaErrorInvalidValue);
}

// Blocks run one after another here, so that a tile always finds the end of the one before it. What it does where it finds
// less is looked at alone.

namespace {

struct Tiles {
  explicit Tiles(std::size_t count) : told(count), effects(count), ends(count) {}
  cuda::Board board() { return {told.data(), effects.data(), ends.data()}; }
  void tell(std::size_t tile, cuda::Effect effect) {
    effects[tile] = effect;
    cuda::store_release(&told[tile], cuda::kEffect);
  }
  void tell_end(std::size_t tile, float end) {
    ends[tile] = end;
    cuda::store_release(&told[tile], cuda::kEnd);
  }
  std::vector<unsigned> told;
  std::vector<cuda::Effect> effects;
  std::vector<float> ends;
};

}  // namespace

TEST_CASE("a tile composes the effects of those before it, back to the nearest end or to the initial state") {
  for (const int known : {-1, 0, 1, 3}) {
    Tiles tiles(5);
    float state = 3.0f;
    for (int t = 0; t < 4; ++t) {
      const cuda::Effect effect{0.5f + 0.25f * static_cast<float>(t), static_cast<float>(t) - 1.5f};
      state = effect.product * state + effect.sum;
      t <= known ? tiles.tell_end(t, state) : tiles.tell(t, effect);
    }
    CHECK(cuda::look_back(tiles.board(), 4, 0, 1, 3.0f) == doctest::Approx(state));
  }
}

TEST_CASE("it waits for a tile that has told nothing") {
  Tiles tiles(3);
  tiles.tell(1, {0.5f, 1.0f});
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    tiles.tell_end(0, 6.0f);
  });
  CHECK(cuda::look_back(tiles.board(), 2, 0, 1, 0.0f) == 4.0f);
  late.join();
}

TEST_CASE("it takes no product for a state that is infinite, nor one that is: it waits for the end before it") {
  struct Odd {
    cuda::Effect effect;
    float end, initial;
    bool first_has_ended;
  };
  for (const Odd odd : {Odd{{0.0f, 1.0f}, INFINITY, 0.0f, true}, Odd{{INFINITY, 0.0f}, 1.0f, 0.0f, true},
                        Odd{{0.0f, 1.0f}, 0.0f, -INFINITY, false}, Odd{{1e30f, 0.0f}, 1e30f, 0.0f, false}}) {
    Tiles tiles(3);
    odd.first_has_ended ? tiles.tell_end(0, odd.end) : tiles.tell(0, {1e30f, 0.0f});
    tiles.tell(1, odd.effect);
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      tiles.tell_end(1, 7.0f);
    });
    CHECK(cuda::look_back(tiles.board(), 2, 0, 1, odd.initial) == 7.0f);
    late.join();
  }
}

TEST_CASE("few lanes and many steps are cut in time, and nothing else") {
  LinearParams params{};
  const auto prefers = [&](std::int64_t steps, std::int64_t batch, std::int64_t channels) {
    params.sizes = {steps, batch, channels};
    return cuda::prefer_chunked(params, 132);
  };
  CHECK(prefers(16'000'000, 1, 1));
  CHECK(prefers(100'000, 1, 256));
  CHECK_FALSE(prefers(100, 1, 256));
  CHECK_FALSE(prefers(4096, 64, 1024));
}
