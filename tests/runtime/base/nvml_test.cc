#include "runtime/base/nvml.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/energy_ticks.h"
#include "tests/support/fake_nvml.h"

namespace millrace {
namespace {

using Catch::Contains;
using test::kFakeGpu;
using test::kFakeNvml;

TEST_CASE("readings are those of the GPU with the id, and the library is given back") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = [] { return 0x123456789abcULL; };
  fake.sm_mhz = [] { return 1755U; };
  {
    const NvmlGpu gpu(kFakeGpu, kFakeNvml);
    CHECK(fake.open == 1);
    CHECK(gpu.trouble() == "");
    CHECK(gpu.Millijoules().trouble == "");
    CHECK(gpu.Millijoules().value == 0x123456789abcULL);
    CHECK(gpu.SmMhz().trouble == "");
    CHECK(gpu.SmMhz().value == 1755);
  }
  CHECK(fake.open == 0);
}

TEST_CASE("a reading that there is none of has its reason, and is not 0") {
  const auto both = [](const NvmlGpu& gpu, const std::string& part) {
    CHECK_THAT(gpu.trouble(), Contains(part));
    CHECK(gpu.Millijoules().trouble == gpu.trouble());
    CHECK(gpu.SmMhz().trouble == gpu.trouble());
  };
  test::FakeNvml& fake = test::NewFakeNvml();
  both(NvmlGpu(kFakeGpu, "no/such/libnvidia-ml.so.1"), "no/such/libnvidia-ml.so.1: cannot open");
  both(NvmlGpu(kFakeGpu, "libm.so.6"), "libm.so.6 has no nvmlInit_v2");
  both(NvmlGpu("GPU-1", kFakeNvml), "nvmlDeviceGetHandleByUUID of GPU-1: Not Found");
  CHECK(fake.open == 0);
  fake.init_status = test::kNvmlDriverNotLoaded;
  both(NvmlGpu(kFakeGpu, kFakeNvml), "nvmlInit_v2: Driver Not Loaded");
  CHECK(fake.open == 0);
}

TEST_CASE("a GPU may tell one figure and not the other") {
  test::FakeNvml& fake = test::NewFakeNvml();
  fake.millijoules = [] { return 5ULL; };
  fake.sm_mhz = [] { return 7U; };
  const NvmlGpu gpu(kFakeGpu, kFakeNvml);
  fake.energy_status = test::kNvmlNotSupported;
  CHECK(gpu.Millijoules().trouble == "nvmlDeviceGetTotalEnergyConsumption: Not Supported");
  CHECK(gpu.SmMhz().value == 7);
  fake.energy_status = 0, fake.clock_status = test::kNvmlNotSupported;
  CHECK(gpu.SmMhz().trouble == "nvmlDeviceGetClockInfo: Not Supported");
  CHECK(gpu.Millijoules().value == 5);
  CHECK(gpu.trouble() == "");
}

TEST_CASE(
    "power is of the time between the first tick and the last, not of that before and after") {
  EnergyTicks ticks;
  CHECK(ticks.seconds() == 0);
  // Read every 0.25 s; the counter moves by 300 J a second, once a second.
  const uint64_t begin = 1'000'000'000'000;
  for (int i = 0; i <= 13; ++i) {
    ticks.Add(100.25 + 0.25 * i, 100.25 + 0.25 * i,
              begin + static_cast<uint64_t>((i + 2) / 4) * 300'000);
    if (i == 1) CHECK((ticks.ticks() == 0 && ticks.joules() == 0));
    if (i == 2) CHECK((ticks.ticks() == 1 && ticks.seconds() == 0 && ticks.joules() == 0));
  }
  CHECK(ticks.readings() == 14);
  CHECK(ticks.ticks() == 3);  // at 100.75, 101.75 and 102.75; 103.5 is before the next
  CHECK(ticks.seconds() == 2);
  CHECK(ticks.joules() == 600);
  CHECK(ticks.tick_seconds() == 1);
  CHECK(ticks.seconds_off() == 0.25);
  CHECK_FALSE(ticks.went_back());
}

TEST_CASE("a tick may be as late as it is since the reading before was asked for") {
  EnergyTicks ticks;
  ticks.Add(0, 0, 10);
  ticks.Add(0.25, 0.5, 20);
  ticks.Add(3.5, 4, 20);
  ticks.Add(4.0625, 4.125, 30);  // it may have moved when the reading before had begun
  CHECK(ticks.seconds_off() == 0.625);
  ticks.Add(5, 6, 40);
  CHECK(ticks.seconds_off() == 1.9375);
  CHECK(ticks.seconds() == 5.5);
}

TEST_CASE("a counter that goes back is noticed") {
  EnergyTicks ticks;
  ticks.Add(0, 0, 10);
  ticks.Add(1, 1, 20);
  CHECK_FALSE(ticks.went_back());
  ticks.Add(2, 2, 3);
  CHECK(ticks.went_back());
  ticks.Add(3, 3, 40);
  CHECK(ticks.went_back());
}

}  // namespace
}  // namespace millrace
