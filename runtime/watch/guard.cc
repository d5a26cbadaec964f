#include "runtime/watch/guard.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDeviationsPerMad = 1.4826;
constexpr int64_t kLargestShift = int64_t{1} << 50;  // steps; more than any run has
constexpr double kLeastDeviation = 0.001;            // of the median

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

GuardAction ActionOf(GuardConfig::Policy policy) {
  switch (policy) {
    case GuardConfig::Policy::kSkip:
      return GuardAction::kSkip;
    case GuardConfig::Policy::kRollBack:
      return GuardAction::kRollBack;
    case GuardConfig::Policy::kStop:
      return GuardAction::kStop;
  }
  return GuardAction::kStop;
}

}  // namespace

double Guard::MaxLoss(int64_t step) const {
  if (!config_.loss_spike) return 0;
  std::vector<double> known;
  for (auto it = losses_.rbegin(); it != losses_.rend(); ++it)
    if (it->step <= step - 2 && static_cast<int64_t>(known.size()) < config_.spike_window)
      known.push_back(it->loss);
  if (static_cast<int64_t>(known.size()) < config_.spike_window) return 0;
  const double median = Median(known);
  for (double& loss : known) loss = std::abs(loss - median);
  const double deviation =
      std::max(kDeviationsPerMad * Median(known), kLeastDeviation * std::abs(median));
  return median + config_.spike_factor * deviation;
}

GuardAction Guard::Judge(int64_t step, const StepScalars& scalars) {
  if (config_.loss_spike && std::isfinite(scalars.loss)) {
    losses_.push_back({step, scalars.loss});
    if (static_cast<int64_t>(losses_.size()) > config_.spike_window + 1) losses_.pop_front();
  }
  if (scalars.applied != 0) return GuardAction::kGoOn;
  const bool spike = scalars.offender_unit == kOffenderSpike;
  const GuardAction action = ActionOf(
      spike ? config_.loss_spike.value_or(GuardConfig::Policy::kSkip) : config_.non_finite);
  return action == GuardAction::kRollBack && !may_roll_back() ? GuardAction::kStop : action;
}

void Guard::RolledBack(const RollBack& roll_back, const std::string& state) {
  const int64_t shift = roll_back.from + data_shift_ - roll_back.to;
  std::vector<RollBack> all = roll_backs_;
  all.push_back(roll_back);
  Restore(state);
  data_shift_ = shift;
  roll_backs_ = std::move(all);
}

std::string Guard::State() const {
  Json losses = Json::array(), roll_backs = Json::array();
  for (const Loss& loss : losses_) losses.push_back({loss.step, loss.loss});
  for (const RollBack& r : roll_backs_)
    roll_backs.push_back({{"from", r.from}, {"to", r.to}, {"why", r.why}});
  return DumpJson(
      Json{{"losses", losses}, {"data_shift", data_shift_}, {"roll_backs", roll_backs}});
}

void Guard::Restore(const std::string& state) {
  *this = Guard(config_);
  try {
    const Json json = ParseOrderedJson(state);
    if (json.empty()) return;
    for (const Json& entry : json.at("losses"))
      if (config_.loss_spike)
        losses_.push_back({entry.at(0).get<int64_t>(), entry.at(1).get<double>()});
    while (static_cast<int64_t>(losses_.size()) > config_.spike_window + 1) losses_.pop_front();
    data_shift_ = json.at("data_shift").get<int64_t>();
    MR_REQUIRE(ErrorCode::kCheckpoint, data_shift_ >= 0 && data_shift_ <= kLargestShift,
               "the guard's state \"{}\" is damaged: data_shift is {}; 0 to {} are allowed", state,
               data_shift_, kLargestShift);
    for (const Json& r : json.at("roll_backs"))
      roll_backs_.push_back({r.at("from").get<int64_t>(), r.at("to").get<int64_t>(), r.at("why")});
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the guard's state \"{}\" is of another version of Millrace: {}", state,
                            error.what()));
  }
}

}  // namespace millrace
