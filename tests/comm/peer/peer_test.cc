// comm/peer: collectives over the memory of peers give the bits of the host transports, in any
// order of arrival, eager and captured; all-reduces are peer_sums_test.cc's. On every GPU as
// threads, or mpirun -n N PROGRAM.
//
// MILLRACE_TEST_ONE_GPU=1 with mpirun -n 2, or with MILLRACE_TEST_RANKS=2: two ranks on one card,
// for compute-sanitizer. Processes take turns on it, so that a kernel may wait for a peer's;
// threads need CUDA_MODULE_LOADING=EAGER and CUDA_DEVICE_MAX_CONNECTIONS=32: kernels that wait
// would otherwise stand in the way of loading, or in the queue, of those that they wait for.
// MILLRACE_TEST_LAUNCHES: launches of a series of rounds, 100 unless said.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/peer/peer_communicator.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/nccl/stuck_gather.h"
#include "tests/comm/peer/peer_case.h"
#include "tests/comm/peer/round_check.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

using std::chrono::seconds;

constexpr int64_t kSizes[] = {1, 3, 127, 1009, 8192, 40'000, 300'007};
constexpr int64_t kOffsets[] = {0, 1, 5};  // of views from an aligned address, elements

template <typename T>
void Gathers(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, Stream& stream) {
  for (const int64_t n : kSizes)
    for (const int64_t offset : kOffsets)
      for (const bool in_place : {false, true}) {
        arena.Reset();
        const TensorView full = Shifted(arena, DTypeOf<T>(), offset, n * rank.world());
        const TensorView shard =
            in_place ? TensorView{full.data + rank.rank() * n * static_cast<int64_t>(sizeof(T)),
                                  DenseLayout(DTypeOf<T>(), {n})}
                     : Shifted(arena, DTypeOf<T>(), offset, n);
        rank.device.EnqueueFill(full.data, std::byte{0x7f}, full.bytes(), stream);
        std::vector<T> own(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) own[i] = Pattern<T>(rank.rank(), n + i);
        ToDevice(rank, own, shard, stream);
        comm.AllGather(shard, full, {}, stream);
        const std::vector<T> result = ToHost<T>(rank, full, stream);
        int64_t wrong = 0;
        for (int64_t i = 0; i < full.numel(); ++i)
          wrong += !SameBits(result[i], Pattern<T>(static_cast<int>(i / n), n + i % n));
        rank.report.Expect(wrong == 0, "gather of {} {}, offset {}, in place {}: {} wrong", n,
                           Name(DTypeOf<T>()), offset, in_place, wrong);
      }
}

TEST_CASE("an all-gather puts every rank's bytes into every buffer", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    TestArena arena(rank, {comm.get()}, (rank.world() + 1) * 8 * 300'100);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    Gathers<uint8_t>(rank, *comm, arena, *stream);
    Gathers<BFloat16>(rank, *comm, arena, *stream);
    Gathers<float>(rank, *comm, arena, *stream);
    Gathers<int64_t>(rank, *comm, arena, *stream);
  });
}

template <typename T>
void Reduces(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, Stream& stream) {
  for (const int64_t n : kSizes)
    for (const int64_t offset : kOffsets) {
      arena.Reset();
      const TensorView full = Shifted(arena, DTypeOf<T>(), offset, n * rank.world());
      const TensorView shard = Shifted(arena, DTypeOf<T>(), offset, n);
      std::vector<T> terms(static_cast<size_t>(full.numel()));
      for (int64_t i = 0; i < full.numel(); ++i) terms[i] = TermAs<T>(rank.rank(), n + i);
      ToDevice(rank, terms, full, stream);
      comm.ReduceScatterSum(full, shard, {}, stream);
      const std::vector<T> sums = ToHost<T>(rank, shard, stream),
                           after = ToHost<T>(rank, full, stream);
      int64_t wrong = 0, changed = 0;
      for (int64_t i = 0; i < n; ++i)
        wrong += !SameBits(sums[i], RankOrderOracle<T>(rank.world(), n + rank.rank() * n + i));
      for (size_t i = 0; i < terms.size(); ++i) changed += !SameBits(terms[i], after[i]);
      rank.report.Expect(wrong == 0 && changed == 0,
                         "sum of {} {}, offset {}: {} wrong, {} operands changed", n,
                         Name(DTypeOf<T>()), offset, wrong, changed);
      comm.Barrier();  // no rank fills what a peer's host still compares
    }
}

