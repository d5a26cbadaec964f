#include "runtime/plan/cost/machine_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/plan/cost/machine_tables.h"

namespace millrace {
namespace {

using json = nlohmann::ordered_json;

// 66.9 tflops are 66.9e12 to the last bit: rates of different keys are compared, and one text is
// one number.
double InUnits(double number, double unit) {
  return unit > 1 ? std::round(number * unit) : number * unit;
}

double FlopsOf(DocumentSection& in, const char* key) {
  return InUnits(in.NumberOf(key, Least::kAboveZero), kTera);
}

// The members of `machine` that the section has by the tables.
void ReadTables(DocumentSection& in, const std::string& name, Machine& machine) {
  for (const auto& number : kMachineNumbers)
    if (number.section == name && !(number.optional && !in.Has(number.key)))
      machine.*number.member = InUnits(in.NumberOf(number.key, number.least), number.unit);
  for (const auto& count : kMachineCounts)
    if (count.section == name) machine.*count.member = static_cast<int>(in.IntegerOf(count.key, 0));
}

void ReadGemm(DocumentSection& in, Machine& machine) {
  in.ForEach("tiles", [&](DocumentSection& tile) {
    machine.gemm_tiles.push_back({tile.IntegerOf("m", 1), tile.IntegerOf("n", 1),
                                  tile.NumberOf("efficiency", Least::kAboveZero)});
  });
  in.ForEach("shapes", [&](DocumentSection& shape) {
    GemmShape read;
    const std::string dtype = shape.TextOf("dtype");
    read.dtype = dtype == "f32" ? DType::kF32 : DType::kBF16;
    if (dtype != "f32" && dtype != "bf16") shape.Fail("dtype", dtype, "\"bf16\" or \"f32\"");
    read.m = shape.IntegerOf("m", 1);
    read.n = shape.IntegerOf("n", 1);
    read.k = shape.IntegerOf("k", 1);
    read.flops = FlopsOf(shape, "tflops");
    machine.gemm_shapes.push_back(read);
  });
}

void ReadKernels(DocumentSection& in, std::vector<std::string>& errors, Machine& machine) {
  const json* kernels = in.Find("kernels");
  if (kernels == nullptr) return;
  DocumentSection all(*kernels, in.Path("kernels"), errors);
  if (!kernels->is_object()) return;
  for (const auto& [name, value] : kernels->items()) {
    DocumentSection kernel(value, all.Path(name), errors);
    machine.kernels[name] = {kernel.NumberOf("efficiency", Least::kAboveZero),
                             kernel.NumberOf("start_us", Least::kZero) * kMicro};
    kernel.RefuseUnknown();
  }
}

void ReadAlgorithms(DocumentSection& in, Machine& machine) {
  const json* names = in.Find("algorithms");
  if (names == nullptr) return;
  machine.algorithms.clear();
  bool known = names->is_array() && !names->empty();
  for (size_t i = 0; known && i < names->size(); ++i) {
    const auto found = std::find_if(
        std::begin(kOfLibraries), std::end(kOfLibraries),
        [&](CollectiveAlgorithm a) { return (*names)[i] == json(std::string(Name(a))); });
    known = found != std::end(kOfLibraries);
    if (known) machine.algorithms.push_back(*found);
  }
  const auto ring =
      std::find(machine.algorithms.begin(), machine.algorithms.end(), CollectiveAlgorithm::kRing);
  if (!known || ring == machine.algorithms.end())
    in.Fail("algorithms", *names, "a list of ring (always there), tree, hierarchical");
}

// What single keys cannot say.
void RequireSense(const Machine& m, std::vector<std::string>& errors) {
  const auto refuse = [&](bool wrong, const std::string& text) {
    if (wrong) errors.push_back(text);
  };
  const auto above = [&](const char* key, double rate, const char* peak_key, double peak) {
    refuse(rate > peak, fmt::format("{}: {:.6g} is above {}, {:.6g}", key, rate / kTera, peak_key,
                                    peak / kTera));
  };
  above("gemm.bf16_tflops", m.gemm_bf16, "peak.bf16_tflops", m.peak_bf16);
  above("gemm.f32_tflops", m.gemm_f32, "peak.f32_tflops", m.peak_f32);
  above("gemm.fp8_tflops", m.gemm_fp8, "twice peak.bf16_tflops", 2 * m.peak_bf16);
  for (size_t i = 0; i < m.gemm_shapes.size(); ++i)
    above(fmt::format("gemm.shapes[{}].tflops", i).c_str(), m.gemm_shapes[i].flops, "the peak",
          m.peak(m.gemm_shapes[i].dtype));
  refuse(m.ranks_per_host > 0 && m.host_link <= 0,
         "network.gb_s: 0; allowed: above 0 where host.ranks is");
  refuse(
      m.collective_beside > 1,
      fmt::format("collectives.speed_beside_kernels: {}; allowed: at most 1", m.collective_beside));
  refuse(m.collective_begun > 1,
         fmt::format("collectives.speed_begun_beside_kernels: {}; allowed: at most 1",
                     m.collective_begun));
  refuse(m.collective_share >= 1,
         fmt::format("collectives.share_of_compute: {}; allowed: below 1", m.collective_share));
  for (size_t i = 1; i < m.attention.size(); ++i)
    refuse(std::pair(m.attention[i - 1].head_dim, m.attention[i - 1].length) >=
               std::pair(m.attention[i].head_dim, m.attention[i].length),
           fmt::format("attention[{}]: not above the one before it by head_dim, then length", i));
}

void ReadSections(DocumentSection& file, std::vector<std::string>& errors, Machine& machine) {
  for (const std::string name : {"host", "peak", "gemm", "memory", "launch", "link", "network",
                                 "collectives", "power", "device"}) {
    const json* value = file.Find(name);
    if (value == nullptr) continue;
    DocumentSection section(*value, name, errors);
    ReadTables(section, name, machine);
    if (name == "gemm") ReadGemm(section, machine);
    if (name == "memory") ReadKernels(section, errors, machine);
    if (name == "launch") {
      machine.concurrent_streams = section.BoolOf("concurrent_streams");
      machine.kernels_share = section.BoolOf("kernels_share_device");
    }
    if (name == "collectives") ReadAlgorithms(section, machine);
    if (name == "device")
      for (const MachineBytes& bytes : kMachineBytes)
        machine.*bytes.member = section.IntegerOf(bytes.key, 0) * kMib;
    section.RefuseUnknown();
  }
  file.ForEach("attention", [&](DocumentSection& row) {
    machine.attention.push_back({row.IntegerOf("head_dim", 1), row.IntegerOf("length", 0),
                                 FlopsOf(row, "forward_tflops"), FlopsOf(row, "backward_tflops")});
  });
}

}  // namespace

Machine ParseMachine(std::string_view text, std::string_view where) {
  const json document = TryParseOrderedJson(text);
  MR_REQUIRE(ErrorCode::kConfig, !document.is_discarded(), "{}: not a JSON document", where);
  std::vector<std::string> errors;
  Machine machine;
  DocumentSection file(document, "", errors);
  machine.name = file.TextOf("name");
  machine.title = file.TextOf("title");
  machine.measured = file.TextOf("measured");
  if (const json* sources = file.Find("sources")) {
    if (!sources->is_object()) file.Fail("sources", *sources, "an object of strings");
    for (const auto& [key, value] : sources->items())
      if (value.is_string())
        machine.source += (machine.source.empty() ? "" : "; ") + (key == kAll ? "" : key + ": ") +
                          value.get<std::string>();
      else
        file.Fail("sources", *sources, "an object of strings");
  }
  ReadSections(file, errors, machine);
  file.RefuseUnknown();
  for (std::string& error : errors) {
    if (error == "gemm.fp8_tflops: missing")
      error +=
          ": what products in FP8 sustain, which files from before FP8 lack; measure the machine "
          "again, or give 0, as f32";
    if (error == "device.nccl_mib: missing")
      error +=
          ": what NCCL takes, which older files have as device.communication_mib for all "
          "communicators together; measure the machine again, or take section device of "
          "configs/machines/h100.json";
  }
  if (errors.empty()) RequireSense(machine, errors);
  std::string lines;
  for (const std::string& error : errors)
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", where, error);
  MR_REQUIRE(ErrorCode::kConfig, errors.empty(), "{}", lines);
  return machine;
}

Machine NamedMachine(const std::string& value) {
  if (value.find_first_of("/.") == std::string::npos) return FindMachine(value);
  std::ifstream in(value);
  MR_REQUIRE(ErrorCode::kConfig, in.good(), "--machine: {} cannot be read", value);
  return ParseMachine(std::string{std::istreambuf_iterator<char>(in), {}}, value);
}

}  // namespace millrace
