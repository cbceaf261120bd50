// LinearRecurrence in parallel over T, in one pass with look-back (Merrill and Garland 2016, "Single-pass Parallel Prefix
// Scan with Decoupled Look-back"): tensors are read once and written once.
//
// A block has a tile: kItems steps for each of its threads, of some lanes. It works out what the tile does to any state,
// h -> product * h + sum, and tells it; learns from the tiles before it in time which state its own begins with; and goes
// through its steps from there. Blocks take their tiles by a ticket, so that what one waits for is always on its way.
#include "device.h"
#include "look_back.h"
#include "recurrence.h"

namespace sruexport::cuda {
namespace {

constexpr int kBlock = 256;  // threads
constexpr int kItems = 16;   // steps of a thread
constexpr int kTile = kBlock * kItems;
// Bytes that a multiprocessor must have on their way for memory to be busy: bandwidth times latency, shared out among
// them, is 20 to 30 kB on today's cards (3.35 TB/s and 700 ns by 132 on an H100, 1 TB/s and 600 ns by 128 on an RTX 4090).
constexpr std::int64_t kBusy = 32 * 1024;

struct Chunked {
  LinearParams p;
  int width_bits;               // lanes of a tile: 2^width_bits, 32 at most
  std::int64_t tiles_of_lanes;  // side by side
  unsigned* ticket;
  Board board;
};

// Threads that read one column of a tile do not meet in a bank of shared memory.
__device__ inline int padded(int index) { return index + (index >> 5); }

template <class Tensor>
__global__ void __launch_bounds__(kBlock) linear_chunked(const Chunked c) {
  __shared__ float decays[kTile + kTile / 32], inputs[kTile + kTile / 32];
  __shared__ Effect effects[kBlock];
  __shared__ float starts[kBlock];
  __shared__ float carries[32];
  __shared__ bool beyond[32];  // whether a lane has a product or a state beyond all floats
  __shared__ unsigned ticket;

  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) ticket = atomicAdd(c.ticket, 1u);
  if (thread < 32) beyond[thread] = false;
  __syncthreads();
  const std::int64_t tile = ticket / c.tiles_of_lanes;
  const int width = 1 << c.width_bits, segments = kBlock >> c.width_bits;
  const std::int64_t channels = c.p.sizes.channels, steps = c.p.sizes.steps, lanes = c.p.sizes.batch * channels;
  const std::int64_t first_lane = (ticket % c.tiles_of_lanes) << c.width_bits;
  const std::int64_t first_step = tile * (kTile >> c.width_bits);
  const auto* a = static_cast<const Tensor*>(c.p.a);
  const auto* b = static_cast<const Tensor*>(c.p.b);
  auto* h = static_cast<Tensor*>(c.p.h);

  // In the order of memory: element `e` of the tile is lane e % width of step e / width.
  const int column = thread & (width - 1);
  const std::int64_t lane = first_lane + column;
  const bool here = lane < lanes;
  const Place place = place_of(c.p.sizes, c.p.direction, here ? lane : 0);
  const auto row_of = [&](int e) {
    return (place.first + place.onward * (first_step + (e >> c.width_bits))) * c.p.sizes.batch + place.row;
  };
  const auto inside = [&](int e) { return here && first_step + (e >> c.width_bits) < steps; };
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int e = i * kBlock + thread;
    float decay = 1.0f, input = 0.0f;  // what leaves a state as it is: beyond the end, and at padding
    if (inside(e)) {
      const std::int64_t row = row_of(e);
      if (!c.p.mask || !c.p.mask[row]) {
        decay = widened(a[row * channels + place.channel]);
        input = widened(b[row * channels + place.channel]);
      }
    }
    decays[padded(e)] = decay;
    inputs[padded(e)] = input;
  }
  __syncthreads();

  // Each thread's steps: kItems in a row, of one lane.
  const int segment = thread >> c.width_bits;
  const auto item = [&](int i) { return padded(((segment * kItems + i) << c.width_bits) + column); };
  Effect own{1.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kItems; ++i) own = after(own, Effect{decays[item(i)], inputs[item(i)]});
  effects[thread] = own;
  __syncthreads();
  for (int distance = 1; distance < segments; distance *= 2) {
    const bool joined = segment >= distance;
    const Effect longer = joined ? after(effects[thread - (distance << c.width_bits)], effects[thread]) : Effect{};
    __syncthreads();
    if (joined) effects[thread] = longer;
    __syncthreads();
  }

  if (!finite(effects[thread])) beyond[column] = true;
  __syncthreads();

