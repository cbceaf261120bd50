// Vectors of the instruction set that this file is compiled for, and how tensors of each dtype become vectors.
//
// They are GCC's and Clang's vector extensions: one source for AVX-512, AVX2, NEON and SSE2. Everything sits in a
// namespace of the target, so that the linker never takes one target's code for another's; for the same reason nothing
// here uses the standard library's templates.
#pragma once

#include <cstdint>
#include <cstring>

#include "recurrence.h"

#if defined(__AVX512F__)
#define SRUEXPORT_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define SRUEXPORT_VECTOR_BYTES 32
#else
#define SRUEXPORT_VECTOR_BYTES 16
#endif
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define SRUEXPORT_ALWAYS_INLINE __attribute__((always_inline))
#define SRUEXPORT_INLINE inline SRUEXPORT_ALWAYS_INLINE

namespace sruexport::cpu::SRUEXPORT_TARGET {

constexpr int kLanes = SRUEXPORT_VECTOR_BYTES / 4;

using Float = float __attribute__((vector_size(SRUEXPORT_VECTOR_BYTES)));
using Int = std::int32_t __attribute__((vector_size(SRUEXPORT_VECTOR_BYTES)));
using UInt = std::uint32_t __attribute__((vector_size(SRUEXPORT_VECTOR_BYTES)));
using Short = std::uint16_t __attribute__((vector_size(SRUEXPORT_VECTOR_BYTES / 2)));

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

template <class To, class From>
SRUEXPORT_INLINE To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

SRUEXPORT_INLINE Float splat(float value) { return Float{} + value; }

// What a tensor's elements are computed in: `Vector` at a time, with a state of `State`.
template <class Tensor>
struct Wide {
  using Vector = Float;
  using State = float;
  static constexpr int lanes = kLanes;
};
template <>
struct Wide<double> {
  using Vector = double;
  using State = double;
  static constexpr int lanes = 1;
};

SRUEXPORT_INLINE Float widened(Short half, Half) {
#if defined(__AVX512F__)
  return bits_of<Float>(_mm512_maskz_cvtph_ps(0xffff, bits_of<__m256i>(half)));
#elif defined(__F16C__)
  return bits_of<Float>(_mm256_cvtph_ps(bits_of<__m128i>(half)));
#else
  const UInt wide = __builtin_convertvector(half, UInt);
  const UInt magnitude = (wide & 0x7fffu) << 13;
  const UInt finite = bits_of<UInt>(bits_of<Float>(magnitude) * 0x1p112f);  // moves the exponent's bias
  const UInt special = magnitude | 0x7f800000u;
  return bits_of<Float>((magnitude >= 0x0f800000u ? special : finite) | ((wide & 0x8000u) << 16));
#endif
}

SRUEXPORT_INLINE Short narrowed(const Float& value, Half) {
#if defined(__AVX512F__)
  return bits_of<Short>(_mm512_maskz_cvtps_ph(0xffff, bits_of<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return bits_of<Short>(_mm256_cvtps_ph(bits_of<__m256>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const UInt bits = bits_of<UInt>(value);
  const UInt magnitude = bits & 0x7fffffffu;
  const UInt rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);  // to even
  const UInt normal = (rounded >> 13) - (112u << 10);
  // Adding 0.5 leaves a subnormal's bits, rounded, at the end of the sum.
  const UInt small = bits_of<UInt>(bits_of<Float>(magnitude) + 0.5f) - 0x3f000000u;
  const UInt special = magnitude > 0x7f800000u ? UInt{} + 0x7e00u : UInt{} + 0x7c00u;
  UInt half = magnitude < 0x38800000u ? small : normal;
  half = rounded >= 0x47800000u ? special : half;
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000u), Short);
#endif
}

SRUEXPORT_INLINE Float widened(Short value, BFloat16) {
  return bits_of<Float>(__builtin_convertvector(value, UInt) << 16);
}

SRUEXPORT_INLINE Short narrowed(const Float& value, BFloat16) {
  const UInt bits = bits_of<UInt>(value);
  const UInt rounded = bits + 0x7fffu + ((bits >> 16) & 1u);  // to even
  const UInt quiet = bits | 0x400000u;
  const UInt kept = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  return __builtin_convertvector(kept >> 16, Short);
}

// A whole vector of elements, or the first `count` of one.
template <int lanes>
struct Whole {};
struct Part {
  int count;
};

template <int lanes>
SRUEXPORT_INLINE std::size_t bytes(Whole<lanes>, std::size_t element) {
  return lanes * element;
}
SRUEXPORT_INLINE std::size_t bytes(Part part, std::size_t element) {
  return static_cast<std::size_t>(part.count) * element;
}

template <class Extent>
SRUEXPORT_INLINE Float load(const float* from, Extent extent) {
  Float value{};
  std::memcpy(&value, from, bytes(extent, sizeof(*from)));
  return value;
}
template <class Tensor, class Extent>
SRUEXPORT_INLINE Float load(const Tensor* from, Extent extent) {
  Short value{};
  std::memcpy(&value, from, bytes(extent, sizeof(*from)));
  return widened(value, Tensor{});
}
template <class Extent>
SRUEXPORT_INLINE double load(const double* from, Extent) {
  return *from;
}

template <class Extent>
SRUEXPORT_INLINE void store(float* to, const Float& value, Extent extent) {
  std::memcpy(to, &value, bytes(extent, sizeof(*to)));
}
template <class Tensor, class Extent>
SRUEXPORT_INLINE void store(Tensor* to, const Float& value, Extent extent) {
  const Short narrow = narrowed(value, Tensor{});
  std::memcpy(to, &narrow, bytes(extent, sizeof(*to)));
}
template <class Extent>
SRUEXPORT_INLINE void store(double* to, double value, Extent) {
  *to = value;
}

// Calls step(k, extent) for the vectors of elements 0 .. count - 1.
template <int lanes, class Step>
SRUEXPORT_INLINE void each_vector(std::int64_t count, const Step& step) {
  std::int64_t k = 0;
  for (; k + lanes <= count; k += lanes) step(k, Whole<lanes>{});
  if (k < count) step(k, Part{static_cast<int>(count - k)});
}

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
