#include <fmt/core.h>

#include <algorithm>

#include "runtime/exec/engine.h"
#include "runtime/plan/cost/link_fit.h"
#include "tools/cli/bench/measure_machine.h"

namespace millrace {
namespace {

constexpr int kCalls = 20;  // of a collective in a batch

}  // namespace

std::string MeasureCollectives(Session& session, const Environment& environment, Cut arena,
                               Stopwatch& watch, Machine& machine) {
  // Those of a step; the world's has few channels, as it moves next to nothing.
  Engine& engine = session.engine();
  Communicator& gathers = engine.comms().Of({Axis::kShard, StreamId::kGather});
  Communicator& reduces = engine.comms().Of({Axis::kShard, StreamId::kReduce});
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
    const auto time = [&](Stream& stream, auto&& call) {
      engine.comms().world().Barrier();
      return Slowest(session, watch.Best(stream, kCalls, on_device, call));
    };
    Stream& gathering = engine.stream(StreamId::kGather);
    Stream& reducing = engine.stream(StreamId::kReduce);
    const Samples gather = Repeated([&] {
      return time(gathering, [&] { gathers.AllGather(shard, whole, scratch, gathering); });
    });
    const Samples reduce = Repeated([&] {
      return time(reducing, [&] { reduces.ReduceScatterSum(whole, shard, scratch, reducing); });
    });
    points.push_back({sent, gather.median() * 1e-6});
    points.push_back({sent, reduce.median() * 1e-6});
    said += fmt::format("{} KiB: gather {}, reduce-scatter {} us; ", full >> 10, gather.Text(1),
                        reduce.Text(1));
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
