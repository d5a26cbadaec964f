#include "tools/cli/bench/decode.h"

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/api/backend.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/quantile.h"
#include "runtime/exec/engine.h"
#include "runtime/run/generate/engine_token_model.h"
#include "runtime/run/generate/inference_plans.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

// Sequences in slots of their own, each with the pages of all positions that it will have.
class Batch {
 public:
  Batch(TokenModel& model, int64_t size, int64_t prompt, int64_t tokens) : model_(model) {
    const TokenModelLimits& limits = model.limits();
    const int64_t each = CeilDiv(prompt + tokens, limits.page_tokens);
    MR_REQUIRE(
        ErrorCode::kConfig, size <= limits.slots && size * each <= limits.pages,
        "--decode {}: {} sequences of {} tokens need {} slots and {} pages; inference.slots is {}, "
        "inference.pages {}",
        size, size, prompt + tokens, size, size * each, limits.slots, limits.pages);
    MR_REQUIRE(ErrorCode::kConfig, prompt + tokens <= limits.max_length,
               "--steps, --warmup and --prompt-tokens: {} tokens of a sequence; "
               "inference.max_length is {}",
               prompt + tokens, limits.max_length);
    sampling_.top_p = 0.95f;
    for (int64_t s = 0; s < size; ++s) {
      std::vector<int32_t>& pages = pages_.emplace_back();
      for (int64_t p = 0; p < each; ++p) pages.push_back(static_cast<int32_t>(s * each + p));
    }
    for (int64_t s = 0; s < size; ++s)
      prefill_ms_.push_back(Milliseconds([&] { Begin(s, prompt); }));
    sampled_.resize(rows_.size());
    for (SampledToken& token : sampled_) drawn_.push_back(&token);
    model_.Launch(rows_);
  }
  ~Batch() { model_.Drop(); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  template <class F>
  static double Milliseconds(F&& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    return ms.count();
  }

  const std::vector<double>& prefill_ms() const { return prefill_ms_; }

  // As a Generator does: the next step is launched before this one is read, where that gains.
  void Step() {
    const bool ahead = model_.limits().steps_ahead;
    for (DecodeRow& row : rows_) {
      ++row.length;
      ++row.drawn;
      row.token = kTokenInFlight;
    }
    if (ahead) model_.Launch(rows_);
    model_.Collect(drawn_);
    if (ahead) return;
    for (size_t s = 0; s < rows_.size(); ++s) rows_[s].token = sampled_[s].token;
    model_.Launch(rows_);
  }

 private:
  void Begin(int64_t slot, int64_t prompt) {
    const TokenModelLimits& limits = model_.limits();
    const std::vector<int32_t>& pages = pages_[static_cast<size_t>(slot)];
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < prompt; ++i)
      tokens.push_back(static_cast<int32_t>((slot * 31 + i * i) % limits.vocab));
    SampledToken first;
    for (int64_t at = 0; at < prompt; at += limits.max_chunk) {
      PrefillRows rows;
      rows.slot = slot;
      rows.first = at;
      rows.tokens = std::span(tokens).subspan(
          static_cast<size_t>(at), static_cast<size_t>(std::min(limits.max_chunk, prompt - at)));
      rows.pages = pages;
      if (at + limits.max_chunk >= prompt) rows.sampling = &sampling_;
      first = model_.Prefill(rows);
    }
    rows_.push_back({slot, prompt, first.token, 1, pages, &sampling_});
  }

  TokenModel& model_;
  Sampling sampling_;
  std::vector<std::vector<int32_t>> pages_;  // by slot
  std::vector<double> prefill_ms_;
  std::vector<DecodeRow> rows_;
  std::vector<SampledToken> sampled_;
  std::vector<SampledToken*> drawn_;
};

double TokensPerSecond(const DecodeRate& rate, double step_ms) {
  return static_cast<double>(rate.batch) / (step_ms / 1e3);
}

}  // namespace