  if (segment == 0 && here) {
    const std::int64_t at = tile * lanes + lane;
    const Effect whole = effects[((segments - 1) << c.width_bits) + column];
    if (!beyond[column] && tile > 0) {
      c.board.effects[at] = whole;
      store_release(c.board.told + at, static_cast<unsigned>(kEffect));
    }
    const float start = look_back(c.board, tile, lane, lanes, static_cast<const float*>(c.p.h0)[lane]);
    float end = whole.product * start + whole.sum;
    if (!finite(start)) beyond[column] = true;
    if (beyond[column]) {
      end = start;  // one step after the other
      for (int s = 0; s < segments; ++s) {
        starts[(s << c.width_bits) + column] = end;
        for (int i = 0; i < kItems; ++i) {
          const int index = padded(((s * kItems + i) << c.width_bits) + column);
          end = decays[index] * end + inputs[index];
        }
      }
    }
    carries[column] = start;
    c.board.ends[at] = end;
    store_release(c.board.told + at, static_cast<unsigned>(kEnd));
  }
  __syncthreads();

  float state = carries[column];
  if (beyond[column]) {
    state = starts[thread];
  } else if (segment > 0) {
    const Effect before = effects[thread - width];
    state = before.product * state + before.sum;
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    state = decays[item(i)] * state + inputs[item(i)];
    inputs[item(i)] = state;
  }
  const std::int64_t tiles = (steps + (kTile >> c.width_bits) - 1) / (kTile >> c.width_bits);
  if (here && tile == tiles - 1 && segment == segments - 1) static_cast<float*>(c.p.h_last)[lane] = state;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int e = i * kBlock + thread;
    if (inside(e)) narrow(inputs[padded(e)], h[row_of(e) * channels + place.channel]);
  }
}

struct Plan {
  int width_bits;
  std::int64_t tiles_of_lanes, tiles, lanes;
};

Plan plan_of(const Sizes& sizes) {
  Plan plan{};
  plan.lanes = sizes.batch * sizes.channels;
  while (plan.width_bits < 5 && (1 << plan.width_bits) < plan.lanes) ++plan.width_bits;
  const std::int64_t width = 1 << plan.width_bits, steps = kTile >> plan.width_bits;
  plan.tiles_of_lanes = (plan.lanes + width - 1) / width;
  plan.tiles = (sizes.steps + steps - 1) / steps;
  return plan;
}

template <class Tensor>
cudaError_t run_as(const LinearParams& p, void* workspace, cudaStream_t stream) {
  const Plan plan = plan_of(p.sizes);
  const std::int64_t blocks = plan.tiles * plan.tiles_of_lanes, places = plan.tiles * plan.lanes;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  auto* effects = static_cast<Effect*>(workspace);
  auto* ends = reinterpret_cast<float*>(effects + places);
  auto* told = reinterpret_cast<unsigned*>(ends + places);
  const cudaError_t cleared =
      cudaMemsetAsync(told, 0, static_cast<std::size_t>(places + 1) * sizeof(unsigned), stream);
  if (cleared != cudaSuccess) return cleared;
  Chunked c{p, plan.width_bits, plan.tiles_of_lanes, told + places, {told, effects, ends}};
  void* arguments[] = {&c};
  return cudaLaunchKernel(linear_chunked<Tensor>, dim3(static_cast<unsigned>(blocks)), dim3(kBlock), arguments, 0,
                          stream);
}

}  // namespace

std::size_t chunked_workspace(const Sizes& sizes) {
  const Plan plan = plan_of(sizes);
  const auto places = static_cast<std::size_t>(plan.tiles * plan.lanes);
  return places * (sizeof(Effect) + sizeof(float) + sizeof(unsigned)) + sizeof(unsigned);
}

bool prefer_chunked(const LinearParams& params, int multiprocessors) {
  const Plan plan = plan_of(params.sizes);
  // What the serial kernel has on its way for a lane: 16 steps of two tensors.
  const std::int64_t on_its_way = 16 * 2 * (params.dtype == DType::float32 ? 4 : 2);
  const bool serial_is_busy = plan.lanes * on_its_way >= multiprocessors * kBusy;
  return !serial_is_busy && plan.tiles > 1;
}

cudaError_t run_chunked(const LinearParams& params, void* workspace, cudaStream_t stream) {
  if (params.sizes.batch * params.sizes.channels == 0) return cudaSuccess;
  if (params.sizes.steps == 0) return run(params, stream);
  switch (params.dtype) {
    case DType::float32: return run_as<float>(params, workspace, stream);
    case DType::float16: return run_as<Half>(params, workspace, stream);
    case DType::bfloat16: return run_as<BFloat16>(params, workspace, stream);
    case DType::float64: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sruexport::cuda
