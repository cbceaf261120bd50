#include "problem.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace sruexport;

namespace {

std::size_t element(DType dtype) {
  return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}

// A float16 or bfloat16 by its fields, without the tricks that the kernels use: `bits` of fraction, `least` exponent.
double of_half(std::uint16_t half, int bits, int least) {
  const int fraction = half & ((1 << bits) - 1), exponent = (half & 0x7fff) >> bits;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == (0x7fff >> bits)) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, least - bits);
  return sign * std::ldexp((1 << bits) + fraction, least + exponent - 1 - bits);
}

std::uint16_t to_half(double value, int bits, int least) {
  const int sign = std::signbit(value) ? 0x8000 : 0, all = 0x7fff >> bits << bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(all | 1 << (bits - 1));
  const double size = std::fabs(value);
  if (std::isinf(size)) return static_cast<std::uint16_t>(sign | all);
  int exponent = size == 0 ? least : std::max(std::ilogb(size), least);
  double fraction = std::nearbyint(std::ldexp(size, bits - exponent));  // to even
  if (fraction == 2 << bits) fraction = 1 << bits, ++exponent;
  const bool subnormal = fraction < 1 << bits;
  const int field = subnormal ? 0 : exponent - least + 1;
  if (field >= all >> bits) return static_cast<std::uint16_t>(sign | all);
  const int kept = static_cast<int>(fraction) - (subnormal ? 0 : 1 << bits);
  return static_cast<std::uint16_t>(sign | field << bits | kept);
}

DType state_of(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

void fill(Array& array, std::mt19937& random, double mean, double deviation) {
  std::normal_distribution<double> normal(mean, deviation);
  for (std::size_t i = 0; i < array.size(); ++i) array.set(i, normal(random));
}

std::vector<std::int32_t> random_mask(const Case& about, std::mt19937& random) {
  std::vector<std::int32_t> mask(about.masked ? about.sizes.steps * about.sizes.batch : 0);
  for (auto& value : mask) value = random() % 3 == 0 ? static_cast<std::int32_t>(random() | 1) : 0;
  return mask;
}

std::size_t count(const Case& about, std::int64_t planes) {
  return static_cast<std::size_t>(about.sizes.steps * about.sizes.batch * about.sizes.channels * planes);
}

std::size_t states(const Case& about) { return static_cast<std::size_t>(about.sizes.batch * about.sizes.channels); }

// Calls step(t, b, k) in the order of each channel's direction.
template <class Step>
void each(const Case& about, const Step& step) {
  const auto [steps, batch, channels] = about.sizes;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t k = 0; k < channels; ++k) {
      const bool reverse = about.direction == Direction::reverse ||
                           (about.direction == Direction::bidirectional && k >= channels / 2);
      for (std::int64_t i = 0; i < steps; ++i) step(reverse ? steps - 1 - i : i, b, k);
    }
  }
}

}  // namespace

Array::Array(DType dtype, std::size_t size) : dtype_(dtype), size_(size), bytes_(size * element(dtype)) {}

void Array::set(std::size_t index, double value) {
  unsigned char* at = bytes_.data() + index * element(dtype_);
  if (dtype_ == DType::float64) {
    std::memcpy(at, &value, 8);
  } else if (dtype_ == DType::float32) {
    const float narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, 4);
  } else {
    const bool half = dtype_ == DType::float16;
    const std::uint16_t narrow = to_half(value, half ? 10 : 7, half ? -14 : -126);
    std::memcpy(at, &narrow, 2);
  }
}

