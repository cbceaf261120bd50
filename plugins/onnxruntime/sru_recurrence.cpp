// SRURecurrence: (u, x, v, bias, c0, mask) -> (h, c). Shapes as in sruexport/recurrences/sru.py.
#include "operator.h"

namespace sruexport::ort {
namespace {

enum Input : std::size_t { U, X, V, BIAS, C0, MASK };
enum Output : std::size_t { H, C };

struct SRUOptions {
  explicit SRUOptions(const OrtKernelInfo* info)
      : node(info),
        direction(node.direction()),
        activation(node.activation()),
        masked(node.flag("masked")),
        v_per_step(node.flag("v_per_step")) {}
  Node node;
  Direction direction;
  Activation activation;
  bool masked;
  bool v_per_step;
};

void run(const SRUOptions& options, DType dtype, OrtKernelContext* raw) {
  const Node& node = options.node;
  Ort::KernelContext context(raw);
  const Shape u = shape_of(context.GetInput(U)), c0 = shape_of(context.GetInput(C0));
  if (u.rank != 3 || c0.rank != 2) node.refuse("u should have 3 axes and c0 2");
  const std::int64_t steps = u[0], batch = u[1], channels = c0[1];
  check_channels(node, options.direction, channels);
  check_shape(node, "u", u, {steps, batch, 3 * channels});
  check_shape(node, "c0", c0, {batch, channels});
  check_shape(node, "bias", shape_of(context.GetInput(BIAS)), {2 * channels});
  const Shape v = options.v_per_step ? Shape{steps, batch, 2 * channels} : Shape{1, 1, 2 * channels};
  check_shape(node, "v", shape_of(context.GetInput(V)), v);
  const Shape x = shape_of(context.GetInput(X)), h{steps, batch, channels}, one{1, 1, channels};
  const bool x_broadcast = x != h;
  if (x_broadcast) check_shape(node, "x", x, one);
  if (options.masked) check_shape(node, "mask", shape_of(context.GetInput(MASK)), {steps, batch});

  SRUParams params{};
  params.dtype = dtype;
  params.sizes = {steps, batch, channels};
  params.direction = options.direction;
  params.activation = options.activation;
  params.u = context.GetInput(U).GetTensorRawData();
  params.x = context.GetInput(X).GetTensorRawData();
  params.v = context.GetInput(V).GetTensorRawData();
  params.bias = context.GetInput(BIAS).GetTensorRawData();
  params.c0 = context.GetInput(C0).GetTensorRawData();
  params.mask = options.masked ? context.GetInput(MASK).GetTensorData<std::int32_t>() : nullptr;
  params.h = context.GetOutput(H, h.axes, h.rank).GetTensorMutableRawData();
  params.c = context.GetOutput(C, c0.axes, c0.rank).GetTensorMutableRawData();
  params.x_broadcast = x_broadcast;
  params.v_per_step = options.v_per_step;
  cpu::run(params, host_of(raw));
}

template <class Tensor>
struct SRURecurrence {
  using Options = SRUOptions;
  using Type = TensorType<Tensor>;
  static constexpr const char* name = "SRURecurrence";
  static constexpr ONNXTensorElementDataType inputs[] = {
      Type::tensor, Type::tensor, Type::tensor, Type::tensor, Type::state, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr ONNXTensorElementDataType outputs[] = {Type::tensor, Type::state};
  static constexpr int reused_input = X;  // by h, where nothing else reads x: each element is read before it is written

  static void infer_shapes(Ort::ShapeInferContext& context, const Types& types) {
    const auto& u = context.GetInputShape(U);
    const auto& c0 = context.GetInputShape(C0);
    if (u.size() != 3) return;  // not known
    // ONNX Runtime overwrites x by h only where it knows both shapes, and of states made in the graph it knows none.
    const bool known = u[2].IsInt() && u[2].AsInt() > 0;
    if (!known && c0.size() != 2) return;
    const auto channels = known ? u[2].AsInt() / 3 : c0[1];
    context.SetOutputShape(H, {u[0], u[1], channels}, types.tensor);
    context.SetOutputShape(C, {u[1], channels}, types.state);
  }

  static void compute(const Options& options, OrtKernelContext* context) {
    run(options, Type::dtype, context);
  }
};

}  // namespace

std::vector<const OrtCustomOp*> sru_recurrences() { return for_all_dtypes<SRURecurrence>(); }

}  // namespace sruexport::ort
