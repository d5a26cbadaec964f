#include "comm/nccl/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <map>
#include <utility>

#include "comm/launched_bytes.h"
#include "comm/nccl/nccl_check.h"
#include "comm/nccl/nccl_connect.h"
#include "comm/nccl/nccl_fence.h"
#include "comm/nccl/nccl_handle.h"
#include "comm/nccl/nccl_window.h"
#include "comm/operand_checks.h"
#include "comm/process_id.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/gpu_wait.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Operands between windows begin at multiples of this (nccl_communicator.h).
constexpr int64_t kWindowWord = 4;

ncclDataType_t NcclType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    default:
      break;
  }
  MR_FAIL("NCCL is asked to sum {}", Name(dtype));
}

// Rank 0 makes the id of the communicator, the others receive it; a failure of rank 0 fails all.
ncclUniqueId ShareUniqueId(Communicator& host, const std::string& label) {
  ncclUniqueId id{};
  std::string payload;
  if (host.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    payload =
        result == ncclSuccess ? std::string(id.internal, sizeof(id.internal)) : NcclWords(result);
    payload.insert(payload.begin(), result == ncclSuccess ? '+' : '-');
  }
  payload = host.HostBroadcast(payload, 0);
  MR_REQUIRE(ErrorCode::kComm, payload.size() == 1 + sizeof(id.internal) && payload.front() == '+',
             "communicator '{}', rank {}: rank 0 could not make an id: {}", label, host.rank(),
             payload.empty() ? payload : payload.substr(1));
  payload.copy(id.internal, sizeof(id.internal), 1);
  return id;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, CudaDevice& device, const std::string& label,
                   const NcclOptions& options, Log& log)
      : host_(std::move(host)),
        device_(device),
        log_(log),
        options_(options),
        checks_(label, host_->rank(), host_->world_size()),
        rank_(host_->rank()),
        world_(host_->world_size()) {
    if (world_ == 1) return;
    RequireProcesses();
    PrepareNcclEnvironment();
    needs_fence_ = NeedsFence(NcclVersion());
    const ncclUniqueId id = ShareUniqueId(*host_, label);
    handle_ = NcclHandle::Join({device.ordinal(), rank_, world_, label}, id, options);
  }

  ~NcclCommunicator() override {
    if (!handle_) return;
    // Unwinding: the peers do not come to a tear-down.
    if (std::uncaught_exceptions() > exceptions_at_birth_)
      handle_->Abort("destroyed after an error");
    std::vector<ncclWindow_t> windows;
    for (const auto& [base, window] : windows_) windows.push_back(window.handle);
    const std::string trouble = handle_->Destroy(windows);
    if (!trouble.empty()) log_.Warning(LogScope::kThisRank, trouble);
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_; }

  void AllGather(const TensorView& shard, const TensorView& full, const TensorView&,
                 Stream& stream) override {
    const bool in_place = checks_.AllGather(shard, full);
    CheckWords(CommOp::kAllGather, shard, {&shard, &full});
    ++counters_.all_gathers;
    if (shard.bytes() == 0) return;
    if (world_ == 1) {
      if (!in_place) Copy(shard, full, stream);
      return;
    }
    const cudaStream_t cuda = Prepared(stream);
    handle_->Call(Name(CommOp::kAllGather), "ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(shard.data, full.data, static_cast<size_t>(shard.bytes()), ncclUint8,
                           comm, cuda);
    });
    counters_.gathered_bytes += LaunchedShardBytes(world_, shard.bytes());
  }

  void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView&,
                        Stream& stream) override {
    checks_.ReduceScatter(full, shard);
    CheckWords(CommOp::kReduceScatter, shard, {&full, &shard});
    ++counters_.reduce_scatters;
    if (shard.bytes() == 0) return;
    if (world_ == 1) {
      Copy(full, shard, stream);
      return;
    }
    const cudaStream_t cuda = Prepared(stream);
    handle_->Call(Name(CommOp::kReduceScatter), "ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(full.data, shard.data, static_cast<size_t>(shard.numel()),
                               NcclType(shard.dtype()), ncclSum, comm, cuda);
    });
    counters_.reduced_bytes += LaunchedShardBytes(world_, shard.bytes());
  }

  void AllReduceSum(const TensorView& buffer, const TensorView&, Stream& stream) override {
    checks_.AllReduce(buffer);
    CheckWords(CommOp::kAllReduce, {}, {&buffer});
    ++counters_.all_reduces;
    if (buffer.bytes() == 0 || world_ == 1) return;
    const cudaStream_t cuda = Prepared(stream);
    handle_->Call(Name(CommOp::kAllReduce), "ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(buffer.data, buffer.data, static_cast<size_t>(buffer.numel()),
                           NcclType(buffer.dtype()), ncclSum, comm, cuda);
    });
    counters_.all_reduced_bytes +=
        LaunchedAllReduceBytes(world_, buffer.numel(), Bytes(buffer.dtype()));
  }

  void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                Stream& stream) override {
    checks_.AllToAll(sent, received, live);
    ++counters_.all_to_alls;
    if (sent.bytes() == 0) return;
    if (world_ == 1) return Copy(sent, received, stream);
    const cudaStream_t cuda = Prepared(stream);
    const int64_t bytes = sent.bytes() / world_;
    handle_->Call(Name(CommOp::kAllToAll), "ncclSend and ncclRecv", [&](ncclComm_t comm) {
      const auto count = static_cast<size_t>(bytes);
      ncclResult_t result = ncclGroupStart();
      for (int r = 0; r < world_ && result == ncclSuccess; ++r) {
        result = ncclSend(sent.data + r * bytes, count, ncclUint8, r, comm, cuda);
        if (result == ncclSuccess)
          result = ncclRecv(received.data + r * bytes, count, ncclUint8, r, comm, cuda);
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
    counters_.exchanged_bytes += LaunchedShardBytes(world_, bytes);
  }

  std::vector<std::string> HostAllGather(const std::string& payload) override {
    return host_->HostAllGather(payload);
  }
  std::string HostBroadcast(const std::string& payload, int root) override {
    return host_->HostBroadcast(payload, root);
  }
  void HostAllToAll(std::span<const SendPiece> sent, std::span<const RecvPiece> received) override {
    host_->HostAllToAll(sent, received);
  }
  void Barrier() override { host_->Barrier(); }

  const CommCounters& counters() const noexcept override { return counters_; }

  void RegisterMemory(std::byte* base, int64_t bytes) override {
    if (!handle_ || !options_.symmetric) return;
    MR_REQUIRE(ErrorCode::kInvalidArgument, windows_.count(base) == 0,
               "communicator '{}', rank {}: memory at {} is registered already", checks_.label(),
               rank_, static_cast<const void*>(base));
    const ncclWindow_t window = RegisterWindow(*handle_, *host_, checks_.label(), base, bytes);
    windows_[base] = {window, bytes};  // not in one expression: no entry for what has been refused
  }

  void UnregisterMemory(std::byte* base) noexcept override {
    const auto found = windows_.find(base);
    if (found == windows_.end()) return;
    const ncclWindow_t window = found->second.handle;
    windows_.erase(found);
    try {
      handle_->CallBlocking("unregister", "ncclCommWindowDeregister", [window](ncclComm_t comm) {
        MR_CUDA(WaitForGpu());  // unmaps the peers' memory
        return ncclCommWindowDeregister(comm, window);
      });
    } catch (const std::exception& error) {
      log_.Warning(LogScope::kThisRank, error.what());
    }
  }

  void Connect(const CommUses& uses) override {
    if (!handle_) return;
    const CommCounters before = counters_;
    ExerciseCollectives(*this, device_, options_, uses, checks_.label());
    counters_ = before;
  }

  void CheckHealth() const override {
    if (handle_) handle_->CheckHealth();
    host_->CheckHealth();
  }

  void Abort(const std::string& reason) noexcept override {
    if (handle_) handle_->Abort(reason);
    host_->Abort(reason);
  }

 private:
  void RequireProcesses() {
    const std::string why = WhyNotProcesses(host_->HostAllGather(std::to_string(ProcessId())));
    MR_REQUIRE(ErrorCode::kConfig, why.empty() || options_.threads == RankThreads::kAllow,
               "communicator '{}': {}", checks_.label(), why);
  }

  void Copy(const TensorView& from, const TensorView& to, Stream& stream) {
    MR_CUDA(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()),
                            cudaMemcpyDeviceToDevice, AsCuda(stream).get()));
  }

  bool InWindow(const TensorView& view) const {
    const auto after = windows_.upper_bound(view.data);
    if (after == windows_.begin()) return false;
    const auto& [base, window] = *std::prev(after);
    return view.data < base + window.bytes;
  }

  // Slices of `slice`'s size follow each other in the full buffer; none for an all-reduce. The same
  // verdict on every rank, since offsets and sizes are the same.
  void CheckWords(CommOp op, const TensorView& slice,
                  std::initializer_list<const TensorView*> operands) const {
    if (!std::all_of(operands.begin(), operands.end(), [&](const TensorView* operand) {
          return operand->bytes() > 0 && InWindow(*operand);
        }))
      return;
    MR_REQUIRE(ErrorCode::kInvalidArgument, !slice || slice.bytes() % kWindowWord == 0,
               "{} on '{}': slices of {} bytes between windows; multiples of {} bytes are allowed",
               Name(op), checks_.label(), slice.bytes(), kWindowWord);
    for (const TensorView* operand : operands)
      MR_REQUIRE(ErrorCode::kInvalidArgument,
                 reinterpret_cast<uintptr_t>(operand->data) % kWindowWord == 0,
                 "{} on '{}': an operand at {} in a window; addresses that are multiples of {} "
                 "bytes are allowed",
                 Name(op), checks_.label(), static_cast<const void*>(operand->data), kWindowWord);
  }

  // The stream for NCCL, fenced when its kernels would overtake ours.
  cudaStream_t Prepared(Stream& stream) {
    CudaStream& cuda = AsCuda(stream);
    MR_CHECK_EQ(cuda.device().ordinal(), device_.ordinal(),
                "communicator '{}' is given a stream of another GPU", checks_.label());
    if (needs_fence_ && !windows_.empty()) LaunchFence(cuda.get());
    return cuda.get();
  }

  struct Window {
    ncclWindow_t handle = nullptr;
    int64_t bytes = 0;
  };

  const std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  Log& log_;
  const NcclOptions options_;
  const OperandChecks checks_;
  const int rank_;
  const int world_;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  bool needs_fence_ = false;
  std::shared_ptr<NcclHandle> handle_;          // null at world 1
  std::map<const std::byte*, Window> windows_;  // by their base
  CommCounters counters_;
};

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(std::unique_ptr<Communicator> host,
                                                   CudaDevice& device, const std::string& label,
                                                   const NcclOptions& options, Log& log) {
  return std::make_unique<NcclCommunicator>(std::move(host), device, label, options, log);
}

}  // namespace millrace
