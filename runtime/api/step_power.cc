#include "runtime/api/step_power.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/base/quantile.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json ToJson(const GpuPower& power) {
  return {{"sm_mhz", power.sm_mhz},
          {"no_clock", power.no_clock},
          {"watts", power.watts ? Json(*power.watts) : Json()},
          {"no_watts", power.no_watts},
          {"off", power.off},
          {"tick_ms", power.tick_ms},
          {"seconds", power.seconds}};
}

GpuPower PowerOf(const Json& json) {
  GpuPower power;
  json.at("sm_mhz").get_to(power.sm_mhz);
  json.at("no_clock").get_to(power.no_clock);
  if (!json.at("watts").is_null()) power.watts = json.at("watts").get<double>();
  json.at("no_watts").get_to(power.no_watts);
  json.at("off").get_to(power.off);
  json.at("tick_ms").get_to(power.tick_ms);
  json.at("seconds").get_to(power.seconds);
  return power;
}

// "" where all have none.
std::string FirstOf(const std::vector<GpuPower>& gpus, std::string GpuPower::*reason) {
  for (size_t rank = 0; rank < gpus.size(); ++rank)
    if (const std::string& text = gpus[rank].*reason; !text.empty())
      return gpus.size() == 1 ? text : fmt::format("rank {}: {}", rank, text);
  return "";
}

double Largest(const StepPower& power, double GpuPower::*figure) {
  double largest = 0;
  for (const GpuPower& gpu : power.gpus) largest = std::max(largest, gpu.*figure);
  return largest;
}

std::vector<double> AllClocks(const StepPower& power) {
  std::vector<double> all;
  for (const GpuPower& gpu : power.gpus)
    all.insert(all.end(), gpu.sm_mhz.begin(), gpu.sm_mhz.end());
  return all;
}

}  // namespace

std::string StepPower::no_clock() const { return FirstOf(gpus, &GpuPower::no_clock); }
std::string StepPower::no_watts() const { return FirstOf(gpus, &GpuPower::no_watts); }

double StepPower::watts() const {
  double sum = 0;
  for (const GpuPower& gpu : gpus) sum += gpu.watts.value_or(0);
  return sum;
}

double StepPower::joules() const {
  double sum = 0;
  for (const GpuPower& gpu : gpus) sum += gpu.watts.value_or(0) * gpu.seconds;
  return sum;
}

PowerMeter::PowerMeter(const std::string& uuid, const std::string& library) {
  if (!uuid.empty()) gpu_.emplace(uuid, library);
}

PowerMeter::~PowerMeter() { Stop(); }

void PowerMeter::Begin() {
  Stop();
  if (!gpu_) return;
  ticks_ = {};
  power_ = {};
  stop_ = false;
  ReadEnergy();
  begin_ = Now();
  if (gpu_->trouble().empty()) thread_ = std::thread([this] { ReadUntilStopped(); });
}

void PowerMeter::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PowerMeter::ReadEnergy() {
  if (!power_.no_watts.empty()) return;
  const double asked = Now();
  const NvmlReading energy = gpu_->Millijoules();
  power_.no_watts = energy.trouble;
  if (energy.trouble.empty()) ticks_.Add(asked, Now(), energy.value);
}

void PowerMeter::ReadUntilStopped() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kReadEvery, [this] { return stop_; })) {
    ReadEnergy();
    const NvmlReading clock = gpu_->SmMhz();
    if (clock.trouble.empty())
      power_.sm_mhz.push_back(static_cast<double>(clock.value));
    else
      power_.no_clock = clock.trouble;
  }
}

