#include "runtime/api/peer_decision.h"

#include <fmt/core.h>

#include "runtime/base/error.h"
#include "runtime/config/enum_names.h"

namespace millrace {
namespace {

// Why not; "" where nothing stands against it.
std::string Obstacle(Backend backend, const Mesh& mesh,
                     const std::function<std::string()>& trouble) {
  if (backend != Backend::kCuda) return "this run is on the CPU";
  if (mesh.world() == 1) return "one rank has no peers";
  if (mesh.Size(kCopyAxes) == 1)
    return "each rank has a copy of the parameters of its own (parallel.shard, tensor and context "
           "are 1), and nothing is gathered or reduce-scattered";
  return trouble();
}

}  // namespace

PeerDecision DecidePeerMemory(ExecutionConfig::PeerMemory wanted, Backend backend, const Mesh& mesh,
                              const std::function<std::string()>& trouble) {
  using Wanted = ExecutionConfig::PeerMemory;
  if (wanted == Wanted::kOff) return {};
  const std::string key = fmt::format("execution.peer_memory = {}", Name(wanted));
  const std::string obstacle = Obstacle(backend, mesh, trouble);
  MR_REQUIRE(
      ErrorCode::kConfig, wanted != Wanted::kOn || obstacle.empty(),
      "{}: {}; `on` needs GPUs of one host, at most 8 to a copy of the parameters, that reach each "
      "other's memory; `auto` goes on without, and so does `off`",
      key, obstacle);
  if (!obstacle.empty()) return {false, fmt::format("{}: not in use: {}", key, obstacle)};
  return {true, fmt::format("{}: what is gathered and summed moves over peers' memory, {} GPUs "
                            "to a copy of the parameters",
                            key, mesh.Size(kCopyAxes))};
}

}  // namespace millrace
