#include "comm/nccl/nccl_connect.h"

#include <vector>

#include "comm/nccl/nccl_check.h"
#include "comm/nccl/nccl_memory.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Whole numbers whose sums are exact in f32 in any order, for worlds of a few hundred ranks.
float Factor(int64_t i) { return static_cast<float>(1 + i % 61); }

class Exercise {
 public:
  Exercise(Communicator& comm, CudaDevice& device, const NcclOptions& options,
           const std::string& label, std::byte* memory, int64_t n)
      : comm_(comm),
        device_(device),
        options_(options),
        label_(label),
        stream_(device.MakeStream(StreamRole::kCollectives)),
        n_(n),
        full_{memory, DenseLayout(DType::kF32, {n * comm.world_size()})},
        shard_{memory + full_.bytes(), DenseLayout(DType::kF32, {n})},
        received_{shard_.data + shard_.bytes(), full_.layout} {}

  void Run(const CommUses& uses) {
    const int64_t first = comm_.rank() * n_;  // of this rank's slice
    const float mine = static_cast<float>(comm_.rank() + 1);
    const int world = comm_.world_size();
    const float all = static_cast<float>(world * (world + 1) / 2);
    if (uses.reduce_scatters) {
      Fill(full_, [&](int64_t i) { return mine * Factor(i); });
      comm_.ReduceScatterSum(full_, shard_, {}, *stream_);
      Compare("reduce_scatter", shard_, [&](int64_t i) { return all * Factor(first + i); });
    }
    if (uses.all_gathers) {
      Fill(shard_, [&](int64_t i) { return mine * Factor(first + i); });
      comm_.AllGather(shard_, full_, {}, *stream_);
      Compare("all_gather", full_,
              [&](int64_t i) { return static_cast<float>(i / n_ + 1) * Factor(i); });
    }
    if (uses.all_reduces) {
      Fill(full_, [&](int64_t i) { return mine * Factor(i); });
      comm_.AllReduceSum(full_, {}, *stream_);
      Compare("all_reduce", full_, [&](int64_t i) { return all * Factor(i); });
    }
    if (uses.all_to_alls) {
      Fill(full_, [&](int64_t i) { return mine * Factor(i); });
      comm_.AllToAll(full_, received_, {}, *stream_);
      Compare("all_to_all", received_,
              [&](int64_t i) { return static_cast<float>(i / n_ + 1) * Factor(first + i % n_); });
    }
  }

 private:
  template <class Fn>  // Fn: index -> value
  void Fill(const TensorView& view, Fn value) {
    std::vector<float> values(static_cast<size_t>(view.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<int64_t>(i));
    device_.CopyFromHost(view.data, values.data(), view.bytes(), *stream_);
  }

  template <class Fn>
  void Compare(const char* what, const TensorView& view, Fn value) {
    // A copy would wait for a collective that never ends; this does not.
    const bool done =
        RunWithin(device_.ordinal(), options_.timeout, [stream = AsCuda(*stream_).get()] {
          MR_CUDA(cudaStreamSynchronize(stream));
          return std::string();
        }).has_value();
    // Else what waits for ever would be waited for when this unwinds.
    if (!done)
      comm_.Abort(fmt::format("a first call has not ended within {} ms", options_.timeout.count()));
    MR_REQUIRE(ErrorCode::kTimeout, done,
               "{} on '{}', rank {}: a first call has not ended within {} ms", what, label_,
               comm_.rank(), options_.timeout.count());
    std::vector<float> values(static_cast<size_t>(view.numel()));
    device_.CopyToHost(values.data(), view.data, view.bytes(), *stream_);
    for (int64_t i = 0; i < view.numel(); ++i)
      MR_REQUIRE(ErrorCode::kComm, values[static_cast<size_t>(i)] == value(i),
                 "{} on '{}', rank {}: element {} of {} is {} instead of {}", what, label_,
                 comm_.rank(), i, view.numel(), values[static_cast<size_t>(i)], value(i));
  }

  Communicator& comm_;
  CudaDevice& device_;
  const NcclOptions& options_;
  const std::string& label_;
  const std::unique_ptr<Stream> stream_;
  const int64_t n_;
  const TensorView full_, shard_, received_;
};

}  // namespace

void ExerciseCollectives(Communicator& comm, CudaDevice& device, const NcclOptions& options,
                         const CommUses& uses, const std::string& label) {
  constexpr int64_t kFew = 64,
                    kMany = 256 * 1024;  // 1 MiB per rank: past the low-latency protocols
  const int64_t bytes = (2 * comm.world_size() + 1) * kMany * static_cast<int64_t>(sizeof(float));
  const std::unique_ptr<DeviceBuffer> memory =
      options.symmetric ? AllocateSymmetric(device, bytes, "first collectives of " + label)
                        : device.Allocate(bytes, "first collectives of " + label);
  comm.RegisterMemory(memory->data(), bytes);
  for (const int64_t n : {kFew, kMany})
    Exercise(comm, device, options, label, memory->data(), n).Run(uses);
  comm.UnregisterMemory(memory->data());
  comm.Barrier();  // no rank frees what a peer may still have mapped
}

}  // namespace millrace
