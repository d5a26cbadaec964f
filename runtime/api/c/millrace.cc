// The functions of millrace.h, but those of statuses: arguments in, exceptions ended, results out.
#include "runtime/api/c/millrace.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/api/c/handles.h"
#include "runtime/api/c/lent_weights.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/config/document.h"

using namespace millrace;

namespace {

void RequirePointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw CallError(MR_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
}

mr_run_options CheckedOptions(const mr_run_options* given) {
  mr_run_options options = ReadSized(given, "options");
  const auto require = [](bool holds, const std::string& text) {
    if (!holds) throw CallError(MR_INVALID_ARGUMENT, text);
  };
  RequirePointer(options.config, "options.config");
  if (options.world == 0) options.world = 1;
  require(options.world > 0, fmt::format("options.world is {}", options.world));
  require(options.rank >= 0 && options.rank < options.world,
          fmt::format("options.rank is {}, of a world of {}", options.rank, options.world));
  require(options.use_data == 0 || options.use_data == 1,
          fmt::format("options.use_data is {}; allowed are 0 and 1", options.use_data));
  require(options.use_inference == 0 || options.use_inference == 1,
          fmt::format("options.use_inference is {}; allowed are 0 and 1", options.use_inference));
  require(options.device >= 0, fmt::format("options.device is {}", options.device));
  return options;
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

#define MR_TEXT_OF(x) #x
#define MR_DOTTED(major, minor, patch) MR_TEXT_OF(major) "." MR_TEXT_OF(minor) "." MR_TEXT_OF(patch)

}  // namespace

const char* mr_version(void) {
  return MR_DOTTED(MR_VERSION_MAJOR, MR_VERSION_MINOR, MR_VERSION_PATCH);
}

int32_t mr_version_number(void) {
  return 1000000 * MR_VERSION_MAJOR + 1000 * MR_VERSION_MINOR + MR_VERSION_PATCH;
}

const char* mr_config_schema(void) {
  try {
    static const std::string* const schema = new std::string(ConfigSchemaJson());
    return schema->c_str();
  } catch (...) {
    return "{}";
  }
}

mr_status* mr_run_create(const mr_run_options* options, mr_run** out) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    RequirePointer(out, "out");
    const mr_run_options whole = CheckedOptions(options);
    *out = NewHandle(std::make_shared<LinkedRun>(whole));
  });
}

mr_status* mr_run_destroy(mr_run* run) {
  if (run == nullptr) return nullptr;
  return Guarded([&] { RunCall(run).Destroy(); });
}

mr_status* mr_run_info(mr_run* run, mr_info* info) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequireSized(info, "info");
    WriteSized(linked.Info(), info);
  });
}

mr_status* mr_run_config(mr_run* run, const char** json) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(json, "json");
    *json = linked.config_text().c_str();
  });
}

mr_status* mr_init(mr_run* run) {
  return OfRun(run, [](LinkedRun& linked) { linked.Init(); });
}

mr_status* mr_load(mr_run* run, const char* run_dir) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Load(TextOrNone(run_dir)); });
}

mr_status* mr_import(mr_run* run, const char* folder) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Import(folder); });
}

mr_status* mr_save(mr_run* run, const char* run_dir) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Save(TextOrNone(run_dir)); });
}

mr_status* mr_export(mr_run* run, const char* folder) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Export(folder); });
}

mr_status* mr_step(mr_run* run, const mr_batch* batch, mr_step_result* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Step(batch, result); });
}

mr_status* mr_evaluate(mr_run* run, const mr_batch* batch, mr_evaluation* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Evaluate(batch, result); });
}

mr_status* mr_score(mr_run* run, const mr_batch* batch, double* logprobs, int64_t count) {
  return OfRun(run, [&](LinkedRun& linked) {
    linked.Score(batch, {logprobs, nullptr, false, count});
  });
}

mr_status* mr_score_likeliest(mr_run* run, const mr_batch* batch, double* logprobs,
                              int32_t* likeliest, int64_t count) {
  return OfRun(run, [&](LinkedRun& linked) {
    linked.Score(batch, {logprobs, likeliest, true, count});
  });
}

mr_status* mr_release(mr_run* run, int32_t part, mr_memory* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Release(part, result); });
}

mr_status* mr_acquire(mr_run* run, mr_memory* result) {
  return OfRun(run, [&](LinkedRun& linked) { linked.Acquire(result); });
}

mr_status* mr_weights_count(mr_run* run, int64_t* count) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(count, "count");
    *count = static_cast<int64_t>(linked.named_weights().size());
  });
}

mr_status* mr_weights_name(mr_run* run, int64_t index, const char** name) {
  return OfRun(run, [&](LinkedRun& linked) {
    RequirePointer(name, "name");
    const auto& named = linked.named_weights();
    if (index < 0 || index >= static_cast<int64_t>(named.size()))
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("index is {}, of {} weights", index, named.size()));
    *name = named[static_cast<size_t>(index)].name.c_str();
  });
}

mr_status* mr_weights_borrow(mr_run* run, const char* name, DLManagedTensorVersioned** out,
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
