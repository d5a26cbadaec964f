#include "runtime/plan/step_plan.h"

#include <fmt/format.h>  // format_to; libfmt has it by g++'s name alone, which clang's is not

#include <algorithm>
#include <iterator>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"

namespace millrace {

std::string_view Name(BufferClass cls) {
  switch (cls) {
    case BufferClass::kParameters:
      return "parameters";
    case BufferClass::kGradients:
      return "gradients";
    case BufferClass::kOptimizer:
      return "optimizer";
    case BufferClass::kActivations:
      return "activations";
    case BufferClass::kWorkspaces:
      return "workspaces";
    case BufferClass::kSlots:
      return "slots";
    case BufferClass::kRuntime:
      return "runtime";
  }
  return "?";
}

std::string_view Name(Variant variant) {
  switch (variant) {
    case Variant::kOnly:
      return "only";
    case Variant::kFirst:
      return "first";
    case Variant::kMiddle:
      return "middle";
    case Variant::kLast:
      return "last";
  }
  return "?";
}

namespace {

std::string_view Name(BufferScope scope) {
  switch (scope) {
    case BufferScope::kPersistent:
      return "persistent";
    case BufferScope::kEra:
      return "era";
    case BufferScope::kStep:
      return "step";
    case BufferScope::kMicrobatch:
      return "microbatch";
    case BufferScope::kCarried:
      return "carried";
  }
  return "?";
}

// Of a place in a group: "", or by how many neighbours it is divided.
std::string AlikeText(int alike) { return alike == 1 ? "" : fmt::format("/{}", alike); }

std::string Describe(const View& view, const StepPlan& plan) {
  std::string text = plan.buffer(view.buffer).name;
  if (view.offset != 0) text += fmt::format("+{}", view.offset);
  if (view.rank_stride != 0)
    text += fmt::format("+{}_rank{}*{}", ToString(view.rank_axes), AlikeText(view.rank_alike),
                        view.rank_stride);
  if (view.microbatch_stride != 0) text += fmt::format("+microbatch*{}", view.microbatch_stride);
  return text + ":" + ToString(view.layout);
}

// "[0,64)[128,130)"; "none".
std::string RangesText(const std::vector<Range>& ranges) {
  std::string text;
  for (const Range& range : ranges) text += fmt::format("[{},{})", range.begin, range.end);
  return text.empty() ? "none" : text;
}

std::string RunsText(const std::vector<LogicalRun>& runs) {
  std::string text;
  for (const LogicalRun& run : runs)
    text += fmt::format("[{},{}):{}/{}+{}+{}*place:{:016x}", run.begin, run.end, run.length,
                        run.stride, run.first, run.step, run.key);
  for (const LogicalRun& run : runs)
    if (run.inner > 0) text += fmt::format("({}x{})", run.outer_step, run.inner);
  return text;
}

std::string SegmentsText(const std::vector<UpdateSegment>& segments) {
  std::string text;
  for (const UpdateSegment& s : segments)
    text += fmt::format("[{}:lr*{} wd={} {},{} eps={}]", s.begin, s.lr_scale, s.weight_decay,
                        s.beta1, s.beta2, s.eps);
  return text;
}

std::string SeamText(const Seam& seam, const StepPlan& plan) {
  const auto names = [&](const std::vector<BufferId>& ids) {
    std::string text;
    for (const BufferId id : ids) text += " " + plan.buffer(id).name;
    return text.empty() ? " nothing" : text;
  };
  return fmt::format("reads{} defines{}", names(seam.reads), names(seam.defines));
}

// Attributes of ops, by what these do; an op adds those that it has.

// Of products: what they read, add and round.
template <class Op, class Add>
void AddProduct(const Op& typed, const Add& add) {
  if constexpr (requires { typed.epilogue; })
    add(fmt::format("epilogue={}", static_cast<int>(typed.epilogue)));
  if constexpr (requires { typed.rounding; })
    if (typed.rounding == Rounding::kOnce) add("rounding=once");
  if constexpr (requires { typed.staged_bytes; })
    if (typed.staged_bytes > 0) add(fmt::format("staged={}", typed.staged_bytes));
  if constexpr (requires { typed.like_rows; })
    if (typed.like_rows > 0) add(fmt::format("like_rows={}", typed.like_rows));
  if constexpr (requires { typed.like_columns; })
    if (typed.like_columns > 0) add(fmt::format("like_columns={}", typed.like_columns));
  if constexpr (requires { typed.in_order; })
    if (typed.in_order) add("in_order");
  if constexpr (requires { typed.pitch; })
    add(fmt::format("pitch={} first={} begin={}", typed.pitch, typed.first, typed.begin.base));
  if constexpr (requires { typed.a_scales; })
    if (typed.scaling != Scaling::kNone)
      add(fmt::format("scaling={}", static_cast<int>(typed.scaling)));
  if constexpr (requires { typed.scale_rounding; })
    add(fmt::format("scale_rounding={}", static_cast<int>(typed.scale_rounding)));
  if constexpr (requires { typed.activation; })
    if (typed.activation) add(fmt::format("activation={}", static_cast<int>(*typed.activation)));
}

// Of norms, rotations, attention and scans.
template <class Op, class Add>
void AddRows(const Op& typed, const Add& add) {
  if constexpr (requires { typed.kind; }) add(fmt::format("kind={}", static_cast<int>(typed.kind)));
  if constexpr (requires { typed.direction; })
    add(fmt::format("direction={}", static_cast<int>(typed.direction)));
  if constexpr (requires { typed.eps; }) add(fmt::format("eps={}", typed.eps));
  if constexpr (requires { typed.scale; }) add(fmt::format("scale={}", typed.scale));
  if constexpr (requires { typed.states; })
    add(fmt::format("groups={} states={} chunk={} length={}", typed.groups, typed.states,
                    typed.chunk, typed.length));
  if constexpr (requires {
                  typed.kv_heads;
                  typed.length;
                })
    add(fmt::format("window={} kv_heads={} length={}", typed.window, typed.kv_heads, typed.length));
  if constexpr (requires { typed.rows_from; })
    if (typed.rows_from == RowsFrom::kOneSequence) add("rows_from=one_sequence");
  if constexpr (requires { typed.finish; })
    add(fmt::format("norm={} finish={} turned={} constant={}", static_cast<int>(typed.norm),
                    static_cast<int>(typed.finish), typed.turned, typed.constant));
  if constexpr (requires { typed.theta; })
    add(fmt::format("theta={} scaling={}/{}/{}/{}", typed.theta, typed.scaling.factor,
                    typed.scaling.low_freq_factor, typed.scaling.high_freq_factor,
                    typed.scaling.original_max_position_embeddings));
}

// Of losses and statistics.
template <class Op, class Add>
void AddLoss(const Op& typed, const Add& add) {
  if constexpr (requires { typed.row_begin; })
    if constexpr (requires { typed.vocab; })
      add(fmt::format("row_begin={} vocab={}", typed.row_begin.base, typed.vocab));
  if constexpr (requires { typed.loss_weight; })
    if (typed.loss_weight != 1) add(fmt::format("loss_weight={}", typed.loss_weight));
  if constexpr (requires { typed.losses; })
    if (typed.losses != LossWeights{})
      add(fmt::format("losses={}", fmt::join(typed.losses.weight,
                                             typed.losses.weight + typed.losses.count, ",")));
  if constexpr (requires { typed.output; })
    add(fmt::format("output={}", static_cast<int>(typed.output)));
  if constexpr (requires { typed.parity_stride; })
    add(fmt::format("parity_stride={}", typed.parity_stride));
  if constexpr (requires { typed.values_parity_stride; })
    if (typed.values_parity_stride > 0)
      add(fmt::format("values_parity_stride={}", typed.values_parity_stride));
  if constexpr (requires { typed.policy; })
    if (typed.advantages)
      add(fmt::format("clip={},{} kl={}", typed.policy.clip_low, typed.policy.clip_high,
                      typed.policy.kl));
}

// Of gradients on their way to the update.
template <class Op, class Add>
void AddGradient(const Op& typed, const Add& add) {
  if constexpr (requires { typed.deterministic; })
    if (!typed.deterministic) add("deterministic=0");
  if constexpr (requires { typed.ranges; }) add("ranges=" + RangesText(*typed.ranges));
  if constexpr (requires { typed.inject_index; })
    add(fmt::format("unit={} inject_index={}", typed.unit, typed.inject_index));
  if constexpr (requires { typed.shard_world; })
    add(fmt::format("units={} shard_world={}", typed.units, typed.shard_world));
}

// Of updates.
template <class Op, class Add>
void AddUpdate(const Op& typed, const Add& add) {
  if constexpr (requires { typed.decay; })
    add(fmt::format("betas={},{} weight_decay={} decay={}", typed.beta1, typed.beta2,
                    typed.weight_decay, RangesText(*typed.decay)));
  if constexpr (requires { typed.momentum; })
    add(fmt::format("momentum={} nesterov={:d}", typed.momentum, typed.nesterov));
  if constexpr (requires { typed.alpha; })
    if (typed.alpha != 1 || typed.beta != 0)
      add(fmt::format("alpha={} beta={}", typed.alpha, typed.beta));
  if constexpr (requires { typed.lr_scale; })
    add(fmt::format("lr_scale={} weight_decay={}", typed.lr_scale, typed.weight_decay));
  if constexpr (requires { typed.segments; })
    if (typed.segments) add("segments=" + SegmentsText(*typed.segments));
  if constexpr (requires { typed.shard_axes; }) add("shards=" + ToString(typed.shard_axes));
  if constexpr (requires { typed.split_axes; })
    if (!typed.split_axes.empty()) add("split=" + ToString(typed.split_axes));
  if constexpr (requires { typed.exchange_axes; })
    if (!typed.exchange_axes.empty()) add("exchange=" + ToString(typed.exchange_axes));
  if constexpr (requires { typed.runs; })
    if (typed.runs) add("runs=" + RunsText(*typed.runs));
  if constexpr (requires { typed.encoding; }) add("encoding=" + ToString(*typed.encoding));
}

// Of routers, the step as a whole, and collectives.
template <class Op, class Add>
void AddRest(const Op& typed, const Add& add) {
  if constexpr (requires { typed.gate; })
    if (typed.gate != GateKind::kRouter) add(fmt::format("gate={}", Name(typed.gate)));
  if constexpr (requires { typed.rate; })
    add(fmt::format("rate={} pairs={} experts={}", typed.rate, typed.pairs, typed.experts));
  if constexpr (requires { typed.schedule; })
    add(fmt::format("schedule={} lr={} min_lr={} warmup={} decay={} total={}",
                    static_cast<int>(typed.schedule.kind), typed.schedule.lr, typed.schedule.min_lr,
                    typed.schedule.warmup, typed.schedule.decay_steps, typed.schedule.total_steps));
  if constexpr (requires { typed.scaling.init_scale; })
    if (typed.scaling.init_scale > 0)
      add(fmt::format("loss_scale={} growth={} backoff={} interval={}", typed.scaling.init_scale,
                      typed.scaling.growth_factor, typed.scaling.backoff_factor,
                      typed.scaling.growth_interval));
  if constexpr (requires { typed.clip; }) add(fmt::format("clip={}", typed.clip));
  if constexpr (requires { typed.rows.ranks; })
    if (typed.rows.split()) add(fmt::format("context={}", typed.rows.ranks));
  if constexpr (requires { typed.axes; }) add("axes=" + ToString(typed.axes));
  ForEachRankInt(typed, [&](const RankInt& integer, std::string_view name) {
    if (integer.stride == 0) return;  // its base is that of row_begin above, or zero
    add(fmt::format("{}={}+{}_rank{}*{}", name, integer.base, ToString(integer.axes),
                    AlikeText(integer.alike), integer.stride));
  });
}

}  // namespace

// All of them, since ranks and checkpoints are compared by the hash of this text; in this order.
std::string AttributesText(const KernelOp& op) {
  std::string text;
  const auto add = [&](const std::string& item) { text += " " + item; };
  std::visit(
      [&](const auto& typed) {
        AddProduct(typed, add);
        AddRows(typed, add);
        AddLoss(typed, add);
        AddGradient(typed, add);
        AddUpdate(typed, add);
        AddRest(typed, add);
      },
      op);
  return text;
}

const View* StepPlan::FindOutput(std::string_view output) const {
  const auto it = std::find_if(outputs.begin(), outputs.end(),
                               [&](const PlanOutput& each) { return each.name == output; });
  return it == outputs.end() ? nullptr : &it->view;
}

bool StepPlan::updates() const {
  return std::any_of(bodies.begin(), bodies.end(),
                     [](const Body& body) { return body.phase == Phase::kUpdate; });
}

bool IsChain(const StepPlan& plan, const std::vector<Entry>& entries) {
  const PlanOp* before = nullptr;
  int32_t entry_before = 0, op_before = 0;
  for (int32_t e = 0; e < static_cast<int32_t>(entries.size()); ++e) {
    const Entry& entry = entries[static_cast<size_t>(e)];
    const std::vector<PlanOp>& ops = plan.body(entry).ops;
    for (int32_t o = 0; o < static_cast<int32_t>(ops.size()); ++o) {
      const PlanOp& op = ops[static_cast<size_t>(o)];
      if (op.stream != StreamId::kCompute && op.stream != StreamId::kExchange) return false;
      if (before != nullptr && before->stream != op.stream &&
          std::find(entry.edges.begin(), entry.edges.end(), Edge{entry_before, op_before, o}) ==
              entry.edges.end())
        return false;
      before = &op;
      entry_before = e;
      op_before = o;
    }
  }
  return true;
}

int64_t PlanBuffer::OffsetAt(int64_t position) const {
  MR_CHECK(!offsets.empty(), "{} has no address", name);
  if (offsets.size() == 1) return offsets.front();
  const auto after =
      std::upper_bound(live.begin(), live.end(), position,
                       [](int64_t at, const Interval& range) { return at < range.begin; });
  if (after != live.begin() && position < std::prev(after)->end)
    return offsets[static_cast<size_t>(after - live.begin()) - 1];
  MR_FAIL("{} is used at position {}, where it is not live", name, position);
}

ByteRange BytesOf(const StepPlan& plan, const View& view, int64_t position, const Mesh& mesh,
                  int accumulate) {
  const int64_t size = Bytes(view.layout.dtype);
  const int64_t begin = plan.buffer(view.buffer).OffsetAt(position) + view.offset * size;
  const int64_t last = (mesh.Size(view.rank_axes) - 1) / view.rank_alike;
  const int64_t widest = view.rank_stride * last + view.microbatch_stride * (accumulate - 1);
  // Read at either parity; the whole buffer is the safe answer.
  if (const PlanBuffer& buffer = plan.buffer(view.buffer); buffer.by_parity) {
    const int64_t base = buffer.OffsetAt(position);
    return {base, base + buffer.bytes};
  }
  return {begin, begin + view.layout.span_bytes() + widest * size};
}

std::string Describe(const PlanOp& op, const StepPlan& plan) {
  std::string text = fmt::format("{:<7} {:<16}{:<28}", Name(op.stream), OpName(op.op), op.label);
  ForEachUse(op.op, [&](const View& view, Access access, std::string_view operand) {
    text += fmt::format(" {}:{}={}", Name(access), operand, Describe(view, plan));
  });
  return text + AttributesText(op.op);
}

std::string MemoryText(const StepPlan& plan) {
  std::string text = fmt::format("arena {} persistent {} lower_bound {}\n", plan.arena_bytes,
                                 plan.persistent_bytes, plan.lower_bound);
  auto out = std::back_inserter(text);
  text += "buffers\n";
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.offsets.empty()) continue;
    fmt::format_to(out, "  {} {} bytes {} {}", buffer.name, buffer.bytes, Name(buffer.cls),
                   Name(buffer.scope));
    if (buffer.group >= 0) fmt::format_to(out, " bucket {}", buffer.group);
    text += " at";
    for (int64_t offset : buffer.offsets) fmt::format_to(out, " {}", offset);
    text += " live";
    for (const Interval& i : buffer.live) fmt::format_to(out, " [{},{})", i.begin, i.end);
    text += '\n';
  }
  return text;
}

