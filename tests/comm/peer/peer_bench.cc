// Times of all-gathers, reduce-scatters and all-reduces over the memory of peers beside NCCL's, by
// size: two markdown tables per call, the second with bus bandwidths.
//
//   mpirun -n 2 peer_bench [--quick]      GPUs as threads of one process: the same without mpirun
//
// A sample is the time of one graph with several calls, divided by their number; the ranks meet on
// the device right before it. Samples of all columns alternate; per sample the slowest rank counts;
// cells are medians. Bytes are those of the full buffer; bus bandwidth is bytes * (W - 1) / W /
// median, of an all-reduce twice that. Results are checked: a cell of a wrong one says so. An
// all-reduce goes as packs where these have room, and in columns of slices never.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "comm/nccl/nccl_check.h"
#include "comm/nccl/nccl_factory.h"
#include "comm/peer/peer_communicator.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_ranks.h"
#include "tests/comm/nccl/round_fill.h"
#include "tests/comm/nccl/timed_event.h"
#include "tests/comm/peer/round_check.h"

namespace millrace::testing {
namespace {

constexpr int64_t kMost = 256 << 20;
constexpr int kWarmUps = 3;

struct Sizes {
  std::vector<int64_t> bytes;
  int samples;
  std::vector<int64_t> all_reduced = {8 << 10, 64 << 10, 256 << 10, 512 << 10, 4 << 20};
};

enum class Call { kGather, kReduce, kAllReduce };

// A communicator and where its operands lie.
struct Way {
  std::string name;
  Communicator* comm = nullptr;
  bool peers = false;  // over the memory of peers
  std::byte* memory = nullptr;
  bool only_gathers = false, rounds = false;  // rounds: gathers f32 shards into bf16
  bool only_all_reduces = false;

  bool Has(Call call, DType dtype) const {
    if (only_gathers) return call == Call::kGather && dtype == DType::kBF16;
    return !only_all_reduces || call == Call::kAllReduce;
  }
};

struct Operands {
  TensorView full, shard, master;
};

Operands OperandsAt(std::byte* memory, DType dtype, int64_t n, int world) {
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  Operands o;
  o.full = {memory, DenseLayout(dtype, {n * world})};
  o.shard = {o.full.data + aligned(o.full.bytes()), DenseLayout(dtype, {n})};
  o.master = {o.shard.data + aligned(o.shard.bytes()), DenseLayout(DType::kF32, {n})};
  return o;
}
int64_t ArenaBytes(int world) { return kMost + 3 * (kMost / world) + (1 << 20); }

class Bench {
 public:
  Bench(GpuRank& rank, const Sizes& sizes)
      : rank_(rank),
        sizes_(sizes),
        stream_(rank.device.MakeStream(StreamRole::kCollectives)),
        words_(rank.device.Allocate(256, "words")),
        round_{words_->data(), DenseLayout(DType::kI64, {1})},
        wrong_{words_->data() + 8, DenseLayout(DType::kI64, {1})} {
    ToDevice(rank, std::vector<int64_t>{3}, round_, *stream_);
    symmetric_options_ = PlainAndSymmetric().back();
    symmetric_ = MakeNcclCommFactory(rank.host, rank.device, symmetric_options_);
    plain_memory_ = rank.nccl.AllocateArena(rank.device, ArenaBytes(rank.world()), "plain");
    symmetric_memory_ =
        symmetric_->AllocateArena(rank.device, ArenaBytes(rank.world()), "symmetric");
    comms_.push_back(rank.nccl.Make(rank.Everyone(), "ring"));
    ways_.push_back({"NCCL", comms_.back().get(), false, plain_memory_->data()});
    comms_.push_back(symmetric_->Make(rank.Everyone(), "symmetric"));
    comms_.back()->RegisterMemory(symmetric_memory_->data(), symmetric_memory_->bytes());
    ways_.push_back({"NCCL symmetric", comms_.back().get(), false, symmetric_memory_->data()});
    for (Way& way : ways_) way.comm->Connect({});
    for (const int blocks : {8, 16, 32}) AddPeer(fmt::format("peer {}", blocks), blocks);
    for (const int blocks : {16, 32}) {
      Way& way = AddPeer(fmt::format("peer from f32 {}", blocks), blocks);
      way.only_gathers = way.rounds = true;
    }
    AddPeer("slices 32", 32, 0).only_all_reduces = true;
    meet_ = ways_[2].comm;
  }

  ~Bench() {
    comms_.front()->Barrier();  // no rank frees what a peer may still have mapped
  }

