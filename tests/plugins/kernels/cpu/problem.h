// A call of a kernel with everything that it reads and writes, made up at random, and what it should give.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "recurrence.h"

// Numbers of a dtype, as float64 and as the bits that a kernel is given.
class Array {
 public:
  Array() = default;
  Array(sruexport::cpu::DType dtype, std::size_t size);
  // Rounded to the dtype.
  void set(std::size_t index, double value);
  double get(std::size_t index) const;
  std::size_t size() const { return size_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  // NaN everywhere: what a kernel does not write shows.
  void poison();

 private:
  sruexport::cpu::DType dtype_{};
  std::size_t size_ = 0;
  std::vector<unsigned char> bytes_;  // exactly as long as the array, so that AddressSanitizer sees what is beyond
};

struct Case {
  sruexport::cpu::DType dtype;
  sruexport::cpu::Sizes sizes;
  sruexport::cpu::Direction direction;
  sruexport::cpu::Activation activation;
  bool masked, v_per_step, x_broadcast, in_place;
};

struct SRUProblem {
  SRUProblem(const Case& about, std::mt19937& random);
  sruexport::cpu::SRUParams params();
  Case about;
  const Array& last() const { return c; }
  Array u, x, v, bias, c0, h, c;
  std::vector<std::int32_t> mask;
};

struct LinearProblem {
  LinearProblem(const Case& about, std::mt19937& random);
  sruexport::cpu::LinearParams params();
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
