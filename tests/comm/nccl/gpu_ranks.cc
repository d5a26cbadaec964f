#include "tests/comm/nccl/gpu_ranks.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/local/run_ranks.h"
#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "comm/nccl/nccl_factory.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kLongestCase(5);

MpiRuntime* mpi = nullptr;  // of main(), when mpirun started it

// When the running case is too late, as time since the clock's epoch; 0: none runs.
std::atomic<int64_t> deadline = 0;

void EndWhatHangs() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const int64_t late = deadline;
    if (late == 0 || Clock::now().time_since_epoch().count() < late) continue;
    std::fprintf(stderr, "a test case has not ended within %d minutes\n",
                 static_cast<int>(kLongestCase.count()));
    _exit(71);
  }
}

class Deadline {
 public:
  Deadline() { deadline = (Clock::now() + kLongestCase).time_since_epoch().count(); }
  ~Deadline() { deadline = 0; }
};

// A host communicator whose Abort does nothing: MPI's would end the processes, a
// LocalWorld's all its groups.
class Surviving final : public Communicator {
 public:
  explicit Surviving(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const noexcept override { return inner_->rank(); }
  int world_size() const noexcept override { return inner_->world_size(); }
  void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                 Stream& stream) override {
    inner_->AllGather(shard, full, scratch, stream);
  }
  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView& scratch,
                        Stream& stream) override {
    inner_->ReduceScatterSum(full, shard, scratch, stream);
  }
  void AllReduceSum(const TensorView& buffer, const TensorView& scratch, Stream& stream) override {
    inner_->AllReduceSum(buffer, scratch, stream);
  }
  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream& stream) override {
    inner_->AllToAll(sent, received, live, stream);
  }
  std::vector<std::string> HostAllGather(const std::string& payload) override {
    return inner_->HostAllGather(payload);
  }
  std::string HostBroadcast(const std::string& payload, int root) override {
    return inner_->HostBroadcast(payload, root);
  }
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    inner_->HostAllToAll(sent, received);
  }
  void Barrier() override { inner_->Barrier(); }
  const CommCounters& counters() const noexcept override { return inner_->counters(); }
  void CheckHealth() const override { inner_->CheckHealth(); }
  void Abort(const std::string&) noexcept override {}

 private:
  const std::unique_ptr<Communicator> inner_;
};

class SurvivingFactory final : public CommFactory {
 public:
  explicit SurvivingFactory(CommFactory& inner) : inner_(inner) {}
  int rank() const noexcept override { return inner_.rank(); }
  int world_size() const noexcept override { return inner_.world_size(); }
  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    return std::make_unique<Surviving>(inner_.Make(ranks, label));
  }

 private:
  CommFactory& inner_;
};

void RunRank(CommFactory& transport, int gpu, const NcclOptions& options, Report& report,
             const std::function<void(GpuRank& rank)>& fn) {
  SurvivingFactory host(transport);
  CudaDevice device(gpu);
  NcclOptions allowing = options;
  allowing.threads = mpi == nullptr ? RankThreads::kAllow : RankThreads::kRefuse;
  const std::unique_ptr<CommFactory> nccl = MakeNcclCommFactory(host, device, allowing);
  GpuRank rank{host, *nccl, device, report};
  const auto meet = host.Make(rank.Everyone(), "tear-down");
  fn(rank);
  meet->Barrier();  // threads: the last rank to destroy a communicator frees this GPU's part, too
}

void RunProcess(const NcclOptions& options, Report& report,
                const std::function<void(GpuRank& rank)>& fn) {
  try {
    const std::unique_ptr<CommFactory> transport = MakeMpiCommFactory(*mpi);
    RunRank(*transport, OnOneGpu() ? 0 : mpi->node_rank(), options, report, fn);
  } catch (const std::exception& error) {
    mpi->Abort(error.what());  // the other ranks wait
  }
}

int Gpus() {
  int count = 0;
  MR_CUDA(cudaGetDeviceCount(&count));
  return count;
}

}  // namespace

std::vector<int> GpuRank::Everyone() const {
  std::vector<int> ranks(static_cast<size_t>(world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int GpuWorld() {
  if (mpi != nullptr) return mpi->world_size();
  const char* ranks = std::getenv("MILLRACE_TEST_RANKS");
  return ranks == nullptr ? Gpus() : std::atoi(ranks);
}

bool OnOneGpu() {
  const char* one = std::getenv("MILLRACE_TEST_ONE_GPU");
  return one != nullptr && std::string_view(one) == "1";
}

std::vector<NcclOptions> PlainAndSymmetric() {
  NcclOptions plain;
  plain.timeout = std::chrono::seconds(60);
  plain.threads = mpi == nullptr ? RankThreads::kAllow : RankThreads::kRefuse;
  NcclOptions symmetric = plain;
  symmetric.symmetric = true;
  return {plain, symmetric};
}

std::vector<RankReport> RunOnGpus(const NcclOptions& options,
                                  const std::function<void(GpuRank& rank)>& fn) {
  const Deadline limit;
  if (mpi != nullptr) {
    std::vector<RankReport> reports(1);
    reports[0].rank = mpi->rank();
    RunProcess(options, reports[0].report, fn);
    return reports;
  }
  LocalWorld world(GpuWorld(), {.timeout = std::chrono::seconds(120)});
  std::vector<RankReport> reports(static_cast<size_t>(world.world_size()));
  RunRanks(world, [&](CommFactory& transport) {
    RankReport& own = reports[static_cast<size_t>(transport.rank())];
    own.rank = transport.rank();
    RunRank(transport, OnOneGpu() ? 0 : own.rank, options, own.report, fn);
  });
  return reports;
}

TestArena::TestArena(GpuRank& rank, std::vector<Communicator*> comms, int64_t bytes)
    : comms_(std::move(comms)), memory_(rank.nccl.AllocateArena(rank.device, bytes, "test arena")) {
  for (Communicator* comm : comms_) comm->RegisterMemory(memory_->data(), bytes);
}

TestArena::~TestArena() {
  for (Communicator* comm : comms_) comm->UnregisterMemory(memory_->data());
}

TensorView TestArena::Take(DType dtype, int64_t n) {
  const TensorView view{memory_->data() + taken_, DenseLayout(dtype, {n})};
  taken_ += (view.bytes() + 255) / 256 * 256;
  MR_CHECK_LE(taken_, memory_->bytes(), "the test arena is too small");
  return view;
}

int GpuMain(int argc, char** argv, const std::function<int()>& body) {
  std::thread(EndWhatHangs).detach();
  std::unique_ptr<MpiRuntime> runtime;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr)
    runtime = std::make_unique<MpiRuntime>(&argc, &argv);
  mpi = runtime.get();
  try {
    return body();
  } catch (const std::exception& error) {
    if (runtime) runtime->Abort(error.what());
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace millrace::testing
