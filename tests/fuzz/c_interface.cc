// millrace.h: a configuration's text and, after a line "%%", bytes that say which calls follow,
// with which arguments. What is refused has a code, a message, and has changed nothing.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/api/c/millrace.h"
#include "runtime/api/c/millrace_dlpack.h"
#include "runtime/config/load.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/run/model_options.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

// Whether a run of it is small: a model that plans for minutes is no finding.
bool IsSmall(const std::string& text) {
  const ConfigText config{"config", text};
  try {
    const Config c =
        LoadConfigTexts({&config, 1}, {}, {.world = 1, .caller_steps = true, .needs_data = false})
            .config;
    constexpr int64_t kMost = 1 << 16;
    return !c.model.init_from && c.model.layers <= 4 && c.model.seq_len <= 32 &&
           c.train.micro_batch <= 4 && c.train.Accumulate(1) <= 4 && c.model.d_model <= 64 &&
           Parameters(MakeModel(ModelOptionsOf(c))->spec()) <= kMost;
  } catch (const Error&) {
    return true;  // refused before anything is made
  }
}

// The code; what a status must have is looked at.
int32_t Taken(mr_status* status) {
  const int32_t code = mr_status_code(status);
  if (status != nullptr) {
    FUZZ_REQUIRE(code != MR_OK && code != MR_INTERNAL);
    FUZZ_REQUIRE(std::strcmp(mr_status_name(code), "unknown") != 0);
    FUZZ_REQUIRE(*mr_status_message(status) != 0);
    const char* const pointer = mr_status_pointer(status);
    FUZZ_REQUIRE(*pointer == 0 || (code == MR_CONFIG && *pointer == '/'));
    mr_status_free(status);
  }
  return code;
}

template <class T>
T Struct(fuzz::ByteSource& source) {
  T value{};
  value.size = source.Below(4) == 0 ? static_cast<size_t>(source.Integer(1)) : sizeof(T);
  return value;
}

class Calls {
 public:
  Calls(mr_run* run, fuzz::ByteSource& source) : run_(run), source_(source) {}
  ~Calls() { Return(); }

  // One of the calls, with arguments that are mostly right.
  void Next() {
    switch (source_.Below(13)) {
      case 0:
        Write(mr_init(run_));
        break;
      case 1: {
        mr_info info = Struct<mr_info>(source_);
        Taken(mr_run_info(run_, &info));
        break;
      }
      case 2:
        Step();
        break;
      case 3: {
        const mr_batch batch = Batch();
        mr_evaluation result = Struct<mr_evaluation>(source_);
        Taken(mr_evaluate(run_, source_.Below(8) == 0 ? nullptr : &batch, &result));
        break;
      }
      case 4:
        Borrow();
        if (source_.Below(4) == 1) Share();
        break;
      case 5:
        Return();
        break;
      case 6:
        Write(mr_load(run_, "/nonexistent"));
        break;
      case 7:
        Write(mr_import(run_, source_.Below(2) == 0 ? nullptr : "/nonexistent"));
        break;
      case 8: {
        const char* text = nullptr;
        Taken(mr_weights_name(run_, static_cast<int8_t>(source_.Integer(1)), &text));
        Taken(mr_run_config(run_, source_.Below(2) == 0 ? nullptr : &text));
        break;
      }
      case 9:
        Score();
        break;
      case 10:
        Stream();
        break;
      case 11:
        Release();
        break;
      case 12:
        Acquire();
        break;
    }
  }

 private:
  uint64_t Version() {
    mr_info info{};
    info.size = sizeof info;
    FUZZ_REQUIRE(Taken(mr_run_info(run_, &info)) == MR_OK);
    FUZZ_REQUIRE(info.lent == static_cast<int64_t>(lent_.size()));
    return info.weight_version;
  }

  void Write(mr_status* status) {
    if (const int32_t code = Taken(status); !lent_.empty())
      FUZZ_REQUIRE(code == MR_BORROWED || code == MR_INVALID_ARGUMENT);
  }

  mr_info Info() {
    mr_info info{};
    info.size = sizeof info;
    FUZZ_REQUIRE(Taken(mr_run_info(run_, &info)) == MR_OK);
    return info;
  }