std::string ScheduleText(const StepPlan& plan) {
  std::string text;
  auto out = std::back_inserter(text);
  for (const Body& body : plan.bodies) {
    fmt::format_to(out, "body {} at {}\n", body.name, body.begin);
    int index = 0;
    for (const PlanOp& op : body.ops)
      fmt::format_to(out, "  {:<4}{}\n", index++, Describe(op, plan));
  }
  const auto schedule = [&](std::string_view title, const std::vector<Entry>& entries) {
    fmt::format_to(out, "{}\n", title);
    int index = 0;
    for (const Entry& entry : entries) {
      fmt::format_to(out, "  {:<3}{} microbatch {} waits", index++, plan.body(entry).name,
                     entry.microbatch);
      for (const Edge& edge : entry.edges)
        fmt::format_to(out, " {}<-{}.{}", edge.to_op, edge.from_entry, edge.from_op);
      text += '\n';
    }
  };
  schedule("schedule", plan.schedule);
  schedule("prologue", plan.prologue);
  fmt::format_to(out, "seams\n  prologue {}\n  schedule {}\n", SeamText(plan.prologue_seam, plan),
                 SeamText(plan.seam, plan));
  for (const PlanOutput& output : plan.outputs)
    fmt::format_to(out, "output {} {}\n", output.name, Describe(output.view, plan));
  text += "notes\n";
  for (const std::string& note : plan.notes) fmt::format_to(out, "  {}\n", note);
  return text;
}

std::string ToString(const StepPlan& plan) {
  return fmt::format("plan {}\nexecution {}\n", plan.name, plan.execution) + MemoryText(plan) +
         ScheduleText(plan);
}

std::string PlanHash(const StepPlan& plan) {
  return fmt::format("{:016x}", Fnv1a64(ToString(plan)));
}

}  // namespace millrace
