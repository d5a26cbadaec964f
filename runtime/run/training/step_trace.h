// A measured step of all ranks as a Chrome trace: what ran when, on which stream, on one clock.
//
// Step     Of a graph that was captured with event nodes between the ops
//          (runtime/exec/observe/replay_timer.h), or walked eagerly, each op between two events
//          (runtime/exec/observe/op_timer.h): gaps of a small model are then the host's. The same
//          bits either way.
// Clock    Ranks of one host share one; between hosts zero is when they left a barrier, tens of
//          microseconds apart. A rank is a process of the trace, a stream a thread; ts and dur in
//          microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/engine.h"
#include "runtime/exec/observe/op_span.h"
#include "runtime/run/session.h"

namespace millrace {

class OpTimer;
class ReplayTimer;

// While it lives the session's training steps are timed: one per engine, made and destroyed by
// every rank while no step is in flight.
class StepTracer {
 public:
  explicit StepTracer(Session& session);
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  // Steps to run before the one that is traced: of a replayed one the first is
  // issued, the second captures.
  static int64_t StepsBefore(Session& session) { return session.engine().replays() ? 2 : 0; }

  bool replay() const { return replay_ != nullptr; }
  int64_t event_nodes() const;

  // Collective: the next step is the one. Waits for what is before it.
  void Begin();
  // Collective, once that step was collected: the whole text, on rank 0; "" on the others. `other`,
  // an object, is added to otherData.
  std::string Text(const nlohmann::ordered_json& other);
  // The same, where `other` says that this is a run's training step `done`, and how it ran.
  std::string TextOfStep(int64_t done);

 private:
  std::vector<OpSpan> Spans();

  Session& session_;
  std::unique_ptr<OpTimer> eager_;  // one of the two
  std::unique_ptr<ReplayTimer> replay_;
  double origin_ms_ = 0;
};

// A run's training step that is traced, with the steps that prepare it: they are alone in flight.
class TracedStep {
 public:
  // `step`: 1-based; 0: none.
  TracedStep(Session& session, int64_t step) : session_(session), step_(step) {}

  // Why there is none of a call that trains steps `first` to `last`; "": there is.
  std::string WhyNone(int64_t first, int64_t last) const;
  bool StartsAt(int64_t step) const { return step_ > 0 && step == FirstPrepared(); }
  // Before `step` is issued, which StartsAt tells to be alone.
  void Prepare(int64_t step);
  bool active() const { return tracer_ != nullptr; }
  // After `step` was collected: StepTracer::TextOfStep, of the one that is traced.
  std::optional<std::string> Finish(int64_t step);
  void Drop() { tracer_.reset(); }

 private:
  int64_t FirstPrepared() const { return step_ - StepTracer::StepsBefore(session_); }

  Session& session_;
  const int64_t step_;
  std::unique_ptr<StepTracer> tracer_;  // from the steps that prepare it to its end
};

}  // namespace millrace