TEST_CASE("a reduce-scatter has the bits of the host's sum in rank order", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    TestArena arena(rank, {comm.get()}, (rank.world() + 1) * 8 * 300'100);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    Reduces<float>(rank, *comm, arena, *stream);
    Reduces<BFloat16>(rank, *comm, arena, *stream);
    Reduces<double>(rank, *comm, arena, *stream);
  });
}

// Rows of 7 elements. With counts all, none or half of a piece's rows are live, and what lies
// behind them keeps its value.
template <typename T>
void Exchanges(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, Stream& stream) {
  constexpr int64_t kRow = 7;
  const auto live_rows = [&](int from, int to, int64_t rows) {
    return (from + to) % 3 == 0 ? rows : (from + to) % 3 == 1 ? 0 : rows / 2;
  };
  for (const int64_t rows : {1, 2, 33, 4099})
    for (const int64_t offset : kOffsets)
      for (const bool counted : {false, true}) {
        arena.Reset();
        const int world = rank.world();
        const int64_t n = rows * kRow;
        const TensorView received = Shifted(arena, DTypeOf<T>(), offset, n * world),
                         sent = Shifted(arena, DTypeOf<T>(), offset, n * world),
                         counts = Shifted(arena, DType::kI32, 0, 2 * world);
        rank.device.EnqueueFill(received.data, std::byte{0x7f}, received.bytes(), stream);
        std::vector<T> own(static_cast<size_t>(n * world));
        for (int64_t i = 0; i < n * world; ++i) own[i] = Pattern<T>(rank.rank(), i);
        ToDevice(rank, own, sent, stream);
        std::vector<int32_t> live;  // in two parts
        for (int r = 0; r < world; ++r) {
          const int64_t all = live_rows(rank.rank(), r, rows);
          live.push_back(static_cast<int32_t>(all / 3));
          live.push_back(static_cast<int32_t>(all - all / 3));
        }
        ToDevice(rank, live, counts, stream);
        comm.Barrier();  // no peer's rows come before the fill
        comm.AllToAll(sent, received, counted ? LiveRows{counts, kRow} : LiveRows{}, stream);
        const std::vector<T> result = ToHost<T>(rank, received, stream);
        T untouched;
        std::memset(&untouched, 0x7f, sizeof untouched);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n * world; ++i) {
          const int from = static_cast<int>(i / n);
          const bool moved = !counted || i % n < kRow * live_rows(from, rank.rank(), rows);
          wrong +=
              !SameBits(result[i], moved ? Pattern<T>(from, rank.rank() * n + i % n) : untouched);
        }
        rank.report.Expect(wrong == 0, "exchange of {} rows of {}, offset {}, counted {}: {} wrong",
                           rows, Name(DTypeOf<T>()), offset, counted, wrong);
        comm.Barrier();  // no rank fills what a peer's host still compares
      }
}

TEST_CASE("an all-to-all puts live rows into their receiver's buffer", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    TestArena arena(rank, {comm.get()}, 4 * rank.world() * 4 * 30'000);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    Exchanges<float>(rank, *comm, arena, *stream);
    Exchanges<BFloat16>(rank, *comm, arena, *stream);
    Exchanges<int32_t>(rank, *comm, arena, *stream);
  });
}

TEST_CASE("a gather of rounded master weights is the rounding, then the gather", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    TestArena arena(rank, {comm.get()}, (2 * rank.world() + 4) * 300'100);
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    for (const int64_t n : kSizes)
      for (const int64_t offset : kOffsets) {
        arena.Reset();
        const TensorView full = Shifted(arena, DType::kBF16, offset, n * rank.world());
        const TensorView master = Shifted(arena, DType::kF32, offset, n);
        std::vector<float> own(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) own[i] = TermAs<float>(rank.rank(), n + i);
        ToDevice(rank, own, master, *stream);
        comm->AllGather(master, full, {}, *stream);
        const std::vector<BFloat16> result = ToHost<BFloat16>(rank, full, *stream);
        int64_t wrong = 0;
        for (int64_t i = 0; i < full.numel(); ++i)
          wrong += result[i] != ToBFloat16(TermAs<float>(static_cast<int>(i / n), n + i % n));
        rank.report.Expect(wrong == 0, "{} elements, offset {}: {} wrong", n, offset, wrong);
        comm->Barrier();
      }
  });
}

