#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/cost/kernel_rates.h"
#include "tools/cli/bench/measure_machine.h"

namespace millrace {
namespace {

// A power cap looks at about a second: clocks fall and rise again for so long
// (tools/bench/README.md, What `plan` predicts).
constexpr double kHeatMs = 900, kTimedMs = 1300;
constexpr int64_t kCopyBytes = int64_t{256} << 20;
// Llama 1B's and Llama 8B's.
constexpr Attend kNarrow = {4, kCappedAttention.length, 32, 8, kCappedAttention.head_dim};
constexpr Attend kWide = {1, kCappedWideAttention.length, 32, 8, kCappedWideAttention.head_dim};

}  // namespace

std::string MeasurePower(Session& session, const Environment& environment, Cut arena,
                         Stopwatch& watch, Machine& machine) {
  const KernelTable& kernels = *environment.kernels;
  const Backend backend = environment.traits.backend;
  Stream& stream = session.engine().stream(StreamId::kCompute);
  const Products products(kDeviceProducts, DType::kBF16, backend, arena);
  ConcatOp<TensorView> copy;
  copy.x = arena.Take(DType::kF32, {kCopyBytes / 4});
  copy.out = arena.Take(DType::kF32, {kCopyBytes / 4});
  const double copied = 2.0 * kCopyBytes;

  // Seconds of all products once and `calls` of something else, hot.
  const auto hot = [&](int calls, auto&& call) {
    const auto cycle = [&] {
      products.Run(kernels, stream);
      for (int i = 0; i < calls; ++i) call();
    };
    watch.Time(stream, cycle);  // loads the kernels
    const double once_ms = watch.Time(stream, cycle);
    const auto cycles = [&](double ms) {
      const int count = std::max(1, static_cast<int>(ms / once_ms));
      return watch.Time(stream, [&] {
        for (int i = 0; i < count; ++i) cycle();
      }) / count;
    };
    session.engine().comms().world().Barrier();
    cycles(kHeatMs);
    return Slowest(session, cycles(kTimedMs) * 1e-3);
  };
  const double alone = hot(0, [] {});
  struct Added {
    int calls = 0;
    double seconds = 0;  // of a call
  };
  // Half as long as the products, as other work is in steps.
  const auto add = [&](const char* what, auto&& call) {
    watch.Time(stream, call);
    const double once = Slowest(session, watch.Time(stream, call) * 1e-3);
    const int calls = std::max(1, static_cast<int>(std::lround(0.5 * alone / once)));
    const double with = hot(calls, call);
    MR_REQUIRE(ErrorCode::kDevice, with > alone,
               "doctor --measure: products take {:.4g} ms, {:.4g} with {} between them; something "
               "else runs on this device",
               alone * 1e3, with * 1e3, what);
    return Added{calls, (with - alone) / calls};
  };
  const auto attend = [&](const char* what, const Attend& shape, double& capped) {
    Cut cut = arena;
    const AttentionCalls calls(shape, DType::kBF16, backend, cut);
    const Added added = add(what, [&] {
      kernels.attention(calls.forward, stream);
      kernels.attention_grad(calls.backward, stream);
    });
    capped = 3.5 * calls.forward_flops() / added.seconds;
    return added;
  };
  const Added copies = add("copies", [&] { kernels.concat(copy, stream); });
  machine.capped_gemm = products.flops() / alone;
  machine.capped_memory = copied / copies.seconds;
  const Added narrow = attend("attention", kNarrow, machine.capped_attention);
  const Added wide = attend("attention of wide heads", kWide, machine.capped_wide_attention);
  return fmt::format(
      "hot, {:.4g} TFLOP of products {:.4g} ms; between them {} copies of {} MiB add {:.4g} ms "
      "each, {} of attention head dim {}, T {}, and its gradient {:.4g}, {} of head dim {}, T {}, "
      "{:.4g}: under the power cap {:.4g} TFLOP/s, {:.4g} GB/s, {:.4g} and {:.4g} TFLOP/s",
      products.flops() / 1e12, alone * 1e3, copies.calls, kCopyBytes >> 20, copies.seconds * 1e3,
      narrow.calls, kNarrow.head_dim, kNarrow.length, narrow.seconds * 1e3, wide.calls,
      kWide.head_dim, kWide.length, wide.seconds * 1e3, machine.capped_gemm / 1e12,
      machine.capped_memory / 1e9, machine.capped_attention / 1e12,
      machine.capped_wide_attention / 1e12);
}

}  // namespace millrace
