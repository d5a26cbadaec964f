#include "runtime/plan/cost/program_floor.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/cost/cost_model.h"

namespace millrace {
namespace {

// Microbatches that are walked; of further ones only the compute stream's own time counts.
constexpr int kWalked = 4;
// Of the time that the power cap asks for.
constexpr double kCapped = 0.999;

struct ByteSpan {
  int64_t begin = 0, end = 0;
};

struct FloorOp {
  double seconds = 0, heat = 0;
  bool exchange = false;  // issued to the stream of exchanges
  bool apart = false;     // may run on a stream of neither
  std::vector<std::pair<BufferId, ByteSpan>> reads, writes;
};

class Walk {
 public:
  explicit Walk(const FloorInput& in) : in_(in), costs_(in.mesh, in.machine) {
    for (const std::vector<ProgramOp>* ops : {&in.program.forward, &in.program.backward})
      for (const ProgramOp& op : *ops) ops_.push_back(Of(op));
  }

  double Seconds() const {
    double compute = 0, heat = 0;
    for (const FloorOp& op : ops_) {
      if (!op.exchange && !op.apart) compute += op.seconds;
      heat += op.heat;
    }
    const int walked = std::min(in_.accumulate, kWalked);
    return std::max(Microbatches(walked) + (in_.accumulate - walked) * compute,
                    in_.accumulate * heat * kCapped);
  }

 private:
  struct Written {
    ByteSpan bytes;
    double end = 0;
  };

  // When the last op has ended.
  double Microbatches(int count) const {
    std::array<double, 2> free = {0, 0};  // of compute and of exchanges
    double last = 0;
    for (int m = 0; m < count; ++m) {
      IdVector<BufferId, std::vector<Written>> written(in_.program.buffers.size());
      for (const FloorOp& op : ops_) {
        double begin = op.apart ? 0 : free[op.exchange ? 1 : 0];
        for (const auto& [buffer, bytes] : op.reads)
          for (const Written& by : written[buffer])
            if (by.bytes.begin < bytes.end && bytes.begin < by.bytes.end)
              begin = std::max(begin, by.end);
        const double end = begin + op.seconds;
        for (const auto& [buffer, bytes] : op.writes) written[buffer].push_back({bytes, end});
        if (!op.apart) free[op.exchange ? 1 : 0] = end;
        last = std::max(last, end);
      }
    }
    return last;
  }

  FloorOp Of(const ProgramOp& op) {
    FloorOp floor;
    floor.exchange = op.strip >= 0 || IsCollective(op.op);
    KernelOp priced = op.op;
    ForEachView(priced, [&](View& view, Update*, std::string_view) {
      if (!FormsGradient(view)) return;
      if (Bytes(in_.gradients) < Bytes(view.layout.dtype)) view.layout.dtype = in_.gradients;
      floor.apart = floor.apart || in_.weight_gradients_apart;
    });
    ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
      const int64_t begin = view.FirstOn(in_.mesh, 0) * Bytes(view.layout.dtype);
      const std::pair touched{view.buffer, ByteSpan{begin, begin + view.layout.span_bytes()}};
      if (Reads(access)) floor.reads.push_back(touched);
      if (Writes(access)) floor.writes.push_back(touched);
    });
    // What is exchanged along the axes that shard and copy parameters depends on their sizes.
    if (OverShards(priced)) return floor;
    const OpEstimate estimate = costs_.Of(priced);
    floor.seconds = estimate.seconds + (estimate.wire_bytes == 0 ? in_.machine.op_gap : 0);
    floor.heat = estimate.heat;
    return floor;
  }

  bool FormsGradient(const View& view) const {
    return in_.program.buffer(view.buffer).role == ProgramRole::kParamGrad;
  }

  static bool OverShards(const KernelOp& op) {
    return std::visit(
        [](const auto& typed) {
          if constexpr (requires { typed.axes; })
            return typed.axes.Has(Axis::kShard) || typed.axes.Has(Axis::kReplicate);
          return false;
        },
        op);
  }

  const FloorInput& in_;
  CostModel costs_;
  std::vector<FloorOp> ops_;  // of a microbatch, in order of issue
};

int64_t MostActivationBytes(const Program& program) {
  struct Life {
    int64_t first = -1, last = -1;
  };
  IdVector<BufferId, Life> lives(program.buffers.size());
  int64_t position = 0;
  for (const std::vector<ProgramOp>* ops : {&program.forward, &program.backward})
    for (const ProgramOp& op : *ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        Life& life = lives[view.buffer];
        if (life.first < 0) life.first = position;
        life.last = position;
      });
      ++position;
    }
  std::vector<int64_t> change(static_cast<size_t>(position) + 1);
  for (const BufferId b : lives.ids()) {
    const ProgramBuffer& buffer = program.buffer(b);
    if (buffer.role != ProgramRole::kActivation || lives[b].first < 0) continue;
    const int64_t bytes = buffer.layout.numel() * Bytes(buffer.layout.dtype);
    change[static_cast<size_t>(lives[b].first)] += bytes;
    change[static_cast<size_t>(lives[b].last) + 1] -= bytes;
  }
  int64_t live = 0, most = 0;
  for (const int64_t by : change) most = std::max(most, live += by);
  return most;
}

}  // namespace

ProgramFloor FloorOf(const FloorInput& input) {
  return {Walk(input).Seconds(), MostActivationBytes(input.program)};
}

}  // namespace millrace