  void Run(Call call, DType dtype) {
    Table(call, dtype);
    if (rank_.rank() != 0) return;
    const char* const name = call == Call::kReduce   ? "reduce-scatter"
                             : call == Call::kGather ? "all-gather"
                                                     : "all-reduce";
    for (const bool bus : {false, true}) {
      std::printf("\n%s %s, %s\n\n| KiB |", name, std::string(Name(dtype)).c_str(),
                  bus ? "bus GB/s" : "us (p10 median p90)");
      for (const Column& column : columns_) std::printf(" %s |", column.way->name.c_str());
      std::printf("%s\n|--:|", bus ? " best peer / best NCCL, time |" : "");
      for (size_t i = 0; i < columns_.size() + (bus ? 1 : 0); ++i) std::printf("---|");
      std::printf("\n");
      for (size_t s = 0; s < SizesOf(call).size(); ++s) PrintRow(call, s, bus);
    }
    std::fflush(stdout);
  }

 private:
  struct Cell {
    std::vector<double> us;  // sorted
    int64_t bytes = 0, wrong = 0;
    double median() const { return us[us.size() / 2]; }
  };
  struct Column {
    const Way* way = nullptr;
    std::vector<Cell> cells;  // by size
  };

  const std::vector<int64_t>& SizesOf(Call call) const {
    return call == Call::kAllReduce ? sizes_.all_reduced : sizes_.bytes;
  }

  Way& AddPeer(const std::string& name, int blocks,
               int64_t packed_bytes = PeerOptions().packed_bytes) {
    PeerOptions options;
    options.gather_blocks = options.reduce_blocks = options.all_reduce_blocks = blocks;
    options.packed_bytes = packed_bytes;
    options.timeout = symmetric_options_.timeout;
    auto peer =
        MakePeerCommunicator(rank_.host.Make(rank_.Everyone(), name), rank_.device, name, options);
    peer->RegisterMemory(plain_memory_->data(), plain_memory_->bytes());
    comms_.push_back(std::move(peer));
    ways_.push_back({name, comms_.back().get(), true, plain_memory_->data()});
    return ways_.back();
  }

  void Issue(Call call, const Way& way, const Operands& o) {
    if (call == Call::kAllReduce)
      way.comm->AllReduceSum(o.full, {}, *stream_);
    else if (call == Call::kReduce)
      way.comm->ReduceScatterSum(o.full, o.shard, {}, *stream_);
    else if (way.rounds)
      way.comm->AllGather(o.master, o.full, {}, *stream_);
    else
      way.comm->AllGather(o.shard, o.full, {}, *stream_);
  }

  void Fill(Call call, const Operands& o) {
    const cudaStream_t stream = AsCuda(*stream_).get();
    const auto fill = [&](const TensorView& view) {
      LaunchRoundFill(view.dtype(), view.data, view.numel(), rank_.rank(), round_.as<int64_t>(),
                      stream);
    };
    if (call != Call::kGather) {
      fill(o.full);
    } else {
      rank_.device.EnqueueFill(o.full.data, std::byte{0x7f}, o.full.bytes(), *stream_);
      fill(o.shard);
      fill(o.master);
    }
    stream_->Sync();
    comms_.front()->Barrier();  // peers may write from here on
  }

  int64_t Wrong(Call call, const Operands& o) {
    ToDevice(rank_, std::vector<int64_t>{0}, wrong_, *stream_);
    const TensorView& result = call == Call::kReduce ? o.shard : o.full;
    LaunchRoundCheck(call == Call::kGather ? RoundResult::kGathered : RoundResult::kSums,
                     result.dtype(), result.data, result.numel(),
                     call == Call::kAllReduce ? 0 : rank_.rank(), rank_.world(),
                     round_.as<int64_t>(), wrong_.as<unsigned long long>(), AsCuda(*stream_).get());
    return ToHost<int64_t>(rank_, wrong_, *stream_)[0];
  }

  double Sample(Graph& graph, int calls) {
    const cudaStream_t stream = AsCuda(*stream_).get();
    // While the GPU pauses, the host queues all that follows.
    LaunchPause(150, stream);
    const TensorView meeting{plain_memory_->data() + plain_memory_->bytes() - 4096,
                             DenseLayout(DType::kF32, {rank_.world() * int64_t{8}})};
    meet_->AllGather({meeting.data + rank_.rank() * 32, DenseLayout(DType::kF32, {8})}, meeting, {},
                     *stream_);
    MR_CUDA(cudaEventRecord(begin_.get(), stream));
    graph.Launch(*stream_);
    MR_CUDA(cudaEventRecord(end_.get(), stream));
    stream_->Sync();
    float milliseconds = 0;
    MR_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * milliseconds / calls;
  }

