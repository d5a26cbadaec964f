#include "runtime/plan/cost/machine_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using json = nlohmann::ordered_json;

enum class Least { kZero, kAboveZero };

// A number of a section: the member is value * unit.
template <class S>
struct Number {
  const char* section;
  const char* key;
  double S::*member;
  double unit;
  Least least;
};
template <class S>
struct Count {
  const char* section;
  const char* key;
  int S::*member;
};
struct Bytes64 {
  const char* key;
  int64_t Machine::*member;
};

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr int64_t kMib = int64_t{1} << 20;
constexpr double kMost = 1e9;  // of any number as written

const Number<Machine> kNumbers[] = {
    {"peak", "bf16_tflops", &Machine::peak_bf16, kTera, Least::kAboveZero},
    {"peak", "f32_tflops", &Machine::peak_f32, kTera, Least::kAboveZero},
    {"gemm", "bf16_tflops", &Machine::gemm_bf16, kTera, Least::kAboveZero},
    {"gemm", "f32_tflops", &Machine::gemm_f32, kTera, Least::kAboveZero},
    {"gemm", "k_start", &Machine::gemm_k_start, 1, Least::kZero},
    {"memory", "copy_gb_s", &Machine::memory, kGiga, Least::kAboveZero},
    {"memory", "vector_tflops", &Machine::vector, kTera, Least::kAboveZero},
    {"launch", "gap_us", &Machine::op_gap, kMicro, Least::kZero},
    {"launch", "kernel_us", &Machine::kernel_start, kMicro, Least::kZero},
    {"launch", "attention_us", &Machine::attention_start, kMicro, Least::kZero},
    {"link", "gb_s", &Machine::link, kGiga, Least::kAboveZero},
    {"link", "hop_us", &Machine::link_hop, kMicro, Least::kZero},
    {"link", "peer_gb_s", &Machine::peer_link, kGiga, Least::kZero},
    {"link", "peer_us", &Machine::peer_latency, kMicro, Least::kZero},
    {"network", "gb_s", &Machine::host_link, kGiga, Least::kZero},
    {"network", "hop_us", &Machine::host_hop, kMicro, Least::kZero},
    {"power", "gemm_tflops", &Machine::capped_gemm, kTera, Least::kZero},
    {"power", "attention_tflops", &Machine::capped_attention, kTera, Least::kZero},
    {"power", "memory_gb_s", &Machine::capped_memory, kGiga, Least::kZero},
    {"collectives", "start_us", &Machine::collective_latency, kMicro, Least::kZero},
    {"collectives", "speed_beside_kernels", &Machine::collective_beside, 1, Least::kAboveZero},
    {"collectives", "share_of_compute", &Machine::collective_share, 1, Least::kZero},
};
const Count<Machine> kCounts[] = {
    {"gemm", "units", &Machine::gemm_units},
    {"host", "ranks", &Machine::ranks_per_host},
    {"host", "shared_devices", &Machine::devices},
};
const Bytes64 kBytes[] = {
    {"memory_mib", &Machine::device_bytes},
    {"process_mib", &Machine::process_bytes},
    {"communication_mib", &Machine::communication_bytes},
    {"peer_memory_mib", &Machine::peer_memory_bytes},
};

constexpr const char* kAll = "all";  // the source of everything that no other names

constexpr CollectiveAlgorithm kOfLibraries[] = {
    CollectiveAlgorithm::kRing, CollectiveAlgorithm::kTree, CollectiveAlgorithm::kHierarchical};

