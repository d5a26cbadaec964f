// A run behind a handle of millrace.h: one rank's session, and what a caller may do with it when.
//
// Errors   CallError for what a caller did, Error for the rest. An Error of steps, and of anything
//          that is no fault of configuration or files, leaves the run unusable; its peers hear.
// Threads  One call at a time, which the handle sees to (handles.h); lent tensors may come back on
//          any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/huggingface/tensors.h"
#include "runtime/api/backend.h"
#include "runtime/api/c/callback_log.h"
#include "runtime/api/c/millrace.h"
#include "runtime/config/load.h"
#include "runtime/infer/generate_all.h"
#include "runtime/plan/layout/further_weights.h"
#include "runtime/run/data/token_rows.h"
#include "runtime/run/generate/engine_token_model.h"
#include "runtime/run/session.h"

namespace millrace {

class LinkedRun {
 public:
  // A collective of options.world ranks. `options` is whole (ReadSized). `check` as
  // MeetOtherRanks has it.
  LinkedRun(const mr_run_options& options, const std::function<void()>& check);
  ~LinkedRun();

  CallbackLog& log() { return log_; }
  Session& session() { return *session_; }
  const std::string& config_text() const { return config_text_; }
  mr_info Info();

  // Collectives, as millrace.h has them. Folders: "" for run.dir.
  void Init();
  void Load(const std::string& run_dir);
  void Import(const char* folder);
  void Save(const std::string& run_dir);
  void Export(const char* folder);
  // As given, of any size.
  void Step(const mr_batch* batch, mr_step_result* result);
  void Evaluate(const mr_batch* batch, mr_evaluation* result);
  // Where scores go; pointers as given.
  struct Scores {
    double* logprobs = nullptr;
    int32_t* likeliest = nullptr;
    bool has_likeliest = false;  // the caller asks for them
    int64_t count = 0;
  };
  void Score(const mr_batch* batch, Scores scores);
  // The answers of this rank's requests, in their order. `out`: where the caller wants them.
  std::vector<GeneratedAnswer> Generate(const mr_request* const* requests, int64_t count,
                                        const void* out);
  // The same as it comes. A callback that fails ends this rank's requests: CallError.
  void Stream(const mr_request* const* requests, int64_t count, const mr_stream_options* options);

  // `out` null: this rank takes part, and gets nothing.
  void ShareWeights(mr_shared_weights* out);

  void Release(int32_t part, mr_memory* result);
  void Acquire(mr_memory* result);

  // Those of mr_weights_name; made when first asked for.
  const std::vector<HuggingFaceTensor>& named_weights();
  // Tensors of its weights that are lent, and one that comes back: who has read it may have left
  // reads on a stream of its own.
  std::atomic<int64_t>& lent() { return lent_; }
  void TakeBack() {
    may_be_read_ = true;
    --lent_;
  }
  uint64_t weight_version() const { return version_; }
  void RequireWeights() const;
  void RequireStates() const;  // that their memory is there; CallError MR_RELEASED

 private:
  void Configure(const mr_run_options& options, int world);
  void RequireUsable() const;
  void RequireNothingLent() const;
  void AwaitReaders();        // of what was lent, before it is written or goes
  void RequireArena() const;  // all of its memory; CallError MR_RELEASED
  void RequireSamePart(int32_t part);
  std::vector<GenerationRequest> CheckedRequests(const mr_request* const* requests,
                                                 int64_t count) const;
  void RequireSameRequests(const std::vector<GenerationRequest>& requests);
  std::span<const int32_t> CheckedTokens(const mr_batch& batch, bool of_a_step) const;
  // Of a step, beside its tokens: what the loss is told of each target.
  struct TargetValues {
    std::vector<HostInputs::Input> inputs;
    double weights = 0;  // their sum; the count of targets where there are none
    std::vector<FurtherWeights> further = {};
  };
  TargetValues CheckedValues(const mr_batch& batch) const;
  // Of a step on the configuration's data, all that this rank reads: a rank that cannot read its
  // part says so before any of them begins the step.
  struct ReadStep {
    TokenRows rows;
    LossTotals totals;
  };
  ReadStep ReadOwnStep() const;
  void ReadHeldOut() const;  // the same of an evaluation: whether it can be read
  // All that a batch gives; nothing: the configuration's data is meant.
  struct Given {
    std::span<const int32_t> tokens;
    TargetValues values;
  };
  std::optional<Given> GivenBy(const mr_batch* batch, bool of_a_step) const;
  std::vector<double> SumsOverDataRanks(const std::vector<double>& own);
  LossTotals TotalsOfStep(const std::optional<Given>& given);
  // Microbatches of the given tokens, as many on all ranks. CallError MR_INVALID_ARGUMENT.
  int64_t AgreedBatches(const std::optional<Given>& given);
  // Of one microbatch. What a step's loss is told of its targets has its place in other plans, and
  // no effect: `ones`.
  HostInputs InputsOf(const Given& given, int64_t batch, std::span<const float> ones) const;
  std::vector<float> Ones() const {
    return std::vector<float>(static_cast<size_t>(layout_.micro_batch * (row_tokens_ - 1)), 1);
  }
  void Agree(const std::string& call, const std::function<void()>& check);  // AgreeOn
  void Touch(const std::function<void()>& work);
  using OnEvent =
      std::function<void(Generator& generator, size_t request, const GenerationEvent& event)>;
  std::vector<GeneratedAnswer> GenerateChecked(const std::vector<GenerationRequest>& requests,
                                               const OnEvent& on_event);
  // `check` of each rank alone, `find` a collective: if either fails, the weights are as before.
  void WriteWeights(const std::string& call, const std::function<void()>& check,
                    const std::function<void()>& find, const std::function<void()>& write);
  std::string FolderOr(const std::string& folder) const;
  bool IsSaved(const std::string& folder);
  bool uses_data() const { return session_->has_data(); }

  CallbackLog log_;
  std::string unlike_;  // why generation need not have the bits of scores (exact_sequences.h)
  std::unique_ptr<CommFactory> host_;
  std::unique_ptr<Communicator> meeting_;  // all ranks
  LoadedConfig loaded_;
  std::string config_text_;
  RankDevice device_;
  StepLayout layout_{};
  int64_t row_tokens_ = 0;  // of a row of a batch
  std::unique_ptr<Session> session_;
  std::unique_ptr<EngineTokenModel> generates_;  // null without use_inference

  std::string failed_;  // "": usable
  bool has_weights_ = false;
  uint64_t version_ = 0;
  int64_t step_ = 0, samples_ = 0;
  // The state that the last mr_save or mr_load has left in a folder.
  struct Saved {
    std::string folder, checkpoint;
    uint64_t version = 0;
    int64_t step = 0;
  } saved_;
  std::vector<HuggingFaceTensor> named_;
  std::string manifest_;  // of the weights that were shared last
  std::atomic<int64_t> lent_ = 0;
  std::atomic<bool> may_be_read_ = false;
};

}  // namespace millrace
