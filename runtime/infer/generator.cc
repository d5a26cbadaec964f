#include "runtime/infer/generator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kEverySample = -1;

// How many of the answer's last tokens are a stop's; 0: it goes on. The longest sequence counts.
int64_t StopLength(const GenerationRequest& request, const std::vector<int32_t>& answer) {
  size_t length = 0;
  if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), answer.back()) !=
      request.stop_tokens.end())
    length = 1;
  for (const std::vector<int32_t>& stop : request.stop_sequences)
    if (stop.size() > length && stop.size() <= answer.size() &&
        std::equal(stop.begin(), stop.end(), answer.end() - std::ssize(stop)))
      length = stop.size();
  return static_cast<int64_t>(length);
}

// Positions of the prompt that its samples share: never the last, behind which each draws.
int64_t PrefixOf(const GenerationRequest& request, const TokenModelLimits& limits) {
  if (!limits.shares_prefixes || request.samples == 1 || request.score_prompt) return 0;
  return (std::ssize(request.prompt) - 1) / limits.page_tokens * limits.page_tokens;
}

}  // namespace

// The samples of a request. The first of them that begins takes the pages of the prefix and caches
// it; if it is cancelled before it has, the next one does that, in the same pages.
struct Generator::Group {
  GenerationRequest request;
  int64_t waiting = 0;  // samples that have not begun
  int64_t prefix = 0;   // positions that samples share
  bool prefix_cached = false;
  std::vector<int32_t> prefix_pages;  // held for those that wait; empty: none has begun, or all
};

struct Generator::Sequence {
  RequestId id{};
  int64_t sample = 0;
  std::shared_ptr<Group> group;
  Sampling sampling;  // with the sample's seed
  int64_t slot = -1;
  std::vector<int32_t> pages;
  int64_t cached = 0;  // positions
  std::vector<int32_t> answer;
  std::vector<SampledToken> scores;  // of the prompt's tokens, where they are asked for
  int64_t in_flight = 0;             // rows in steps that are not collected
  bool finished = false;

  const GenerationRequest& request() const { return group->request; }
  bool scores_prompt() const { return request().score_prompt && sample == 0; }
  bool prompt_is_cached() const { return cached >= std::ssize(request().prompt); }
  int64_t drawn() const { return std::ssize(answer) + in_flight; }
  bool decodes() const { return prompt_is_cached() && drawn() < request().max_tokens; }
};

Generator::Generator(TokenModel& model, const GeneratorOptions& options)
    : model_(model), options_(options), pages_(model.limits().pages) {
  const TokenModelLimits& limits = model.limits();
  MR_CHECK(limits.slots > 0 && limits.page_tokens > 0 && limits.max_chunk > 0 &&
               limits.max_scored > 0 && limits.vocab > 0,
           "a model of {} slots, pages of {}, pieces of {} and {}, a vocabulary of {}",
           limits.slots, limits.page_tokens, limits.max_chunk, limits.max_scored, limits.vocab);
  running_.resize(static_cast<size_t>(limits.slots));
  leaving_.resize(running_.size());
}

Generator::~Generator() {
  if (!in_flight_.empty()) model_.Drop();
}

std::variant<RequestId, Refusal> Generator::Submit(GenerationRequest request) {
  if (auto refusal = RefusalOf(request, model_.limits())) return *std::move(refusal);
  if (request.samples > options_.max_waiting)
    return Refusal{RefusalReason::kInvalid, fmt::format("samples is {}; allowed is 1 to {}",
                                                        request.samples, options_.max_waiting)};
  if (request.samples > options_.max_waiting - std::ssize(waiting_))
    return Refusal{RefusalReason::kQueueFull,
                   fmt::format("{} sequences wait already, and {} more are above the {} that may",
                               waiting_.size(), request.samples, options_.max_waiting)};
  const RequestId id{next_id_++};
  const auto group = std::make_shared<Group>();
  group->waiting = request.samples;
  group->prefix = PrefixOf(request, model_.limits());
  group->request = std::move(request);
  for (int64_t sample = 0; sample < group->request.samples; ++sample) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = id;
    sequence->sample = sample;
    sequence->group = group;
    sequence->sampling = group->request.sampling;
    sequence->sampling.seed = SeedOfSample(
        sequence->sampling.seed, group->request.first_sample + sample * group->request.sample_step);
    waiting_.push_back(std::move(sequence));
  }
  return id;
}

