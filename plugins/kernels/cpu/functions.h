// exp, sigmoid and tanh of vectors of floats. Over all floats each is within 2 units in the last place; infinities give
// the limits and NaN stays NaN (tests/plugins/kernels/cpu/test_functions.cpp measures it). Those of doubles are libm's.
//
// The polynomials are our own minimax fits of the relative error, with coefficients rounded to float: 2^-28.2 for exp on
// |r| <= ln(2) / 2, 2^-27.7 for tanh on |x| <= 0.625.
#pragma once

#include <cmath>

#include "vector.h"

namespace sruexport::cpu::SRUEXPORT_TARGET {

#define SRUEXPORT_EACH(expression) parts<Float, count>([&](int i) SRUEXPORT_ALWAYS_INLINE { return expression; })

// So written, a NaN stays.
template <int count>
SRUEXPORT_INLINE Floats<count> at_least(const Floats<count>& x, float least) {
  return SRUEXPORT_EACH(x.part[i] < least ? Float{} + least : x.part[i]);
}
template <int count>
SRUEXPORT_INLINE Floats<count> at_most(const Floats<count>& x, float most) {
  return SRUEXPORT_EACH(x.part[i] > most ? Float{} + most : x.part[i]);
}

template <int count>
SRUEXPORT_INLINE Floats<count> magnitude(const Floats<count>& x) {
  return SRUEXPORT_EACH(bits_of<Float>(bits_of<Int>(x.part[i]) & 0x7fffffff));
}

constexpr float kShift = 0x1.8p23f;  // a sum with it is rounded to an integer, which its last bits hold

// p * 2^n for n = shifted - kShift; the product may be subnormal, 0 or infinite.
SRUEXPORT_INLINE Float times_power_of_two(const Float& p, const Float& shifted) {
#if defined(__AVX512F__)
  return bits_of<Float>(_mm512_maskz_scalef_ps(0xffff, bits_of<__m512>(p), bits_of<__m512>(shifted - kShift)));
#else
  const Int n = bits_of<Int>(shifted) - bits_of<Int>(Float{} + kShift);
  const Int half = n >> 1;  // two factors, since one might not be a float
  const Int other = n - half;
  return p * bits_of<Float>((half + 127) << 23) * bits_of<Float>((other + 127) << 23);
#endif
}

// exp(x) = 2^n * exp(r), n the integer nearest to x / ln(2); for x in [-104, 89], or NaN.
template <int count>
SRUEXPORT_INLINE Floats<count> exp_within(const Floats<count>& x) {
  const auto shifted = x * 0x1.715476p0f + kShift;
  const auto n = shifted - kShift;
  // ln(2) in two parts, the first with so few bits that its product with n is exact without FMA, too.
  const auto r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  auto q = 0x1.6a5234p-10f * r + 0x1.12396cp-7f;
  q = q * r + 0x1.5558aap-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const auto p = (r * r) * q + r + 1.0f;
  return SRUEXPORT_EACH(times_power_of_two(p.part[i], shifted.part[i]));
}

// Below -104 it is 0, above 89 infinity.
template <int count>
SRUEXPORT_INLINE Floats<count> exp(const Floats<count>& x) {
  return exp_within(at_most(at_least(x, -104.0f), 89.0f));
}

template <int count>
SRUEXPORT_INLINE Floats<count> sigmoid(const Floats<count>& x) {
  const auto below_zero = SRUEXPORT_EACH(bits_of<Float>(bits_of<Int>(x.part[i]) | ~0x7fffffff));  // -|x|
  const auto e = exp_within(at_least(below_zero, -104.0f));
  const auto t = e / (1.0f + e);
  // 1 - t, or for a negative x e - e * t = t: but with the errors of the sum and the quotient times e.
  const auto whole = SRUEXPORT_EACH(x.part[i] < 0.0f ? e.part[i] : Float{} + 1.0f);
  return whole - whole * t;
}

template <int count>
SRUEXPORT_INLINE Floats<count> tanh(const Floats<count>& x) {
  const auto size = magnitude(x);
  const auto square = x * x;
  auto p = -0x1.750ce4p-8f * square + 0x1.51f8cep-6f;
  p = p * square + -0x1.b835a4p-5f;
  p = p * square + 0x1.1106f6p-3f;
  p = p * square + -0x1.555532p-2f;
  const auto small = (p * square) * size + size;
  const auto large = 1.0f - 2.0f / (exp_within(at_most(size + size, 89.0f)) + 1.0f);
  const auto value = SRUEXPORT_EACH(size.part[i] < 0.625f ? small.part[i] : large.part[i]);
  return SRUEXPORT_EACH(bits_of<Float>(bits_of<Int>(value.part[i]) | (bits_of<Int>(x.part[i]) & ~0x7fffffff)));
}

#undef SRUEXPORT_EACH

template <int count>
SRUEXPORT_INLINE Pack<double, count> sigmoid(const Pack<double, count>& x) {
  return parts<double, count>([&](int i) {
    const double e = ::exp(-::fabs(x.part[i]));
    return (x.part[i] < 0.0 ? e : 1.0) / (1.0 + e);
  });
}

template <int count>
SRUEXPORT_INLINE Pack<double, count> tanh(const Pack<double, count>& x) {
  return parts<double, count>([&](int i) { return ::tanh(x.part[i]); });
}

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
