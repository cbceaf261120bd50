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
#if defined(__AVX2__)
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

// What a tensor's elements are computed in: a `Vector` of `lanes` of them, with a state of `State`.
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

// Vectors that go through the same operations side by side. One after another they would wait: a gate is a chain of
// some thirty operations, and a processor looks ahead over two or three such chains only.
template <class Vector, int count>
struct Pack {
  Vector part[count];
};
template <int count>
using Floats = Pack<Float, count>;

// operation(i) for every part.
template <class Vector, int count, class Operation>
SRUEXPORT_INLINE Pack<Vector, count> parts(const Operation& operation) {
  Pack<Vector, count> result;
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) result.part[i] = operation(i);
  return result;
}

#define SRUEXPORT_OPERATOR(op)                                                                                   \
  template <class Vector, int count>                                                                             \
  SRUEXPORT_INLINE Pack<Vector, count> operator op(const Pack<Vector, count>& a, const Pack<Vector, count>& b) { \
    return parts<Vector, count>([&](int i) SRUEXPORT_ALWAYS_INLINE { return a.part[i] op b.part[i]; });          \
  }                                                                                                              \
  template <class Vector, int count>                                                                             \
  SRUEXPORT_INLINE Pack<Vector, count> operator op(const Pack<Vector, count>& a, float b) {                      \
    return parts<Vector, count>([&](int i) SRUEXPORT_ALWAYS_INLINE { return a.part[i] op b; });                  \
  }                                                                                                              \
  template <class Vector, int count>                                                                             \
  SRUEXPORT_INLINE Pack<Vector, count> operator op(float a, const Pack<Vector, count>& b) {                      \
    return parts<Vector, count>([&](int i) SRUEXPORT_ALWAYS_INLINE { return a op b.part[i]; });                  \
  }
SRUEXPORT_OPERATOR(+)
SRUEXPORT_OPERATOR(-)
SRUEXPORT_OPERATOR(*)
SRUEXPORT_OPERATOR(/)
#undef SRUEXPORT_OPERATOR

template <class Vector, int count>
SRUEXPORT_INLINE Pack<Vector, 2 * count> join(const Pack<Vector, count>& a, const Pack<Vector, count>& b) {
  return parts<Vector, 2 * count>(
      [&](int i) SRUEXPORT_ALWAYS_INLINE { return i < count ? a.part[i] : b.part[i - count]; });
}

template <int half, class Vector, int count>
SRUEXPORT_INLINE Pack<Vector, count / 2> half_of(const Pack<Vector, count>& both) {
  return parts<Vector, count / 2>([&](int i) SRUEXPORT_ALWAYS_INLINE { return both.part[i + half * (count / 2)]; });
}

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

// What is loaded, computed and stored at once: `count` whole vectors, or the first `count` elements of one.
template <int count>
struct Whole {
  static constexpr int vectors = count;
  template <class Tensor>
  static constexpr std::size_t elements() {
    return Wide<Tensor>::lanes;
  }
};
struct Part {
  static constexpr int vectors = 1;
  std::int64_t count;
  template <class Tensor>
  std::size_t elements() const {
    return static_cast<std::size_t>(count);
  }
};

#if defined(__AVX2__) && !defined(__AVX512F__)
// A mask of the first lanes.
SRUEXPORT_INLINE __m256i first(std::size_t elements) {
  const Int lane{0, 1, 2, 3, 4, 5, 6, 7};
  return bits_of<__m256i>(lane < static_cast<std::int32_t>(elements));
}
#endif

// A vector from or to its first `elements`, the number of a whole one being known when this is compiled. Where there are
// masks, they are used: a vector that is put together in memory, or taken apart there, waits for that.
SRUEXPORT_INLINE Float load_vector(const float* from, std::size_t elements) {
  Float value{};
  if (elements == kLanes) {
    std::memcpy(&value, from, sizeof(value));
  } else {
#if defined(__AVX512F__)
    value = bits_of<Float>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << elements) - 1), from));
#elif defined(__AVX2__)
    value = bits_of<Float>(_mm256_maskload_ps(from, first(elements)));
#else
    std::memcpy(&value, from, elements * sizeof(*from));
#endif
  }
  return value;
}
template <class Tensor>
SRUEXPORT_INLINE Float load_vector(const Tensor* from, std::size_t elements) {
  Short value{};
  if (elements == kLanes) {
    std::memcpy(&value, from, sizeof(value));
  } else {
#if defined(__AVX512F__)
    value = bits_of<Short>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << elements) - 1), from));
#else
    std::memcpy(&value, from, elements * sizeof(*from));
#endif
  }
  return widened(value, Tensor{});
}
SRUEXPORT_INLINE double load_vector(const double* from, std::size_t) { return *from; }

SRUEXPORT_INLINE void store_vector(float* to, const Float& value, std::size_t elements) {
  if (elements == kLanes) {
    std::memcpy(to, &value, sizeof(value));
  } else {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << elements) - 1), bits_of<__m512>(value));
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, first(elements), bits_of<__m256>(value));
#else
    std::memcpy(to, &value, elements * sizeof(*to));
#endif
  }
}
template <class Tensor>
SRUEXPORT_INLINE void store_vector(Tensor* to, const Float& value, std::size_t elements) {
  const Short narrow = narrowed(value, Tensor{});
  if (elements == kLanes) {
    std::memcpy(to, &narrow, sizeof(narrow));
  } else {
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << elements) - 1), bits_of<__m256i>(narrow));
#else
    std::memcpy(to, &narrow, elements * sizeof(*to));
#endif
  }
}
SRUEXPORT_INLINE void store_vector(double* to, double value, std::size_t) { *to = value; }

template <class Tensor, class Extent>
SRUEXPORT_INLINE auto load(const Tensor* from, Extent extent) {
  using Vector = typename Wide<Tensor>::Vector;
  return parts<Vector, Extent::vectors>([&](int i) SRUEXPORT_ALWAYS_INLINE {
    return load_vector(from + i * Wide<Tensor>::lanes, extent.template elements<Tensor>());
  });
}

template <class Tensor, class Vector, int count, class Extent>
SRUEXPORT_INLINE void store(Tensor* to, const Pack<Vector, count>& values, Extent extent) {
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) {
    store_vector(to + i * Wide<Tensor>::lanes, values.part[i], extent.template elements<Tensor>());
  }
}

// Calls step(k, extent) so that elements 0 .. count - 1 are done, `group` vectors at a time while there are so many.
template <class Tensor, int group, class Step>
SRUEXPORT_INLINE void each_vector(std::int64_t count, const Step& step) {
  constexpr std::int64_t lanes = Wide<Tensor>::lanes;
  std::int64_t k = 0;
  for (; k + group * lanes <= count; k += group * lanes) step(k, Whole<group>{});
  if constexpr (group > 1) {
    for (; k + lanes <= count; k += lanes) step(k, Whole<1>{});
  }
  if (k < count) step(k, Part{count - k});
}

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
