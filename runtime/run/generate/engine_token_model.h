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
// Steps    Two may be in flight on any device where one plan takes all slots and parallel.expert is
//          1: limits().steps_ahead says whether that gains: where the device works while the host
//          does. A token in flight goes from the output of one run to the rows of the next, on the
//          device. Of the ranks of `tensor` all launch and collect alike. Those of `expert` agree
//          on each plan before they run it, and collect what it drew before they agree on the next:
//          with a step ahead they would agree on rows of sequences that have ended, each on others.
// Ranks    Enter() is a collective: it gathers the weights. Then ranks along shard and replicate
//          generate on their own, without any word to each other. Ranks along tensor make the same
//          calls. Ranks along expert make calls of their own, but run plans together (lockstep.h):
//          a call waits for theirs, and each calls Finish() when it has made its last.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
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
  void Launch(std::span<const DecodeRow> rows) override;
  void Collect(std::span<SampledToken* const> drawn) override;
  void Drop() noexcept override;
  void Finish() override;

 private:
  // Tokens of one sequence, from position `first` on.
  struct Tokens {
    int64_t slot, first;
    std::span<const int32_t> tokens, pages;
  };
  // A run of a plan that was launched.
  struct Launched {
    int64_t run = 0;                  // the engine's
    std::vector<SampleParams> asked;  // of the rows that are read
  };
  // A row of a step whose token is drawn by the step before, as its row `from`.
  struct Fed {
    int64_t from = 0, position = 0;
    std::span<const int32_t> pages;
  };
  struct Step {
    std::vector<SampledToken> drawn;  // of its first rows, by plans that have been waited for
    Launched rest;
    std::vector<int64_t> slots;  // of the rest
    std::vector<Fed> fed;
  };
  bool TakesStepsAhead() const;
  int64_t RowInFlight(int64_t slot) const;  // of the step launched last
  void Begin(const PrefillRows& rows);      // behind a shared prefix
  void Check(const Tokens& rows) const;
  template <class Rows>  // of sequences
  void CheckSlots(std::span<const Rows> rows) const;
  void CheckPages(int64_t slot, int64_t length, std::span<const int32_t> pages) const;
  void Place(const Tokens& rows, int64_t row);
  Fed PlaceFed(const DecodeRow& row, int64_t at);
  void PlaceAt(const Tokens& rows, int64_t row);
  void Clear();  // no row is placed, nothing is asked
  // Of row `row` of those that the plan draws for.
  void Ask(int64_t row, const Sampling& sampling, int64_t drawn);
  // Returns as soon as all ranks run a plan of this kind together, and how many rows it has; runs
  // others until then. At once where ranks do not run plans together.
  int64_t Await(const Turn& own);
  void RunIdle(const Turn& turn);
  // Launches a plan of `size` rows, which are placed: `drawn` of its first rows are read. The
  // tokens of `fed`, by row, are those of the step in flight.
  Launched Start(const std::string& plan, int64_t size, int64_t drawn,
                 std::span<const std::pair<int64_t, Fed>> fed = {});
  // Waits for it. Error(kNonFinite): a logit of a row that is wanted (not null) is not finite.
  // Returns the tokens of all rows.
  std::vector<int32_t> Take(const Launched& launched, std::span<SampledToken* const> drawn);
  // Both, of the first rows; where nothing is drawn, it may still run.
  void Run(const std::string& plan, int64_t size, std::span<SampledToken> sampled = {});

  Engine& engine_;
  Communicator* together_ = nullptr;  // with whom plans are run together; null: with nobody
  TokenModelLimits limits_;
  std::vector<int64_t> prefill_, decode_;  // rows of the plans, ascending
  bool goes_back_ = true, has_pages_ = true;
  int64_t rows_ = 0, pages_of_sequence_ = 0;
  std::vector<int64_t> cached_;  // by slot: positions
  PageContents contents_;
  std::vector<int32_t> row_state_;   // [3, rows_]: token, position, slot
  std::vector<int32_t> page_state_;  // [slots, pages_of_sequence_]
  bool pages_changed_ = true;
  std::vector<SampleParams> params_;  // [slots]
  std::deque<Step> steps_;            // in flight
  std::deque<int64_t> undrawn_;       // runs that draw nothing, not collected
};

}  // namespace millrace