  // A part, or none; what is released twice, or while it is lent, has changed nothing.
  void Release() {
    const int64_t before = Info().released_bytes;
    mr_memory result = Struct<mr_memory>(source_);
    const auto part = static_cast<int32_t>(source_.Below(5));
    const int32_t code = Taken(mr_release(run_, part, source_.Below(4) == 1 ? nullptr : &result));
    if (code == MR_OK) {
      FUZZ_REQUIRE(!released_ && part >= MR_PART_ERA && part <= MR_PART_ALL);
      FUZZ_REQUIRE(part != MR_PART_ALL || lent_.empty());
      released_ = true;
      FUZZ_REQUIRE(part == MR_PART_COPIES || Info().released_bytes > 0);
    } else {
      FUZZ_REQUIRE(Info().released_bytes == before);
      FUZZ_REQUIRE(code == MR_INVALID_ARGUMENT || code == MR_RUN_FAILED ||
                   (code == MR_RELEASED && released_) || (code == MR_BORROWED && !lent_.empty()));
    }
  }

  void Acquire() {
    mr_memory result = Struct<mr_memory>(source_);
    const int32_t code = Taken(mr_acquire(run_, source_.Below(4) == 1 ? nullptr : &result));
    FUZZ_REQUIRE(code == MR_INVALID_ARGUMENT || code == MR_RUN_FAILED ||
                 (code == MR_OK && released_));
    if (code == MR_OK) released_ = false;
    FUZZ_REQUIRE(released_ || Info().released_bytes == 0);
  }

  mr_batch Batch() {
    mr_info info{};
    info.size = sizeof info;
    Taken(mr_run_info(run_, &info));
    const int64_t rows =
        source_.Below(4) == 0 ? static_cast<int8_t>(source_.Integer(1)) % 9 : info.step_sequences;
    tokens_.assign(static_cast<size_t>(std::max<int64_t>(rows, 0) * (info.seq_len + 1)), 0);
    for (int32_t& token : tokens_)
      token = source_.Below(64) == 0 ? static_cast<int32_t>(source_.Integer(4))
                                     : static_cast<int32_t>(source_.Below(info.vocab));
    mr_batch batch = Struct<mr_batch>(source_);
    batch.tokens = source_.Below(16) == 1 ? nullptr : tokens_.data();
    batch.sequences = rows;
    static const float kFloats[1] = {};
    if (source_.Below(16) == 1) batch.weights = kFloats;
    return batch;
  }

  void Step() {
    const uint64_t before = Version();
    const mr_batch batch = Batch();
    mr_step_result result = Struct<mr_step_result>(source_);
    const int32_t code = Taken(mr_step(run_, &batch, &result));
    FUZZ_REQUIRE(code == MR_OK || Version() == before);
    FUZZ_REQUIRE(code != MR_OK || (lent_.empty() && !released_));
  }

  void Score() {
    const mr_batch batch = Batch();
    const int64_t count = source_.Below(8) == 1 ? static_cast<int8_t>(source_.Integer(1))
                                                : batch.sequences * SequenceLength();
    std::vector<double> logprobs(static_cast<size_t>(std::max<int64_t>(count, 0)) + 1, 1);
    std::vector<int32_t> likeliest(logprobs.size(), -2);
    const int32_t code = Taken(mr_score_likeliest(
        run_, &batch, logprobs.data(), source_.Below(8) == 1 ? nullptr : likeliest.data(), count));
    FUZZ_REQUIRE(logprobs.back() == 1 && likeliest.back() == -2);  // not the library's
    if (code != MR_OK) return;
    for (int64_t i = 0; i < count; ++i)
      FUZZ_REQUIRE(!(logprobs[static_cast<size_t>(i)] > 0) &&
                   likeliest[static_cast<size_t>(i)] != -2);
  }

  int64_t SequenceLength() {
    mr_info info{};
    info.size = sizeof info;
    Taken(mr_run_info(run_, &info));
    return info.seq_len;
  }

