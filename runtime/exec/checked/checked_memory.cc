#include "runtime/exec/checked/checked_memory.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/float16.h"
#include "runtime/base/float8.h"
#include "runtime/base/step_scalars.h"

namespace millrace {
namespace {

// `data` holds the view's bytes, from its first element on.
double ValueAt(const std::byte* data, DType dtype, int64_t element) {
  const std::byte* at = data + element * Bytes(dtype);
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kF64: {
      double value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      const uint32_t wide = static_cast<uint32_t>(bits) << 16;
      float value;
      std::memcpy(&value, &wide, sizeof value);
      return value;
    }
    case DType::kF16: {
      Float16 value;
      std::memcpy(&value, at, sizeof value);
      return ToFloat(value);
    }
    case DType::kE4M3:
    case DType::kE5M2:
      return ValuesOf(dtype)[static_cast<uint8_t>(*at)];
    default:
      return 0;
  }
}

constexpr int64_t kAllLive = std::numeric_limits<int64_t>::max();

// Index in memory order of the first non-finite element below `end`; -1 none.
int64_t FirstNonFinite(const std::byte* data, const Layout& layout, int64_t end) {
  std::array<int64_t, kMaxRank> at{};
  const int64_t numel = layout.numel();
  for (int64_t i = 0; i < numel; ++i) {
    int64_t element = 0;
    for (int d = 0; d < layout.rank; ++d)
      element += at[static_cast<size_t>(d)] * layout.strides[static_cast<size_t>(d)];
    if (element < end && !std::isfinite(ValueAt(data, layout.dtype, element))) return element;
    for (int d = layout.rank - 1; d >= 0; --d) {
      if (++at[static_cast<size_t>(d)] < layout.dims[static_cast<size_t>(d)]) break;
      at[static_cast<size_t>(d)] = 0;
    }
  }
  return -1;
}

}  // namespace

void CheckedMemory::BeginRun(const StepPlan& plan) {
  std::unique_ptr<Shadow>& shadow = shadows_[&plan];
  if (!shadow) shadow = std::make_unique<Shadow>(plan, mesh_, rank_, arena_);
  if (plan_ != &plan) shadow->Reset();
  plan_ = &plan;
  shadow_ = shadow.get();
  schedule_ = nullptr;
  foreign_ = IdVector<BufferId, char>(plan.buffers.size());
  live_ = IdVector<BufferId, int64_t>(plan.buffers.size(), kAllLive);
  scalars_at_ = -1;
  for (const PlanBuffer& buffer : plan.buffers)
    if (IsState(buffer.scope) && buffer.name == "scalars") scalars_at_ = buffer.offsets.front();
}

void CheckedMemory::StartSchedule(int64_t position) {
  schedule_ = &plan_->schedule;
  for (const Entry& entry : plan_->prologue) {
    const Body& body = plan_->body(entry);
    if (body.begin <= position && position < body.end()) schedule_ = &plan_->prologue;
  }
  shadow_->Begin(*schedule_);
  entry_ = 0;
  op_ = -1;
}

bool CheckedMemory::Looks(const PlanOp& op) const {
  if (std::holds_alternative<ZeroRangesOp<View>>(op.op))
    return false;  // outside its ranges the buffer holds nothing yet
  const StepScalars scalars = Scalars();
  return scalars.inject_loss_nan == 0 && scalars.inject_grad_unit < 0;
}

StepScalars CheckedMemory::Scalars() const {
  StepScalars scalars{};
  if (const int64_t at = scalars_at_; at >= 0)
    std::memcpy(&scalars, arena_.Look(at, at + static_cast<int64_t>(sizeof scalars)),
                sizeof scalars);
  return scalars;
}

