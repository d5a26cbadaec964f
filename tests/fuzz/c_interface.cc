// millrace.h: a configuration's text and, after a line "%%", bytes that say which calls follow,
// with which arguments. What is refused has a code, a message, and has changed nothing.
#include <algorithm>
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
    switch (source_.Below(9)) {
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
    FUZZ_REQUIRE(code != MR_OK || lent_.empty());
  }

  void Borrow() {
    const char* name = nullptr;
    if (Taken(mr_weights_name(run_, source_.Below(12), &name)) != MR_OK) return;
    DLManagedTensorVersioned* tensor = nullptr;
    if (Taken(mr_weights_borrow(run_, name, &tensor, nullptr)) == MR_OK) lent_.push_back(tensor);
    FUZZ_REQUIRE(tensor == nullptr || tensor->dl_tensor.strides != nullptr);
  }

  void Return() {
    for (DLManagedTensorVersioned* tensor : lent_) tensor->deleter(tensor);
    lent_.clear();
  }

  mr_run* const run_;
  fuzz::ByteSource& source_;
  std::vector<int32_t> tokens_;
  std::vector<DLManagedTensorVersioned*> lent_;
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
