// Requests above a TokenModel, batched as they come: a sequence joins when a slot and all the pages
// that it can ever need are free, and leaves when it has finished, between two steps of decode.
//
// Order    Sequences are admitted in the order of their requests, none ahead of another; the
//          samples of a request follow one another. What a sequence is given, it keeps until it
//          ends: nothing is evicted.
// Prefixes The samples of a request share its prompt's full pages, where limits().shares_prefixes;
//          never that of the last token, behind which each draws. The first
//          sample caches them. A later one needs pages for the rest alone, and begins behind them,
//          even if the first has ended: the request keeps them until its last sample has begun.
//          What is left of the prompts of several samples goes in one call of the model, as far as
//          limits().max_together allows.
//          Each sample caches the whole prompt where prefixes are not shared (mixers whose states
//          cannot be), and of a request whose prompt is scored.
// Tokens   Depend on prompt, sampling and weights alone, as far as the model's do: a prompt is
//          cached in pieces that begin at multiples of limits().max_chunk (max_scored where its
//          tokens are scored) from position 0 or a shared prefix's end on, whatever else waits.
// Ahead    Where limits().steps_ahead, a step of decode is launched before the one before it is
//          read, and a sequence of which that one draws the last token (a stop; never max_tokens,
//          which is known ahead) has a row in it. What that draws is dropped, and the slot and the
//          pages are the sequence's until it is over: nobody sees that it was.
// Ranks    Ranks that compute a sequence together make the same calls, and get the same events.
// Errors   What cannot be done is a Refusal. What the model throws leaves by Step, after which only
//          Cancel and destruction are valid.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "runtime/infer/page_pool.h"
#include "runtime/infer/request.h"
#include "runtime/infer/token_model.h"

namespace millrace {

struct GeneratorOptions {
  int64_t max_waiting = 1024;  // sequences that wait for a slot and pages
  // Tokens of prompts that a step caches before others decode again, rounded up to whole pieces;
  // 0: one piece.
  int64_t prefill_tokens = 0;
};

class Generator {
 public:
  explicit Generator(TokenModel& model, const GeneratorOptions& options = {});
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  std::variant<RequestId, Refusal> Submit(GenerationRequest request);

  // Ends the samples that have not ended yet, one or all of them; the next Step says so. Returns
  // how many these are: none of a request that is not known any more.
  int64_t Cancel(RequestId request);
  int64_t Cancel(RequestId request, int64_t sample);

  // Decodes one token of each sequence whose prompt is cached (of one that has just joined, with
  // steps ahead, from the next Step on), admits what fits, then caches pieces of prompts. At most
  // one event for each sample.
  std::vector<GenerationEvent> Step();

  // Of the weights from now on. A sample is of one version: Error(kInvalidArgument) while some are
  // running; those that wait are of the new one, and share nothing that the old one cached.
  void SetWeightVersion(uint64_t version);

  struct Load {
    int64_t waiting = 0, running = 0;  // sequences
    int64_t free_pages = 0;
  };
  Load load() const;

  // Tokens of prompts since the beginning: those that the model computed, and those that a sample
  // found in a shared prefix.
  struct PromptTokens {
    int64_t computed = 0, shared = 0;
  };
  const PromptTokens& prompt_tokens() const { return prompt_tokens_; }

  bool idle() const;  // nothing waits or runs, and no event is left for Step to return

 private:
  struct Group;
  struct Sequence;

  void Admit();
  bool TakePages(Sequence& sequence);
  void EndWait(Group& group);
  void DropPrefix(Group& group);
  void Decode(std::vector<GenerationEvent>& events);
  void LaunchNext();
  void CollectNext(std::vector<GenerationEvent>& events);
  void DropEnded();
  bool IsFree(int64_t slot) const;
  void Prefill(std::vector<GenerationEvent>& events);
  // These return how many tokens of prompts they took.
  int64_t CacheNext(std::vector<GenerationEvent>& events);
  int64_t CacheRests(std::span<const int64_t> slots, std::vector<GenerationEvent>& events);
  int64_t ScoreSome(Sequence& sequence);
  int64_t CacheSome(Sequence& sequence, SampledToken& drawn);
  int64_t RestOf(const Sequence& sequence) const;
  PrefillRows NextRows(Sequence& sequence, int64_t most);
  void Give(int64_t slot, SampledToken token, std::vector<GenerationEvent>& events);
  GenerationEvent Drawn(Sequence& sequence, SampledToken token);
  void Retire(std::unique_ptr<Sequence>& place);
  void Leave(Sequence& sequence);
  bool CancelOne(std::unique_ptr<Sequence>& sequence, RequestId request, int64_t sample);
  int64_t CancelSome(RequestId request, int64_t sample);

  TokenModel& model_;
  const GeneratorOptions options_;
  PagePool pages_;
  uint64_t next_id_ = 1;
  uint64_t weight_version_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by slot; null: none
  // By slot: ended, with a row in the step in flight.
  std::vector<std::unique_ptr<Sequence>> leaving_;
  // Slots of the rows of each step that is launched and not collected. When Step returns, that is
  // one step at most, and one of its sequences at least is running.
  std::deque<std::vector<int64_t>> in_flight_;
  std::deque<int64_t> prefilling_;      // slots, in order of admission
  std::vector<GenerationEvent> ended_;  // cancelled since the last Step
  PromptTokens prompt_tokens_;
  bool failed_ = false;
};

}  // namespace millrace
