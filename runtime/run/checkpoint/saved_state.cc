#include "runtime/run/checkpoint/saved_state.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {

using Json = nlohmann::ordered_json;

namespace {

// f(name, value) for each counter, in the order of reports. A name stays what it is: checkpoints
// and summaries hold it.
template <class Counters, class F>
void ForEachCounter(Counters& c, F&& f) {
  f("bytes_concatenated", c.kernels.concatenated_bytes);
  f("bytes_cast", c.kernels.cast_bytes);
  f("bytes_copied", c.kernels.copied_bytes);
  f("bytes_gathered", c.comm.gathered_bytes);
  f("bytes_reduced", c.comm.reduced_bytes);
  f("bytes_all_reduced", c.comm.all_reduced_bytes);
  f("bytes_exchanged", c.comm.exchanged_bytes);
  f("gathers", c.comm.all_gathers);
  f("reduces", c.comm.reduce_scatters);
  f("all_reduces", c.comm.all_reduces);
  f("all_to_alls", c.comm.all_to_alls);
  f("graph_launches", c.graph_launches);
}

// What versions before names saved: a list in this order.
nlohmann::json NamedCounters(const nlohmann::json& list) {
  constexpr std::array kOrder = {"bytes_concatenated",
                                 "bytes_cast",
                                 "bytes_copied",
                                 "gathers",
                                 "reduces",
                                 "all_reduces",
                                 "bytes_gathered",
                                 "bytes_reduced",
                                 "bytes_all_reduced",
                                 "graph_launches"};
  MR_REQUIRE(ErrorCode::kCheckpoint, list.size() == kOrder.size(),
             "a checkpoint's list of counters holds {} values; {} are expected", list.size(),
             kOrder.size());
  nlohmann::json named = nlohmann::json::object();
  for (size_t i = 0; i < kOrder.size(); ++i) named[kOrder[i]] = list[i];
  for (const char* later : {"bytes_exchanged", "all_to_alls"}) named[later] = 0;  // none were made
  return named;
}

}  // namespace

std::string CheckpointRoot(const std::string& run_dir) { return run_dir + "/checkpoints"; }
Json CountersJson(const StepCounters& counters) {
  Json json = Json::object();
  ForEachCounter(counters, [&](const char* name, int64_t value) { json[name] = value; });
  return json;
}

SavedCounters CountersFrom(const nlohmann::json& json) {
  nlohmann::json saved = json.is_array() ? NamedCounters(json) : json;
  MR_REQUIRE(ErrorCode::kCheckpoint, saved.is_object(),
             "a checkpoint's counters are {}; an object of names and numbers is expected",
             DumpJson(json));
  SavedCounters result;
  ForEachCounter(result.counters, [&](const char* name, int64_t& value) {
    const auto it = saved.find(name);
    if (it == saved.end()) {
      result.missing.push_back(name);
      return;
    }
    MR_REQUIRE(ErrorCode::kCheckpoint, it->is_number_integer(),
               "a checkpoint's counter {} is {}; an integer is expected", name, DumpJson(*it));
    value = it->get<int64_t>();
    saved.erase(it);
  });
  for (const auto& [name, value] : saved.items()) result.unknown.push_back(name);
  return result;
}

std::optional<double> EvalLossOf(const CheckpointManifest& manifest) {
  const auto user = ParseJson(manifest.user);
  const auto it = user.find("eval_loss");
  if (it == user.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

}  // namespace millrace
