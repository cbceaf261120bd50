// What a call of a recurrence is given, on any device: the same structs for the CPU and for CUDA.
//
// Layouts are those of sruexport/recurrences/: time first, [T, B, C]; gates planar, each a block of C channels; C holds
// both directions of a bidirectional recurrence, the forward half first. States are float, or double for double
// tensors. Shapes and types are checked by who fills them in.
#pragma once

#include <cstdint>

namespace sruexport {

enum class DType { float32, float16, bfloat16, float64 };
enum class Direction { forward, reverse, bidirectional };
enum class Activation { identity, tanh };

// steps T, batch B, channels C.
struct Sizes {
  std::int64_t steps;
  std::int64_t batch;
  std::int64_t channels;
};

// f_t = sigmoid(u1_t + b_f + v_f * c_{t-1})
// r_t = sigmoid(u2_t + b_r + v_r * c_{t-1})
// c_t = (c_{t-1} - u0_t) * f_t + u0_t
// h_t = (g(c_t) - x_t) * r_t + x_t            at padding: c_t = c_{t-1}, h_t = 0
struct SRUParams {
  DType dtype;  // of u, x, v, bias and h
  Sizes sizes;
  Direction direction;
  Activation activation;
  const void* u;             // [T, B, 3 * C]: candidate u0, forget gate u1, reset gate u2
  const void* x;             // [T, B, C], or [1, 1, C] where x_broadcast
  const void* v;             // [1, 1, 2 * C], or [T, B, 2 * C] where v_per_step: forget, reset
  const void* bias;          // [2 * C]: forget, reset
  const void* c0;            // [B, C], a state
  const std::int32_t* mask;  // [T, B], non-zero at padding; null: none
  void* h;                   // [T, B, C]; may be x where x is not broadcast
  void* c;                   // [B, C], a state; may be c0
  bool x_broadcast;
  bool v_per_step;
};

// h_t = a_t * h_{t-1} + b_t                   at padding: h_t = h_{t-1}
struct LinearParams {
  DType dtype;  // of a, b and h
  Sizes sizes;
  Direction direction;
  const void* a;             // [T, B, C]
  const void* b;             // [T, B, C]
  const void* h0;            // [B, C], a state
  const std::int32_t* mask;  // [T, B], non-zero at padding; null: none
  void* h;                   // [T, B, C]; may be a or b
  void* h_last;              // [B, C], a state; may be h0
};

}  // namespace sruexport
