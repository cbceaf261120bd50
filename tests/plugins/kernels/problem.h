// A call of a kernel with everything that it reads and writes, made up at random, and what it should give.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "parameters.h"

// Numbers of a dtype, as float64 and as the bits that a kernel is given.
class Array {
 public:
  Array() = default;
  Array(sruexport::DType dtype, std::size_t size);
  // Rounded to the dtype.
  void set(std::size_t index, double value);
  double get(std::size_t index) const;
  std::size_t size() const { return size_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  // NaN everywhere: what a kernel does not write shows.
  void poison();

 private:
  sruexport::DType dtype_{};
  std::size_t size_ = 0;
  std::vector<unsigned char> bytes_;  // exactly as long as the array, so that AddressSanitizer sees what is beyond
};

struct Case {
  sruexport::DType dtype;
  sruexport::Sizes sizes;
  sruexport::Direction direction;
  sruexport::Activation activation;
  bool masked, v_per_step, x_broadcast, in_place;
};

struct SRUProblem {
  SRUProblem(const Case& about, std::mt19937& random);
  sruexport::SRUParams params();
  Case about;
  const Array& last() const { return c; }
  Array u, x, v, bias, c0, h, c;
  std::vector<std::int32_t> mask;
};

struct LinearProblem {
  LinearProblem(const Case& about, std::mt19937& random);
  sruexport::LinearParams params();
  Case about;
  const Array& last() const { return h_last; }
  Array a, b, h0, h, h_last;
  std::vector<std::int32_t> mask;
};

// The recurrence step by step in `Real`, from sruexport/recurrences: h and then the last states.
template <class Real>
std::vector<Real> expected(const SRUProblem& problem);
template <class Real>
std::vector<Real> expected(const LinearProblem& problem);

// What came out, and what it may be off by: the parity rule of sruexport/parity/measure.py, 8 times what plain float32
// code is off, or the dtype's own rounding.
struct Judgement {
  double worst;
  double bound;
};
template <class Problem>
Judgement judge(const Problem& problem, const std::vector<double>& exact, const std::vector<float>& rounded);

std::string words(const Case& about);

// Options at random.
struct Random {
  std::mt19937 engine{20261201};
  std::int64_t upto(std::int64_t most) { return static_cast<std::int64_t>(engine() % (most + 1)); }
  bool coin() { return engine() & 1; }
  Case about(std::int64_t steps, std::int64_t batch, std::int64_t channels);
};