std::string Shown(const json& value) {
  constexpr size_t kShown = 60;
  std::string text = DumpJson(value, {.ascii = true, .replace = true});
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

// One object of the file. What is asked for is allowed; the rest is unknown.
class Section {
 public:
  Section(const json& value, std::string path, std::vector<std::string>& errors)
      : value_(value), path_(std::move(path)), errors_(errors) {
    if (!value.is_object())
      errors_.push_back(fmt::format("{}: {}; allowed: an object", Where(), Shown(value)));
  }

  const json* Find(const std::string& key) {
    asked_.insert(key);
    if (!value_.is_object()) return nullptr;
    const auto it = value_.find(key);
    if (it != value_.end()) return &*it;
    errors_.push_back(Path(key) + ": missing");
    return nullptr;
  }

  void Fail(const std::string& key, const json& value, const std::string& allowed) {
    errors_.push_back(fmt::format("{}: {}; allowed: {}", Path(key), Shown(value), allowed));
  }

  double NumberOf(const std::string& key, Least least) {
    const json* value = Find(key);
    if (value == nullptr) return 0;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number >= 0 && number <= kMost && (number > 0 || least == Least::kZero)) return number;
    Fail(key, *value,
         fmt::format("a number {} to {:.0e}", least == Least::kZero ? "from 0" : "above 0", kMost));
    return 1;
  }

  int64_t IntegerOf(const std::string& key, int64_t low) {
    const json* value = Find(key);
    if (value == nullptr) return low;
    const double number = value->is_number_integer() ? value->get<double>() : -1;
    if (number >= static_cast<double>(low) && number <= kMost) return value->get<int64_t>();
    Fail(key, *value, fmt::format("an integer from {} to {:.0e}", low, kMost));
    return low;
  }

  std::string TextOf(const std::string& key) {
    const json* value = Find(key);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get<std::string>();
    Fail(key, *value, "a string");
    return "";
  }

  bool BoolOf(const std::string& key) {
    const json* value = Find(key);
    if (value == nullptr) return true;
    if (value->is_boolean()) return value->get<bool>();
    Fail(key, *value, "true or false");
    return true;
  }

  // f(element as a section) for each of an array of objects.
  template <class F>
  void ForEach(const std::string& key, F&& f) {
    const json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail(key, *value, "an array");
    for (size_t i = 0; i < value->size(); ++i) {
      Section element((*value)[i], fmt::format("{}[{}]", Path(key), i), errors_);
      f(element);
      element.RefuseUnknown();
    }
  }

  void RefuseUnknown() const {
    if (!value_.is_object()) return;
    std::string allowed;
    for (const std::string& key : asked_) allowed += (allowed.empty() ? "" : ", ") + key;
    for (const auto& [key, unused] : value_.items())
      if (asked_.count(key) == 0)
        errors_.push_back(fmt::format("{}: unknown key; allowed: {}", Path(key), allowed));
  }

  std::string Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  std::string Where() const { return path_.empty() ? "document" : path_; }

  const json& value_;
  std::string path_;
  std::vector<std::string>& errors_;
  std::set<std::string> asked_;
};

// 66.9 tflops are 66.9e12 to the last bit.
double InUnits(double number, double unit) {
  return unit > 1 ? std::round(number * unit) : number * unit;
}

// The members of `machine` that the section has by the tables.
void ReadTables(Section& in, const std::string& name, Machine& machine) {
  for (const auto& number : kNumbers)
    if (number.section == name)
      machine.*number.member = InUnits(in.NumberOf(number.key, number.least), number.unit);
  for (const auto& count : kCounts)
    if (count.section == name) machine.*count.member = static_cast<int>(in.IntegerOf(count.key, 0));
}

void ReadGemm(Section& in, Machine& machine) {
  in.ForEach("tiles", [&](Section& tile) {
    machine.gemm_tiles.push_back({tile.IntegerOf("m", 1), tile.IntegerOf("n", 1),
                                  tile.NumberOf("efficiency", Least::kAboveZero)});
  });
  in.ForEach("shapes", [&](Section& shape) {
    GemmShape read;
    const std::string dtype = shape.TextOf("dtype");
    read.dtype = dtype == "f32" ? DType::kF32 : DType::kBF16;
    if (dtype != "f32" && dtype != "bf16") shape.Fail("dtype", dtype, "\"bf16\" or \"f32\"");
    read.m = shape.IntegerOf("m", 1);
    read.n = shape.IntegerOf("n", 1);
    read.k = shape.IntegerOf("k", 1);
    read.flops = shape.NumberOf("tflops", Least::kAboveZero) * kTera;
    machine.gemm_shapes.push_back(read);
  });
}

void ReadKernels(Section& in, std::vector<std::string>& errors, Machine& machine) {
  const json* kernels = in.Find("kernels");
  if (kernels == nullptr) return;
  Section all(*kernels, in.Path("kernels"), errors);
  if (!kernels->is_object()) return;
  for (const auto& [name, value] : kernels->items()) {
    Section kernel(value, all.Path(name), errors);
    machine.kernels[name] = {kernel.NumberOf("efficiency", Least::kAboveZero),
                             kernel.NumberOf("start_us", Least::kZero) * kMicro};
    kernel.RefuseUnknown();
  }
}

