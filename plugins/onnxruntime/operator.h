// What the custom ops share: reading a node's attributes, checking shapes, and the session's threads.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT  // the API is that of the runtime that loads us, and not one that is linked
#endif
#include <onnxruntime_cxx_api.h>

#include <string>
#include <vector>

#include "recurrence.h"
#include "shape.h"

namespace sruexport::ort {

// Raised with the domain's version when an op's meaning changes; a runtime passes over kernels that are newer than the
// model, and runs its function body.
#ifndef SRUEXPORT_DOMAIN_VERSION
#define SRUEXPORT_DOMAIN_VERSION 1
#endif

template <class Tensor>
struct TensorType;
template <>
struct TensorType<float> {
  static constexpr auto dtype = DType::float32;
  static constexpr auto tensor = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  static constexpr auto state = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
};
template <>
struct TensorType<double> {
  static constexpr auto dtype = DType::float64;
  static constexpr auto tensor = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  static constexpr auto state = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
};
template <>
struct TensorType<Ort::Float16_t> {
  static constexpr auto dtype = DType::float16;
  static constexpr auto tensor = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  static constexpr auto state = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
};
template <>
struct TensorType<Ort::BFloat16_t> {
  static constexpr auto dtype = DType::bfloat16;
  static constexpr auto tensor = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
  static constexpr auto state = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
};

// The attributes of a node, with the name of the node for messages.
struct Node {
  explicit Node(const OrtKernelInfo* info);
  Direction direction() const;
  Activation activation() const;
  bool flag(const char* name) const;
  // Throws, with the node's name in front.
  [[noreturn]] void refuse(const std::string& why) const;

  Ort::ConstKernelInfo info;
  std::string name;
};

Shape shape_of(Ort::ConstValue value);

// A wrong shape is refused, since a kernel would read beyond the tensor.
void check_shape(const Node& node, const char* input, const Shape& found, const Shape& wanted);

// Two directions share the channels evenly.
void check_channels(const Node& node, Direction direction, std::int64_t channels);

// The types of a node's tensors and states. Shapes are inferred by the op that was registered first, whatever its dtype.
struct Types {
  ONNXTensorElementDataType tensor;
  ONNXTensorElementDataType state;
};
Types types_of(OrtShapeInferContext* context);

cpu::Host host_of(OrtKernelContext* context);

// Errors cross the C API as statuses.
template <class Body>
OrtStatusPtr guarded(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_FAIL, error.what());
  }
}

template <class Op>
struct Kernel {
  explicit Kernel(const OrtKernelInfo* info) : options(info) {}
  OrtStatusPtr ComputeV2(OrtKernelContext* context) {
    return guarded([&] { Op::compute(options, context); });
  }
  typename Op::Options options;
};

// An op for ONNX Runtime. `Op` says what it is: `name`; `inputs` and `outputs`, the types; `reused_input`, which the
// first output may overwrite; `Options`, made of a node; `infer_shapes(context, types)`; `compute(options, context)`.
template <class Op>
struct CustomOp : Ort::CustomOpBase<CustomOp<Op>, Kernel<Op>, true> {
  CustomOp() {
    this->start_ver_ = SRUEXPORT_DOMAIN_VERSION;
    OrtCustomOp::InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* raw) {
      return guarded([&] {
        Ort::ShapeInferContext context(&Ort::GetApi(), raw);
        Op::infer_shapes(context, types_of(raw));
      });
    };
    OrtCustomOp::GetMayInplace = [](int** input, int** output) -> std::size_t {
      *input = new int[1]{Op::reused_input};
      *output = new int[1]{0};
      return 1;
    };
    OrtCustomOp::ReleaseMayInplace = [](int* input, int* output) {
      delete[] input;
      delete[] output;
    };
  }
  const char* GetName() const { return Op::name; }
  std::size_t GetInputTypeCount() const { return std::size(Op::inputs); }
  ONNXTensorElementDataType GetInputType(std::size_t index) const { return Op::inputs[index]; }
  std::size_t GetOutputTypeCount() const { return std::size(Op::outputs); }
  ONNXTensorElementDataType GetOutputType(std::size_t index) const { return Op::outputs[index]; }
  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return guarded([&] { *kernel = new Kernel<Op>(info); });
  }
};

// The op for every dtype: a name once registered has no way back to the function body.
template <template <class> class Op>
std::vector<const OrtCustomOp*> for_all_dtypes() {
  static const CustomOp<Op<float>> float32;
  static const CustomOp<Op<Ort::Float16_t>> float16;
  static const CustomOp<Op<Ort::BFloat16_t>> bfloat16;
  static const CustomOp<Op<double>> float64;
  return {&float32, &float16, &bfloat16, &float64};
}

std::vector<const OrtCustomOp*> sru_recurrences();
std::vector<const OrtCustomOp*> linear_recurrences();

}  // namespace sruexport::ort