// Empties the place of a sequence that is meant and has not ended.
bool Generator::CancelOne(std::unique_ptr<Sequence>& place, RequestId request, int64_t sample) {
  if (!place || place->id != request || (sample != kEverySample && place->sample != sample))
    return false;
  GenerationEvent& event = ended_.emplace_back();
  event.request = request;
  event.sample = place->sample;
  event.index = std::ssize(place->answer);
  event.finish = FinishReason::kCancelled;
  event.weight_version = weight_version_;
  if (place->slot >= 0) {
    Retire(place);
  } else {
    EndWait(*place->group);
    place.reset();
  }
  return true;
}

int64_t Generator::CancelSome(RequestId request, int64_t sample) {
  int64_t count = 0;
  for (auto& place : running_) count += CancelOne(place, request, sample);
  for (auto& place : waiting_) count += CancelOne(place, request, sample);
  std::erase(waiting_, nullptr);
  if (!failed_) DropEnded();
  return count;
}

int64_t Generator::Cancel(RequestId request) { return CancelSome(request, kEverySample); }

int64_t Generator::Cancel(RequestId request, int64_t sample) {
  return sample < 0 ? 0 : CancelSome(request, sample);
}

void Generator::SetWeightVersion(uint64_t version) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, load().running == 0,
             "the weights change to version {} while {} samples of version {} are running: a "
             "sample is of one version",
             version, load().running, weight_version_);
  for (const auto& sequence : waiting_) DropPrefix(*sequence->group);
  weight_version_ = version;
}

Generator::Load Generator::load() const {
  const int64_t empty = std::count(running_.begin(), running_.end(), nullptr);
  return {std::ssize(waiting_), std::ssize(running_) - empty, pages_.free()};
}

bool Generator::idle() const { return waiting_.empty() && load().running == 0 && ended_.empty(); }

std::vector<GenerationEvent> Generator::Step() {
  MR_CHECK(!failed_, "a step of a generator whose model has failed");
  failed_ = true;  // until all is done
  std::vector<GenerationEvent> events = std::exchange(ended_, {});
  Decode(events);
  Admit();
  Prefill(events);
  failed_ = false;
  return events;
}

bool Generator::IsFree(int64_t slot) const {
  return !running_[static_cast<size_t>(slot)] && !leaving_[static_cast<size_t>(slot)];
}

void Generator::Admit() {
  for (int64_t slot = 0; slot < std::ssize(running_) && !waiting_.empty(); ++slot) {
    if (!IsFree(slot)) continue;
    if (!TakePages(*waiting_.front())) return;  // no one overtakes, or it might wait for ever
    std::unique_ptr<Sequence>& place = running_[static_cast<size_t>(slot)];
    place = std::move(waiting_.front());
    waiting_.pop_front();
    place->slot = slot;
    prefilling_.push_back(slot);
    EndWait(*place->group);
  }
}

// All that the sequence can ever need: those of its group's prefix, and others. False: too few are
// free. A group's prefix never keeps its own samples waiting for ever: only the group at the head
// of the queue holds pages without running, and one sample's pages are no more than there are.
bool Generator::TakePages(Sequence& sequence) {
  Group& group = *sequence.group;
  const TokenModelLimits& limits = model_.limits();
  const int64_t all = CeilDiv(MostPositions(group.request), limits.page_tokens),
                own = all - std::ssize(group.prefix_pages);
  if (own > pages_.free()) return false;
  pages_.Share(group.prefix_pages);
  sequence.pages = group.prefix_pages;
  const std::vector<int32_t> taken = pages_.Take(own);
  sequence.pages.insert(sequence.pages.end(), taken.begin(), taken.end());
  if (!group.prefix_pages.empty()) return true;
  group.prefix_pages.assign(taken.begin(), taken.begin() + group.prefix / limits.page_tokens);
  pages_.Share(group.prefix_pages);
  return true;
}

// One of the group's samples has begun, or never will.
void Generator::EndWait(Group& group) {
  if (--group.waiting > 0) return;
  pages_.GiveBack(group.prefix_pages);
  group.prefix_pages.clear();
}

// The next sample caches the prefix anew, in pages of its own.
void Generator::DropPrefix(Group& group) {
  pages_.GiveBack(group.prefix_pages);
  group.prefix_pages.clear();
  group.prefix_cached = false;
}

// The step that is collected was launched by the Step before, but for the first.
void Generator::Decode(std::vector<GenerationEvent>& events) {
  if (in_flight_.empty()) LaunchNext();
  if (in_flight_.empty()) return;
  if (model_.limits().steps_ahead) LaunchNext();
  CollectNext(events);
  DropEnded();
}

