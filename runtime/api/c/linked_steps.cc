// Steps and evaluations of a linked run.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/run/data/token_rows.h"
#include "runtime/run/eval/score.h"
#include "runtime/run/training/call_record.h"

namespace millrace {
namespace {

template <class... Args>
void Require(bool holds, int32_t code, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw CallError(code, fmt::format(text, std::forward<Args>(args)...));
}

// A value of each target that a batch may give, and whether the configuration's loss needs it.
struct TargetValue {
  const char* name;  // of the field and of the input
  const float* values;
  bool needed;
  std::string because;  // the key that decides
};

std::array<TargetValue, 4> ValuesOf(const mr_batch& batch, const TrainConfig& train) {
  const bool policy = train.loss == TrainConfig::Loss::kPolicyGradient;
  const std::string loss =
      fmt::format("train.loss is {}", policy ? "policy_gradient" : "cross_entropy");
  return {{{"weights", batch.weights, train.loss_weights,
            fmt::format("train.loss_weights is {}", train.loss_weights)},
           {"old_logprobs", batch.old_logprobs, policy, loss},
           {"advantages", batch.advantages, policy, loss},
           {"reference_logprobs", batch.reference_logprobs, policy && train.policy.kl != 0,
            fmt::format("{} and train.policy.kl {}", loss, train.policy.kl)}}};
}

}  // namespace

std::span<const int32_t> LinkedRun::CheckedTokens(const mr_batch& batch, bool of_a_step) const {
  const int64_t micro = layout_.micro_batch, rows = micro * layout_.accumulate;
  if (of_a_step)
    Require(batch.sequences == rows, MR_INVALID_ARGUMENT,
            "batch.sequences is {}; a step takes {} on each rank (train.micro_batch {} x {} "
            "microbatches)",
            batch.sequences, rows, micro, layout_.accumulate);
  else
    Require(batch.sequences > 0 && batch.sequences % micro == 0, MR_INVALID_ARGUMENT,
            "batch.sequences is {}; an evaluation takes a multiple of train.micro_batch, {}",
            batch.sequences, micro);
  Require(batch.sequences <= PTRDIFF_MAX / (8 * row_tokens_), MR_INVALID_ARGUMENT,
          "batch.sequences is {}: no memory has as many", batch.sequences);
  Require(batch.tokens != nullptr, MR_INVALID_ARGUMENT,
          "batch.tokens is NULL; where the configuration's data is meant, batch is");
  const std::span tokens(batch.tokens, static_cast<size_t>(batch.sequences * row_tokens_));
  const int64_t vocab = loaded_.config.model.Vocab();
  for (size_t i = 0; i < tokens.size(); ++i)
    Require(tokens[i] >= 0 && tokens[i] < vocab, MR_INVALID_ARGUMENT,
            "batch.tokens[{}][{}] is {}; the vocabulary is 0 to {}",
            static_cast<int64_t>(i) / row_tokens_, static_cast<int64_t>(i) % row_tokens_, tokens[i],
            vocab - 1);
  return tokens;
}

LinkedRun::TargetValues LinkedRun::CheckedValues(const mr_batch& batch) const {
  const int64_t row = row_tokens_ - 1, targets = batch.sequences * row;
  TargetValues given{{}, static_cast<double>(targets), {}};
  for (const TargetValue& value : ValuesOf(batch, loaded_.config.train)) {
    Require((value.values != nullptr) == value.needed, MR_INVALID_ARGUMENT,
            "batch.{} is {}NULL, and {}", value.name, value.values == nullptr ? "" : "not ",
            value.because);
    if (!value.needed) continue;
    const std::span values(value.values, static_cast<size_t>(targets));
    const bool weighs = value.values == batch.weights;
    double sum = 0;
    for (int64_t i = 0; i < targets; ++i) {
      const float v = values[static_cast<size_t>(i)];
      Require(std::isfinite(v) && (!weighs || v >= 0), MR_INVALID_ARGUMENT,
              "batch.{}[{}][{}] is {}; it must be finite{}", value.name, i / row, i % row, v,
              weighs ? " and not negative" : "");
      sum += v;
    }
    if (weighs) {
      given.weights = sum;
      given.further = RolledWeights(values, row, loaded_.config.model.mtp.depth);
    }
    given.inputs.push_back({value.name, std::as_bytes(values)});
  }
  for (const FurtherWeights& further : given.further)
    given.inputs.push_back({further.source, std::as_bytes(std::span(further.values))});
  return given;
}

std::optional<LinkedRun::Given> LinkedRun::GivenBy(const mr_batch* batch, bool of_a_step) const {
  RequireWeights();
  RequireArena();
  if (batch == nullptr) {
    Require(session_->has_data(), MR_INVALID_ARGUMENT,
            "batch is NULL, and the run was made without use_data: there are no tokens");
    return std::nullopt;
  }
  Require(!loaded_.config.data.MasksDocuments(), MR_UNSUPPORTED,
          "data.document_mask is true, and batch is not NULL: documents are found in the run's own "
          "data alone so far");
  Require(!loaded_.config.data.loss_mask.value_or(false), MR_UNSUPPORTED,
          "data.loss_mask is true, and batch is not NULL: masks are those of the run's own files; "
          "with train.loss_weights instead, weights come with the batch");
  const mr_batch whole = ReadSized(batch, "batch");
  Given given{CheckedTokens(whole, of_a_step), {}};
  if (of_a_step)
    given.values = CheckedValues(whole);
  else
    for (const TargetValue& value : ValuesOf(whole, loaded_.config.train))
      Require(value.values == nullptr, MR_INVALID_ARGUMENT,
              "batch.{} is not NULL: an evaluation is of tokens alone", value.name);
  return given;
}

// Ranks of a data rank give the same; sums are in rank order, so all have the same bits.
std::vector<double> LinkedRun::SumsOverDataRanks(const std::vector<double>& own) {
  if (meeting_->world_size() == 1) return own;
  const size_t bytes = own.size() * sizeof(double);
  std::vector<double> sums(own.size()), values(own.size());
  for (const std::string& part :
       meeting_->HostAllGather({reinterpret_cast<const char*>(own.data()), bytes})) {
    MR_CHECK_EQ(part.size(), bytes, "sums of a rank's weights");
    std::memcpy(values.data(), part.data(), bytes);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  for (double& sum : sums) sum = sum * static_cast<double>(layout_.world) / meeting_->world_size();
  return sums;
}

// Of what a batch gives.
LossTotals LinkedRun::TotalsOfStep(const std::optional<Given>& given) {
  const int64_t seq_len = row_tokens_ - 1, sequences = layout_.GlobalBatch();
  LossTotals totals(sequences * seq_len);
  if (!given || !loaded_.config.train.loss_weights) return totals;
  std::vector<double> sums = {given->values.weights};
  for (const FurtherWeights& further : given->values.further) sums.push_back(further.sum);
  Touch([&] { sums = SumsOverDataRanks(sums); });
  Require(sums[0] > 0, MR_INVALID_ARGUMENT, "batch.weights are all 0, on all ranks");
  totals.weights = sums[0];
  for (size_t k = 1; k < sums.size(); ++k)
    totals.others.push_back({given->values.further[k - 1].source,
                             sequences * (seq_len - static_cast<int64_t>(k)), sums[k]});
  return totals;
}

LinkedRun::ReadStep LinkedRun::ReadOwnStep() const {
  const Config& config = loaded_.config;
  const Batcher& batcher = session_->batcher();
  const int64_t rank = session_->data_rank();
  return {StepRows(config, batcher, step_, rank, batcher.Step(step_, rank)),
          TotalsOf(config, batcher, step_)};
}

void LinkedRun::Step(const mr_batch* batch, mr_step_result* result) {
  std::optional<Given> given;
  std::optional<ReadStep> read;
  Agree("mr_step", [&] {
    if (result != nullptr) RequireSized(result, "result");
    given = GivenBy(batch, true);
    RequireNothingLent();
    if (!given) read.emplace(ReadOwnStep());
  });
  const LossTotals totals = TotalsOfStep(given);
  StepScalars scalars{};
  Touch([&] {
    AwaitReaders();
    const PhaseScope phase = session_->Phase(RunPhase::kTraining, step_);
    if (given) {
      std::vector<HostInputs::Input> inputs = given->values.inputs;
      inputs.push_back({"tokens", std::as_bytes(given->tokens)});
      scalars = session_->engine().Step(HostInputs(inputs), step_, totals);
      return;
    }
    scalars = session_->engine().Step(read->rows.inputs(), step_, read->totals);
  });
  ++step_;
  samples_ += layout_.GlobalBatch();
  const bool applied = scalars.applied != 0;
  if (applied) ++version_;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const PolicyFigures policy =
      PolicyFiguresOf(session_->engine()).value_or(PolicyFigures{kNone, kNone, kNone});
  if (result != nullptr)
    WriteSized(mr_step_result{.size = 0,
                              .step = step_,
                              .loss = scalars.loss,
                              .grad_norm = scalars.grad_norm,
                              .lr = scalars.lr,
                              .targets = totals.targets,
                              .weight_version = version_,
                              .applied = applied ? 1 : 0,
                              .clip_fraction = policy.clip_fraction,
                              .ratio = policy.ratio,
                              .kl = policy.kl},
               result);
}

int64_t LinkedRun::AgreedBatches(const std::optional<Given>& given) {
  const int64_t tokens = layout_.micro_batch * row_tokens_,
                batches = given ? std::ssize(given->tokens) / tokens : 0;
  if (meeting_->world_size() == 1) return batches;
  std::vector<std::string> all;
  Touch([&] { all = meeting_->HostAllGather(std::to_string(batches)); });
  for (size_t r = 0; r < all.size(); ++r)
    Require(all[r] == all.front(), MR_INVALID_ARGUMENT,
            "rank {} gives {} microbatches, and rank 0 {}: each rank gives as many rows", r, all[r],
            all.front());
  return batches;
}

HostInputs LinkedRun::InputsOf(const Given& given, int64_t batch,
                               std::span<const float> ones) const {
  const auto tokens = static_cast<size_t>(layout_.micro_batch * row_tokens_);
  std::vector<HostInputs::Input> inputs = {
      {"tokens", std::as_bytes(given.tokens.subspan(static_cast<size_t>(batch) * tokens, tokens))}};
  for (const TargetValue& value : ValuesOf({}, loaded_.config.train))
    if (value.needed) inputs.push_back({value.name, std::as_bytes(ones)});
  return HostInputs(inputs);
}

// The session reads batch by batch, between collectives.
void LinkedRun::ReadHeldOut() const {
  const StepLayout& layout = session_->batcher().layout();
  for (const NamedSource& one : session_->data().held_out) {
    const int64_t count = EvalBatches(*one.source, loaded_.config.data.eval_batches, layout);
    for (int64_t i = 0; i < count; ++i)
      EvalRows(loaded_.config, *one.source, i, session_->data_rank(), layout);
  }
}

void LinkedRun::Evaluate(const mr_batch* batch, mr_evaluation* result) {
  std::optional<Given> given;
  Agree("mr_evaluate", [&] {
    RequireSized(result, "result");
    given = GivenBy(batch, false);
    if (!given) ReadHeldOut();
  });
  const int64_t batches = AgreedBatches(given);
  Session::MeanLoss mean;
  Touch([&] {
    const std::vector<float> ones = Ones();
    if (given)
      mean = session_->EvaluateOn(batches, [&](int64_t i) {
        return Session::HeldOutBatch{InputsOf(*given, i, ones), static_cast<double>(ones.size())};
      });
    else
      mean = session_->EvaluateHeldOut();
  });
  WriteSized(mr_evaluation{.size = 0, .loss = mean.loss, .targets = mean.targets}, result);
}

void LinkedRun::Score(const mr_batch* batch, Scores scores) {
  std::optional<Given> given;
  Agree("mr_score", [&] {
    for (const auto& [pointer, name] :
         {std::pair<const void*, const char*>{batch, "batch"}, {scores.logprobs, "logprobs"}})
      Require(pointer != nullptr, MR_INVALID_ARGUMENT, "{} is NULL", name);
    Require(scores.likeliest != nullptr || !scores.has_likeliest, MR_INVALID_ARGUMENT,
            "likeliest is NULL");
    Require(generates_ != nullptr, MR_INVALID_ARGUMENT,
            "the run was made without use_inference: it has no plan to score by");
    given = GivenBy(batch, false);
    const int64_t targets = std::ssize(given->tokens) / row_tokens_ * (row_tokens_ - 1);
    Require(scores.count == targets, MR_INVALID_ARGUMENT, "count is {}; the batch has {} targets",
            scores.count, targets);
  });
  const int64_t batches = AgreedBatches(given);
  Touch([&] {
    const std::vector<float> ones = Ones();
    for (int64_t i = 0; i < batches; ++i) {
      const PhaseScope phase = session_->Phase(RunPhase::kEvaluating, i);
      const HostInputs inputs = InputsOf(*given, i, ones);
      TokenScores found;
      if (scores.has_likeliest)
        found = ScoresOfTokens(session_->engine(), inputs);
      else
        found.losses = TokenLosses(session_->engine(), inputs);
      for (const double loss : found.losses) *scores.logprobs++ = -loss;
      scores.likeliest =
          std::copy(found.likeliest.begin(), found.likeliest.end(), scores.likeliest);
    }
  });
}

}  // namespace millrace
