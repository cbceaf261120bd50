// exp, sigmoid and tanh of arrays, as the target computes them; one table for each that this machine may have.
#pragma once

#include <cstddef>

struct Functions {
  const char* target;
  void (*exp)(const float* x, float* y, std::size_t count);
  void (*sigmoid)(const float* x, float* y, std::size_t count);
  void (*tanh)(const float* x, float* y, std::size_t count);
};

extern const Functions functions_portable;
extern const Functions functions_avx2;
extern const Functions functions_avx512;