double Array::get(std::size_t index) const {
  const unsigned char* at = bytes_.data() + index * element(dtype_);
  if (dtype_ == DType::float64) {
    double value;
    std::memcpy(&value, at, 8);
    return value;
  }
  if (dtype_ == DType::float32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  const bool half = dtype_ == DType::float16;
  return of_half(bits, half ? 10 : 7, half ? -14 : -126);
}

void Array::poison() {
  for (std::size_t i = 0; i < size_; ++i) set(i, std::numeric_limits<double>::quiet_NaN());
}

SRUProblem::SRUProblem(const Case& about, std::mt19937& random)
    : about(about),
      u(about.dtype, count(about, 3)),
      x(about.dtype, about.x_broadcast ? about.sizes.channels : count(about, 1)),
      v(about.dtype, about.v_per_step ? count(about, 2) : 2 * about.sizes.channels),
      bias(about.dtype, 2 * about.sizes.channels),
      c0(state_of(about.dtype), states(about)),
      h(about.dtype, count(about, 1)),
      c(state_of(about.dtype), states(about)),
      mask(random_mask(about, random)) {
  for (Array* array : {&u, &x, &bias, &c0}) fill(*array, random, 0, 1);
  fill(v, random, 0, 0.3);
  h.poison();
  c.poison();
}

SRUParams SRUProblem::params() {
  SRUParams params{};
  params.dtype = about.dtype;
  params.sizes = about.sizes;
  params.direction = about.direction;
  params.activation = about.activation;
  params.u = u.data();
  params.x = x.data();
  params.v = v.data();
  params.bias = bias.data();
  params.mask = about.masked ? mask.data() : nullptr;
  params.x_broadcast = about.x_broadcast;
  params.v_per_step = about.v_per_step;
  if (about.in_place) c = c0;
  if (about.in_place && !about.x_broadcast) {
    h = x;
    params.x = h.data();
  }
  params.h = h.data();
  params.c = c.data();
  params.c0 = about.in_place ? params.c : c0.data();
  return params;
}

LinearProblem::LinearProblem(const Case& about, std::mt19937& random)
    : about(about),
      a(about.dtype, count(about, 1)),
      b(about.dtype, count(about, 1)),
      h0(state_of(about.dtype), states(about)),
      h(about.dtype, count(about, 1)),
      h_last(state_of(about.dtype), states(about)),
      mask(random_mask(about, random)) {
  std::uniform_real_distribution<double> decay(-0.2, 1.0);
  for (std::size_t i = 0; i < a.size(); ++i) a.set(i, decay(random));
  for (Array* array : {&b, &h0}) fill(*array, random, 0, 1);
  h.poison();
  h_last.poison();
}

LinearParams LinearProblem::params() {
  LinearParams params{};
  params.dtype = about.dtype;
  params.sizes = about.sizes;
  params.direction = about.direction;
  params.a = a.data();
  params.b = b.data();
  params.mask = about.masked ? mask.data() : nullptr;
  if (about.in_place) {
    h = b;
    h_last = h0;
    params.b = h.data();
  }
  params.h = h.data();
  params.h_last = h_last.data();
  params.h0 = about.in_place ? params.h_last : h0.data();
  return params;
}

template <class Real>
std::vector<Real> expected(const SRUProblem& p) {
  const auto [steps, batch, channels] = p.about.sizes;
  const std::size_t outputs = count(p.about, 1);
  std::vector<Real> found(outputs + states(p.about));
  Real* c = found.data() + outputs;
  for (std::size_t i = 0; i < states(p.about); ++i) c[i] = static_cast<Real>(p.c0.get(i));
  each(p.about, [&, batch = batch, channels = channels](std::int64_t t, std::int64_t b, std::int64_t k) {
    const std::int64_t row = t * batch + b;
    Real& state = c[b * channels + k];
    Real& h = found[row * channels + k];
    if (p.about.masked && p.mask[row]) {
      h = 0;
      return;
    }
    const auto of = [](const Array& array, std::int64_t index) { return static_cast<Real>(array.get(index)); };
    const std::int64_t u = row * 3 * channels + k, v = (p.about.v_per_step ? row * 2 * channels : 0) + k;
    const Real candidate = of(p.u, u), before = state;
    const Real highway = of(p.x, (p.about.x_broadcast ? 0 : row * channels) + k);
    const Real forget = sigmoid<Real>(of(p.u, u + channels) + of(p.bias, k) + of(p.v, v) * before);
    const Real reset =
        sigmoid<Real>(of(p.u, u + 2 * channels) + of(p.bias, channels + k) + of(p.v, v + channels) * before);
    state = (before - candidate) * forget + candidate;
    const Real out = p.about.activation == Activation::tanh ? std::tanh(state) : state;
    h = (out - highway) * reset + highway;
  });
  return found;
}

template <class Real>
std::vector<Real> expected(const LinearProblem& p) {
  const auto [steps, batch, channels] = p.about.sizes;
  const std::size_t outputs = count(p.about, 1);
  std::vector<Real> found(outputs + states(p.about));
  Real* last = found.data() + outputs;
  for (std::size_t i = 0; i < states(p.about); ++i) last[i] = static_cast<Real>(p.h0.get(i));
  each(p.about, [&, batch = batch, channels = channels](std::int64_t t, std::int64_t b, std::int64_t k) {
    const std::int64_t row = t * batch + b, at = row * channels + k;
    Real& state = last[b * channels + k];
    if (!p.about.masked || !p.mask[row]) {
      state = static_cast<Real>(p.a.get(at)) * state + static_cast<Real>(p.b.get(at));
    }
    found[at] = state;
  });
  return found;
}

template std::vector<float> expected<float>(const SRUProblem&);
template std::vector<double> expected<double>(const SRUProblem&);
template std::vector<float> expected<float>(const LinearProblem&);
template std::vector<double> expected<double>(const LinearProblem&);

template <class Problem>
Judgement judge(const Problem& problem, const std::vector<double>& exact, const std::vector<float>& rounded) {
  const DType dtype = problem.about.dtype;
  const double rounding = dtype == DType::float64    ? 0x1p-53
                          : dtype == DType::float32  ? 0x1p-24
                          : dtype == DType::float16  ? 0x1p-11
                                                     : 0x1p-8;
  double scale = 1, noise = 0, worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    scale = std::max(scale, std::fabs(exact[i]));
    noise = std::max(noise, std::fabs(rounded[i] - exact[i]));
    const bool output = i < problem.h.size();
    const double found = output ? problem.h.get(i) : problem.last().get(i - problem.h.size());
    worst = std::max(worst, std::isnan(found) ? INFINITY : std::fabs(found - exact[i]));
  }
  return {worst, (dtype == DType::float64 ? 0 : 8 * noise) + 16 * rounding * scale};
}

template Judgement judge(const SRUProblem&, const std::vector<double>&, const std::vector<float>&);
template Judgement judge(const LinearProblem&, const std::vector<double>&, const std::vector<float>&);

std::string words(const Case& about) {
  const auto part = [](const char* name, std::int64_t value) { return std::string(name) + std::to_string(value); };
  return part("dtype ", static_cast<int>(about.dtype)) + part(", T ", about.sizes.steps) +
         part(", B ", about.sizes.batch) + part(", C ", about.sizes.channels) +
         part(", direction ", static_cast<int>(about.direction)) + part(", masked ", about.masked) +
         part(", v per step ", about.v_per_step) + part(", one x ", about.x_broadcast) +
         part(", in place ", about.in_place);
}

Case Random::about(std::int64_t steps, std::int64_t batch, std::int64_t channels) {
  Case about{};
  about.dtype = static_cast<DType>(upto(3));
  about.direction = static_cast<Direction>(upto(2));
  about.activation = static_cast<Activation>(upto(1));
  about.masked = coin();
  about.v_per_step = coin();
  about.x_broadcast = coin();
  about.in_place = coin();
  if (about.direction == Direction::bidirectional) channels += channels % 2;
  about.sizes = {steps, batch, channels};
  return about;
}