  // Requests of a few tokens, a callback that cancels or fails at some event, and what it must have
  // heard by the end: of each sample that has begun its tokens in order, and of all an end.
  void Stream() {
    struct Listener {
      mr_run* run = nullptr;
      int64_t events = 0, ends = 0, cancels_at = -1, fails_at = -1;
      static mr_status* Hear(void* user, mr_event* event) {
        Listener& self = *static_cast<Listener*>(user);
        FUZZ_REQUIRE(event->size == sizeof(mr_event) && event->text == nullptr);
        FUZZ_REQUIRE((event->token < 0) == (event->finish == MR_FINISH_CANCELLED));
        FUZZ_REQUIRE(mr_run_destroy(nullptr) == nullptr && Taken(mr_init(self.run)) == MR_BUSY);
        self.ends += event->finish != MR_FINISH_NOT_YET;
        if (self.events == self.cancels_at) event->cancel = 1;
        return self.events++ == self.fails_at ? mr_status_new(MR_TIMEOUT, "enough") : nullptr;
      }
    } listener;
    listener.run = run_;
    if (source_.Below(3) == 1) listener.cancels_at = source_.Below(8);
    if (source_.Below(3) == 1) listener.fails_at = source_.Below(8);
    std::vector<int32_t> prompt(source_.Below(5));
    for (int32_t& token : prompt) token = static_cast<int8_t>(source_.Integer(1));
    mr_request request = Struct<mr_request>(source_);
    request.prompt = prompt.data();
    request.prompt_tokens = static_cast<int64_t>(prompt.size());
    request.max_tokens = source_.Below(6);
    request.samples = source_.Below(4);
    request.temperature = static_cast<float>(source_.Below(3)) / 2;
    const mr_request* requests[2] = {&request, &request};
    mr_stream_options options = Struct<mr_stream_options>(source_);
    options.user = &listener;
    options.on_event = source_.Below(16) == 1 ? nullptr : Listener::Hear;
    const int32_t code = Taken(mr_stream(run_, requests, 2, &options));
    const bool whole = request.size >= offsetof(mr_request, samples) + sizeof request.samples;
    const int64_t samples = 2 * (whole ? std::max<int64_t>(request.samples, 1) : 1);
    FUZZ_REQUIRE(code != MR_OK || listener.ends == samples);
    FUZZ_REQUIRE(listener.events == 0 || code == MR_OK || code == MR_NON_FINITE ||
                 (code == MR_TIMEOUT && listener.events == listener.fails_at + 1));
  }

  void Borrow() {
    const char* name = nullptr;
    if (Taken(mr_weights_name(run_, source_.Below(12), &name)) != MR_OK) return;
    DLManagedTensorVersioned* tensor = nullptr;
    if (Taken(mr_weights_borrow(run_, name, &tensor, nullptr)) == MR_OK) lent_.push_back(tensor);
    FUZZ_REQUIRE(tensor == nullptr || tensor->dl_tensor.strides != nullptr);
  }

  void Share() {
    auto shared = Struct<mr_shared_weights>(source_);
    shared.fd = -1;
    const int32_t code = Taken(mr_weights_export(run_, &shared));
    FUZZ_REQUIRE((code == MR_OK) == (shared.fd >= 0));
    if (code == MR_OK) close(shared.fd);
  }

  void Return() {
    for (DLManagedTensorVersioned* tensor : lent_) tensor->deleter(tensor);
    lent_.clear();
  }

  mr_run* const run_;
  fuzz::ByteSource& source_;
  std::vector<int32_t> tokens_;
  std::vector<DLManagedTensorVersioned*> lent_;
  bool released_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string_view> parts = fuzz::Parts(input, 2);
  const std::string config(parts[0]);
  if (!IsSmall(config)) return 0;
  fuzz::ByteSource source(parts[1]);
  mr_run_options options = Struct<mr_run_options>(source);
  options.config = config.c_str();
  options.world = source.Below(32) == 1 ? static_cast<int8_t>(source.Integer(1)) : 0;
  options.rank = source.Below(32) == 1 ? static_cast<int8_t>(source.Integer(1)) : 0;
  options.use_inference = source.Below(4) == 1 ? 1 : 0;
  mr_run* run = nullptr;
  const int32_t code = Taken(mr_run_create(&options, &run));
  FUZZ_REQUIRE((code == MR_OK) == (run != nullptr));
  if (run == nullptr) return 0;
  {
    Calls calls(run, source);
    for (int i = 0; i < 24 && !source.empty(); ++i) calls.Next();
  }
  FUZZ_REQUIRE(Taken(mr_run_destroy(run)) == MR_OK);
  FUZZ_REQUIRE(Taken(mr_init(run)) == MR_INVALID_ARGUMENT);
  return 0;
}
