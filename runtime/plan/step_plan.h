// A training step as data: what happens, in what order, on which bytes. Built by PlanStep
// (schedule/planner.h), proved by CheckPlan (check/checker.h) before a run begins, by code of its
// own, and executed by runtime/exec, which decides nothing.
//
// A step is a schedule of bodies: forward and backward of each microbatch, then the update. Bodies
// come in variants (only, or first, middle, last), so a plan's size does not grow with
// accumulation. Streams are ordered by the edges of each schedule entry; a step begins and ends
// with all streams joined.
//
// Where     A step's first op forms its scalars on the device, the learning rate among them
//           (BeginStepOp, in the first microbatch's forward). Weights are gathered on the gather
//           stream, some units ahead of their use: before which op, schedule/gather_schedule.h
//           decides. Logits become losses and their gradients at once, in the forward; what the
//           step's sums are divided by is one of the scalars. The gradient of a flat parameter is
//           reduced after its last contribution, mostly in a backward (a head's already in the
//           forward, beside its loss): in every microbatch or in the last one, as grad_sync says;
//           there it is also looked at for values that are not finite. The update begins with the
//           norm and the verdict of all ranks (StepStatsOp); each flat's op then applies the
//           learning rate, and leaves weights and moments as they are where the verdict says so.
//           What a backward computes again, ChooseRecompute has decided (schedule/recompute.h).
// Addresses Lifetimes of buffers are schedule/memory_plan.cc's, and from these pool/allocator.h
//           has their places in the arena; states have theirs ahead (state_layout.h). Edges come
//           last, from the bytes that ops then share (schedule/edges.h).
// Timeline  The bodies laid end to end in canonical order number every op with a position.
//           Lifetimes are intervals of positions.
// Ranks     A plan is equal on all ranks of a mesh; views carry rank strides.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/base/policies.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/plan_op.h"
#include "runtime/plan/pool/allocator.h"

namespace millrace {

enum class BufferClass {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspaces,
  kSlots,
  kRuntime
};
inline constexpr int kBufferClasses = 7;
std::string_view Name(BufferClass cls);

enum class BufferScope {
  // States (state_layout.h), at one address in all plans. Of the run: live always; of an era: in
  // the plans that use them, from the first op to the last.
  kPersistent,  // of the run
  kEra,         // of the era
  kStep,        // from its first write to its last use, across microbatches
  kMicrobatch,  // within the forward and backward of one microbatch
  kCarried,     // written at the end of one microbatch or step, read by the next: live-out and
                // live-in; also an output, which the host reads when the schedule has run
};
constexpr bool IsState(BufferScope scope) {
  return scope == BufferScope::kPersistent || scope == BufferScope::kEra;
}

struct PlanBuffer {
  std::string name;
  int64_t bytes = 0;
  BufferClass cls = BufferClass::kActivations;
  BufferScope scope = BufferScope::kMicrobatch;
  std::vector<Interval> live;  // positions of the canonical timeline
  // Bytes in the arena: one (sticky), or one per interval (allocator `dynamic`).
  std::vector<int64_t> offsets;
  // Buffers of one group are stays of one bucket and share its one address; -1: on its own.
  int32_t group = -1;
  bool by_parity = false;  // two halves, of which StepScalars::token_parity names one

