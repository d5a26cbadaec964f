// comm/peer: a call writes the marks that it was given, begun while it waits for peers and ended
// when it is over, whatever its kind and size, eager and captured, and only that call. As
// peer_test.cc.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/device.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/peer/peer_case.h"

namespace millrace::testing {
namespace {

struct Call {
  std::string name;
  std::function<void(Communicator&, TestArena&, Stream&)> make;
};

// Of one block and of many, and of nothing, which is no launch.
std::vector<Call> Calls(int world) {
  std::vector<Call> calls;
  for (const int64_t n : {int64_t{0}, int64_t{24}, int64_t{200'000}}) {
    const std::string of = " of " + std::to_string(n);
    calls.push_back({"all-reduce" + of, [n](Communicator& comm, TestArena& arena, Stream& stream) {
                       comm.AllReduceSum(arena.Take(DType::kF32, n), {}, stream);
                     }});
    calls.push_back({"gather" + of, [=](Communicator& comm, TestArena& arena, Stream& stream) {
                       comm.AllGather(arena.Take(DType::kBF16, n),
                                      arena.Take(DType::kBF16, n * world), {}, stream);
                     }});
    calls.push_back({"rounding" + of, [=](Communicator& comm, TestArena& arena, Stream& stream) {
                       comm.AllGather(arena.Take(DType::kF32, n),
                                      arena.Take(DType::kBF16, n * world), {}, stream);
                     }});
    calls.push_back({"reduce" + of, [=](Communicator& comm, TestArena& arena, Stream& stream) {
                       comm.ReduceScatterSum(arena.Take(DType::kF32, n * world),
                                             arena.Take(DType::kF32, n), {}, stream);
                     }});
    calls.push_back({"exchange" + of, [=](Communicator& comm, TestArena& arena, Stream& stream) {
                       comm.AllToAll(arena.Take(DType::kF32, n * world),
                                     arena.Take(DType::kF32, n * world), {}, stream);
                     }});
  }
  return calls;
}

// A call's word on one rank: as executors have it, of both marks.
class Word {
 public:
  explicit Word(CudaDevice& device) : memory_(device.AllocateHost(8, "marks")) { Clear(); }
  void Clear() { std::memset(memory_->data(), 0, 8); }
  Device::Mark Mark(uint64_t value) const { return {memory_->data(), value}; }
  uint64_t Now() const {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(memory_->data()), __ATOMIC_ACQUIRE);
  }
  // Whether it is `value` within two seconds.
  bool Await(uint64_t value) const {
    for (int i = 0; i < 400 && Now() != value; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Now() == value;
  }

 private:
  std::unique_ptr<HostBuffer> memory_;
};

TEST_CASE("a call's marks say that it waits, and that it is over", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    const auto meet = rank.host.Make(rank.Everyone(), "meet");
    TestArena arena(rank, {comm.get()}, 64 << 20);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    Word word(rank.device);
    uint64_t value = 0;
    for (const Call& call : Calls(rank.world())) {
      const bool moves = call.name.substr(call.name.size() - 5) != " of 0";
      arena.Reset();
      word.Clear();
      value += 2;
      // All but rank 0 come when rank 0 has looked.
      const auto issue = [&] {
        rank.report.Expect(comm->MarkNextCall(word.Mark(value), word.Mark(value + 1)),
                           "{}: its marks are not taken", call.name);
        call.make(*comm, arena, *stream);
      };
      if (rank.rank() == 0) {
        issue();
        rank.report.Expect(word.Await(moves ? value : value + 1), "{}: {} where it waits",
                           call.name, word.Now());
      }
      meet->Barrier();
      if (rank.rank() != 0) issue();
      stream->Sync();
      rank.report.Expect(word.Now() == value + 1, "{}: {} when it is over, in place of {}",
                         call.name, word.Now(), value + 1);
      // The call behind it has none, and neither has one whose marks are no longer wanted.
      word.Clear();
      comm->MarkNextCall(word.Mark(1), word.Mark(2));
      comm->MarkNextCall({}, {});
      arena.Reset();
      call.make(*comm, arena, *stream);
      stream->Sync();
      rank.report.Expect(word.Now() == 0, "{}: marked again, {}", call.name, word.Now());
      meet->Barrier();
    }
  });
}

TEST_CASE("marks are written by each launch of a graph", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    const auto meet = rank.host.Make(rank.Everyone(), "meet");
    TestArena arena(rank, {comm.get()}, 64 << 20);
    const auto stream = rank.device.MakeStream(StreamRole::kCompute);
    const std::vector<Call> calls = Calls(rank.world());
    std::vector<std::unique_ptr<Word>> words;
    for (const Call& call : calls) {  // eager, so that all is loaded
      arena.Reset();
      call.make(*comm, arena, *stream);
    }
    stream->Sync();
    rank.device.BeginCapture(*stream);
    for (const Call& call : calls) {
      words.push_back(std::make_unique<Word>(rank.device));
      comm->MarkNextCall(words.back()->Mark(7), words.back()->Mark(9));
      arena.Reset();
      call.make(*comm, arena, *stream);
    }
    const std::unique_ptr<Graph> graph = rank.device.EndCapture(*stream);
    for (int launch = 0; launch < 20; ++launch) {
      for (const auto& of_call : words) of_call->Clear();
      meet->Barrier();
      graph->Launch(*stream);
      stream->Sync();
      for (size_t i = 0; i < calls.size(); ++i)
        rank.report.Expect(words[i]->Now() == 9, "launch {}, {}: {}", launch, calls[i].name,
                           words[i]->Now());
    }
    meet->Barrier();
  });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
