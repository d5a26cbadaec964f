// millrace.h: a configuration's text and, after a line "%%", bytes that say which calls follow,
// with which arguments. What is refused has a code, a message, and has changed nothing.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/api/c/millrace.h"
#include "runtime/api/c/millrace_dlpack.h"
#include "runtime/config/load.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/run/model_options.h"
#include "runtime/text/bpe/byte_alphabet.h"
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

// A file with a token for each byte, and no other.
const char* TokenizerPath() {
  static const fuzz::MemoryFile* const file = [] {
    nlohmann::json vocab;
    for (int byte = 0; byte < 256; ++byte)
      vocab[SymbolsOfBytes(std::string(1, static_cast<char>(byte)))] = byte;
    nlohmann::json tokenizer = {{"version", "1.0"}};
    for (const char* part : {"pre_tokenizer", "decoder"})
      tokenizer[part] = {
          {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}};
    tokenizer["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
    auto* const made = new fuzz::MemoryFile;
    made->Set(tokenizer.dump());
    return made;
  }();
  return file->path().c_str();
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
  ~Calls() {
    Return();
    if (answers_live_) mr_answers_free(answers_);
    if (tokenizer_live_) mr_tokenizer_free(tokenizer_);
  }

  // One of the calls, with arguments that are mostly right.
  void Next() {
    switch (source_.Below(15)) {
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
      case 13:
        Answers();
        break;
      case 14:
        Tokenizer();
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
      int64_t top = 0;
      bool has_texts = false;
      static mr_status* Hear(void* user, mr_event* event) {
        Listener& self = *static_cast<Listener*>(user);
        FUZZ_REQUIRE(event->size == sizeof(mr_event) && (event->text != nullptr) == self.has_texts);
        FUZZ_REQUIRE((event->token < 0) == (event->finish == MR_FINISH_CANCELLED));
        FUZZ_REQUIRE(event->top == (event->token < 0 ? 0 : self.top));
        for (int64_t i = 1; i < event->top; ++i)
          FUZZ_REQUIRE(event->top_logprobs[i - 1] >= event->top_logprobs[i]);
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
    request.top_logprobs = source_.Below(4) - 1;
    listener.top = request.size == sizeof request ? request.top_logprobs : 0;
    const mr_request* requests[2] = {&request, &request};
    mr_stream_options options = Struct<mr_stream_options>(source_);
    options.user = &listener;
    options.on_event = source_.Below(16) == 1 ? nullptr : Listener::Hear;
    if (tokenizer_ != nullptr && source_.Below(2) == 1) options.tokenizer = tokenizer_;
    const bool asks_for_texts = options.tokenizer != nullptr && options.size == sizeof options;
    listener.has_texts = asks_for_texts && tokenizer_live_;
    const int32_t code = Taken(mr_stream(run_, requests, 2, &options));
    FUZZ_REQUIRE(code != MR_OK || !asks_for_texts || tokenizer_live_);
    const bool whole = request.size >= offsetof(mr_request, samples) + sizeof request.samples;
    const int64_t samples = 2 * (whole ? std::max<int64_t>(request.samples, 1) : 1);
    FUZZ_REQUIRE(code != MR_OK || listener.ends == samples);
    FUZZ_REQUIRE(listener.events == 0 || code == MR_OK || code == MR_NON_FINITE ||
                 (code == MR_TIMEOUT && listener.events == listener.fails_at + 1));
  }

  // What was given out, be it live or freed, or any number.
  template <class Handle>
  Handle* SomeHandle(Handle* given) {
    if (source_.Below(3) != 1) return given;
    return reinterpret_cast<Handle*>(source_.Integer(source_.Below(2) == 1 ? 8 : 2));
  }

  // Answers are made, read and freed, also those that are none any more.
  void Answers() {
    if (!answers_live_ && source_.Below(3) != 1) {
      const int32_t prompt[] = {0, 1};
      mr_request request{};
      request.size = sizeof request;
      request.prompt = prompt;
      request.prompt_tokens = source_.Below(3);
      request.max_tokens = source_.Below(4);
      request.top_logprobs = source_.Below(3);
      const mr_request* const requests[] = {&request};
      mr_answers* made = nullptr;
      answers_live_ = Taken(mr_generate(run_, requests, 1, &made)) == MR_OK;
      FUZZ_REQUIRE(answers_live_ == (made != nullptr));
      if (answers_live_) answers_ = made;
    }
    mr_answers* const answers = SomeHandle(answers_);
    const bool live = answers_live_ && answers == answers_;
    const int64_t count = mr_answers_count(answers), index = source_.Below(3) - 1;
    FUZZ_REQUIRE(count == (live ? 1 : 0));
    mr_answer answer = Struct<mr_answer>(source_);
    const int32_t code = Taken(mr_answers_get(answers, index, &answer));
    FUZZ_REQUIRE(code == MR_INVALID_ARGUMENT || (code == MR_OK && index >= 0 && index < count));
    if (source_.Below(2) == 0) return;
    mr_answers_free(answers);
    answers_live_ &= !live;
  }

  // The same of a tokenizer.
  void Tokenizer() {
    if (!tokenizer_live_ && source_.Below(3) != 1) {
      FUZZ_REQUIRE(Taken(mr_tokenizer_open(TokenizerPath(), &tokenizer_)) == MR_OK);
      tokenizer_live_ = true;
    }
    mr_tokenizer* const tokenizer = SomeHandle(tokenizer_);
    const bool live = tokenizer_live_ && tokenizer == tokenizer_;
    const std::string text = source_.Text();
    int32_t ids[8] = {};
    int64_t count = 0, bytes = 0;
    const auto length = static_cast<int64_t>(text.size()), room = source_.Below(9);
    const int32_t code =
        Taken(mr_tokenizer_encode(tokenizer, text.data(), length, 0, ids, room, &count));
    FUZZ_REQUIRE(live ? code == MR_OK || code == MR_DATA : code == MR_INVALID_ARGUMENT);
    FUZZ_REQUIRE(count == (code == MR_OK ? length : 0));  // an id for each byte
    char back[8] = {};
    const int64_t known = std::min(count, room);
    const int32_t decoded =
        Taken(mr_tokenizer_decode(tokenizer, ids, known, 0, back, sizeof back, &bytes));
    FUZZ_REQUIRE(decoded == (live ? MR_OK : MR_INVALID_ARGUMENT));
    FUZZ_REQUIRE(bytes == known && text.compare(0, bytes, back, bytes) == 0);
    int32_t id = 0;
    FUZZ_REQUIRE(Taken(mr_tokenizer_find(tokenizer, "<|none|>", &id)) == decoded);
    FUZZ_REQUIRE(id == (live ? -1 : 0));
    if (source_.Below(2) == 0) return;
    mr_tokenizer_free(tokenizer);
    tokenizer_live_ &= !live;
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
  mr_answers* answers_ = nullptr;
  mr_tokenizer* tokenizer_ = nullptr;
  bool answers_live_ = false, tokenizer_live_ = false;
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
