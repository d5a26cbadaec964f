// The functions of millrace.h: those about a run go to the library that has it, this one or that
// for CUDA (run_functions.h). Those about statuses, tokenizers and answers are with these.
#include "runtime/api/c/millrace.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/api/backend.h"
#include "runtime/api/c/answers.h"
#include "runtime/api/c/cuda_library.h"
#include "runtime/api/c/event_text.h"
#include "runtime/api/c/mpi_exchange.h"
#include "runtime/api/c/run_functions.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"
#include "runtime/base/json.h"
#include "runtime/config/document.h"

using namespace millrace;

namespace {

// Of a handle that nobody has given out, this library says so.
const RunFunctions& FunctionsOf(const mr_run* run) noexcept {
  const RunFunctions* const cuda = IsOfCuda(run) ? OpenedCudaLibrary() : nullptr;
  return cuda == nullptr ? OwnFunctions() : *cuda;
}

template <auto RunFunctions::*kFunction, class... Args>
mr_status* OfItsLibrary(mr_run* run, Args... args) noexcept {
  return (FunctionsOf(run).*kFunction)(run, args...);
}

// Whether the configuration says so in so many words. What else is wrong with it, or with the
// options, is for the library to say that gets them.
bool AskForCuda(const mr_run_options* options) {
  if (options == nullptr || options->size <= offsetof(mr_run_options, config)) return false;
  const mr_run_options whole = ReadSized(options, "options");
  if (whole.config == nullptr) return false;
  const nlohmann::json config = TryParseJson(whole.config);
  if (!config.is_object() || !config.contains("execution")) return false;
  const auto& execution = config["execution"];
  if (!execution.is_object()) return false;
  const auto backend = execution.find("backend");  // whatever lies there, however deep, is no copy
  return backend != execution.end() && backend->is_string() &&
         backend->get_ref<const std::string&>() == "cuda";
}

// Where this rank has no library for CUDA, its peers wait for it in their exchange, and the library
// that refuses the configuration tells them.
const RunFunctions& FunctionsFor(const mr_run_options* options) {
  if (CudaBuiltIn() || !AskForCuda(options)) return OwnFunctions();
  const mr_run_options whole = ReadSized(options, "options");
  try {
    const RunFunctions& cuda = OpenCudaLibrary();
    // Either library begins an MPI that has not begun, and one lock sees to it that one does.
    if (whole.mpi != nullptr) BeginMpi(ReadSized(whole.mpi, "options.mpi"));
    return cuda;
  } catch (...) {
    mr_run* none = nullptr;
    if (whole.world > 1 || whole.mpi != nullptr)
      mr_status_free(OwnFunctions().mr_run_create(options, &none));
    throw;
  }
}

#define MR_TEXT_OF(x) #x
#define MR_DOTTED(major, minor, patch) MR_TEXT_OF(major) "." MR_TEXT_OF(minor) "." MR_TEXT_OF(patch)

}  // namespace

const char* mr_version(void) {
  return MR_DOTTED(MR_VERSION_MAJOR, MR_VERSION_MINOR, MR_VERSION_PATCH);
}

int32_t mr_version_number(void) { return OwnFunctions().version; }

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
  const RunFunctions* functions = nullptr;
  if (mr_status* const failed = Guarded([&] { functions = &FunctionsFor(options); })) return failed;
  return functions->mr_run_create(options, out);
}

mr_status* mr_generate(mr_run* run, const mr_request* const* requests, int64_t count,
                       mr_answers** out) {
  const RunFunctions& functions = FunctionsOf(run);
  mr_answers* made = nullptr;
  mr_status* const status =
      functions.mr_generate(run, requests, count, out == nullptr ? nullptr : &made);
  if (out == nullptr) return status;
  *out = made;
  if (status != nullptr || &functions == &OwnFunctions()) return status;
  *out = nullptr;
  mr_status* const failed = Guarded([&] { *out = CopyOf(functions, made); });
  functions.mr_answers_free(made);
  return failed;
}