std::optional<GpuPower> PowerMeter::End() {
  if (!gpu_) return std::nullopt;
  const double end = Now();
  Stop();
  power_.seconds = end - begin_;
  if (!power_.sm_mhz.empty())
    power_.no_clock.clear();
  else if (!gpu_->trouble().empty())
    power_.no_clock = gpu_->trouble();
  else if (power_.no_clock.empty())
    power_.no_clock = fmt::format("the timed steps took {:.0f} ms, and it is read every {} ms",
                                  1e3 * power_.seconds, kReadEvery.count());
  if (power_.no_watts.empty() && ticks_.went_back())
    power_.no_watts = "the energy counter went back: the driver was loaded anew";
  if (power_.no_watts.empty() && power_.seconds < kLeastSeconds)
    power_.no_watts = fmt::format(
        "the timed steps took {:.2f} s, and the energy counter stands still for up to 0.1 s: {} s "
        "are needed (--steps)",
        power_.seconds, kLeastSeconds);
  if (power_.no_watts.empty() && ticks_.seconds() < power_.seconds / 2)
    power_.no_watts = fmt::format("the energy counter moved {} times in {:.2f} s", ticks_.ticks(),
                                  power_.seconds);
  if (!power_.no_watts.empty()) return power_;
  power_.watts = ticks_.joules() / ticks_.seconds();
  power_.off = ticks_.seconds_off() / ticks_.seconds();
  power_.tick_ms = 1e3 * ticks_.tick_seconds();
  return power_;
}

StepPower GatherPower(const std::optional<GpuPower>& own, double tokens, Communicator& world) {
  StepPower power;
  power.tokens = tokens;
  for (const std::string& text : world.HostAllGather(own ? DumpJson(ToJson(*own)) : ""))
    if (!text.empty()) power.gpus.push_back(PowerOf(ParseOrderedJson(text)));
  return power;
}

Json PowerJson(const StepPower& power) {
  if (power.gpus.empty())
    return {{"not_measured", {{"sm_mhz", "on the CPU"}, {"watts", "on the CPU"}}}};
  Json json = Json::object(), missing = Json::object();
  const std::string no_clock = power.no_clock(), no_watts = power.no_watts();
  if (no_clock.empty()) {
    const std::vector<double> clocks = AllClocks(power);
    json["sm_mhz"] = Median(clocks);
    json["sm_mhz_p10"] = Quantile(clocks, 0.1);
    json["sm_mhz_p90"] = Quantile(clocks, 0.9);
    json["sm_mhz_readings"] = clocks.size();
    for (const GpuPower& gpu : power.gpus) json["sm_mhz_by_rank"].push_back(Median(gpu.sm_mhz));
  } else {
    missing["sm_mhz"] = no_clock;
  }
  if (no_watts.empty()) {
    json["watts"] = power.watts();
    for (const GpuPower& gpu : power.gpus) json["watts_by_rank"].push_back(*gpu.watts);
    json["joules"] = power.joules();
    json["seconds"] = Largest(power, &GpuPower::seconds);
    json["tokens"] = power.tokens;
    json["joules_per_token"] = power.joules() / power.tokens;
    json["off"] = Largest(power, &GpuPower::off);
    json["counter_ms"] = Largest(power, &GpuPower::tick_ms);
  } else {
    missing["watts"] = no_watts;
  }
  if (!missing.empty()) json["not_measured"] = missing;
  return json;
}

std::string PowerText(const StepPower& power) {
  if (power.gpus.empty()) return "";
  std::string text;
  const auto out = std::back_inserter(text);
  if (const std::string reason = power.no_clock(); !reason.empty()) {
    fmt::format_to(out, "SM clock not measured: {}; ", reason);
  } else {
    const std::vector<double> clocks = AllClocks(power);
    fmt::format_to(out, "SM clock {:.0f} MHz (p10 {:.0f}, p90 {:.0f}), ", Median(clocks),
                   Quantile(clocks, 0.1), Quantile(clocks, 0.9));
  }
  if (const std::string reason = power.no_watts(); !reason.empty())
    return text + fmt::format("watts and joules per token not measured: {}", reason);
  const auto [least, most] =
      std::minmax_element(power.gpus.begin(), power.gpus.end(),
                          [](const GpuPower& a, const GpuPower& b) { return *a.watts < *b.watts; });
  fmt::format_to(out, "{:.0f} W", power.watts());
  if (power.gpus.size() > 1)
    fmt::format_to(out, " in all (a GPU {:.0f} to {:.0f})", *least->watts, *most->watts);
  fmt::format_to(out, ", {:.4g} J per token (+-{:.1f} %: the energy counter moves every {:.0f} ms)",
                 power.joules() / power.tokens, 100 * Largest(power, &GpuPower::off),
                 Largest(power, &GpuPower::tick_ms));
  return text;
}

}  // namespace millrace
