// Clocks and energy of steps, from a driver's library that says what each case wants.
#include "runtime/api/step_power.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/run_ranks.h"
#include "tests/support/fake_nvml.h"

namespace millrace {
namespace {

using Catch::Contains;
using Json = nlohmann::ordered_json;
using test::kFakeGpu;
using test::kFakeNvml;

GpuPower Over(std::chrono::milliseconds steps, const std::string& library = kFakeNvml) {
  PowerMeter meter(kFakeGpu, library);
  meter.Begin();
  std::this_thread::sleep_for(steps);
  return meter.End().value();
}

TEST_CASE("power is what the counter says, as closely as its ticks were seen") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = test::SteadyCounter<400, 200>;
  fake.sm_mhz = [] { return 1410U; };
  PowerMeter meter(kFakeGpu, kFakeNvml);
  for (int round = 0; round < 2; ++round) {  // a second time it counts anew
    meter.Begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const GpuPower power = meter.End().value();
    CHECK(power.no_watts == "");
    REQUIRE(power.watts.has_value());
    CHECK(power.off > 0);
    // The rest is for a machine that stops us between a reading and the look at the clock. By the
    // two ends alone it would be off by a tenth.
    CHECK(std::abs(400 / *power.watts - 1) <= power.off + 0.02);
    CHECK(power.off < 0.2);
    CHECK(power.tick_ms >= 150);
    CHECK(power.seconds >= 1.5);
    CHECK(power.no_clock == "");
    REQUIRE(!power.sm_mhz.empty());
    CHECK(power.sm_mhz == std::vector<double>(power.sm_mhz.size(), 1410));
    CHECK(static_cast<double>(power.sm_mhz.size()) <= power.seconds / 0.02);
  }
}

TEST_CASE("of steps that are shorter than the counter's ticks allow there is no power") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = test::SteadyCounter<400, 1>;
  const GpuPower power = Over(std::chrono::milliseconds(1));
  CHECK_FALSE(power.watts.has_value());
  CHECK_THAT(power.no_watts, Contains("the timed steps took 0.") && Contains("0.5 s are needed"));
}

TEST_CASE("a counter that stands still, goes back or is not there gives a reason and no power") {
  const auto reason = [](const GpuPower& power) {
    CHECK_FALSE(power.watts.has_value());
    return power.no_watts;
  };
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.sm_mhz = [] { return 900U; };
  fake.millijoules = [] { return 77ULL; };
  const std::chrono::milliseconds steps(550);
  CHECK_THAT(reason(Over(steps)), Contains("the energy counter moved 0 times in 0."));
  fake.millijoules = [] { return 9'000'000'000'000ULL - test::SteadyCounter<1, 20>(); };
  CHECK(reason(Over(steps)) == "the energy counter went back: the driver was loaded anew");
  fake.energy_status = test::kNvmlNotSupported;
  const GpuPower power = Over(steps);
  CHECK(reason(power) == "nvmlDeviceGetTotalEnergyConsumption: Not Supported");
  CHECK(power.no_clock == "");
  CHECK(power.sm_mhz.at(0) == 900);
}

TEST_CASE("without a driver's library there are neither clocks nor power") {
  const GpuPower power = Over(std::chrono::milliseconds(1), "no/such/library.so");
  CHECK_THAT(power.no_watts, Contains("no/such/library.so: cannot open"));
  CHECK(power.no_clock == power.no_watts);
  CHECK(power.sm_mhz.empty());
}

TEST_CASE("on the CPU nothing is measured, and JSON says so") {
  PowerMeter meter("", "no/such/library.so");
  meter.Begin();
  CHECK_FALSE(meter.End().has_value());
  CHECK(PowerText({}) == "");
  CHECK(PowerJson({}) ==
        Json::parse(R"({"not_measured": {"sm_mhz": "on the CPU", "watts": "on the CPU"}})"));
}

StepPower OfTwo() {
  StepPower power;
  power.tokens = 4000;
  power.gpus.resize(2);
  power.gpus[0].sm_mhz = {1400, 1500, 1410};
  power.gpus[1].sm_mhz = {1380, 1390};
  power.gpus[0].watts = 690, power.gpus[1].watts = 610;
  power.gpus[0].off = 0.015625, power.gpus[0].tick_ms = 100;
  power.gpus[1].off = 0.03125, power.gpus[1].tick_ms = 98;
  power.gpus[0].seconds = 2, power.gpus[1].seconds = 4;
  return power;
}

TEST_CASE("joules are those of all GPUs, over the tokens of all ranks") {
  const StepPower power = OfTwo();
  CHECK(power.joules() == 690 * 2 + 610 * 4);
  const Json json = PowerJson(power);
  CHECK(json == Json::parse(R"({
    "sm_mhz": 1400.0, "sm_mhz_p10": 1380.0, "sm_mhz_p90": 1500.0, "sm_mhz_readings": 5,
    "sm_mhz_by_rank": [1410.0, 1390.0],
    "watts": 1300.0, "watts_by_rank": [690.0, 610.0],
    "joules": 3820.0, "seconds": 4.0, "tokens": 4000.0, "joules_per_token": 0.955,
    "off": 0.03125, "counter_ms": 100.0})"));
  CHECK(PowerText(power) ==
        "SM clock 1400 MHz (p10 1380, p90 1500), 1300 W in all (a GPU 610 to 690), 0.955 J per "
        "token (+-3.1 %: the energy counter moves every 100 ms)");
}

TEST_CASE("a figure that one rank lacks is nobody's, with that rank's reason") {
  StepPower power = OfTwo();
  power.gpus[1].watts.reset();
  power.gpus[1].no_watts = "nvmlDeviceGetTotalEnergyConsumption: Not Supported";
  const std::string reason = "rank 1: nvmlDeviceGetTotalEnergyConsumption: Not Supported";
  Json json = PowerJson(power);
  CHECK(json.at("not_measured") == Json({{"watts", reason}}));
  CHECK(json.at("sm_mhz") == 1400);
  for (const char* key : {"watts", "joules", "joules_per_token"}) CHECK_FALSE(json.contains(key));
  CHECK(PowerText(power) ==
        "SM clock 1400 MHz (p10 1380, p90 1500), watts and joules per token not measured: " +
            reason);

  power = OfTwo();
  power.gpus[0].sm_mhz.clear();
  power.gpus[0].no_clock = "nvmlInit_v2: Driver Not Loaded";
  json = PowerJson(power);
  CHECK(json.at("not_measured") == Json({{"sm_mhz", "rank 0: nvmlInit_v2: Driver Not Loaded"}}));
  CHECK_FALSE(json.contains("sm_mhz"));
  CHECK(json.at("watts") == 1300);
  CHECK_THAT(PowerText(power),
             Contains("SM clock not measured: rank 0: nvmlInit_v2: Driver Not Loaded; 1300 W"));
  power.gpus.resize(1);
  CHECK_THAT(PowerText(power), Contains("not measured: nvmlInit_v2: Driver Not Loaded; 690 W, "));
}

TEST_CASE("every rank hears of all GPUs, in the ranks' order", "[ranks]") {
  std::vector<std::string> texts(2);
  RunRanks(2, [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    texts[rank] = PowerText(GatherPower(OfTwo().gpus[rank], 4000, world));
  });
  CHECK(texts == std::vector<std::string>(2, PowerText(OfTwo())));
  RunRanks(2, [&](Communicator& world) {
    texts[static_cast<size_t>(world.rank())] = PowerText(GatherPower(std::nullopt, 1, world));
  });
  CHECK(texts == std::vector<std::string>(2));
}

}  // namespace
}  // namespace millrace
