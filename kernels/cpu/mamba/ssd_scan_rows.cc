#include <algorithm>

#include "kernels/cpu/mamba/mamba_rows.h"
#include "kernels/cpu/mamba/ssd_chunk.h"

namespace millrace::cpu {
namespace {

// Consecutive rows [first, first + count) of one sequence, of one chunk.
struct Run {
  int64_t first, count, slot, at;
};

// What a slot has of the chunk that is open, as a sequence of `positions`.
SsdScanOp<TensorView> OpenChunk(const SsdScanRowsOp<TensorView>& op, int64_t slot,
                                int64_t positions) {
  const int64_t heads = op.dt.dim(1), channels = op.out.dim(1) / heads, width = op.xbc.dim(1);
  SsdScanOp<TensorView> open{};
  open.chunk = op.chunk;
  const auto columns = [&](int64_t first, int64_t count, int64_t each) {
    TensorView view = op.rows;
    view.data += (slot * op.chunk * width + first) * Bytes(view.dtype());
    view.layout = DenseLayout(view.dtype(), {1, positions, count, each});
    view.layout.strides = {positions * width, width, each, 1};
    return view;
  };
  open.x = columns(0, heads, channels);
  open.b = columns(heads * channels, op.groups, op.states);
  open.c = columns(heads * channels + op.groups * op.states, op.groups, op.states);
  open.dt = op.steps;
  open.dt.data += slot * op.chunk * heads * 4;
  open.dt.layout = DenseLayout(DType::kF32, {1, positions, heads});
  open.a_log = op.a_log;
  open.d = op.d;
  return open;
}

void Check(const SsdScanRowsOp<TensorView>& op) {
  const int64_t rows = op.xbc.dim(0), heads = op.dt.dim(1), slots = op.state.dim(0),
                width = op.out.dim(1) + 2 * op.groups * op.states;
  for (const TensorView* view : {&op.dt, &op.state, &op.rows, &op.steps, &op.at, &op.slots})
    MR_CHECK(view->layout.contiguous(), "ssd_scan_rows: {} is not dense", ToString(view->layout));
  MR_CHECK(op.xbc.dim(1) == width && op.rows.dtype() == op.xbc.dtype() &&
               op.rows.numel() == slots * op.chunk * width &&
               op.steps.numel() == slots * op.chunk * heads && op.dt.dim(0) == rows &&
               op.out.dim(0) == rows && op.at.numel() == rows && op.slots.numel() == rows &&
               op.state.numel() == slots * op.out.dim(1) * op.states,
           "ssd_scan_rows: x|B|C is {}, out {}, the state {}, rows {}", ToString(op.xbc.layout),
           ToString(op.out.layout), ToString(op.state.layout), ToString(op.rows.layout));
}

// The run's rows and steps join those of the open chunk.
void Keep(const SsdScanRowsOp<TensorView>& op, const Run& run) {
  const int64_t width = op.xbc.dim(1), heads = op.dt.dim(1), size = Bytes(op.xbc.dtype());
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t place = run.slot * op.chunk + (run.at + i) % op.chunk;
    std::copy_n(op.xbc.data + (run.first + i) * op.xbc.stride(0) * size, width * size,
                op.rows.data + place * width * size);
    std::copy_n(op.dt.as<float>() + (run.first + i) * heads, heads,
                op.steps.as<float>() + place * heads);
  }
}

// The rows from r on that go on with one sequence in one chunk.
Run RunAt(const SsdScanRowsOp<TensorView>& op, int64_t r) {
  const int32_t* const at = op.at.as<int32_t>();
  const int32_t* const slots = op.slots.as<int32_t>();
  Run run{r, 1, slots[r], at[r]};
  MR_CHECK(run.slot < op.state.dim(0) && run.at >= 0 && run.at < op.length,
           "ssd_scan_rows: position {} of {}, slot {} of {}", run.at, op.length, run.slot,
           op.state.dim(0));
  const int64_t end = std::min(run.at / op.chunk * op.chunk + op.chunk, op.length);
  while (r + run.count < op.xbc.dim(0) && slots[r + run.count] == run.slot &&
         at[r + run.count] == run.at + run.count && run.at + run.count < end)
    ++run.count;
  return run;
}

// f(chunk, head, its state before the chunk, scratch of pairs, of channels of each position) for
// each head of the open chunk of `positions` rows.
template <class F>
void ForEachHead(const SsdScanRowsOp<TensorView>& op, const Run& run, int64_t positions, F&& f) {
  const int64_t heads = op.dt.dim(1), channels = op.out.dim(1) / heads;
  const SsdSizes sizes{.batch = 1,
                       .length = positions,
                       .heads = heads,
                       .channels = channels,
                       .groups = op.groups,
                       .states = op.states,
                       .chunk = op.chunk};
  Scratch scratch(op.scratch);
  SsdChunk chunk(sizes, scratch);
  float* const pairs = scratch.Take(positions * positions);
  float* const y = scratch.Take(positions * channels);
  const SsdScanOp<TensorView> open = OpenChunk(op, run.slot, positions);
  for (int64_t h = 0; h < heads; ++h) {
    chunk.Read(open, 0, 0, positions, h);
    f(chunk, h, op.state.as<float>() + (run.slot * heads + h) * sizes.state(), pairs, y);
  }
}

// The state before the run's chunk: zeros in front of the first.
void EnterChunk(const SsdScanRowsOp<TensorView>& op, const Run& run) {
  if (run.at == 0) {
    const int64_t elements = op.out.dim(1) * op.states;
    std::fill_n(op.state.as<float>() + run.slot * elements, elements, 0.0f);
  } else if (run.at % op.chunk == 0) {  // the chunk before is whole
    ForEachHead(op, run, op.chunk,
                [](const SsdChunk& chunk, int64_t, float* state, float*, float* y) {
                  chunk.Advance(state, y);
                });
  }
}

void ScanRun(const SsdScanRowsOp<TensorView>& op, const Run& run) {
  EnterChunk(op, run);
  Keep(op, run);
  const int64_t channels = op.out.dim(1) / op.dt.dim(1), begin = run.at / op.chunk * op.chunk;
  ForEachHead(op, run, std::min(op.chunk, op.length - begin),
              [&](const SsdChunk& chunk, int64_t h, float* state, float* pairs, float* y) {
                chunk.Outputs(state, ElementOf(op.d, h), pairs, y);
                for (int64_t i = 0; i < run.count; ++i)
                  ForChunks(channels, [&](int64_t c, int64_t n) {
                    Store(RowAt(op.out, run.first + i), h * channels + c, n,
                          y + (run.at - begin + i) * channels + c);
                  });
              });
}

}  // namespace

void SsdScanRows(const SsdScanRowsOp<TensorView>& op, Stream&) {
  Check(op);
  const int32_t* const slots = op.slots.as<int32_t>();
  const float zeros[kChunk] = {};
  for (int64_t r = 0; r < op.xbc.dim(0);) {
    if (slots[r] < 0) {
      ForChunks(op.out.dim(1), [&](int64_t c, int64_t n) { Store(RowAt(op.out, r), c, n, zeros); });
      ++r;
      continue;
    }
    const Run run = RunAt(op, r);
    ScanRun(op, run);
    r += run.count;
  }
}

}  // namespace millrace::cpu