// Rounds of three collectives on a stream each, by one communicator, between ranks that come
// late at random. A round's operands are written right before it and after the one before it;
// every result is checked on the device, between the collective that makes it and the next
// one, which overwrites it.
class Rounds {
 public:
  Rounds(GpuRank& rank, PeerCommunicator& comm, TestArena& arena, DType dtype, int64_t n)
      : rank_(rank),
        comm_(comm),
        dtype_(dtype),
        reduce_stream_(rank.device.MakeStream(StreamRole::kCollectives)),
        gather_stream_(rank.device.MakeStream(StreamRole::kCollectives)),
        all_reduce_stream_(rank.device.MakeStream(StreamRole::kCollectives)),
        rounds_(arena.Take(DType::kI64, 3)),
        wrong_(arena.Take(DType::kI64, 3)),
        operand_(arena.Take(dtype, n * rank.world())),
        sums_(arena.Take(dtype, n)),
        shard_(arena.Take(dtype, n)),
        full_(arena.Take(dtype, n * rank.world())),
        buffer_(arena.Take(dtype, n)) {
    ToDevice(rank, std::vector<int64_t>{0, 0, 0}, rounds_, *reduce_stream_);
    ToDevice(rank, std::vector<int64_t>{0, 0, 0}, wrong_, *reduce_stream_);
  }

  void Run(bool captured, int launches) {
    std::unique_ptr<Graph> graph;
    if (captured) {
      rank_.device.BeginCapture(*reduce_stream_);
      Issue();
      graph = rank_.device.EndCapture(*reduce_stream_);
    }
    for (int i = 0; i < launches; ++i) graph ? graph->Launch(*reduce_stream_) : Issue();
    reduce_stream_->Sync();
    gather_stream_->Sync();
    all_reduce_stream_->Sync();
    comm_.Barrier();
  }

  int64_t rounds() { return ToHost<int64_t>(rank_, rounds_, *reduce_stream_)[0]; }
  std::vector<int64_t> wrong() {
    return ToHost<int64_t>(rank_, wrong_, *reduce_stream_);
  }  // sums, gathered, all-reduced

 private:
  static constexpr int kInOne = 4, kLate = 40;  // rounds of a launch; microseconds

  void Follow(Stream& later, Stream& earlier) {
    events_.push_back(rank_.device.MakeEvent());
    earlier.Record(*events_.back());
    later.Wait(*events_.back());
  }

  void Issue() {
    Follow(*gather_stream_, *reduce_stream_);
    Follow(*all_reduce_stream_, *reduce_stream_);
    for (int i = 0; i < kInOne; ++i) {
      ReduceRound();
      GatherRound();
      AllReduceRound();
    }
    Follow(*reduce_stream_, *gather_stream_);
    Follow(*reduce_stream_, *all_reduce_stream_);
  }

  void ReduceRound() {
    auto* const round = rounds_.as<int64_t>();
    auto* const wrong = wrong_.as<unsigned long long>();
    const cudaStream_t stream = AsCuda(*reduce_stream_).get();
    LaunchNextRound(round, stream);
    LaunchDelay(rank_.rank(), round, 1, kLate, stream);
    LaunchRoundFill(dtype_, operand_.data, operand_.numel(), rank_.rank(), round, stream);
    comm_.ReduceScatterSum(operand_, sums_, {}, *reduce_stream_);
    LaunchRoundCheck(RoundResult::kSums, dtype_, sums_.data, sums_.numel(), rank_.rank(),
                     rank_.world(), round, wrong, stream);
  }

