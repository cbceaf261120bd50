#include "operator.h"

#include <thread>

namespace sruexport::ort {
Node::Node(const OrtKernelInfo* kernel_info) : info(kernel_info), name(info.GetNodeName()) {}

void Node::refuse(const std::string& why) const { ORT_CXX_API_THROW(name + ": " + why, ORT_INVALID_ARGUMENT); }

Direction Node::direction() const {
  const auto text = info.GetAttribute<std::string>("direction");
  if (text == "forward") return Direction::forward;
  if (text == "reverse") return Direction::reverse;
  if (text == "bidirectional") return Direction::bidirectional;
  refuse("direction is '" + text + "': it is forward, reverse or bidirectional");
}

Activation Node::activation() const {
  const auto text = info.GetAttribute<std::string>("activation");
  if (text == "identity") return Activation::identity;
  if (text == "tanh") return Activation::tanh;
  refuse("activation is '" + text + "': it is identity or tanh");
}

bool Node::flag(const char* attribute) const { return info.GetAttribute<std::int64_t>(attribute) != 0; }

Shape shape_of(Ort::ConstValue value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  Shape shape;
  shape.rank = info.GetDimensionsCount();
  if (shape.rank <= Shape::most) Ort::ThrowOnError(Ort::GetApi().GetDimensions(info, shape.axes, shape.rank));
  return shape;
}

void check_shape(const Node& node, const char* input, const Shape& found, const Shape& wanted) {
  if (found != wanted) {
    node.refuse(std::string(input) + " has shape " + found.words() + " and should have " + wanted.words());
  }
}

void check_channels(const Node& node, Direction direction, std::int64_t channels) {
  if (direction == Direction::bidirectional && channels % 2) {
    node.refuse("bidirectional takes an even number of channels, and there are " + std::to_string(channels));
  }
}

Types types_of(OrtShapeInferContext* context) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // the context's own
  auto tensor = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Ort::ThrowOnError(Ort::GetApi().ShapeInferContext_GetInputTypeShape(context, 0, &info));
  Ort::ThrowOnError(Ort::GetApi().GetTensorElementType(info, &tensor));
  const bool wide = tensor == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  return {tensor, wide ? tensor : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT};
}

cpu::Host host_of(OrtKernelContext* context) {
  // How many threads a session has cannot be asked; more than the machine has make no sense.
  static const int threads = static_cast<int>(std::thread::hardware_concurrency());
  return {threads > 0 ? threads : 1,
          [](void* own, cpu::Task task, std::size_t count, void* data) {
            Ort::ThrowOnError(
                Ort::GetApi().KernelContext_ParallelFor(static_cast<OrtKernelContext*>(own), task, count, 0, data));
          },
          context};
}

}  // namespace sruexport::ort