mr_status* mr_stream(mr_run* run, const mr_request* const* requests, int64_t count,
                     const mr_stream_options* options) {
  const RunFunctions& functions = FunctionsOf(run);
  std::optional<TextedStream> texted;
  if (&functions != &OwnFunctions()) {
    mr_status* const failed = Guarded([&] {
      if (!IsSized(options)) return;  // the run refuses them, and its peers hear
      const mr_stream_options whole = ReadSized(options, "options");
      if (whole.tokenizer != nullptr && whole.on_event != nullptr) texted.emplace(whole);
    });
    if (failed != nullptr) {  // peers wait for this rank
      mr_status_free(functions.mr_stream(run, requests, count, nullptr));
      return failed;
    }
  }
  return functions.mr_stream(run, requests, count, texted ? texted->options() : options);
}

mr_status* mr_run_destroy(mr_run* run) { return OfItsLibrary<&RunFunctions::mr_run_destroy>(run); }

mr_status* mr_run_info(mr_run* run, mr_info* info) {
  return OfItsLibrary<&RunFunctions::mr_run_info>(run, info);
}

mr_status* mr_run_config(mr_run* run, const char** json) {
  return OfItsLibrary<&RunFunctions::mr_run_config>(run, json);
}

mr_status* mr_init(mr_run* run) { return OfItsLibrary<&RunFunctions::mr_init>(run); }

mr_status* mr_load(mr_run* run, const char* run_dir) {
  return OfItsLibrary<&RunFunctions::mr_load>(run, run_dir);
}

mr_status* mr_import(mr_run* run, const char* folder) {
  return OfItsLibrary<&RunFunctions::mr_import>(run, folder);
}

mr_status* mr_save(mr_run* run, const char* run_dir) {
  return OfItsLibrary<&RunFunctions::mr_save>(run, run_dir);
}

mr_status* mr_export(mr_run* run, const char* folder) {
  return OfItsLibrary<&RunFunctions::mr_export>(run, folder);
}

mr_status* mr_step(mr_run* run, const mr_batch* batch, mr_step_result* result) {
  return OfItsLibrary<&RunFunctions::mr_step>(run, batch, result);
}

mr_status* mr_evaluate(mr_run* run, const mr_batch* batch, mr_evaluation* result) {
  return OfItsLibrary<&RunFunctions::mr_evaluate>(run, batch, result);
}

mr_status* mr_score(mr_run* run, const mr_batch* batch, double* logprobs, int64_t count) {
  return OfItsLibrary<&RunFunctions::mr_score>(run, batch, logprobs, count);
}

mr_status* mr_score_likeliest(mr_run* run, const mr_batch* batch, double* logprobs,
                              int32_t* likeliest, int64_t count) {
  return OfItsLibrary<&RunFunctions::mr_score_likeliest>(run, batch, logprobs, likeliest, count);
}

mr_status* mr_release(mr_run* run, int32_t part, mr_memory* result) {
  return OfItsLibrary<&RunFunctions::mr_release>(run, part, result);
}

mr_status* mr_acquire(mr_run* run, mr_memory* result) {
  return OfItsLibrary<&RunFunctions::mr_acquire>(run, result);
}

mr_status* mr_weights_count(mr_run* run, int64_t* count) {
  return OfItsLibrary<&RunFunctions::mr_weights_count>(run, count);
}

mr_status* mr_weights_name(mr_run* run, int64_t index, const char** name) {
  return OfItsLibrary<&RunFunctions::mr_weights_name>(run, index, name);
}

mr_status* mr_weights_borrow(mr_run* run, const char* name, DLManagedTensorVersioned** out,
                             uint64_t* version) {
  return OfItsLibrary<&RunFunctions::mr_weights_borrow>(run, name, out, version);
}

mr_status* mr_weights_export(mr_run* run, mr_shared_weights* out) {
  return OfItsLibrary<&RunFunctions::mr_weights_export>(run, out);
}
