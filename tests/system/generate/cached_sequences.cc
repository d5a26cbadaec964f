#include "tests/system/generate/cached_sequences.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/exec/bound_op.h"
#include "runtime/run/generate/inference_plans.h"

namespace millrace::test {

Trial GeneratingTrial(ModelConfig::Family family, Precision precision, int world) {
  Trial trial;
  Config& c = trial.config = TinyConfig(family);
  c.model.layers = 2;
  c.model.vocab = 61;
  c.model.seq_len = 80;
  c.model.d_model = 32;
  c.model.heads = 4;
  if (family != ModelConfig::Family::kGpt2) {
    c.model.kv_heads = 2;
    c.model.head_dim = 16;
  }
  c.model.ffn = 48;
  if (family == ModelConfig::Family::kNemotronH)
    c.model.mamba = {.heads = 4, .head_dim = 8, .groups = 2, .state = 16, .chunk = 9};
  c.train.micro_batch = 2;
  SetPrecision(c, precision);
  c.inference.slots = 6;
  c.inference.page_tokens = 7;
  c.inference.prefill = std::vector<int64_t>{4, 24};
  c.inference.decode = std::vector<int64_t>{1, 3, 6};
  trial.world = world;
  return trial;
}

AssembledRun InferenceRun(const Trial& trial) {
  return Assemble(trial.config, trial.world, TestRanks().Traits(trial.world),
                  {"train", "eval", "inference"});
}

void RunPlans(const Trial& trial, const std::function<void(RankContext&)>& fn) {
  const AssembledRun run = InferenceRun(trial);
  TestRanks().Run(trial.world, [&](const RankSetup& setup) { RunRank(setup, trial, run, fn); });
}

namespace {

// [rows of the microbatch, Vp] of what each rank of a data rank has of it: its part of the rows.
std::vector<Logits> OfDataRank(RankContext& rank, const std::vector<float>& own, int64_t columns) {
  const Mesh& mesh = rank.run.layout.mesh;
  const std::vector<std::string> by_rank = rank.engine.comms().world().HostAllGather(
      {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(float)});
  std::vector<Logits> rows;
  for (const int peer : mesh.Group(rank.rank, Axis::kTensor)) {
    std::vector<float> part(own.size());
    std::memcpy(part.data(), by_rank[static_cast<size_t>(peer)].data(), own.size() * sizeof(float));
    for (auto at = part.begin(); at != part.end(); at += columns)
      rows.emplace_back(at, at + columns);
  }
  return rows;
}

// The logits that the loss sees of each position of the window that sample `sample` begins. A
// collective.
std::vector<Logits> TrainingLogits(RankContext& rank, const Config& config, int64_t sample) {
  std::vector<int32_t> batch;
  for (int64_t b = 0; b < config.train.micro_batch; ++b) {
    const std::vector<int32_t> row = TokensOfSample(config, sample);
    batch.insert(batch.end(), row.begin(), row.end());
  }
  rank.engine.EvalLossSum(batch);
  const StepPlan& plan = rank.run.plans.Of("eval");
  const auto buffer = std::find_if(plan.buffers.begin(), plan.buffers.end(),
                                   [](const PlanBuffer& b) { return b.name == "head/logits"; });
  MR_CHECK(buffer != plan.buffers.end(), "the plan {} has no logits", plan.name);
  const int64_t positions = config.model.seq_len,
                rows = config.train.micro_batch * positions / config.parallel.tensor;
  // One chunk of the head's, the last thing that the plan computes.
  MR_CHECK(rows <= 512 && config.parallel.tensor_strips == 1, "{} rows in {} strips", rows,
           config.parallel.tensor_strips);
  const bool narrow = config.precision.compute != PrecisionConfig::Format::kFp32;
  const int64_t columns = buffer->bytes / rows / (narrow ? 2 : 4);
  const std::byte* const data = rank.engine.BindingOf(plan).arena + buffer->offsets.front();
  std::vector<float> own(static_cast<size_t>(rows * columns));
  if (narrow)
    ConvertToFloat(reinterpret_cast<const BFloat16*>(data), own.data(), rows * columns);
  else
    std::copy_n(reinterpret_cast<const float*>(data), rows * columns, own.data());
  std::vector<Logits> logits = OfDataRank(rank, own, columns);
  logits.resize(static_cast<size_t>(positions));
  return logits;
}

// The plan of a kind that takes so many rows.
std::string PlanFor(RankContext& rank, std::string (*name)(int64_t rows), int64_t rows) {
  while (rank.run.plans.Find(name(rows)) == nullptr) ++rows;
  return name(rows);
}

// What the plan gave of row `row` is what was expected, and what was drawn is drawn from it.
void RequireRow(RankContext& rank, const std::string& plan, int64_t row, const Sequence& sequence,
                int64_t position, const SampledToken& sampled) {
  const Logits& expected = sequence.expected[static_cast<size_t>(position)];
  Logits found((static_cast<size_t>(row) + 1) * expected.size());
  rank.engine.ReadOutput(plan, "logits", found.data(), std::ssize(found) * 4);
  found.erase(found.begin(), found.end() - std::ssize(expected));
  if (sequence.tolerance > 0) {
    for (size_t i = 0; i < expected.size(); ++i)
      MR_CHECK(std::abs(found[i] - expected[i]) <= sequence.tolerance,
               "logit {} of row {} of {}: {}, the training forward's is {}", i, row, plan, found[i],
               expected[i]);
    return;
  }
  MR_CHECK(found == expected, "row {} of {} has other logits than the training forward", row, plan);
  const auto best = std::max_element(expected.begin(), expected.begin() + 61);
  MR_CHECK(sampled.token == best - expected.begin() && sampled.top.size() == 3 &&
               sampled.top[0] == std::pair(sampled.token, sampled.logprob),
           "the likeliest token of row {} of {}", row, plan);
}

}  // namespace

void Prefill(RankContext& rank, EngineTokenModel& model, Sequence& s) {
  for (const int64_t count : s.prompt) {
    const bool last = &count == &s.prompt.back();
    const SampledToken sampled =
        model.Prefill({.slot = s.slot,
                       .tokens = std::span(s.tokens).subspan(static_cast<size_t>(s.cached),
                                                             static_cast<size_t>(count)),
                       .first = s.cached,
                       .pages = s.pages,
                       .sampling = last ? &kGreedy : nullptr});
    s.cached += count;
    if (last) RequireRow(rank, PlanFor(rank, PrefillPlan, count), 0, s, s.cached - 1, sampled);
  }
}

void Decode(RankContext& rank, EngineTokenModel& model, const std::vector<Sequence*>& active) {
  std::vector<DecodeRow> rows;
  for (const Sequence* s : active)
    rows.push_back({.slot = s->slot,
                    .length = s->cached,
                    .token = s->tokens[static_cast<size_t>(s->cached)],
                    .pages = s->pages,
                    .sampling = &kGreedy});
  std::vector<SampledToken> sampled(rows.size());
  model.Decode(rows, sampled);
  const std::string plan = PlanFor(rank, DecodePlan, std::ssize(rows));
  for (size_t i = 0; i < active.size(); ++i) {
    Sequence& s = *active[i];
    RequireRow(rank, plan, static_cast<int64_t>(i), s, s.cached, sampled[i]);
    ++s.cached;
  }
}

std::vector<Sequence> SequencesOf(RankContext& rank, const Config& config) {
  const std::vector<std::vector<int64_t>> prompts = {{1},        {24, 24, 17}, {4, 3, 2, 1},
                                                     {24, 1, 4}, {24, 24, 24}, {7}};
  std::vector<int32_t> pages(static_cast<size_t>(config.inference.Pages(config.model.seq_len)));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<int32_t> dealt;
  for (size_t i = 0; i < pages.size(); ++i) dealt.push_back(pages[i * 29 % pages.size()]);
  MR_CHECK(std::is_permutation(dealt.begin(), dealt.end(), pages.begin()), "{} pages",
           pages.size());
  const auto each = static_cast<size_t>(config.inference.PagesOfSequence(config.model.seq_len));
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int data_rank = rank.run.layout.mesh.Index(rank.rank, kDataAxes);
    const auto sample = static_cast<int64_t>(100 * data_rank + 7000) + static_cast<int64_t>(i);
    Sequence s{.slot = static_cast<int64_t>((i + 2) % prompts.size()),
               .tokens = TokensOfSample(config, sample),
               .prompt = prompts[i],
               .expected = TrainingLogits(rank, config, sample)};
    // Logits are of order 1, of sums of at most 64 terms behind a dozen products.
    if (config.inference.exact == false) s.tolerance = 0x1p-14;
    for (size_t p = 0; p < each; ++p) s.pages.push_back(dealt[p * prompts.size() + i]);
    sequences.push_back(std::move(s));
  }
  return sequences;
}

