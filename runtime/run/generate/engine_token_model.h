// A generator's model that is a run's engine: prefill and decode are plans of the run, in its arena
// (inference_plans.h).
//
// Eras     What it caches lies where training has its activations: a step or an evaluation ends the
//          era, and so does whoever writes weights. Enter() begins one; then no sequence is cached.
//          Prefill and Decode outside one are Error(kInternal): nothing is drawn of weights that
//          were changed in between.
// Prefixes None with Mamba-2 mixers. What is drawn behind one has the bits that it has in a
//          sequence alone where a row has the same ones in each cut of a prompt
//          (inference.exact); elsewhere its last bits can differ, as they do by what decodes beside
//          it.
// Ranks    Enter() is a collective: it gathers the weights. Then ranks along shard and replicate
//          generate on their own, without any word to each other. Ranks along tensor make the same
//          calls. Ranks along expert make calls of their own, but run plans together (lockstep.h):
//          a call waits for theirs, and each calls Finish() when it has made its last.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample_ops.h"
#include "runtime/config/config.h"
#include "runtime/infer/token_model.h"
#include "runtime/run/generate/lockstep.h"
#include "runtime/run/generate/page_contents.h"

namespace millrace {

class Engine;

class EngineTokenModel : public TokenModel {
 public:
  // `engine` has the plans that `config` asks for and outlives this. A sequence may go back to an
  // earlier position, but not with Mamba-2 mixers: of their states there is the last only.
  EngineTokenModel(Engine& engine, const Config& config);

  void Enter();

  const TokenModelLimits& limits() const override { return limits_; }
  SampledToken Prefill(const PrefillRows& rows) override;
  void PrefillTogether(std::span<const PrefillRows> rows, std::span<SampledToken> drawn) override;
  void Score(const ScoreRows& rows, std::span<SampledToken> scores) override;
  void Decode(std::span<const DecodeRow> rows, std::span<SampledToken> sampled) override;
  void Finish() override;

 private:
  // Tokens of one sequence, from position `first` on.
  struct Tokens {
    int64_t slot, first;
    std::span<const int32_t> tokens, pages;
  };
  void Begin(const PrefillRows& rows);  // behind a shared prefix
  void Check(const Tokens& rows) const;
  template <class Rows>  // of sequences
  void CheckSlots(std::span<const Rows> rows) const;
  void CheckPages(int64_t slot, int64_t length, std::span<const int32_t> pages) const;
  void Place(const Tokens& rows, int64_t row);
  void Clear();  // no row is placed, nothing is asked
  // Of row `row` of those that the plan draws for.
  void Ask(int64_t row, const Sampling& sampling, int64_t drawn);
  // Returns as soon as all ranks run a plan of this kind together, and how many rows it has; runs
  // others until then. At once where ranks do not run plans together.
  int64_t Await(const Turn& own);
  void RunIdle(const Turn& turn);
  // Runs the plan, and reads what it drew for its first rows. Error(kNonFinite): a logit is not
  // finite.
  void Run(const std::string& plan, std::span<SampledToken> sampled = {});

  Engine& engine_;
  Communicator* together_ = nullptr;  // with whom plans are run together; null: with nobody
  TokenModelLimits limits_;
  std::vector<int64_t> prefill_, decode_;  // rows of the plans, ascending
  bool goes_back_ = true, has_pages_ = true;
  int64_t rows_ = 0, pages_of_sequence_ = 0;
  std::vector<int64_t> cached_;      // by slot: positions
  PageContents contents_;
  std::vector<int32_t> row_state_;   // [3, rows_]: token, position, slot
  std::vector<int32_t> page_state_;  // [slots, pages_of_sequence_]
  bool pages_changed_ = true;
  std::vector<SampleParams> params_;  // [slots]
  // Of the rows that were drawn for: [R], [R, limits_.top].
  std::vector<int32_t> tokens_, top_ids_;
  std::vector<float> logprobs_, top_logprobs_;
};

}  // namespace millrace