  void Table(Call call, DType dtype) {
    columns_.clear();
    for (const Way& way : ways_)
      if (way.Has(call, dtype)) columns_.push_back({&way, {}});
    for (const int64_t bytes : SizesOf(call)) {
      const int64_t n =
          bytes / rank_.world() / Bytes(dtype) / 128 * 128;  // shards as plans align them
      const int calls = bytes >= 64 << 20 ? 4 : 20;
      std::vector<std::unique_ptr<Graph>> graphs;
      for (Column& column : columns_) {
        const Operands o = OperandsAt(column.way->memory, dtype, n, rank_.world());
        Fill(call, o);
        Issue(call, *column.way, o);
        stream_->Sync();
        column.cells.push_back({{}, o.full.bytes(), Wrong(call, o)});
        comms_.front()->Barrier();
        rank_.device.BeginCapture(*stream_);
        for (int i = 0; i < calls; ++i) Issue(call, *column.way, o);
        graphs.push_back(rank_.device.EndCapture(*stream_));
      }
      for (int sample = 0; sample < kWarmUps + sizes_.samples; ++sample)
        for (size_t c = 0; c < columns_.size(); ++c) {
          const double us = Sample(*graphs[c], calls);
          if (sample >= kWarmUps) columns_[c].cells.back().us.push_back(us);
        }
      for (Column& column : columns_) {
        Slowest(column.cells.back());
        if (call == Call::kAllReduce) continue;  // its operand was overwritten again and again
        column.cells.back().wrong +=
            Wrong(call, OperandsAt(column.way->memory, dtype, n, rank_.world()));
      }
      comms_.front()->Barrier();
    }
  }

  void Slowest(Cell& cell) {
    const std::string own(reinterpret_cast<const char*>(cell.us.data()),
                          cell.us.size() * sizeof(double));
    for (const std::string& other : comms_.front()->HostAllGather(own))
      for (size_t i = 0; i < cell.us.size(); ++i) {
        double us = 0;
        std::memcpy(&us, other.data() + i * sizeof(double), sizeof(double));
        cell.us[i] = std::max(cell.us[i], us);
      }
    std::sort(cell.us.begin(), cell.us.end());
  }

  void PrintRow(Call call, size_t size, bool bus) const {
    const double times = call == Call::kAllReduce ? 2e-3 : 1e-3;  // GB/s of bytes per us
    std::printf("| %lld |", static_cast<long long>(columns_[0].cells[size].bytes >> 10));
    double nccl = 1e30, peer = 1e30;
    for (const Column& column : columns_) {
      const Cell& cell = column.cells[size];
      double& best = column.way->peers ? peer : nccl;
      best = std::min(best, cell.median());
      if (cell.wrong != 0)
        std::printf(" WRONG: %lld |", static_cast<long long>(cell.wrong));
      else if (bus)
        std::printf(" %.0f |", static_cast<double>(cell.bytes) * (rank_.world() - 1) /
                                   rank_.world() / cell.median() * times);
      else
        std::printf(" %.1f **%.1f** %.1f |", cell.us[cell.us.size() / 10], cell.median(),
                    cell.us[cell.us.size() * 9 / 10]);
    }
    if (bus) std::printf(" %.2f |", peer / nccl);
    std::printf("\n");
  }

  GpuRank& rank_;
  const Sizes sizes_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<DeviceBuffer> words_;
  const TensorView round_, wrong_;
  NcclOptions symmetric_options_;
  std::unique_ptr<CommFactory> symmetric_;
  std::unique_ptr<DeviceBuffer> plain_memory_, symmetric_memory_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<Way> ways_;
  Communicator* meet_ = nullptr;
  std::vector<Column> columns_;
  const TimedEvent begin_, end_;
};

int BenchAll(const Sizes& sizes) {
  NcclOptions options = PlainAndSymmetric().front();
  RunOnGpus(options, [&](GpuRank& rank) {
    MR_REQUIRE(ErrorCode::kConfig, rank.world() > 1, "peers are compared on at least two GPUs");
    if (rank.rank() == 0)
      std::printf("<!-- %d x %s, NCCL %d -->\n", rank.world(), rank.device.name().c_str(),
                  NcclVersion());
    Bench bench(rank, sizes);
    bench.Run(Call::kGather, DType::kBF16);
    bench.Run(Call::kReduce, DType::kF32);
    bench.Run(Call::kReduce, DType::kBF16);
    bench.Run(Call::kAllReduce, DType::kBF16);
  });
  return 0;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  millrace::testing::Sizes sizes{{64 << 10, 256 << 10, 1 << 20, 4 << 20, 14 << 20, 28 << 20,
                                  64 << 20, 128 << 20, millrace::testing::kMost},
                                 25};
  if (argc > 1 && std::string(argv[1]) == "--quick")
    sizes = {{64 << 10, 1 << 20, 14 << 20, 64 << 20}, 10};
  return millrace::testing::GpuMain(argc, argv, [&] { return millrace::testing::BenchAll(sizes); });
}
