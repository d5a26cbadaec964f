#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/cost/link_fit.h"
#include "tools/cli/bench/measure_machine.h"

namespace millrace {
namespace {

constexpr int kCalls = 20;  // of a collective in a batch

}  // namespace

std::string Samples::Text(double unit) const {
  return fmt::format("{:.4g} ({:.4g} to {:.4g})", median() / unit, Quantile(values, 0) / unit,
                     Quantile(values, 1) / unit);
}

TensorView Cut::Take(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view{next_, DenseLayout(dtype, dims)};
  const int64_t bytes = RoundUp(view.layout.numel() * Bytes(dtype), 256);
  MR_REQUIRE(ErrorCode::kDoesNotFit, bytes <= left_,
             "doctor --measure: {} bytes are needed, the arena has {} left", bytes, left_);
  next_ += bytes;
  left_ -= bytes;
  return view;
}

std::string MeasureCollectives(Session& session, const Environment& environment, Cut arena,
                               Stopwatch& watch, Machine& machine) {
  Communicator& comm = session.engine().comms().world();
  Stream& stream = session.engine().stream(StreamId::kCompute);
  const bool on_device = session.device().captures();
  const DType dtype = on_device ? DType::kBF16 : DType::kF32;
  const int ranks = session.world();
  std::string said;
  std::vector<TimedBytes> points;
  const int64_t most =
      std::min<int64_t>(arena.left() / 4, on_device ? int64_t{256} << 20 : 8 << 20);
  for (int64_t full = int64_t{64} << 10; full <= most; full *= 4) {
    const int64_t part = full / Bytes(dtype) / ranks;
    Cut cut = arena;
    const TensorView shard = cut.Take(dtype, {part});
    const TensorView whole = cut.Take(dtype, {part * ranks});
    const TensorView scratch =
        cut.Take(DType::kU8, {std::max<int64_t>(environment.traits.comm_scratch_bytes, 256)});
    const double sent = static_cast<double>(part * Bytes(dtype)) * (ranks - 1);
    const auto time = [&](auto&& call) {
      comm.Barrier();
      // The slowest rank's.
      const std::vector<std::string> all =
          comm.HostAllGather(fmt::format("{}", watch.Best(stream, kCalls, on_device, call)));
      double slowest = 0;
      for (const std::string& us : all) slowest = std::max(slowest, std::stod(us));
      return slowest;
    };
    const Samples gather =
        Repeated([&] { return time([&] { comm.AllGather(shard, whole, scratch, stream); }); });
    const Samples reduce = Repeated(
        [&] { return time([&] { comm.ReduceScatterSum(whole, shard, scratch, stream); }); });
    points.push_back({sent, gather.median() * 1e-6});
    points.push_back({sent, reduce.median() * 1e-6});
    said += (fmt::format("{} KiB: gather {}, reduce-scatter {} us", full >> 10, gather.Text(1),
                         reduce.Text(1)));
  }
  const LinkFit fit = FitLink(points);
  if (session.peer_memory()) {
    machine.peer_link = fit.rate;
    machine.peer_latency = std::max(fit.start, 1e-9);
  } else {
    machine.link = fit.rate;
    machine.collective_latency = fit.start;
    machine.link_hop = 0;  // not told apart with one number of ranks
  }
  return said + fmt::format("collectives of {} ranks {}: {:.3g} us + bytes sent / {:.4g} GB/s",
                            ranks,
                            session.peer_memory() ? "over peers' memory" : "over the communicator",
                            fit.start * 1e6, fit.rate / 1e9);
}

}  // namespace millrace