  // Address at a position inside a live interval.
  int64_t OffsetAt(int64_t position) const;
};

// What a body does. kForward is also the one body of an evaluation or generation plan.
enum class Phase { kForward, kBackward, kUpdate, kPrologue };

// Which microbatches of a step a body of the forward or backward runs for. kOnly is first and last.
enum class Variant { kOnly, kFirst, kMiddle, kLast };
std::string_view Name(Variant variant);
constexpr bool IsFirst(Variant v) { return v == Variant::kOnly || v == Variant::kFirst; }
constexpr bool IsLast(Variant v) { return v == Variant::kOnly || v == Variant::kLast; }

struct Body {
  std::string name;  // "forward.first", "update"; a label: nothing depends on its text
  std::vector<PlanOp> ops;
  int64_t begin = 0;  // position of ops[0]
  Phase phase = Phase::kForward;
  Variant variant = Variant::kOnly;
  int64_t end() const { return begin + static_cast<int64_t>(ops.size()); }
};

// Op `to_op` of the entry that holds the edge waits for op `from_op` of an earlier or the same
// entry, on another stream.
struct Edge {
  int32_t from_entry = 0, from_op = 0, to_op = 0;
  bool operator==(const Edge&) const = default;
};

struct Entry {
  int32_t body = 0;
  int32_t microbatch = 0;
  std::vector<Edge> edges;  // ascending by to_op
};

// What a schedule finds in states and carried buffers, and what it leaves there. By buffer,
// ascending. A prologue is due when a carried buffer among the reads, or a state that prologues
// write, is not valid (plan/check/seams.h); its own seam says what it leaves valid. Any other read
// that is not valid is an error.
struct Seam {
  std::vector<BufferId> reads;    // read before the schedule has written them: whole, and valid
  std::vector<BufferId> defines;  // written; whole and valid afterwards
  bool operator==(const Seam&) const = default;
};

// What the host reads when the schedule has run, by name: each loss's sum ("loss_sum" of the loss
// "loss"; a cell of the statistics), the logits, the losses of tokens, drawn tokens, ...
struct PlanOutput {
  std::string name;
  View view;
};
struct PlanTally {
  std::string block;
  TallyKind kind = TallyKind::kRouter;
  View view;
};

struct StepPlan {
  std::string name;       // in its run: "train", "again", "eval", "score", "decode_64", ...
  std::string execution;  // how it will be run ("graph=step checked=0 ..."): part of the hash
  // The states of the run come first, with the ids that they have in its StateLayout; those of an
  // era that the plan does not use have no address.
  std::vector<PlanBuffer> buffers;
  std::vector<Body> bodies;     // canonical order; the prologue last
  std::vector<Entry> schedule;  // one step
  // Run first where it is due (Seam): after init, load, evaluation, generation or any outside write
  // to the weights.
  std::vector<Entry> prologue;
  Seam seam, prologue_seam;  // of `schedule` and of `prologue`
  std::vector<PlanOutput> outputs;
  // Parts of the state kTallies, end to end from its begin: what has been summed over the step and
  // over all ranks when the schedule has run, in the order of the forward. By block ("h.3",
  // "head").
  std::vector<PlanTally> tallies;
  // Behind them there, by block: pairs that receive buffers had no room for. A step that has any is
  // not applied (StepStatsOp). Empty: buffers have room for all.
  std::vector<PlanOutput> overflows;
  std::vector<LossSpec> losses;  // of its model, by column of the statistics
  int64_t arena_bytes = 0;
  // [0, persistent_bytes) of the arena hold states: of the run, and of an era where the plan uses
  // it.
  int64_t persistent_bytes = 0;
  int64_t lower_bound = 0;  // persistent + the most bytes of other buffers live at one position
  std::array<int64_t, kBufferClasses>
      peak_by_class{};                                // most bytes of a class live at one position
  int64_t param_pool_bytes = 0, grad_pool_bytes = 0;  // 0 when packed with everything else
  // By UnitId: the policy in force, which sharding.reshard=auto decides; kAuto in a plan of an era
  // alone, which gathers nothing. Not in the plan's text: the ops say it.
  std::vector<Reshard> reshard;
  std::vector<std::string> notes;  // lowering and allocation choices

  const PlanBuffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id.value)]; }
  PlanBuffer& buffer(BufferId id) { return buffers[static_cast<size_t>(id.value)]; }
  bool Has(BufferId id) const { return static_cast<size_t>(id.value) < buffers.size(); }
  IdRange<BufferId> buffer_ids() const { return IdsOf<BufferId>(buffers.size()); }
  const Body& body(const Entry& entry) const { return bodies[static_cast<size_t>(entry.body)]; }
  const View* FindOutput(std::string_view output) const;  // null: it has none of this name
  bool updates() const;                                   // a step of training?
  int64_t timeline_end() const { return bodies.empty() ? 0 : bodies.back().end(); }
};

// Whether the ops of `entries` are computations and exchanges alone, and each waits for the one
// before it where that is on another stream: on one stream nothing would come later.
bool IsChain(const StepPlan& plan, const std::vector<Entry>& entries);

// Bytes [begin, end) of the arena that an op at `position` may touch through `view`, on any rank of
// the mesh and microbatch < accumulate: a rank stride widens the range to every rank's part.
struct ByteRange {
  int64_t begin = 0, end = 0;
};
ByteRange BytesOf(const StepPlan& plan, const View& view, int64_t position, const Mesh& mesh,
                  int accumulate);

// The whole plan as text: buffers, bodies, schedule, edges. Equal text, equal plan.
std::string ToString(const StepPlan& plan);
// Its two halves below the title: where every buffer lies and when it lives; the ops with their
// constants, their order and edges.
std::string MemoryText(const StepPlan& plan);
std::string ScheduleText(const StepPlan& plan);
// 64-bit FNV-1a of ToString, in hex.
std::string PlanHash(const StepPlan& plan);
std::string Describe(const PlanOp& op, const StepPlan& plan);  // one line
// The state of a run whose steps tally: f32, of all tallies.
inline constexpr std::string_view kTallies = "tallies";
// What an op does beyond its operands: all its attributes, " eps=1e-05 ...".
std::string AttributesText(const KernelOp& op);

}  // namespace millrace
