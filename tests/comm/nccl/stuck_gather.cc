#include "tests/comm/nccl/stuck_gather.h"

#include <future>
#include <memory>
#include <thread>

#include "runtime/base/cuda/cuda_check.h"

namespace millrace::testing {

void AbortStuckGather(GpuRank& rank, Communicator& comm, bool captured,
                      std::chrono::seconds limit) {
  const auto meet = rank.host.Make(rank.Everyone(), "meet");
  TestArena arena(rank, {&comm}, rank.world() << 16);
  const TensorView full = arena.Take(DType::kF32, rank.world() * 1024);
  const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
  const TensorView own{full.data + rank.rank() * 4096, DenseLayout(DType::kF32, {1024})};
  std::unique_ptr<Graph> graph;
  if (captured) {
    rank.device.BeginCapture(*stream);
    comm.AllGather(own, full, {}, *stream);
    graph = rank.device.EndCapture(*stream);
  }
  if (rank.rank() == 0) {
    graph ? graph->Launch(*stream) : comm.AllGather(own, full, {}, *stream);
    auto waiting = std::async(std::launch::async, [&] {
      MR_CUDA(cudaSetDevice(rank.device.ordinal()));
      stream->Sync();
    });
    const bool ended =
        waiting.wait_for(std::chrono::milliseconds(500)) == std::future_status::ready;
    rank.report.Expect(!ended || rank.world() == 1, "a gather ended without its peers");
    rank.report.Expect(Thrown([&] { comm.CheckHealth(); }) == "nothing",
                       "not healthy while it waits");
    std::thread([&] { comm.Abort("the disk is on fire"); }).join();  // as a watchdog does
    comm.Abort("a later reason");
    rank.report.Expect(waiting.wait_for(limit) == std::future_status::ready,
                       "{} s after the abort the stream still waits", limit.count());
  }
  meet->Barrier();
  if (rank.rank() != 0) comm.Abort("the disk is on fire");
  if (rank.world() > 1) {
    const std::string health = Thrown([&] { comm.CheckHealth(); });
    rank.report.Expect(Contains(health, "peer_lost") && Contains(health, "'stuck'") &&
                           Contains(health, "the disk is on fire"),
                       "CheckHealth says '{}'", health);
    const std::string call = Thrown([&] { comm.AllGather(own, full, {}, *stream); });
    rank.report.Expect(Contains(call, "peer_lost: all_gather on 'stuck'") &&
                           Contains(call, "aborted: the disk is on fire"),
                       "a call after the abort says '{}'", call);
  }
  meet->Barrier();  // threads: NCCL frees a process's communicators together
}

}  // namespace millrace::testing
