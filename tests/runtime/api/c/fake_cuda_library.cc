// A stand-in for libmillrace_cuda.so: each function says its name and what it was given, so that a
// test sees what libmillrace.so has asked, and whom.
//
// FAKE_NAME      which stand-in it is
// FAKE_VERSION   of its library, FAKE_LAYOUT of its table: those of the header unless defined
#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <type_traits>

#include "runtime/api/c/cuda_library.h"
#include "runtime/api/c/run_functions.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 1000000 * MR_VERSION_MAJOR + 1000 * MR_VERSION_MINOR + MR_VERSION_PATCH
#endif
#ifndef FAKE_LAYOUT
#define FAKE_LAYOUT RunFunctions::kLayout
#endif

namespace millrace {
namespace {

std::atomic<uintptr_t> runs = 0;
std::atomic<int64_t> answers_freed = 0;

template <class T>
std::string Text(T value) {
  if constexpr (std::is_pointer_v<T>)
    return fmt::format("{:#x}", reinterpret_cast<uintptr_t>(value));
  else
    return fmt::format("{}", value);
}

template <class... Args>
mr_status* Said(const char* function, Args... args) {
  std::string text = fmt::format("{} {}", FAKE_NAME, function);
  ((text += " " + Text(args)), ...);
  return mr_status_new(MR_IO, text.c_str());
}

// Whether the MPI that was asked for had begun by then. The real library would begin it otherwise.
mr_status* SaidWhetherMpiHasBegun(const mr_mpi& mpi) {
  void* const library = dlopen(mpi.library, RTLD_NOW);
  int begun = 0;
  reinterpret_cast<int (*)(int*)>(dlsym(library, "MPI_Initialized"))(&begun);
  return Said("mr_run_create, MPI begun", begun);
}

mr_status* Create(const mr_run_options* options, mr_run** out) {
  if (options->mpi != nullptr) return SaidWhetherMpiHasBegun(*options->mpi);
  if (options->log != nullptr) options->log(options->user, MR_LOG_INFO, FAKE_NAME);
  if (std::strstr(options->config, "refuse me") != nullptr) return Said("mr_run_create");
  *out = reinterpret_cast<mr_run*>(++runs << kHandleKindBits |
                                   static_cast<uintptr_t>(HandleKind::kCuda));
  return nullptr;
}

// Of `count` requests; but none of 7.
mr_status* Generate(mr_run* run, const mr_request* const* requests, int64_t count,
                    mr_answers** out) {
  if (count == 7) return Said("mr_generate", run, requests, count);
  *out = reinterpret_cast<mr_answers*>(count);
  return nullptr;
}
int64_t Count(const mr_answers* answers) { return reinterpret_cast<intptr_t>(answers); }
mr_status* Get(const mr_answers*, int64_t index, mr_answer* answer) {
  static std::array<int32_t, 3> tokens;
  static std::array<float, 3> logprobs;
  for (size_t i = 0; i < 3; ++i) {
    tokens[i] = static_cast<int32_t>(10 * index) + static_cast<int32_t>(i);
    logprobs[i] = -0.5f * static_cast<float>(tokens[i]);
  }
  static std::array<int32_t, 6> top_tokens;
  static std::array<float, 6> top_logprobs;
  for (size_t i = 0; i < 6; ++i) {
    top_tokens[i] = static_cast<int32_t>(100 * index) + static_cast<int32_t>(i);
    top_logprobs[i] = -0.25f * static_cast<float>(i);
  }
  *answer = {.size = sizeof *answer,
             .request = index,
             .sample = index + 1,
             .tokens = tokens.data(),
             .logprobs = logprobs.data(),
             .count = 3,
             .finish = MR_FINISH_STOP,
             .weight_version = 42,
             .top = index,
             .top_tokens = index == 0 ? nullptr : top_tokens.data(),
             .top_logprobs = index == 0 ? nullptr : top_logprobs.data()};
  return nullptr;
}
void Free(mr_answers*) { ++answers_freed; }

// Tokens 5 and 260 of sample 0, and 0 as what stops it.
mr_status* Stream(mr_run* run, const mr_request* const* requests, int64_t count,
                  const mr_stream_options* options) {
  if (options == nullptr || options->on_event == nullptr || options->tokenizer != nullptr)
    return Said("mr_stream", run, requests, count, options);
  for (const int32_t token : {5, 260, 0}) {
    mr_event event{};
    event.size = sizeof event;
    event.token = token;
    const float logprob = -0.5f;
    event.top = 1;
    event.top_tokens = &token;
    event.top_logprobs = &logprob;
    event.finish = token == 0 ? MR_FINISH_STOP : MR_FINISH_NOT_YET;
    if (mr_status* const failed = options->on_event(options->user, &event)) return failed;
    if (event.text != nullptr) return Said("mr_stream keeps the text");
    if (event.cancel != 0) return Said("mr_stream cancelled", token);
  }
  return nullptr;
}

#define SAYS(function) \
  .function = [](auto... args) -> mr_status* { return Said(#function, args...); }

constexpr RunFunctions kFake = {
    .layout = FAKE_LAYOUT,
    .version = FAKE_VERSION,
    .mr_run_create = Create,
    SAYS(mr_run_destroy),
    SAYS(mr_run_info),
    SAYS(mr_run_config),
    SAYS(mr_init),
    SAYS(mr_load),
    SAYS(mr_import),
    SAYS(mr_save),
    SAYS(mr_export),
    SAYS(mr_step),
    SAYS(mr_evaluate),
    SAYS(mr_score),
    SAYS(mr_score_likeliest),
    .mr_generate = Generate,
    .mr_answers_count = Count,
    .mr_answers_get = Get,
    .mr_answers_free = Free,
    .mr_stream = Stream,
    SAYS(mr_release),
    .mr_acquire =
        [](mr_run* run, mr_memory* result) {
          return Said("mr_acquire", run, result, answers_freed.load());
        },
    SAYS(mr_weights_count),
    SAYS(mr_weights_name),
    SAYS(mr_weights_borrow),
    SAYS(mr_weights_export),
};

}  // namespace
}  // namespace millrace

extern "C" MR_API const millrace::RunFunctions* mr_cuda_table() { return &millrace::kFake; }