// A row of each sequence that has one after those in flight; none: no step.
void Generator::LaunchNext() {
  std::vector<DecodeRow> rows;
  for (const auto& sequence : running_)
    if (sequence && sequence->decodes())
      rows.push_back({sequence->slot, sequence->cached,
                      sequence->in_flight > 0 ? kTokenInFlight : sequence->answer.back(),
                      sequence->drawn(), sequence->pages, &sequence->sampling});
  if (rows.empty()) return;
  model_.Launch(rows);
  std::vector<int64_t>& slots = in_flight_.emplace_back();
  for (const DecodeRow& row : rows) {
    Sequence& sequence = *running_[static_cast<size_t>(row.slot)];
    ++sequence.cached;
    ++sequence.in_flight;
    slots.push_back(row.slot);
  }
}

// Who was leaving had its last row in that step.
void Generator::CollectNext(std::vector<GenerationEvent>& events) {
  const std::vector<int64_t> slots = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::vector<SampledToken> sampled(slots.size());
  std::vector<SampledToken*> drawn;
  for (size_t r = 0; r < slots.size(); ++r)
    drawn.push_back(running_[static_cast<size_t>(slots[r])] ? &sampled[r] : nullptr);
  model_.Collect(drawn);
  for (auto& place : leaving_)
    if (const std::unique_ptr<Sequence> sequence = std::move(place)) Leave(*sequence);
  for (size_t r = 0; r < slots.size(); ++r) {
    if (drawn[r] == nullptr) continue;
    --running_[static_cast<size_t>(slots[r])]->in_flight;
    Give(slots[r], std::move(sampled[r]), events);
  }
}

// A step in flight of which nobody waits for a token.
void Generator::DropEnded() {
  if (in_flight_.empty()) return;
  for (const int64_t slot : in_flight_.front())
    if (running_[static_cast<size_t>(slot)]) return;
  model_.Drop();
  in_flight_.clear();
  for (auto& place : leaving_)
    if (const std::unique_ptr<Sequence> sequence = std::move(place)) Leave(*sequence);
}

// To the sequence in `slot`, which leaves if it was the last.
void Generator::Give(int64_t slot, SampledToken token, std::vector<GenerationEvent>& events) {
  auto& place = running_[static_cast<size_t>(slot)];
  events.push_back(Drawn(*place, std::move(token)));
  if (place->finished) Retire(place);
}

// A sequence that has ended leaves, or waits for its row in the step in flight.
void Generator::Retire(std::unique_ptr<Sequence>& place) {
  std::unique_ptr<Sequence> sequence = std::move(place);
  if (sequence->in_flight == 0) return Leave(*sequence);
  leaving_[static_cast<size_t>(sequence->slot)] = std::move(sequence);
}

// What is left behind prefixes waits until it fills a call, or nothing else of this step is ahead.
void Generator::Prefill(std::vector<GenerationEvent>& events) {
  const TokenModelLimits& limits = model_.limits();
  const int64_t budget = std::max(options_.prefill_tokens, limits.max_chunk);
  int64_t spent = 0, resting = 0;  // tokens
  std::vector<int64_t> rests;      // slots
  while (spent + resting < budget && !prefilling_.empty()) {
    const int64_t slot = prefilling_.front(), rest = RestOf(*running_[static_cast<size_t>(slot)]);
    if (rest == 0) {
      spent += CacheNext(events);
      continue;
    }
    if (resting + rest > limits.max_together) {
      spent += CacheRests(rests, events);
      rests.clear();
      resting = 0;
    }
    prefilling_.pop_front();
    rests.push_back(slot);
    resting += rest;
  }
  CacheRests(rests, events);
}

// Tokens of its prompt behind a prefix that is cached, if they can go together with others' and
// none has gone yet; else 0.
int64_t Generator::RestOf(const Sequence& sequence) const {
  const Group& group = *sequence.group;
  const int64_t rest = std::ssize(group.request.prompt) - group.prefix;
  const bool begins = sequence.cached == 0 && group.prefix_cached && group.prefix > 0;
  return begins && rest <= model_.limits().max_together ? rest : 0;
}

