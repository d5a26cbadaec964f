// What stands behind the functions of millrace.h that are about a run: arguments in, exceptions
// ended, results out.

#include <fmt/core.h>

#include <algorithm>

#include "runtime/api/backend.h"
#include "runtime/api/c/answers.h"
#include "runtime/api/c/handles.h"
#include "runtime/api/c/lent_weights.h"
#include "runtime/api/c/run_functions.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"

namespace millrace {
namespace {

void RequirePointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw CallError(MR_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
}

void RequireOption(bool holds, const std::string& text) {
  if (!holds) throw CallError(MR_INVALID_ARGUMENT, text);
}

// A rank that refuses these cannot tell its peers: it does not know which one it is. With MPI it
// does, whatever it says itself.
mr_run_options OptionsWithRank(const mr_run_options* given) {
  mr_run_options options = ReadSized(given, "options");
  if (options.world == 0) options.world = 1;
  if (options.mpi != nullptr) return options;
  RequireOption(options.world > 0, fmt::format("options.world is {}", options.world));
  RequireOption(options.rank >= 0 && options.rank < options.world,
                fmt::format("options.rank is {}, of a world of {}", options.rank, options.world));
  return options;
}

// The rest, of which all ranks hear.
void CheckOptions(const mr_run_options& options) {
  RequirePointer(options.config, "options.config");
  RequireOption(options.use_data == 0 || options.use_data == 1,
                fmt::format("options.use_data is {}; allowed are 0 and 1", options.use_data));
  RequireOption(
      options.use_inference == 0 || options.use_inference == 1,
      fmt::format("options.use_inference is {}; allowed are 0 and 1", options.use_inference));
  RequireOption(options.device >= 0, fmt::format("options.device is {}", options.device));
}

std::string TextOrNone(const char* text) { return text == nullptr ? "" : text; }

// A call of a run, from its handle to its status.
template <class F>
mr_status* OfRun(mr_run* run, F&& work) {
  return Guarded([&] {
    RunCall call(run);
    work(*call);
  });
}

mr_status* OwnCreate(const mr_run_options* options, mr_run** out) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    const mr_run_options whole = OptionsWithRank(options);
    const DeviceOfThread thread;  // also of what a run that does not come about takes down
    auto run = std::make_shared<LinkedRun>(whole, [&] {
      RequirePointer(out, "out");
      CheckOptions(whole);
    });
    *out = NewHandle(std::move(run));
  });
}

mr_status* OwnDestroy(mr_run* run) {
  if (run == nullptr) return nullptr;
  return Guarded([&] { RunCall(run, RunCall::Purpose::kDestroy).Destroy(); });
}

mr_status* OwnInfo(mr_run* run, mr_info* info) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequireSized(info, "info");
    WriteSized(linked.Info(), info);
  });
}

mr_status* OwnConfig(mr_run* run, const char** json) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(json, "json");
    *json = linked.config_text().c_str();
  });
}

mr_status* OwnInit(mr_run* run) {
  return OfRun(run, [](LinkedRun& linked) { linked.Init(); });
}

mr_status* OwnLoad(mr_run* run, const char* run_dir) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Load(TextOrNone(run_dir)); });
}

mr_status* OwnImport(mr_run* run, const char* folder) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Import(folder); });
}

mr_status* OwnSave(mr_run* run, const char* run_dir) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Save(TextOrNone(run_dir)); });
}

mr_status* OwnExport(mr_run* run, const char* folder) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Export(folder); });
}

mr_status* OwnStep(mr_run* run, const mr_batch* batch, mr_step_result* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Step(batch, result); });
}

mr_status* OwnEvaluate(mr_run* run, const mr_batch* batch, mr_evaluation* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Evaluate(batch, result); });
}

mr_status* OwnScore(mr_run* run, const mr_batch* batch, double* logprobs, int64_t count) {
  return OfRun(run, [&](LinkedRun& linked) {
    linked.Score(batch, {logprobs, nullptr, false, count});
  });
}

mr_status* OwnScoreLikeliest(mr_run* run, const mr_batch* batch, double* logprobs,
                             int32_t* likeliest, int64_t count) {
  return OfRun(run, [&](LinkedRun& linked) {
    linked.Score(batch, {logprobs, likeliest, true, count});
  });
}

mr_status* OwnRelease(mr_run* run, int32_t part, mr_memory* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Release(part, result); });
}

mr_status* OwnAcquire(mr_run* run, mr_memory* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Acquire(result); });
}

mr_status* OwnWeightsCount(mr_run* run, int64_t* count) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(count, "count");
    *count = static_cast<int64_t>(linked.named_weights().size());
  });
}

mr_status* OwnWeightsName(mr_run* run, int64_t index, const char** name) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(name, "name");
    const auto& named = linked.named_weights();
    if (index < 0 || index >= static_cast<int64_t>(named.size()))
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("index is {}, of {} weights", index, named.size()));
    *name = named[static_cast<size_t>(index)].name.c_str();
  });
}

mr_status* OwnWeightsBorrow(mr_run* run, const char* name, DLManagedTensorVersioned** out,
                            uint64_t* version) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    const RunCall call(run);
    RequirePointer(name, "name");
    RequirePointer(out, "out");
    call->RequireWeights();
    call->RequireStates();
    const auto& named = call->named_weights();
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const HuggingFaceTensor& t) { return t.name == name; });
    if (found == named.end())
      throw CallError(MR_INVALID_ARGUMENT, fmt::format("no weights are named {}", name));
    *out = Lend(call.shared(), *found);
    if (version != nullptr) *version = call->weight_version();
  });
}

mr_status* OwnWeightsExport(mr_run* run, mr_shared_weights* out) {
  return OfRun(run, [&](LinkedRun& linked) { linked.ShareWeights(out); });
}

mr_status* OwnGenerate(mr_run* run, const mr_request* const* requests, int64_t count,
                       mr_answers** out) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    const RunCall call(run);
    *out = NewAnswers(call->Generate(requests, count, out));
  });
}

mr_status* OwnStream(mr_run* run, const mr_request* const* requests, int64_t count,
                     const mr_stream_options* options) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Stream(requests, count, options); });
}

}  // namespace

const RunFunctions& OwnFunctions() noexcept {
  static constexpr RunFunctions kOwn = {
      .layout = RunFunctions::kLayout,
      .version = 1000000 * MR_VERSION_MAJOR + 1000 * MR_VERSION_MINOR + MR_VERSION_PATCH,
      .mr_run_create = OwnCreate,
      .mr_run_destroy = OwnDestroy,
      .mr_run_info = OwnInfo,
      .mr_run_config = OwnConfig,
      .mr_init = OwnInit,
      .mr_load = OwnLoad,
      .mr_import = OwnImport,
      .mr_save = OwnSave,
      .mr_export = OwnExport,
      .mr_step = OwnStep,
      .mr_evaluate = OwnEvaluate,
      .mr_score = OwnScore,
      .mr_score_likeliest = OwnScoreLikeliest,
      .mr_generate = OwnGenerate,
      .mr_answers_count = ::mr_answers_count,
      .mr_answers_get = ::mr_answers_get,
      .mr_answers_free = ::mr_answers_free,
      .mr_stream = OwnStream,
      .mr_release = OwnRelease,
      .mr_acquire = OwnAcquire,
      .mr_weights_count = OwnWeightsCount,
      .mr_weights_name = OwnWeightsName,
      .mr_weights_borrow = OwnWeightsBorrow,
      .mr_weights_export = OwnWeightsExport,
  };
  return kOwn;
}

}  // namespace millrace
