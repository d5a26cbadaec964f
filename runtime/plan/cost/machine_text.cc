#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/plan/cost/machine_file.h"
#include "runtime/plan/cost/machine_tables.h"

namespace millrace {
namespace {

using json = nlohmann::ordered_json;

json NumberText(double value) {
  // Six digits are more than anybody measures, and read well.
  return json(std::stod(fmt::format("{:.6g}", value)));
}

}  // namespace

std::string MachineText(const Machine& machine) {
  json out = {{"name", machine.name},
              {"title", machine.title},
              {"measured", machine.measured},
              {"sources", {{kAll, machine.source}}}};
  for (const auto& number : kMachineNumbers)
    out[number.section][number.key] = NumberText(machine.*number.member / number.unit);
  for (const auto& count : kMachineCounts) out[count.section][count.key] = machine.*count.member;
  for (const MachineBytes& bytes : kMachineBytes)
    out["device"][bytes.key] = machine.*bytes.member / kMib;
  out["launch"]["concurrent_streams"] = machine.concurrent_streams;
  out["launch"]["kernels_share_device"] = machine.kernels_share;
  out["collectives"]["algorithms"] = json::array();
  for (const CollectiveAlgorithm algorithm : machine.algorithms)
    out["collectives"]["algorithms"].push_back(std::string(Name(algorithm)));
  out["gemm"]["tiles"] = out["gemm"]["shapes"] = out["attention"] = json::array();
  for (const GemmTile& tile : machine.gemm_tiles)
    out["gemm"]["tiles"].push_back(
        {{"m", tile.m}, {"n", tile.n}, {"efficiency", NumberText(tile.efficiency)}});
  for (const GemmShape& shape : machine.gemm_shapes)
    out["gemm"]["shapes"].push_back({{"dtype", std::string(Name(shape.dtype))},
                                     {"m", shape.m},
                                     {"n", shape.n},
                                     {"k", shape.k},
                                     {"tflops", NumberText(shape.flops / kTera)}});
  for (const AttentionRate& rate : machine.attention)
    out["attention"].push_back({{"head_dim", rate.head_dim},
                                {"length", rate.length},
                                {"forward_tflops", NumberText(rate.forward / kTera)},
                                {"backward_tflops", NumberText(rate.backward / kTera)}});
  out["memory"]["kernels"] = json::object();
  for (const auto& [name, rate] : machine.kernels)
    out["memory"]["kernels"][name] = {{"efficiency", NumberText(rate.efficiency)},
                                      {"start_us", NumberText(rate.start / kMicro)}};
  return DumpJson(out, {.indent = 1}) + "\n";
}

}  // namespace millrace