void ReadAlgorithms(Section& in, Machine& machine) {
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
  for (size_t i = 0; i < m.gemm_shapes.size(); ++i)
    above(fmt::format("gemm.shapes[{}].tflops", i).c_str(), m.gemm_shapes[i].flops, "the peak",
          m.peak(m.gemm_shapes[i].dtype));
  refuse(m.ranks_per_host > 0 && m.host_link <= 0,
         "network.gb_s: 0; allowed: above 0 where host.ranks is");
  refuse(
      m.collective_beside > 1,
      fmt::format("collectives.speed_beside_kernels: {}; allowed: at most 1", m.collective_beside));
  refuse(m.collective_share >= 1,
         fmt::format("collectives.share_of_compute: {}; allowed: below 1", m.collective_share));
  for (size_t i = 1; i < m.attention.size(); ++i)
    refuse(std::pair(m.attention[i - 1].head_dim, m.attention[i - 1].length) >=
               std::pair(m.attention[i].head_dim, m.attention[i].length),
           fmt::format("attention[{}]: not above the one before it by head_dim, then length", i));
}

void ReadSections(Section& file, std::vector<std::string>& errors, Machine& machine) {
  for (const std::string name : {"host", "peak", "gemm", "memory", "launch", "link", "network",
                                 "collectives", "power", "device"}) {
    const json* value = file.Find(name);
    if (value == nullptr) continue;
    Section section(*value, name, errors);
    ReadTables(section, name, machine);
    if (name == "gemm") ReadGemm(section, machine);
    if (name == "memory") ReadKernels(section, errors, machine);
    if (name == "launch") {
      machine.concurrent_streams = section.BoolOf("concurrent_streams");
      machine.kernels_share = section.BoolOf("kernels_share_device");
    }
    if (name == "collectives") ReadAlgorithms(section, machine);
    if (name == "device")
      for (const Bytes64& bytes : kBytes)
        machine.*bytes.member = section.IntegerOf(bytes.key, 0) * kMib;
    section.RefuseUnknown();
  }
  file.ForEach("attention", [&](Section& row) {
    machine.attention.push_back({row.IntegerOf("head_dim", 1), row.IntegerOf("length", 0),
                                 row.NumberOf("forward_tflops", Least::kAboveZero) * kTera,
                                 row.NumberOf("backward_tflops", Least::kAboveZero) * kTera});
  });
}

json NumberText(double value) {
  // Six digits are more than anybody measures, and read well.
  return json(std::stod(fmt::format("{:.6g}", value)));
}

}  // namespace

Machine ParseMachine(std::string_view text, std::string_view where) {
  const json document = TryParseOrderedJson(text);
  MR_REQUIRE(ErrorCode::kConfig, !document.is_discarded(), "{}: not a JSON document", where);
  std::vector<std::string> errors;
  Machine machine;
  Section file(document, "", errors);
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
  if (errors.empty()) RequireSense(machine, errors);
  std::string lines;
  for (const std::string& error : errors)
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", where, error);
  MR_REQUIRE(ErrorCode::kConfig, errors.empty(), "{}", lines);
  return machine;
}

std::string MachineText(const Machine& machine) {
  json out = {{"name", machine.name},
              {"title", machine.title},
              {"measured", machine.measured},
              {"sources", {{kAll, machine.source}}}};
  for (const auto& number : kNumbers)
    out[number.section][number.key] = NumberText(machine.*number.member / number.unit);
  for (const auto& count : kCounts) out[count.section][count.key] = machine.*count.member;
  for (const Bytes64& bytes : kBytes) out["device"][bytes.key] = machine.*bytes.member / kMib;
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

Machine NamedMachine(const std::string& value) {
  if (value.find_first_of("/.") == std::string::npos) return FindMachine(value);
  std::ifstream in(value);
  MR_REQUIRE(ErrorCode::kConfig, in.good(), "--machine: {} cannot be read", value);
  return ParseMachine(std::string{std::istreambuf_iterator<char>(in), {}}, value);
}

}  // namespace millrace
