#include "runtime/exec/gathered_blocks.h"

#include <algorithm>
#include <vector>

#include "comm/comm_set.h"
#include "comm/communicator.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

bool IsShared(const ShardLayout& layout, const FlatParam& flat) {
  return layout.mesh.Size(flat.holders()) > 1;
}

// Runs that are equally long and equally far apart in both places, as the lines of one block.
class BlockOfRuns {
 public:
  // values: where element 0 of the runs' shard would lie.
  BlockOfRuns(const std::byte* values, const std::function<void(const ParamBlock&)>& f)
      : values_(values), f_(f) {}

  void Add(const ParamRun& run) {
    const int64_t local = run.local - first_.local, logical = run.logical - first_.logical;
    const bool alike = lines_ > 0 && run.param == first_.param && run.numel == first_.numel;
    if (alike && lines_ == 1) {
      local_ = local, logical_ = logical;
    } else if (!alike || local != lines_ * local_ || logical != lines_ * logical_) {
      Flush();
      first_ = run, local_ = logical_ = run.numel;
    }
    ++lines_;
  }
  void Flush() {
    if (lines_ == 0) return;
    TensorView values{const_cast<std::byte*>(values_) + first_.local * Bytes(DType::kF32),
                      DenseLayout(DType::kF32, {lines_, first_.numel})};
    values.layout.strides[0] = local_;
    f_({first_.param, first_.logical, logical_, values});
    lines_ = 0;
  }

 private:
  const std::byte* const values_;
  const std::function<void(const ParamBlock&)>& f_;
  ParamRun first_{};
  int64_t lines_ = 0, local_ = 0, logical_ = 0;  // from line to line
};

}  // namespace

GatheredBlocks::GatheredBlocks(Engine& engine, int64_t piece_bytes) : engine_(engine) {
  const ShardLayout& layout = engine.layout();
  const int64_t of_each = layout.mesh.world() * Bytes(DType::kF32);  // ranks' elements
  for (const FlatId id : layout.flat_ids())
    if (IsShared(layout, layout.flat(id))) most_ = std::max(most_, layout.flat(id).shard_numel);
  most_ = std::min(most_, std::max<int64_t>(piece_bytes / of_each, 1));
  if (most_ > 0)
    gathered_ = engine.device().Allocate(most_ * of_each, "pieces of all ranks' shards");
}

void GatheredBlocks::ForEach(std::string_view slot,
                             const std::function<void(const ParamBlock&)>& f) {
  const ShardLayout& layout = engine_.layout();
  for (const FlatId id : layout.flat_ids()) {
    const FlatParam& flat = layout.flat(id);
    if (!flat.Keeps(slot)) continue;
    const TensorView shard = engine_.ShardView(slot, id);
    MR_CHECK(shard.dtype() == DType::kF32, "{} of {} is {}", slot, flat.name, Name(shard.dtype()));
    if (IsShared(layout, flat)) {
      Gather(flat, shard, f);
      continue;
    }
    BlockOfRuns block(shard.data, f);
    for (const ParamId param : flat.params)
      ForEachRun(layout, param, engine_.comms().world().rank(),
                 [&](const ParamRun& run) { block.Add(run); });
    block.Flush();
  }
}

void GatheredBlocks::Gather(const FlatParam& flat, const TensorView& shard,
                            const std::function<void(const ParamBlock&)>& f) {
  const ShardLayout& layout = engine_.layout();
  Communicator& world = engine_.comms().world();
  const int64_t size = Bytes(DType::kF32), ranks = world.world_size();
  const std::vector<int> holders = layout.mesh.Group(world.rank(), flat.holders());
  for (int64_t begin = 0; begin < flat.shard_numel; begin += most_) {
    const int64_t n = std::min(most_, flat.shard_numel - begin);
    world.AllGather({shard.data + begin * size, DenseLayout(DType::kF32, {n})},
                    {gathered_->data(), DenseLayout(DType::kF32, {ranks * n})}, {},
                    engine_.stream(StreamId::kCompute));
    for (const int rank : holders) {
      BlockOfRuns block(gathered_->data() + (rank * n - begin) * size, f);
      for (const ParamId param : flat.params)
        ForEachRun(layout, param, rank, [&](ParamRun run) {
          const int64_t ahead = std::max<int64_t>(begin - run.local, 0);
          run.local += ahead, run.logical += ahead;
          run.numel = std::min(run.numel - ahead, begin + n - run.local);
          if (run.numel > 0) block.Add(run);
        });
      block.Flush();
    }
  }
}

}  // namespace millrace
