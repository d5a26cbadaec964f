// When each op of a replayed step runs, by the device's clock: events that a graph records as it
// runs, between the ops that were captured.
//
// Events   One wherever an op ends, and one where an op begins that waited for another stream: an
//          op that follows on its stream without a wait begins where the one before it ended. What
//          waits for an op does not wait for its event.
// Cost     An event is a node of the graph, and no kernel is launched early behind it:
//          the step that is measured is slower than a plain one, by what comparing the
//          medians of both tells.
// Threads  As the executor's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/device.h"
#include "runtime/exec/observe/observers.h"
#include "runtime/exec/observe/op_span.h"

namespace millrace {

class ReplayTimer final : public CaptureObserver {
 public:
  explicit ReplayTimer(Device& device) : device_(device) {}

  void BeginGraph() override;
  void Before(const PlanOp& op, Stream& stream, bool waits) override;
  void After(const PlanOp& op, Stream& stream) override;

  // The moment that Spans counts from: waits for everything before it on
  // `compute`, and returns then.
  void SetOrigin(Stream& compute);
  // Of the replay that was done last (Engine::Collect has returned), in the order of issue.
  std::vector<OpSpan> Spans();
  int64_t events() const { return static_cast<int64_t>(events_.size()); }

 private:
  size_t RecordOn(Stream& stream);  // its number

  struct Timed {
    const PlanOp* op;
    size_t begin, end;
  };
  Device& device_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<Timed> ops_;
  // Event after the last op of each stream of this graph.
  std::array<std::optional<size_t>, kStreams> last_;
  std::unique_ptr<Event> origin_;
};

}  // namespace millrace
