// What the tests of millrace.h share: a tiny model, its tokens, and statuses as values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/c/millrace.h"

namespace millrace::test {

// Of the tiny model's batches: 2 microbatches of 3 rows, a row of 8 tokens and its last target.
inline constexpr int64_t kMicro = 3, kRows = 6, kRowTokens = 9, kVocab = 37;

// Sizes that divide nothing. `sections`: to add, as text ("\"run\": {...}").
inline std::string TinyConfig(const std::string& sections = "") {
  return R"({"model": {"family": "llama", "layers": 2, "d_model": 20, "heads": 2, "ffn": 28,
             "seq_len": 8, "vocab": 37},
             "optimizer": {"lr": 0.01},
             "train": {"steps": 50, "micro_batch": 3, "accumulate": 2})" +
         (sections.empty() ? "" : ", " + sections) + "}";
}

// tokens [rows, 9], other ones for each step and rank.
inline std::vector<int32_t> Tokens(int64_t step, int64_t rank = 0, int64_t rows = kRows) {
  std::vector<int32_t> tokens(static_cast<size_t>(rows * kRowTokens));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto at = static_cast<int64_t>(i), row = at / kRowTokens;
    tokens[i] = static_cast<int32_t>((at % kRowTokens * (row + 3) + 5 * step + 11 * rank) % kVocab);
  }
  return tokens;
}

struct Outcome {
  int32_t code = MR_OK;
  std::string message, pointer;
};
inline Outcome Take(mr_status* status) {
  Outcome outcome{mr_status_code(status), mr_status_message(status), mr_status_pointer(status)};
  mr_status_free(status);
  return outcome;
}

// REQUIREs a call's code, and shows what it says.
#define REQUIRE_CODE(call, expected)                                         \
  do {                                                                       \
    const ::millrace::test::Outcome outcome_ = ::millrace::test::Take(call); \
    INFO(#call << ": " << outcome_.message);                                 \
    REQUIRE(outcome_.code == (expected));                                    \
  } while (false)

template <class T>
T Sized() {
  T value{};
  value.size = sizeof(T);
  return value;
}

inline mr_run_options OptionsOf(const std::string& config) {
  mr_run_options options = Sized<mr_run_options>();
  options.config = config.c_str();
  return options;
}

inline mr_batch BatchOf(const std::vector<int32_t>& tokens) {
  mr_batch batch = Sized<mr_batch>();
  batch.tokens = tokens.data();
  batch.sequences = static_cast<int64_t>(tokens.size()) / kRowTokens;
  return batch;
}

// A run of one rank for as long as it lives; null where it could not be made.
class Linked {
 public:
  explicit Linked(const std::string& config) : Linked(OptionsOf(config)) {}
  explicit Linked(const mr_run_options& options) {
    created_ = Take(mr_run_create(&options, &run_));
  }
  ~Linked() { mr_status_free(mr_run_destroy(run_)); }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;

  const Outcome& created() const { return created_; }
  operator mr_run*() const { return run_; }

  // One step on Tokens(step); its loss, or what was refused.
  std::pair<Outcome, mr_step_result> Step(int64_t step, int64_t rank = 0) const {
    const std::vector<int32_t> tokens = Tokens(step, rank);
    const mr_batch batch = BatchOf(tokens);
    mr_step_result result = Sized<mr_step_result>();
    Outcome outcome = Take(mr_step(run_, &batch, &result));
    return {std::move(outcome), result};
  }
  mr_info Info() const {
    mr_info info = Sized<mr_info>();
    mr_status_free(mr_run_info(run_, &info));
    return info;
  }

 private:
  mr_run* run_ = nullptr;
  Outcome created_;
};

}  // namespace millrace::test
