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

Batch Guard::Next(int64_t step) {
  if (waiting_.empty() || waiting_.front().step > step - 2)
    return {step, Drawn(step), false};
  ++runs_again_;
  last_again_ = {step, waiting_.front().number, true};
  waiting_.pop_front();
  return last_again_;
}

GuardAction Guard::Judge(const Batch& ran, const StepScalars& scalars) {
  if (scalars.applied == 0 && IsOverflow(scalars.offender_unit)) {
    waiting_.push_back({ran.step, ran.number, false});
    return GuardAction::kSkip;
  }
  if (config_.loss_spike && std::isfinite(scalars.loss)) {
    losses_.push_back({ran.step, scalars.loss});
    if (static_cast<int64_t>(losses_.size()) > config_.spike_window + 1) losses_.pop_front();
  }
  if (scalars.applied != 0 || scalars.scaled_down != 0) return GuardAction::kGoOn;
  const bool spike = scalars.offender_unit == kOffenderSpike;
  const GuardAction action = ActionOf(
      spike ? config_.loss_spike.value_or(GuardConfig::Policy::kSkip) : config_.non_finite);
  return action == GuardAction::kRollBack && !may_roll_back() ? GuardAction::kStop : action;
}

void Guard::RolledBack(const RollBack& roll_back, const std::string& state) {
  const Guard before = *this;
  // A step behind the bad one may be in flight: what it runs was not left out.
  const bool in_flight = last_again_.step > roll_back.from;
  const int64_t next = roll_back.from + 1 + data_shift_ - (runs_again_ - in_flight);
  Restore(state);
  data_shift_ = next - (roll_back.to + 1 - runs_again_);
  roll_backs_ = before.roll_backs_;
  roll_backs_.push_back(roll_back);
  std::erase_if(waiting_, [&](const Batch& batch) {
    return !(in_flight && batch.number == before.last_again_.number) &&
           std::find(before.waiting_.begin(), before.waiting_.end(), batch) ==
               before.waiting_.end();
  });
}

std::string Guard::State() const {
  Json losses = Json::array(), roll_backs = Json::array();
  for (const Loss& loss : losses_) losses.push_back({loss.step, loss.loss});
  for (const RollBack& r : roll_backs_)
    roll_backs.push_back({{"from", r.from}, {"to", r.to}, {"why", r.why}});
  Json state{{"losses", losses}, {"data_shift", data_shift_}, {"roll_backs", roll_backs}};
  if (runs_again_ > 0) state["runs_again"] = runs_again_;
  for (const Batch& batch : waiting_) state["waiting"].push_back({batch.step, batch.number});
  return DumpJson(state);
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
    runs_again_ = json.value("runs_again", int64_t{0});
    for (const Json& batch : json.value("waiting", Json::array()))
      waiting_.push_back({batch.at(0).get<int64_t>(), batch.at(1).get<int64_t>(), false});
    for (const Json& r : json.at("roll_backs"))
      roll_backs_.push_back({r.at("from").get<int64_t>(), r.at("to").get<int64_t>(), r.at("why")});
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the guard's state \"{}\" is of another version of Millrace: {}", state,
                            error.what()));
  }
}

}  // namespace millrace
