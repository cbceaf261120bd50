// exp, sigmoid and tanh of vectors of floats. Over all floats each is within 2 units in the last place; infinities give
// the limits and NaN stays NaN (tests/plugins/kernels/cpu/test_functions.cpp measures it). Those of doubles are libm's.
//
// The polynomials are our own minimax fits of the relative error, with coefficients rounded to float: 2^-28.2 for exp on
// |r| <= ln(2) / 2, 2^-27.7 for tanh on |x| <= 0.625.
#pragma once

#include <cmath>

#include "vector.h"

namespace sruexport::cpu::SRUEXPORT_TARGET {

// p * 2^n, with n also given as integers; the product may be subnormal, 0 or infinite.
SRUEXPORT_INLINE Float times_power_of_two(const Float& p, [[maybe_unused]] const Float& n, [[maybe_unused]] const Int& whole) {
#if defined(__AVX512F__)
  return bits_of<Float>(_mm512_maskz_scalef_ps(0xffff, bits_of<__m512>(p), bits_of<__m512>(n)));
#else
  const Int half = whole >> 1;  // two factors, since one might not be a float
  const Int other = whole - half;
  return p * bits_of<Float>((half + 127) << 23) * bits_of<Float>((other + 127) << 23);
#endif
}

// exp(x) = 2^n * exp(r), n the integer nearest to x / ln(2); for x in [-104, 89], or NaN.
SRUEXPORT_INLINE Float exp_within(const Float& x) {
  const Float shift = splat(0x1.8p23f);  // a sum with it is rounded to an integer, which its last bits hold
  const Float shifted = x * 0x1.715476p0f + shift;
  const Float n = shifted - shift;
  // ln(2) in two parts, the first with so few bits that its product with n is exact without FMA, too.
  const Float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  Float q = splat(0x1.6a5234p-10f);
  q = q * r + 0x1.12396cp-7f;
  q = q * r + 0x1.5558aap-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const Float p = (r * r) * q + r + 1.0f;
  return times_power_of_two(p, n, bits_of<Int>(shifted) - bits_of<Int>(shift));
}

// Below -104 it is 0, above 89 infinity. So written, a NaN stays.
SRUEXPORT_INLINE Float at_least(const Float& x, float least) { return x < least ? splat(least) : x; }
SRUEXPORT_INLINE Float at_most(const Float& x, float most) { return x > most ? splat(most) : x; }

SRUEXPORT_INLINE Float exp(const Float& x) { return exp_within(at_most(at_least(x, -104.0f), 89.0f)); }

SRUEXPORT_INLINE Float magnitude(const Float& x) { return bits_of<Float>(bits_of<Int>(x) & 0x7fffffff); }

SRUEXPORT_INLINE Float sigmoid(const Float& x) {
  const Float e = exp_within(at_least(-magnitude(x), -104.0f));
  const Float t = e / (1.0f + e);
  // 1 - t, or for a negative x e - e * t = t: but with the errors of the sum and the quotient times e.
  const Float whole = x < 0.0f ? e : splat(1.0f);
  return whole - whole * t;
}

SRUEXPORT_INLINE Float tanh(const Float& x) {
  const Float size = magnitude(x);
  const Float square = x * x;
  Float p = splat(-0x1.750ce4p-8f);
  p = p * square + 0x1.51f8cep-6f;
  p = p * square + -0x1.b835a4p-5f;
  p = p * square + 0x1.1106f6p-3f;
  p = p * square + -0x1.555532p-2f;
  const Float small = (p * square) * size + size;
  const Float large = 1.0f - 2.0f / (exp_within(at_most(size + size, 89.0f)) + 1.0f);
  const Float value = size < 0.625f ? small : large;
  return bits_of<Float>(bits_of<Int>(value) | (bits_of<Int>(x) & ~0x7fffffff));
}

SRUEXPORT_INLINE double sigmoid(double x) {
  const double e = ::exp(-::fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

SRUEXPORT_INLINE double tanh(double x) { return ::tanh(x); }

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