std::vector<DecodeRate> TimeDecode(TokenModel& model, const std::vector<int64_t>& batches,
                                   int64_t prompt, int64_t warmup, int64_t steps,
                                   PowerMeter& meter) {
  std::vector<DecodeRate> rates;
  for (const int64_t size : batches) {
    Batch batch(model, size, prompt, warmup + steps + 1);
    for (int64_t i = 0; i < warmup; ++i) batch.Step();
    DecodeRate& rate = rates.emplace_back();
    rate.batch = size;
    rate.prefill_ms = batch.prefill_ms();
    meter.Begin();
    for (int64_t i = 0; i < steps; ++i)
      rate.step_ms.push_back(Batch::Milliseconds([&] { batch.Step(); }));
    rate.own_power = meter.End();
  }
  return rates;
}

nlohmann::ordered_json DecodeJson(const std::vector<DecodeRate>& rates,
                                  const std::vector<StepPower>& power) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < rates.size(); ++i) {
    const DecodeRate& rate = rates[i];
    rows.push_back({{"batch", rate.batch},
                    {"tokens_per_s", TokensPerSecond(rate, Median(rate.step_ms))},
                    {"step_ms", Median(rate.step_ms)},
                    {"step_ms_p10", Quantile(rate.step_ms, 0.1)},
                    {"step_ms_p90", Quantile(rate.step_ms, 0.9)},
                    {"step_ms_samples", rate.step_ms},
                    {"prefill_ms", Median(rate.prefill_ms)},
                    {"prefill_ms_samples", rate.prefill_ms},
                    {"power", PowerJson(power[i])}});
  }
  return rows;
}

std::string DecodeText(const std::vector<DecodeRate>& rates, const std::vector<StepPower>& power) {
  std::string text;
  for (size_t i = 0; i < rates.size(); ++i) {
    const DecodeRate& rate = rates[i];
    fmt::format_to(std::back_inserter(text),
                   "decode of {}: {:.3f} ms (p10 {:.3f}, p90 {:.3f}), {:.1f} tokens/s; a prompt "
                   "{:.3f} ms\n",
                   rate.batch, Median(rate.step_ms), Quantile(rate.step_ms, 0.1),
                   Quantile(rate.step_ms, 0.9), TokensPerSecond(rate, Median(rate.step_ms)),
                   Median(rate.prefill_ms));
    if (const std::string line = PowerText(power[i]); !line.empty()) text += line + '\n';
  }
  return text;
}

int BenchDecode(const BenchArguments& arguments, const ConfigArguments& config) {
  const PlanSelection plans{std::string(kInferencePlans)};
  MR_REQUIRE(ErrorCode::kConfig,
             !arguments.ops && !arguments.floor && !arguments.update && arguments.trace.empty() &&
                 arguments.graph_dot.empty(),
             "--decode times steps of a generator; --ops, --floor, --update, --trace and "
             "--graph-dot are of training steps");
  return RunOnRanks(config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, false});
    session.InitWeights();
    EngineTokenModel model(session.engine(), context.config.config);
    model.Enter();
    PowerMeter meter(UuidOf(session.device()));
    const std::vector<DecodeRate> rates = TimeDecode(
        model, arguments.decode, arguments.prompt_tokens, arguments.warmup, arguments.steps, meter);
    std::vector<StepPower> power;
    for (const DecodeRate& rate : rates) {
      const int64_t tokens = rate.batch * arguments.steps * session.run().layout.mesh.data_ranks();
      power.push_back(GatherPower(rate.own_power, static_cast<double>(tokens),
                                  session.engine().comms().world()));
    }
    if (!context.leader()) return 0;
    if (!arguments.json) return std::cout << DecodeText(rates, power) << std::flush, 0;
    std::cout << DumpJson(nlohmann::ordered_json{{"decode", DecodeJson(rates, power)},
                                                 {"prompt_tokens", arguments.prompt_tokens},
                                                 {"device", session.device().name()},
                                                 {"world", session.world()},
                                                 {"steps", arguments.steps},
                                                 {"warmup", arguments.warmup}})
              << std::endl;
    return 0;
  });
}

}  // namespace millrace
