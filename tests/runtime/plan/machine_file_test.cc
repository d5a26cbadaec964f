#include "runtime/plan/cost/machine_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using nlohmann::json;

json H200() { return json::parse(MachineText(FindMachine("h200"))); }

std::string WhatIsWrong(const json& document) {
  try {
    ParseMachine(document.dump(), "m.json");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

TEST_CASE("the machines that ship are their files", "[plan][cost]") {
  for (const std::string name : {"h100", "h200", "cpu"}) {
    std::ifstream in("configs/machines/" + name + ".json");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    REQUIRE_FALSE(text.empty());
    CHECK(MachineText(ParseMachine(text, name)) == MachineText(FindMachine(name)));
    CHECK(FindMachine(name).measured.empty());
  }
  const Machine& h200 = FindMachine("h200");
  CHECK(h200.ranks_per_host == 8);
  CHECK(h200.host_link == 50e9);
  CHECK(h200.device_bytes == int64_t{139} << 30);
  CHECK(h200.concurrent_streams);
  CHECK_FALSE(FindMachine("cpu").concurrent_streams);
}

TEST_CASE("what is written is read again", "[plan][cost]") {
  for (const Machine& machine : Machines()) {
    const Machine again = ParseMachine(MachineText(machine), "again");
    CHECK(MachineText(again) == MachineText(machine));
    CHECK(again.link == Approx(machine.link));
    CHECK(again.kernels.size() == machine.kernels.size());
    CHECK(again.algorithms == machine.algorithms);
    CHECK(again.attention.size() == machine.attention.size());
    CHECK(again.gemm_tiles.size() == machine.gemm_tiles.size());
  }
}

TEST_CASE("a product may be measured at the peak itself, whatever its digits", "[plan][cost]") {
  Machine machine = FindMachine("cpu");
  for (int digits = 100000; digits < 1000000; digits += 371) {
    const double measured = (digits + 0.3) * 1e6;  // written with six digits
    machine.peak_f32 = machine.gemm_f32 = measured;
    machine.gemm_shapes = {{DType::kF32, 512, 512, 512, measured}};
    const Machine again = ParseMachine(MachineText(machine), "measured");
    REQUIRE(again.gemm_shapes.at(0).flops == digits * 1e6);
    REQUIRE(again.peak_f32 == digits * 1e6);
  }
  machine.gemm_shapes[0].flops = machine.peak_f32 * 1.00001;
  CHECK_THAT(WhatIsWrong(json::parse(MachineText(machine))), Catch::Contains("is above the peak"));
}

// Files from before these have no such keys.
const std::set<std::string> kOptional = {"collectives.speed_begun_beside_kernels",
                                         "power.wide_attention_tflops"};

TEST_CASE("a file from before a key has its default, and a value is read and checked",
          "[plan][cost]") {
  json old = H200();
  old["collectives"].erase("speed_begun_beside_kernels");
  old["power"].erase("wide_attention_tflops");
  const Machine before = ParseMachine(old.dump(), "m.json");
  CHECK(before.collective_begun == 1);
  CHECK(before.capped_wide_attention == 0);
  old["collectives"]["speed_begun_beside_kernels"] = 0.5;
  old["power"]["wide_attention_tflops"] = 400;
  const Machine now = ParseMachine(old.dump(), "m.json");
  CHECK(now.collective_begun == 0.5);
  CHECK(now.capped_wide_attention == 400e12);
  old["collectives"]["speed_begun_beside_kernels"] = 1.5;
  CHECK_THAT(WhatIsWrong(old),
             Catch::Contains("collectives.speed_begun_beside_kernels: 1.5; allowed: at most 1"));
}

TEST_CASE("every other key is needed, and no other is allowed, at every level", "[plan][cost]") {
  const json whole = H200();
  int keys = 0;
  const std::function<void(const json::json_pointer&)> walk = [&](const json::json_pointer& at) {
    const json& value = whole.at(at);
    if (!value.is_object() || at.to_string() == "/sources") return;
    std::string path = at.to_string().empty() ? "" : at.to_string().substr(1) + ".";
    std::replace(path.begin(), path.end(), '/', '.');
    json extra = whole;
    extra[at]["colour"] = 1;
    CAPTURE(path);
    if (path != "memory.kernels.")
      CHECK_THAT(WhatIsWrong(extra),
                 Catch::Contains("m.json: " + path + "colour: unknown key; allowed: "));
    for (const auto& [key, child] : value.items()) {
      ++keys;
      if (path != "memory.kernels.") {
        json without = whole;
        without[at].erase(key);
        if (kOptional.contains(path + key)) {
          CHECK_NOTHROW(ParseMachine(without.dump(), "m.json"));
          continue;
        }
        CHECK_THAT(WhatIsWrong(without), Catch::Contains("m.json: " + path + key + ": missing"));
        if (key == "fp8_tflops")
          CHECK_THAT(WhatIsWrong(without), Catch::Contains("or give 0, as f32"));
      }
      walk(at / key);
    }
  };
  walk(json::json_pointer());
  CHECK(keys > 50);
}

TEST_CASE("impossible values name the key's path, the value and what is allowed", "[plan][cost]") {
  const std::pair<const char*, json> wrong[] = {
      {"/memory/copy_gb_s", 0},
      {"/memory/copy_gb_s", "fast"},
      {"/link/gb_s", -3},
      {"/link/gb_s", 1e30},
      {"/link/hop_us", -1},
      {"/host/ranks", 1.5},
      {"/host/ranks", -8},
      {"/collectives/algorithms", json::array({"ring", "star"})},
      {"/collectives/algorithms", json::array({"tree"})},
      {"/collectives/share_of_compute", 1},
      {"/attention/0/length", "long"},
      {"/gemm/tiles/0/m", 0},
      {"/gemm/bf16_tflops", 990},
      {"/gemm/fp8_tflops", 1980},
      {"/device/memory_mib", -1},
      {"/launch/concurrent_streams", 1},
      {"/memory/kernels/norm/efficiency", 0},
      {"/network/gb_s", 0},
      {"/name", 3},
      {"/peak", 1}};
  for (const auto& [pointer, value] : wrong) {
    json document = H200();
    document[json::json_pointer(pointer)] = value;
    std::string path = std::string(pointer).substr(1);
    for (const char digit : {'0', '1'})
      if (const size_t at = path.find(std::string("/") + digit); at != std::string::npos)
        path.replace(at, 2, std::string("[") + digit + "]");
    std::replace(path.begin(), path.end(), '/', '.');
    CAPTURE(path);
    CHECK_THAT(WhatIsWrong(document), Catch::StartsWith("m.json: " + path + ": "));
  }
  json order = H200();
  std::swap(order["attention"][0], order["attention"][1]);
  CHECK_THAT(WhatIsWrong(order), Catch::Contains("attention[1]: not above the one before it"));
  json two = H200();
  two["link"]["gb_s"] = 0;
  two["peak"]["f32_tflops"] = "x";
  CHECK_THAT(WhatIsWrong(two),
             Catch::Contains("link.gb_s: 0; allowed: a number above 0") &&
                 Catch::Contains("peak.f32_tflops: \"x\"; allowed: a number above 0"));
  CHECK_THROWS_WITH(ParseMachine("{", "m.json"), Catch::Contains("m.json: not a JSON document"));
}

TEST_CASE("--machine takes a name or a file", "[plan][cost]") {
  CHECK(NamedMachine("h100").name == "h100");
  CHECK(NamedMachine("configs/machines/cpu.json").name == "cpu");
  CHECK_THROWS_WITH(NamedMachine("h300"), Catch::Contains("known are h100, h200, cpu"));
  CHECK_THROWS_WITH(NamedMachine("./none.json"), Catch::Contains("./none.json cannot be read"));
}

}  // namespace
}  // namespace millrace