int64_t Generator::CacheNext(std::vector<GenerationEvent>& events) {
  const int64_t slot = prefilling_.front();
  Sequence& sequence = *running_[static_cast<size_t>(slot)];
  SampledToken token;
  const bool scores =
      sequence.scores_prompt() && sequence.cached + 1 < std::ssize(sequence.request().prompt);
  const int64_t tokens = scores ? ScoreSome(sequence) : CacheSome(sequence, token);
  prompt_tokens_.computed += tokens;
  if (sequence.prompt_is_cached()) {
    prefilling_.pop_front();
    Give(slot, std::move(token), events);
  }
  return tokens;
}

int64_t Generator::CacheRests(std::span<const int64_t> slots,
                              std::vector<GenerationEvent>& events) {
  if (slots.empty()) return 0;
  std::vector<PrefillRows> rows;
  std::vector<SampledToken> drawn(slots.size());
  int64_t tokens = 0;
  for (const int64_t slot : slots) {
    Sequence& sequence = *running_[static_cast<size_t>(slot)];
    rows.push_back(NextRows(sequence, model_.limits().max_together));
    tokens += std::ssize(rows.back().tokens);
  }
  model_.PrefillTogether(rows, drawn);
  prompt_tokens_.computed += tokens;
  for (size_t i = 0; i < slots.size(); ++i) Give(slots[i], std::move(drawn[i]), events);
  return tokens;
}

// The prompt's next tokens, `most` of them; behind the last, the answer's first is drawn. They
// count as cached. Prompts are cached one after another, so that a sample finds its group's prefix
// whole, or begins it.
PrefillRows Generator::NextRows(Sequence& sequence, int64_t most) {
  Group& group = *sequence.group;
  const std::span<const int32_t> prompt = group.request.prompt;
  PrefillRows rows;
  if (sequence.cached == 0 && group.prefix_cached) {
    rows.shared = prompt.first(static_cast<size_t>(group.prefix));
    sequence.cached = group.prefix;
    prompt_tokens_.shared += group.prefix;
  }
  rows.slot = sequence.slot;
  rows.first = sequence.cached;
  const auto begin = static_cast<size_t>(rows.first);
  rows.tokens = prompt.subspan(begin, std::min(static_cast<size_t>(most), prompt.size() - begin));
  rows.pages = sequence.pages;
  sequence.cached += std::ssize(rows.tokens);
  if (sequence.prompt_is_cached()) rows.sampling = &sequence.sampling;
  return rows;
}

int64_t Generator::CacheSome(Sequence& sequence, SampledToken& drawn) {
  const PrefillRows rows = NextRows(sequence, model_.limits().max_chunk);
  drawn = model_.Prefill(rows);
  sequence.group->prefix_cached |= sequence.cached >= sequence.group->prefix;
  return std::ssize(rows.tokens);
}

// The prompt's next tokens, but never the last: of that one an answer is drawn.
int64_t Generator::ScoreSome(Sequence& sequence) {
  const std::span<const int32_t> prompt = sequence.request().prompt;
  const auto begin = static_cast<size_t>(sequence.cached);
  const size_t count =
      std::min(static_cast<size_t>(model_.limits().max_scored), prompt.size() - 1 - begin);
  std::vector<SampledToken> scores(count);
  model_.Score({.slot = sequence.slot,
                .tokens = prompt.subspan(begin, count),
                .first = sequence.cached,
                .pages = sequence.pages,
                .next = prompt.subspan(begin + 1, count),
                .top = sequence.sampling.top},
               scores);
  sequence.cached += std::ssize(scores);
  std::move(scores.begin(), scores.end(), std::back_inserter(sequence.scores));
  return std::ssize(scores);
}

GenerationEvent Generator::Drawn(Sequence& sequence, SampledToken token) {
  MR_CHECK(token.token >= 0 && token.token < model_.limits().vocab,
           "the model drew the token {} of a vocabulary of {}", token.token, model_.limits().vocab);
  GenerationEvent event;
  event.request = sequence.id;
  event.sample = sequence.sample;
  event.index = std::ssize(sequence.answer);
  event.weight_version = weight_version_;
  event.prompt = std::exchange(sequence.scores, {});
  sequence.answer.push_back(token.token);
  event.token = std::move(token);
  event.stop_length = StopLength(sequence.request(), sequence.answer);
  if (event.stop_length > 0)
    event.finish = FinishReason::kStop;
  else if (std::ssize(sequence.answer) == sequence.request().max_tokens)
    event.finish = FinishReason::kLength;
  sequence.finished = event.finish.has_value();
  return event;
}

void Generator::Leave(Sequence& sequence) {
  pages_.GiveBack(sequence.pages);
  std::erase(prefilling_, sequence.slot);
}

}  // namespace millrace
