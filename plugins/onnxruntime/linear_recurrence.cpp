// LinearRecurrence: (a, b, h0, mask) -> (h, h_last). Shapes as in sruexport/recurrences/linear.py.
#include "operator.h"

namespace sruexport::ort {
namespace {

enum Input : std::size_t { A, B, H0, MASK };
enum Output : std::size_t { H, H_LAST };

struct LinearOptions {
  explicit LinearOptions(const OrtKernelInfo* info)
      : node(info), direction(node.direction()), masked(node.flag("masked")) {}
  Node node;
  Direction direction;
  bool masked;
};

void run(const LinearOptions& options, DType dtype, OrtKernelContext* raw) {
  const Node& node = options.node;
  Ort::KernelContext context(raw);
  const Shape a = shape_of(context.GetInput(A)), h0 = shape_of(context.GetInput(H0));
  if (a.rank != 3) node.refuse("a should have 3 axes");
  const std::int64_t steps = a[0], batch = a[1], channels = a[2];
  check_channels(node, options.direction, channels);
  check_shape(node, "b", shape_of(context.GetInput(B)), a);
  check_shape(node, "h0", h0, {batch, channels});
  if (options.masked) check_shape(node, "mask", shape_of(context.GetInput(MASK)), {steps, batch});

  LinearParams params{};
  params.dtype = dtype;
  params.sizes = {steps, batch, channels};
  params.direction = options.direction;
  params.a = context.GetInput(A).GetTensorRawData();
  params.b = context.GetInput(B).GetTensorRawData();
  params.h0 = context.GetInput(H0).GetTensorRawData();
  params.mask = options.masked ? context.GetInput(MASK).GetTensorData<std::int32_t>() : nullptr;
  params.h = context.GetOutput(H, a.axes, a.rank).GetTensorMutableRawData();
  params.h_last = context.GetOutput(H_LAST, h0.axes, h0.rank).GetTensorMutableRawData();
  cpu::run(params, host_of(raw));
}

template <class Tensor>
struct LinearRecurrence {
  using Options = LinearOptions;
  using Type = TensorType<Tensor>;
  static constexpr const char* name = "LinearRecurrence";
  static constexpr ONNXTensorElementDataType inputs[] = {Type::tensor, Type::tensor, Type::state,
                                                         ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr ONNXTensorElementDataType outputs[] = {Type::tensor, Type::state};
  static constexpr int reused_input = B;  // by h, where nothing else reads b: each element is read before it is written

  static void infer_shapes(Ort::ShapeInferContext& context, const Types& types) {
    const auto& a = context.GetInputShape(A);
    if (a.size() != 3) return;  // not known
    context.SetOutputShape(H, a, types.tensor);
    context.SetOutputShape(H_LAST, {a[1], a[2]}, types.state);
  }

  static void compute(const Options& options, OrtKernelContext* context) {
    run(options, Type::dtype, context);
  }
};

}  // namespace

std::vector<const OrtCustomOp*> linear_recurrences() { return for_all_dtypes<LinearRecurrence>(); }

}  // namespace sruexport::ort