  void GatherRound() {
    auto* const round = rounds_.as<int64_t>() + 1;
    auto* const wrong = wrong_.as<unsigned long long>() + 1;
    const cudaStream_t stream = AsCuda(*gather_stream_).get();
    LaunchNextRound(round, stream);
    LaunchRoundFill(dtype_, shard_.data, shard_.numel(), rank_.rank(), round, stream);
    comm_.AllGather(shard_, full_, {}, *gather_stream_);
    LaunchDelay(rank_.rank(), round, 2, kLate, stream);
    LaunchRoundCheck(RoundResult::kGathered, dtype_, full_.data, full_.numel(), rank_.rank(),
                     rank_.world(), round, wrong, stream);
  }

  void AllReduceRound() {
    auto* const round = rounds_.as<int64_t>() + 2;
    auto* const wrong = wrong_.as<unsigned long long>() + 2;
    const cudaStream_t stream = AsCuda(*all_reduce_stream_).get();
    LaunchNextRound(round, stream);
    LaunchDelay(rank_.rank(), round, 3, kLate, stream);
    LaunchRoundFill(dtype_, buffer_.data, buffer_.numel(), rank_.rank(), round, stream);
    comm_.AllReduceSum(buffer_, {}, *all_reduce_stream_);
    // Of one slice, the first, that is all of it.
    LaunchRoundCheck(RoundResult::kSums, dtype_, buffer_.data, buffer_.numel(), 0, rank_.world(),
                     round, wrong, stream);
  }

  GpuRank& rank_;
  PeerCommunicator& comm_;
  const DType dtype_;
  const std::unique_ptr<Stream> reduce_stream_, gather_stream_, all_reduce_stream_;
  const TensorView rounds_, wrong_, operand_, sums_, shard_, full_, buffer_;
  std::vector<std::unique_ptr<Event>> events_;
};

constexpr int64_t RoundsBytes(int world, int64_t n) { return 4 * (2 * world + 3) * n + (1 << 20); }

TEST_CASE("rounds of three collectives, late ranks, eager and a hundred replays", "[comm][gpu]") {
  const char* const asked = std::getenv("MILLRACE_TEST_LAUNCHES");
  const int launches = asked == nullptr ? 100 : std::atoi(asked);
  REQUIRE(launches > 0);
  OnPeers([launches](GpuRank& rank) {
    for (const int blocks : {1, 32}) {
      PeerOptions options = Options(blocks, blocks);
      options.all_reduce_blocks = blocks;
      const auto comm = MakePeer(rank, "world", options);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const int64_t n : {int64_t{300}, int64_t{40'000}, int64_t{250'001}})
          for (const bool captured : {false, true}) {
            TestArena arena(rank, {comm.get()}, RoundsBytes(rank.world(), n));
            Rounds rounds(rank, *comm, arena, dtype, n);
            rounds.Run(captured, launches);
            const std::vector<int64_t> wrong = rounds.wrong();
            rank.report.Expect(wrong[0] == 0 && wrong[1] == 0 && wrong[2] == 0,
                               "{} of {}, {} blocks, captured {}: in {} rounds {} sums, {} "
                               "gathered and {} all-reduced elements are wrong",
                               n, Name(dtype), blocks, captured, rounds.rounds(), wrong[0],
                               wrong[1], wrong[2]);
          }
    }
  });
}