void Generate(RankContext& rank, EngineTokenModel& model, std::vector<Sequence>& sequences,
              int64_t length) {
  size_t joined = 0;
  for (int64_t step = 0;; ++step) {
    if (step % 3 == 0 && joined < sequences.size()) Prefill(rank, model, sequences[joined++]);
    std::vector<Sequence*> active;
    for (size_t i = 0; i < joined; ++i)
      if (sequences[i].cached < length) active.push_back(&sequences[i]);
    if (active.empty() && joined == sequences.size()) return;
    if (active.empty()) continue;
    std::rotate(active.begin(), active.begin() + step % std::ssize(active), active.end());
    Decode(rank, model, active);
  }
}

Generated RequireLogits(const Trial& trial, const Generated* expected) {
  Generated generated(static_cast<size_t>(trial.world));
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    EngineTokenModel model(rank.engine, trial.config);
    for (int64_t step = 0; step < 2; ++step) {  // weights change in between
      StepOn(rank, trial.config, step);
      std::vector<Sequence> sequences = SequencesOf(rank, trial.config);
      if (expected != nullptr && step == 0) continue;
      for (size_t i = 0; i < sequences.size() && expected != nullptr; ++i)
        sequences[i].expected = (*expected)[static_cast<size_t>(rank.rank)][i].expected;
      model.Enter();
      Generate(rank, model, sequences, trial.config.model.seq_len);
      generated[static_cast<size_t>(rank.rank)] = std::move(sequences);
    }
  });
  return generated;
}

}  // namespace millrace::test
