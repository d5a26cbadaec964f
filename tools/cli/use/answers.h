// What `generate` says: answers as they come, on standard output of rank 0.
//
// Ranks    Data ranks have other samples each. What a rank has finished it hands over by Exchange;
//          until then it is known on that rank alone. Lines are made where the sample was drawn, so
//          that they do not depend on who prints them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "runtime/infer/generator.h"
#include "runtime/infer/stop_strings.h"
#include "tools/cli/text.h"
#include "tools/cli/use/prompts.h"

namespace millrace {

// One sample of a prompt, by its number: what ranks share out among each other.
struct PromptSample {
  size_t prompt = 0, sample = 0;
};

class Answers {
 public:
  struct Speaker {
    bool prints = false;      // rank 0
    bool streams = false;     // one sample, token by token; else JSON lines
    bool hands_over = false;  // of the ranks that draw the same samples, the one that speaks
  };

  // Prompts and codec outlive it.
  Answers(const std::vector<Prompt>& prompts, const TextCodec& codec, const Speaker& speaker);

  // Something can be answered.
  void Begin() const;

  // An event of a sample; what a stop string ends is cancelled.
  void Take(const PromptSample& of, const GenerationEvent& event, Generator& generator);

  // Collective: afterwards rank 0 has what any rank has finished since the last time.
  void Exchange(Communicator& ranks);

  // Prints what has ended, in order; what is refused too, once those ahead have ended.
  void Print(const std::map<size_t, Refusal>& refused);

  int64_t tokens() const { return tokens_; }  // taken here; rank 0: with those handed over

 private:
  // A sample while it comes.
  struct Answer {
    explicit Answer(const std::vector<std::string>& stop) : cut(stop) {}

    StopStrings cut;
    std::string text;
    std::vector<SampledToken> tokens;
    std::string finish;  // "": it goes on
    std::string line;    // "": it has not ended
  };

  void Print();
  void Add(Answer& answer, const std::string& shown) const;
  void Show(const std::string& text) const;
  void Say(const std::string& line) const;
  std::string LineOf(const PromptSample& of, const Answer& answer) const;
  std::string RefusalLine(const Refusal& refusal) const;

  const std::vector<Prompt>& prompts_;
  const TextCodec& codec_;
  const Speaker speaker_;
  std::vector<std::vector<Answer>> answers_;  // by prompt
  std::map<size_t, Refusal> refused_;
  std::vector<PromptSample> ended_;  // since the last exchange
  int64_t exchanged_ = 0;            // of tokens_, those that were told of
  size_t next_ = 0;                  // that has not been printed
  int64_t tokens_ = 0;
};

}  // namespace millrace