// What the test above is worth: it sees each of the two waits that are left out.
TEST_CASE("without a wait the rounds are wrong", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    for (const PeerFault fault : {PeerFault::kNoEntry, PeerFault::kNoDone}) {
      PeerOptions options = Options();
      options.fault = fault;
      const auto comm = MakePeer(rank, "faulty", options);
      TestArena arena(rank, {comm.get()}, RoundsBytes(rank.world(), 40'000));
      Rounds rounds(rank, *comm, arena, DType::kF32, 40'000);
      rounds.Run(true, 100);
      const std::vector<int64_t> wrong = rounds.wrong();
      const int sums = RanksWith(*comm, wrong[0] > 0), gathered = RanksWith(*comm, wrong[1] > 0),
                all_reduced = RanksWith(*comm, wrong[2] > 0);
      // Packs have one wait: they know no second fault.
      rank.report.Expect(
          sums > 0 && gathered > 0 && (all_reduced > 0 || fault == PeerFault::kNoDone),
          "fault {}: wrong sums on {} ranks, gathers on {}, all-reduces on {}",
          static_cast<int>(fault), sums, gathered, all_reduced);
    }
  });
}

TEST_CASE("what peers cannot reach is refused on every rank", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto comm = MakePeer(rank, "world", Options());
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    const int last = rank.world() - 1;
    const int64_t bytes = 1 << 20;
    const auto arena = rank.device.Allocate(bytes, "arena");
    const TensorView full{arena->data(), DenseLayout(DType::kF32, {rank.world() * int64_t{64}})};
    const TensorView own{full.data + rank.rank() * 256, DenseLayout(DType::kF32, {64})};
    const std::string outside = Thrown([&] { comm->AllGather(own, full, {}, *stream); });
    rank.report.Expect(
        Contains(outside, "invalid_argument") && Contains(outside, "registered memory"),
        "before it is registered: '{}'", outside);
    const int64_t mine = rank.rank() == last ? bytes - 4096 : bytes;
    const std::string unequal = Thrown([&] { comm->RegisterMemory(arena->data(), mine); });
    rank.report.Expect(Contains(unequal, "comm: communicator 'world'") &&
                           Contains(unequal, std::to_string(bytes)) &&
                           Contains(unequal, std::to_string(bytes - 4096)),
                       "unequal sizes: '{}'", unequal);
    comm->RegisterMemory(arena->data(), bytes);
    const std::string twice = Thrown([&] { comm->RegisterMemory(arena->data(), bytes); });
    rank.report.Expect(Contains(twice, "registered already"), "twice: '{}'", twice);
    const TensorView last_bytes{arena->data() + bytes - full.bytes(), full.layout};
    const TensorView beyond{last_bytes.data + 4, full.layout};
    const auto gather_at = [&](const TensorView& view) {
      return Thrown([&] {
        comm->AllGather({view.data + rank.rank() * 256, own.layout}, view, {}, *stream);
      });
    };
    const std::string over = gather_at(beyond);
    rank.report.Expect(Contains(over, "registered memory"), "4 bytes past its end: '{}'", over);
    rank.report.Expect(comm->counters() == CommCounters{}, "a refused call was counted");
    const std::string within = gather_at(last_bytes);
    rank.report.Expect(within == "nothing", "up to its end: '{}'", within);
    stream->Sync();
    const CommCounters before = comm->counters();
    comm->UnregisterMemory(arena->data());
    comm->Connect(
        {.all_gathers = true, .reduce_scatters = true, .all_reduces = true, .all_to_alls = true});
    rank.report.Expect(comm->counters() == before, "the first exercise was counted");
  });
}

TEST_CASE("abort ends a wait for peers that do not come", "[comm][gpu]") {
  for (const bool captured : {false, true})
    OnPeers([captured](GpuRank& rank) {
      AbortStuckGather(rank, *MakePeer(rank, "stuck", Options()), captured, seconds(5));
    });
}

TEST_CASE("ranks in different calls find it out", "[comm][gpu]") {
  OnPeers([](GpuRank& rank) {
    const auto meet = rank.host.Make(rank.Everyone(), "meet");
    const auto comm = MakePeer(rank, "crossed", Options());
    TestArena arena(rank, {comm.get()}, 1 << 20);
    if (rank.rank() == rank.world() - 1)
      arena.Take(DType::kF32, 64);  // everything behind it elsewhere
    const TensorView full = arena.Take(DType::kF32, rank.world() * 64);
    const TensorView own{full.data + rank.rank() * 256, DenseLayout(DType::kF32, {64})};
    const auto stream = rank.device.MakeStream(StreamRole::kCollectives);
    comm->AllGather(own, full, {}, *stream);
    const std::string health = AwaitTrouble(*comm);
    rank.report.Expect(
        Contains(health, "comm: communicator 'crossed'") && Contains(health, "another collective"),
        "health: '{}'", health);
    meet->Barrier();
    comm->Abort("crossed");
    stream->Sync();
    meet->Barrier();
  });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
