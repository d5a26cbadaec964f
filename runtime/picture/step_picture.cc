#include "runtime/picture/step_picture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using nlohmann::json;

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

double SecondsOf(const StepPicture& step) {
  double end = 0;
  for (const StepPicture::Entry& entry : step.schedule)
    for (const double time : entry.times) end = std::max(end, time);
  return end;
}

json StepPictureJson(const StepPicture& step) {
  json buffers = json::array(), bodies = json::array(), schedule = json::array();
  for (const auto& [name, bytes, cls, live, offsets] : step.buffers)
    buffers.push_back({name, bytes, cls, live, offsets});
  json kinds = json::array(), streams = json::array();
  std::map<std::string, size_t> kind_index;
  for (const StepPicture::Body& body : step.bodies) {
    json ops = json::array();
    for (const StepPicture::Op& op : body.ops) {
      const auto [kind, fresh] = kind_index.try_emplace(op.kind, kinds.size());
      if (fresh) kinds.push_back(op.kind);
      ops.push_back({kind->second, static_cast<int>(op.stream), op.label, std::llround(op.flops),
                     op.memory_bytes, op.wire_bytes, Nanoseconds(op.seconds), op.reads, op.writes});
    }
    bodies.push_back({{"name", body.name}, {"begin", body.begin}, {"ops", std::move(ops)}});
  }
  for (const StepPicture::Entry& entry : step.schedule) {
    json times = json::array();
    for (const double time : entry.times) times.push_back(Nanoseconds(time));
    schedule.push_back({{"body", entry.body},
                        {"microbatch", entry.microbatch},
                        {"edges", entry.edges},
                        {"t", std::move(times)}});
  }
  // The first streams always, that of exchanges where it is used.
  int shown = kStreams - 1;
  for (const StepPicture::Body& body : step.bodies)
    for (const StepPicture::Op& op : body.ops)
      shown = std::max(shown, static_cast<int>(op.stream) + 1);
  for (int s = 0; s < shown; ++s) streams.push_back(Name(static_cast<StreamId>(s)));
  return {{"classes", step.classes},     {"streams", std::move(streams)},
          {"kinds", std::move(kinds)},   {"end", step.end},
          {"arena", step.arena},         {"persistent", step.persistent},
          {"peak", step.peak},           {"buffers", std::move(buffers)},
          {"bodies", std::move(bodies)}, {"schedule", std::move(schedule)}};
}

}  // namespace millrace
