// Compiled once per instruction set, with SRUEXPORT_TARGET its namespace and SRUEXPORT_TARGET_NAME its name.
#include "scan.h"

namespace sruexport::cpu::SRUEXPORT_TARGET {
namespace {

template <class Tensor>
void any_sru(const SRUParams& params, const Block& block) {
  const bool tanh_of_c = params.activation == Activation::tanh;
  if (params.mask) {
    tanh_of_c ? sru<Tensor, true, true>(params, block) : sru<Tensor, false, true>(params, block);
  } else {
    tanh_of_c ? sru<Tensor, true, false>(params, block) : sru<Tensor, false, false>(params, block);
  }
}

void sru_of_dtype(const SRUParams& params, const Block& block) {
  switch (params.dtype) {
    case DType::float32: return any_sru<float>(params, block);
    case DType::float16: return any_sru<Half>(params, block);
    case DType::bfloat16: return any_sru<BFloat16>(params, block);
    case DType::float64: return any_sru<double>(params, block);
  }
}

template <class Tensor>
void any_linear(const LinearParams& params, const Block& block, void* states) {
  auto* own = static_cast<typename Wide<Tensor>::State*>(states);
  params.mask ? linear<Tensor, true>(params, block, own) : linear<Tensor, false>(params, block, own);
}

void linear_of_dtype(const LinearParams& params, const Block& block, void* states) {
  switch (params.dtype) {
    case DType::float32: return any_linear<float>(params, block, states);
    case DType::float16: return any_linear<Half>(params, block, states);
    case DType::bfloat16: return any_linear<BFloat16>(params, block, states);
    case DType::float64: return any_linear<double>(params, block, states);
  }
}

template <class Tensor>
void any_effect(const LinearParams& params, const Block& block, void* product, void* sum) {
  using State = typename Wide<Tensor>::State;
  auto *own_product = static_cast<State*>(product), *own_sum = static_cast<State*>(sum);
  params.mask ? linear_effect<Tensor, true>(params, block, own_product, own_sum)
              : linear_effect<Tensor, false>(params, block, own_product, own_sum);
}

void effect_of_dtype(const LinearParams& params, const Block& block, void* product, void* sum) {
  switch (params.dtype) {
    case DType::float32: return any_effect<float>(params, block, product, sum);
    case DType::float16: return any_effect<Half>(params, block, product, sum);
    case DType::bfloat16: return any_effect<BFloat16>(params, block, product, sum);
    case DType::float64: return any_effect<double>(params, block, product, sum);
  }
}

}  // namespace

const Target target{SRUEXPORT_TARGET_NAME, sru_of_dtype, linear_of_dtype, effect_of_dtype};

}  // namespace sruexport::cpu::SRUEXPORT_TARGET