template <class Wanted>
std::vector<CheckedMemory::Finding> CheckedMemory::Scan(const PlanOp& op, int64_t position,
                                                        int microbatch, Wanted&& wanted) const {
  std::vector<Finding> found;
  const Binding binding{plan_, arena_.base(), mesh_, rank_};
  const int64_t parity = Scalars().token_parity;
  ForEachUse(op.op, [&](const View& view, Access access, std::string_view operand) {
    if (!wanted(access)) return;
    const TensorView bound = BindView(binding, view, position, microbatch);
    const PlanBuffer& buffer = plan_->buffer(view.buffer);
    // A view of two halves is of the first; the kernel reads the one that the step names.
    const int64_t half = buffer.by_parity ? parity * (buffer.bytes / 2) : 0;
    const int64_t at = bound.data - arena_.base() + half;
    const std::byte* data = arena_.Look(at, at + bound.layout.span_bytes());
    const int64_t first = (at - buffer.OffsetAt(position)) / Bytes(view.layout.dtype);
    const int64_t live = live_[view.buffer];
    const int64_t element =
        FirstNonFinite(data, bound.layout, live == kAllLive ? live : live - first);
    if (element < 0) return;
    found.push_back(
        {fmt::format("{} of {} ({}, microbatch {}) is {} in {} at element {}", operand, op.label,
                     OpName(op.op), microbatch, ValueAt(data, bound.layout.dtype, element),
                     buffer.name, first + element),
         view.buffer});
  });
  return found;
}

void CheckedMemory::NoteLive(const PlanOp& op, int64_t position, int microbatch) {
  ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
    if (Writes(access)) live_[view.buffer] = kAllLive;
  });
  const auto note = [&](const auto& typed) {
    using Op = std::decay_t<decltype(typed)>;
    if constexpr (requires { Op::VisitSlots(typed, [](const View&) {}); }) {
      if (!typed.offsets) return;
      const TensorView offsets =
          BindView({plan_, arena_.base(), mesh_, rank_}, typed.offsets, position, microbatch);
      const int64_t end = offsets.data - arena_.base() + offsets.bytes();
      int32_t rows = 0;
      std::memcpy(&rows, arena_.Look(end - static_cast<int64_t>(sizeof rows), end), sizeof rows);
      Op::Visit(typed, [&](const View& written, Access access, std::string_view) {
        if (!written || !Writes(access)) return;
        Op::VisitSlots(typed, [&](const View& slots) {
          if (slots.buffer == written.buffer)
            live_[slots.buffer] = slots.offset + rows * slots.layout.strides[0];
        });
      });
    }
  };
  std::visit(note, op.op);
}

void CheckedMemory::Before(const PlanOp& op, int64_t position, int microbatch) {
  if (schedule_ == nullptr) StartSchedule(position);
  ++op_;
  while (op_ == std::ssize(body().ops)) {
    op_ = 0;
    ++entry_;
    MR_CHECK_LT(static_cast<size_t>(entry_), schedule_->size(), "more ops than the schedule has");
  }
  MR_CHECK_EQ(body().begin + op_, position, "checked execution follows the issue order");
  shadow_->Before(entry_, op_);
  foreign_input_ = false;
  if (!Looks(op)) return;
  // In place, an all-gather reads the rank's own slice only, which a cast has just written; the
  // rest holds nothing yet.
  if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
      gather != nullptr && !gather->shard)
    return;
  for (const Finding& finding :
       Scan(op, position, microbatch, [](Access access) { return Reads(access); })) {
    MR_REQUIRE(ErrorCode::kNonFinite, foreign_[finding.buffer], "rank {}: before it runs, {}",
               rank_, finding.text);
    foreign_input_ = true;
  }
}

void CheckedMemory::After(const PlanOp& op, int64_t position, int microbatch) {
  NoteLive(op, position, microbatch);
  if (Looks(op)) {
    const bool foreign = foreign_input_ || IsCollective(op.op);
    const auto results = [](Access access) {
      return access == Access::kWrite || access == Access::kAccumulate;
    };
    for (const Finding& finding : Scan(op, position, microbatch, results)) {
      MR_REQUIRE(ErrorCode::kNonFinite, foreign, "rank {}: from finite operands, {}", rank_,
                 finding.text);
      foreign_[finding.buffer] = true;
    }
  }
  shadow_->After(entry_, op_);
}

void CheckedMemory::EndRun() {
  if (schedule_ != nullptr) shadow_->End();
}

}  // namespace millrace
