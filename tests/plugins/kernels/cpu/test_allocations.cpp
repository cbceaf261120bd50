// A call allocates nothing, whatever its sizes.
#include <doctest/doctest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "recurrence.h"

namespace {
bool watching = false;
int allocations = 0;
}  // namespace

// Not inline: GCC would see memory of `new` given to `free`.
__attribute__((noinline)) void* operator new(std::size_t size) {
  if (watching) ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

using namespace sruexport;
using namespace sruexport::cpu;

namespace {

// Tasks one after another, as many as for eight threads.
Host host() {
  return {8,
          [](void*, Task task, std::size_t count, void* data) {
            for (std::size_t i = 0; i < count; ++i) task(data, i);
          },
          nullptr};
}

template <class Call>
int allocations_of(const Call& call) {
  allocations = 0;
  watching = true;
  call();
  watching = false;
  return allocations;
}

}  // namespace

TEST_CASE("the counter counts") {
  CHECK(allocations_of([] { delete new std::vector<int>(1); }) > 0);
}

TEST_CASE("kernels allocate nothing") {
  for (const Sizes sizes : {Sizes{1, 1, 512}, Sizes{512, 1, 512}, Sizes{64, 8, 100}, Sizes{1'000'000, 1, 1}}) {
    const auto [steps, batch, channels] = sizes;
    const std::vector<float> u(static_cast<std::size_t>(steps * batch * channels * 3), 0.5f);
    std::vector<float> h(u.size() / 3), states(static_cast<std::size_t>(batch * channels)), zeros(states.size());
    const std::vector<float> gates(static_cast<std::size_t>(2 * channels), 0.1f);
    SRUParams sru{};
    sru.sizes = sizes;
    sru.u = u.data();
    sru.x = u.data();
    sru.v = sru.bias = gates.data();
    sru.c0 = zeros.data();
    sru.h = h.data();
    sru.c = states.data();
    LinearParams linear{};
    linear.sizes = sizes;
    linear.a = linear.b = u.data();
    linear.h0 = zeros.data();
    linear.h = h.data();
    linear.h_last = states.data();
    CHECK(allocations_of([&] { run(sru, host()); }) == 0);
    CHECK(allocations_of([&] { run(linear, host()); }) == 0);
  }
}
